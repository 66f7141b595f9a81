# SPDX-License-Identifier: Apache-2.0
"""Tests of the parser: it returns the same values as rclpy, and reads no byte past the end."""

import random
import tracemalloc

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header

from support.fuzz.message_fuzz import Fuzz, cases, message_fields
from support.fuzz.raw_messages import cdr_and_length_offsets, in_other_byte_order
from trt_perception.errors import ImageError
from trt_perception.wire.cdr import read_compressed, read_image

pytestmark = [pytest.mark.ros, pytest.mark.each_distro]

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
        content = in_other_byte_order(message)
        assert message_fields(deserialize_message(content, kind)) == message_fields(
            message
        )  # rclpy agrees
        assert message_fields(READERS[kind](array_of(content))) == message_fields(message)


@pytest.fixture(scope='module')
def fuzz():
    return Fuzz().run(cases(6000, seed=5))


def test_changed_messages_are_read_as_rclpy_reads_them_or_refused(fuzz):
    """Messages are cut at every byte, or have wrong lengths, changed, missing or extra bytes."""
    assert not fuzz.wrong[:5]
    assert fuzz.agreed > 500
    assert fuzz.read['whole'] > 10
    assert fuzz.refused['truncated'] > 2000
    assert fuzz.refused['length'] > 500
    assert min(fuzz.read['random'], fuzz.refused['random']) > 100


def test_every_changed_message_is_counted(fuzz):
    for counts in fuzz.counts.values():
        assert counts.published > 0
        assert counts.dropped['bad_message'] > 500
        assert counts.received == counts.published + sum(counts.dropped.values())


def test_messages_of_the_test_writer_equal_messages_of_rclpy():
    rng = random.Random(6)
    for kind in READERS:
        for _ in range(100):
            message = message_of(kind, rng)
            ours, theirs = cdr_and_length_offsets(message, '<')[0], serialize_message(message)
            assert (
                len(ours) <= len(theirs) <= len(ours) + 3
            )  # rclpy appends up to 3 bytes of padding
            assert message_fields(deserialize_message(ours, kind)) == message_fields(message)


STRINGS = {
    'frame_id': (Image, lambda message: message.header),
    'encoding': (Image, lambda message: message),
    'frame_id ': (CompressedImage, lambda message: message.header),
    'format': (CompressedImage, lambda message: message),
}


def with_string(field, string):
    """Return a message class, and a message whose string has these bytes and a final NUL."""
    kind, owner = STRINGS[field]
    message = kind(data=bytes(300))
    text = 'x' * len(string)
    setattr(owner(message), field.strip(), text)
    return kind, cdr_and_length_offsets(message, '<')[0].replace(text.encode(), string)


def string_of(field, message):
    return getattr(STRINGS[field][1](message), field.strip())


@pytest.mark.parametrize('field', STRINGS)
@pytest.mark.parametrize('string', [b'cam', b'cam\0', b'cam' + bytes(4092), bytes(7), b'x' * 4095])
def test_string_up_to_4_kib_is_read_and_nuls_at_its_end_are_padding(field, string):
    kind, content = with_string(field, string)

    found = READERS[kind](array_of(content))

    assert message_fields(found) == message_fields(deserialize_message(content, kind))
    assert string_of(field, found) == string.rstrip(b'\0').decode()


@pytest.mark.parametrize('field', STRINGS)
@pytest.mark.parametrize('string', [b'cam\0x', b'cam\0' + b'x' * 3000, b'\0cam', b'a\0\0\0b\0'])
def test_bytes_after_the_end_of_a_string_are_refused(field, string):
    kind, content = with_string(field, string)

    with pytest.raises(ImageError, match=field.strip()) as caught:
        READERS[kind](array_of(content))

    assert caught.value.reason == 'bad_message'


@pytest.mark.parametrize('field', STRINGS)
@pytest.mark.parametrize(
    'string', [b'x' * 4096, b'\xff' * 2**25, b'cam' + bytes(2**25)], ids=['4097', 'x', 'NULs']
)
def test_string_above_4_kib_is_refused_before_it_is_copied(field, string):
    kind, content = with_string(field, string)
    message = array_of(content)

    tracemalloc.start()
    try:
        with pytest.raises(ImageError, match=field.strip()) as caught:
            READERS[kind](message)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert caught.value.reason == 'bad_message'
    assert peak_bytes < 2**16
