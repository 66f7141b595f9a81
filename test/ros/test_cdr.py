"""Serialised images are read as rclpy reads them, and no byte beyond their end."""

import random
import struct

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from raw_messages import swapped
from rclpy.serialization import deserialize_message
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage
from sensor_msgs.msg import Image
from std_msgs.msg import Header

from trt_perception.errors import ImageError
from trt_perception.ros.intake.cdr import read_compressed
from trt_perception.ros.intake.cdr import read_image

TEXTS = ('', 'a', 'ab', 'abc', 'camera_front', 'größer', 'x' * 255)
READERS = {Image: read_image, CompressedImage: read_compressed}


def header(rng):
    stamp = Time(sec=rng.randrange(-(2**31), 2**31), nanosec=rng.randrange(2**32))
    return Header(stamp=stamp, frame_id=rng.choice(TEXTS))


def message_of(kind, rng):
    data = rng.randbytes(rng.choice([0, 1, 2, 3, 4, 5, 300]))
    if kind is CompressedImage:
        return CompressedImage(header=header(rng), format=rng.choice(TEXTS), data=data)
    sides = {name: rng.randrange(2**32) for name in ('height', 'width', 'step')}
    return Image(
        header=header(rng),
        encoding=rng.choice(TEXTS),
        is_bigendian=rng.randrange(256),
        data=data,
        **sides,
    )


def array_of(content):
    return np.frombuffer(bytearray(content), np.uint8)


def fields(message):
    """Return what a message says, by the names that rclpy's classes and ours share."""
    names = ('height', 'width', 'encoding', 'is_bigendian', 'step', 'format')
    said = {name: getattr(message, name) for name in names if hasattr(message, name)}
    stamp = message.header.stamp
    return said | {
        'header': (stamp.sec, stamp.nanosec, message.header.frame_id),
        'data': bytes(message.data),
    }


def read_or_none(kind, content):
    """Return the message, None where it is refused."""
    try:
        return READERS[kind](array_of(content))
    except ImageError as error:
        if error.reason != 'bad_message':
            raise
        return None


@pytest.mark.parametrize('kind', READERS)
def test_what_rclpy_writes_is_read(kind):
    rng = random.Random(1)
    for _ in range(500):
        message = message_of(kind, rng)
        assert fields(READERS[kind](array_of(serialize_message(message)))) == fields(message)


def test_big_endian_messages_are_read():
    rng = random.Random(2)
    for _ in range(200):
        message = message_of(Image, rng)
        content = swapped(message)
        assert fields(deserialize_message(content, Image)) == fields(message)  # rclpy agrees
        assert fields(read_image(array_of(content))) == fields(message)


@pytest.mark.parametrize('kind', READERS)
def test_a_message_that_ends_early_is_refused(kind):
    content = serialize_message(message_of(kind, random.Random(3)))
    end = len(content)
    while True:  # padding behind the last byte is no part of the message
        try:
            READERS[kind](array_of(content[: end - 1]))
        except ImageError:
            break
        end -= 1
    assert len(content) - end < 4
    for size in range(end):
        with pytest.raises(ImageError) as caught:
            READERS[kind](array_of(content[:size]))
        assert caught.value.reason == 'bad_message'


@pytest.mark.parametrize('kind', READERS)
@pytest.mark.parametrize('count', [2**32 - 1, 2**31, 2**16, 1])
def test_every_length_is_held_against_the_bytes_that_are_there(kind, count):
    message = message_of(kind, random.Random(4))
    content = serialize_message(message)
    for place in range(4, len(content) - 3, 4):
        changed = bytearray(content)
        changed[place : place + 4] = struct.pack('<I', count)
        read = read_or_none(kind, changed)
        assert read is None or len(read.data) <= len(content)


def test_what_is_read_is_what_rclpy_reads_or_is_refused():
    """Messages with bytes changed, cut and put in: rclpy must not read another image."""
    rng = random.Random(5)
    agreed = 0
    for _ in range(3000):
        kind = rng.choice(list(READERS))
        content = bytearray(serialize_message(message_of(kind, rng)))
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(content))
            if rng.random() < 0.7:
                content[place] = rng.choice([0, 1, 2, 4, 127, 128, 255])
            elif rng.random() < 0.5:
                del content[place : place + rng.randrange(1, 5)]
            else:
                content[place:place] = rng.randbytes(rng.randrange(1, 5))
            content = content or bytearray(1)
        ours = read_or_none(kind, content)
        if ours is None:
            continue
        try:
            theirs = fields(deserialize_message(bytes(content), kind))
        except Exception:
            continue
        assert fields(ours) == theirs
        agreed += 1
    assert agreed > 500
