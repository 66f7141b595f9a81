# SPDX-License-Identifier: Apache-2.0
"""Images that are serialised without rclpy equal the messages that rclpy reads and writes."""

import numpy as np
import pytest
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header

from trt_perception.wire.image_message import (
    compressed_message_start,
    image_message_start,
    serialize_in_place,
    serialize_with_room,
)

pytestmark = [pytest.mark.ros, pytest.mark.each_distro]

#: Every remainder of the length by 4, and characters of several bytes.
FRAME_IDS = ['', 'a', 'ab', 'abc', 'abcd', 'Kamera größer']


def header_with(frame_id):
    header = Header(frame_id=frame_id)
    header.stamp.sec, header.stamp.nanosec = -5, 4_000_000_000
    return header


def written(start, data):
    """Return a message whose data were written into its memory."""
    message, room = serialize_with_room(start)
    room[:] = data
    return message


def check(message, expected):
    """Check that rclpy reads the expected message, and writes one of the same length."""
    assert deserialize_message(bytes(message), type(expected)) == expected
    assert len(message) == len(serialize_message(expected))


@pytest.mark.parametrize('frame_id', FRAME_IDS)
@pytest.mark.parametrize(
    ('encoding', 'pixel_bytes', 'rows'),
    [('mono8', 1, None), ('32FC1', 4, None), ('bgr8', 3, None), ('nv12', 1, 3)],
)
def test_an_image_equals_the_message_of_rclpy(frame_id, encoding, pixel_bytes, rows):
    header, width, height = header_with(frame_id), 6, 2
    data = np.arange(width * pixel_bytes * (rows or height), dtype=np.uint8)
    expected = Image(header=header, width=width, height=height, encoding=encoding)
    expected.step, expected.data = width * pixel_bytes, data.tobytes()
    start = image_message_start(header, (width, height), encoding, pixel_bytes, rows)
    check(written(start, data), expected)
    memory = np.concatenate([np.full(200, 0xA5, np.uint8), data])
    in_place = serialize_in_place(start, memory, 200)
    check(in_place, expected)
    assert np.shares_memory(in_place, memory)


@pytest.mark.parametrize('frame_id', FRAME_IDS)
@pytest.mark.parametrize('image_format', ['jpeg', 'png', 'rgb8; jpeg compressed bgr8'])
def test_a_compressed_image_equals_the_message_of_rclpy(frame_id, image_format):
    header, data = header_with(frame_id), np.arange(7, dtype=np.uint8)
    expected = CompressedImage(header=header, format=image_format, data=data.tobytes())
    check(written(compressed_message_start(header, image_format, len(data)), data), expected)


def test_memory_of_the_right_size_is_used_again():
    start = image_message_start(Header(), (5, 3), 'mono8', 1)
    message, _ = serialize_with_room(start)
    assert serialize_with_room(start, message)[0] is message
    smaller = image_message_start(Header(), (5, 2), 'mono8', 1)
    assert serialize_with_room(smaller, message)[0].size == message.size - 5
