# SPDX-License-Identifier: Apache-2.0
"""Tests of publishing without rclpy: the same message arrives, and other threads run."""

import os
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
import rclpy
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import Image
from std_msgs.msg import String

from support.nodes.patient_publisher import until_accepted
from support.programs import DEADLINE_S
from trt_perception.ros.wire import unlocked_publish
from trt_perception.ros.wire.rcl import RclError
from trt_perception.ros.wire.unlocked_publish import publish_unlocked

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro


def test_published_bytes_equal_those_of_rclpy(client, node):
    publisher = node.create_publisher(String, 'words', 1)
    words = []
    subscription = client.node.create_subscription(
        String, 'words', words.append, QoSProfile(depth=10), raw=True
    )
    client.spin_until(publisher.get_subscription_count, 'a subscriber')
    data = serialize_message(String(data='größer'))
    until_accepted(lambda: publish_unlocked(publisher, bytearray(data)))
    client.spin_until(lambda: words, 'the message')
    assert deserialize_message(words[0], String).data == 'größer'
    node.destroy_publisher(publisher)
    client.node.destroy_subscription(subscription)


def test_rclpy_publishes_if_rcl_differs(client, node, monkeypatch, caplog):
    def refuse():
        raise RclError('rcutils_uint8_array_t', 'another layout')

    monkeypatch.setattr(unlocked_publish, 'load_rcl', refuse)
    publisher = node.create_publisher(String, 'words', 1)
    words = []
    subscription = client.node.create_subscription(String, 'words', words.append, 10)
    client.spin_until(publisher.get_subscription_count, 'a subscriber')
    unlocked_publish._libraries.cache_clear()
    try:
        for text in ('first', 'second'):
            message = bytearray(serialize_message(String(data=text)))
            until_accepted(partial(publish_unlocked, publisher, message))
    finally:
        unlocked_publish._libraries.cache_clear()
    client.spin_until(lambda: len(words) == 2, 'the messages')
    assert [word.data for word in words] == ['first', 'second']
    assert len(caplog.records) == 1
    node.destroy_publisher(publisher)
    client.node.destroy_subscription(subscription)


def test_other_threads_run_while_a_message_is_published(node):
    publisher = node.create_publisher(Image, 'large', 1)
    message = bytearray(serialize_message(Image()) + bytes(2**24))
    ticks, stop = [0], threading.Event()

    def tick():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0)

    ticker = threading.Thread(target=tick)
    ticker.start()
    interval, end = sys.getswitchinterval(), time.monotonic() + DEADLINE_S
    ticks_during_publish = 0
    try:
        # Threads now release the GIL only in waits and in calls that release it.
        sys.setswitchinterval(10 * DEADLINE_S)
        while not ticks_during_publish and time.monotonic() < end:
            before = ticks[0]
            until_accepted(partial(publish_unlocked, publisher, message))
            ticks_during_publish = ticks[0] - before
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        ticker.join()
        node.destroy_publisher(publisher)
    assert ticks_during_publish


def test_error_of_the_middleware_is_raised(node):
    publisher = node.create_publisher(String, 'words', 1)
    node.destroy_publisher(publisher)
    with pytest.raises(Exception, match='destruction was requested'):
        publish_unlocked(publisher, np.zeros(8, np.uint8))


@pytest.mark.skipif(
    os.environ.get('ROS_DISTRO') == 'kilted', reason='in Kilted, publishers end with their context'
)
def test_error_contains_the_reason_of_the_middleware():
    context = rclpy.Context()
    rclpy.init(context=context)
    node = rclpy.create_node('too_late', context=context)
    publisher = node.create_publisher(String, 'words', 1)
    rclpy.shutdown(context=context)
    with pytest.raises(RuntimeError, match=r'context .*invalid'):
        publish_unlocked(publisher, np.zeros(8, np.uint8))
    node.destroy_node()
