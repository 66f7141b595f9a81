# SPDX-License-Identifier: Apache-2.0
"""Tests of the conversion of messages, without a ROS graph or a node."""

import array

import cv2
import numpy as np
import pytest
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, Image

from trt_perception.images.jpeg import JpegFrameReader
from trt_perception.ros.camera import messages
from trt_perception.wire.frames import read_compressed_frame, read_image_frame

pytestmark = pytest.mark.each_distro


def test_pixels_of_a_message_of_rclpy_are_viewed_not_copied():
    message = Image(encoding='bgr8', width=4, height=2, step=14)
    message.data = array.array('B', range(2 * 14))
    frame = messages.frame_from_image(message)
    message.data[0] = 99
    assert frame.data[0] == 99


def assert_same_frames(frame, expected):
    np.testing.assert_array_equal(frame.data, expected.data)
    for name in ('width', 'height', 'step', 'format', 'big_endian', 'is_decoded', 'warning'):
        assert getattr(frame, name) == getattr(expected, name), name


@pytest.mark.parametrize('encoding', ['mono16', '8UC3'])
@pytest.mark.parametrize('is_bigendian', [0, 1])
def test_message_of_rclpy_gives_the_frame_of_its_bytes(encoding, is_bigendian):
    message = Image(encoding=encoding, width=2, height=2, step=7, is_bigendian=is_bigendian)
    message.data = array.array('B', range(14))
    for read in (messages.frame_from_image, messages.FrameReader()):
        assert_same_frames(read(message), read_image_frame(serialize_message(message))[1])


@pytest.mark.parametrize('name', ['png', 'mono16; png compressed ', 'rgb8; png compressed rgb8'])
def test_compressed_message_of_rclpy_gives_the_frame_of_its_bytes(name):
    file = cv2.imencode('.png', np.full((4, 6), 2**12, np.uint16))[1]
    message = CompressedImage(format=name, data=array.array('B', file.tobytes()))
    _, expected = read_compressed_frame(serialize_message(message))
    for read in (messages.frame_from_compressed, messages.CompressedReader(JpegFrameReader())):
        assert_same_frames(read(message), expected)
