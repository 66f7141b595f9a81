# SPDX-License-Identifier: Apache-2.0
"""Test which messages the inputs of detections_3d keep and count, without DDS."""

import weakref
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CameraInfo, Image
from std_msgs.msg import Header

from trt_perception.parameters.boxes_3d import BoxParameters
from trt_perception.ros.boxes_3d.inputs import Inputs
from trt_perception.ros.boxes_3d.worker import BoxWorker
from trt_perception.ros.intake.intake import SerializedMessage

MEBIBYTE = 2**20


class Received:
    """The inputs of a node without subscriptions, and the reports about their messages."""

    def __init__(self):
        self.reports = []
        node = Mock(resolve_topic_name=lambda name: f'/{name}')
        self.worker = BoxWorker(BoxParameters(), Mock(), self.reports.append, Mock())
        inputs = Inputs(node, self.worker, 'raw', 'auto', self.reports.append)
        self._topics = inputs.topics

    def add(self, name, content):
        data = np.frombuffer(content, np.uint8) if isinstance(content, bytes) else content
        message = SerializedMessage(data, data.size, SimpleNamespace(message_bytes=data.size))
        self._topics[name].on_image(message, None, 0, 0)

    @property
    def counts(self):
        return self.worker.facts().counts


@pytest.fixture
def received():
    return Received()


def image_bytes(stamp):
    header = Header(frame_id='optical')
    header.stamp.sec = stamp
    return serialize_message(Image(header=header, width=1, height=1, encoding='16UC1'))


@pytest.mark.parametrize('name', ['depth', 'masks'])
def test_unused_bytes_of_a_message_count_as_kept_bytes(name, received):
    messages = []
    for stamp in range(20):
        data = np.zeros(32 * MEBIBYTE, np.uint8)
        content = image_bytes(stamp)
        data[: len(content)] = np.frombuffer(content, np.uint8)
        received.add(name, data)
        messages.append(weakref.ref(data))
        del data
    assert not received.reports
    assert sum(message() is not None for message in messages) == 8  # 256 MiB


@pytest.mark.parametrize('name', ['depth', 'camera_info'])
def test_refused_messages_are_counted_as_received(name, received):
    received.add(name, b'no message')
    assert [report.reason for report in received.reports] == ['bad_message']
    assert received.counts == {f'received: {name}': 1}


def test_refused_detections_are_counted_once(received):
    received.add('detections', b'no message')
    assert received.counts == {'received': 1, 'bad_message': 1}


def test_equal_calibrations_are_counted(received):
    for stamp in range(3):
        info = CameraInfo()
        info.header.stamp.sec = stamp
        received.add('camera_info', serialize_message(info))
    assert received.counts == {'received: camera_info': 3}
