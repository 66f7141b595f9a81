"""Tests of the parser: values equal those of rclpy, and no byte beyond the end is read."""

import random

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header

from support.fuzz.message_fuzz import Fuzz, cases, message_fields
from support.fuzz.raw_messages import swapped, written
from trt_perception.ros.wire.cdr import read_compressed, read_image

pytestmark = pytest.mark.each_distro

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


@pytest.mark.parametrize('kind', READERS)
def test_messages_of_rclpy_are_parsed(kind):
    rng = random.Random(1)
    for _ in range(500):
        message = message_of(kind, rng)
        assert message_fields(
            READERS[kind](array_of(serialize_message(message)))
        ) == message_fields(message)


@pytest.mark.parametrize('kind', READERS)
def test_big_endian_messages_are_read(kind):
    rng = random.Random(2)
    for _ in range(200):
        message = message_of(kind, rng)
        content = swapped(message)
        assert message_fields(deserialize_message(content, kind)) == message_fields(
            message
        )  # rclpy agrees
        assert message_fields(READERS[kind](array_of(content))) == message_fields(message)


@pytest.fixture(scope='module')
def fuzz():
    return Fuzz().run(cases(6000, seed=5))


def test_changed_messages_are_read_as_rclpy_reads_them_or_refused(fuzz):
    """Cut at every byte, with other lengths, and with bytes changed, cut and put in."""
    assert not fuzz.wrong[:5]
    assert fuzz.agreed > 500
    assert fuzz.read['whole'] > 10
    assert fuzz.refused['truncated'] > 2000
    assert fuzz.refused['length'] > 500
    assert min(fuzz.read['random'], fuzz.refused['random']) > 100


def test_changed_messages_are_counted_each(fuzz):
    for counts in fuzz.counts.values():
        assert counts.published > 0
        assert counts.dropped['bad_message'] > 500
        assert counts.received == counts.published + sum(counts.dropped.values())


def test_handwritten_messages_equal_those_of_rclpy():
    rng = random.Random(6)
    for kind in READERS:
        for _ in range(100):
            message = message_of(kind, rng)
            ours, theirs = written(message, '<')[0], serialize_message(message)
            assert len(ours) <= len(theirs) <= len(ours) + 3  # rclpy pads the end
            assert message_fields(deserialize_message(ours, kind)) == message_fields(message)
