# SPDX-License-Identifier: Apache-2.0
"""Tests of the end of the intake over DDS: during images, in any order, without leftovers."""

import gc
import threading
import time

import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image

from support.camera_callbacks import FaultCallback
from support.nodes.graph import command_image
from support.nodes.intake_taker import VGA, MessageSink, intakes, topics
from support.nodes.patient_publisher import until_accepted
from support.waiting import wait_until
from trt_perception.parameters.values import ParameterValues
from trt_perception.ros.camera.image_input import ImageInput
from trt_perception.ros.camera.messages import frame_from_image
from trt_perception.ros.camera.transport_choice import RAW
from trt_perception.ros.intake.buffers import MessageBuffers
from trt_perception.ros.intake.shared_intake import SharedIntake

pytest_plugins = ['support.nodes.graph_fixtures']


def test_intake_ends_100_times_while_images_arrive(make_taker):
    taker = make_taker()
    taker.camera('320x240', hz=0, depth=1)
    arrived = 0
    for number in range(100):
        images = []
        taker.open(images.append)
        if number % 10 == 0:
            taker.client.spin_until(lambda images=images: images, 'an image')
        time.sleep(0.0007 * (number % 7))
        taker.input.close()
        arrived += len(images)
        after = len(images)
        assert intakes() == 0
        time.sleep(0.002)
        assert len(images) == after
        del images[:]
    assert arrived >= 10
    taker.input = None
    gc.collect()
    taker.buffers.close()
    assert taker.buffers.count == 0


@pytest.mark.parametrize('first', ['node', 'context', 'neither'])
def test_node_context_and_subscription_can_end_in_any_order(first):
    context = rclpy.Context()
    rclpy.init(context=context)
    topic = next(topics)
    remap = ['--ros-args', '-r', f'image:={topic}']
    node = LifecycleNode('ends', context=context, cli_args=remap)
    executor = SingleThreadedExecutor(context=context)
    images = []
    intake = SharedIntake(
        node, MessageBuffers, uses_rclpy=False, fault_handler=FaultCallback(pytest.fail)
    )
    image_input = ImageInput(node, ParameterValues(), RAW, intake, MessageSink(images.append), 0)
    assert intakes() == 1
    camera = node.create_publisher(Image, topic, QoSProfile(depth=1))
    wait_until(lambda: until_accepted(lambda: camera.publish(command_image(1, 1))) or images)
    executor.shutdown()
    if first == 'node':
        node.destroy_node()
    elif first == 'context':
        rclpy.shutdown(context=context)
        wait_until(lambda: not intakes())  # the thread ends without a call of `close`
    image_input.close()
    assert intakes() == 0
    image_input.close()
    assert frame_from_image(images[0]).data[0] == 1  # the memory of a kept image is still valid
    if first != 'node':
        node.destroy_node()
    rclpy.try_shutdown(context=context)


def test_error_in_the_receiver_ends_the_thread_until_a_new_subscription(make_taker):
    taker = make_taker()
    broken = threading.Event()
    broken.set()

    def receive(arrived):
        if broken.is_set():
            raise RuntimeError('the receiver broke')
        taker.images.append(arrived)

    taker.open(receive)
    assert not taker.input.resubscribe_if_lost()
    taker.camera(VGA, hz=50)
    taker.client.spin_until(lambda: not intakes(), 'the end of the thread')
    assert 'the receiver broke' in taker.logged[0]
    broken.clear()
    assert taker.input.resubscribe_if_lost()
    taker.wait(3)
    assert not taker.input.resubscribe_if_lost()


def test_failed_subscription_leaves_nothing_behind(make_taker, monkeypatch):
    taker = make_taker()
    node = taker.client.node

    def fail(*_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, 'start', fail)
        with pytest.raises(RuntimeError, match="can't start"):
            taker.open()
    assert intakes() == 0
    gc.collect()
    taker.client.spin_until(lambda: not node.count_subscribers(taker.topic), 'no subscription')
    taker.open()
    camera = taker.publisher()
    camera.publish(command_image(1, 1))
    taker.wait(1)
    node.destroy_publisher(camera)
