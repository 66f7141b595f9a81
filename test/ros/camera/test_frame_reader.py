# SPDX-License-Identifier: Apache-2.0
"""Tests of the readers with a header cache: a reused reader and a new one give equal frames."""

import contextlib
import gc
import random
import tracemalloc

import numpy as np
import pytest
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header

from support.fuzz.raw_messages import cdr_and_length_offsets
from support.oracles.reference_images import ENCODINGS
from trt_perception.errors import ImageError
from trt_perception.images.frame import PIXEL_FORMATS
from trt_perception.ros.camera.messages import (
    CompressedReader,
    FrameReader,
    frame_from_compressed,
    frame_from_image,
)
from trt_perception.ros.intake.buffers import MessageBuffers
from trt_perception.ros.intake.intake import SerializedMessage

pytestmark = pytest.mark.each_distro

STAMP = slice(4, 12)


def arrived(content, buffers=None):
    lease = (buffers or MessageBuffers()).lend(len(content))
    data = lease.array()[: len(content)]
    data[:] = np.frombuffer(content, np.uint8)
    return SerializedMessage(data, len(content), lease)


def image(rng, encoding, frame_id='camera'):
    """Return an image of 4 x 4 pixels with padded rows, in any byte order, as bytes."""
    step = 4 * PIXEL_FORMATS[encoding].bytes_per_pixel + 3
    message = Image(header=Header(frame_id=frame_id), width=4, height=4, encoding=encoding)
    message.header.stamp.sec = rng.randrange(-(2**31), 2**31)
    message.header.stamp.nanosec = rng.randrange(2**32)
    message.step, message.is_bigendian = step, rng.randrange(2)
    message.data = rng.randbytes(step * PIXEL_FORMATS[encoding].byte_row_count(4))
    return cdr_and_length_offsets(message, rng.choice('<>'))[0]


def outcome(read, content):
    """Return all values of the frame of a message, or the reason of its refusal."""
    message = arrived(content)
    try:
        frame = read(message)
    except ImageError as error:
        return str(error)
    assert frame.memory is message.lease.memory
    described = frame.width, frame.height, frame.step, frame.format, frame.big_endian
    return message.header, described, frame.data.tobytes()


@pytest.mark.parametrize('encoding', sorted(ENCODINGS))
def test_images_that_differ_in_stamp_and_pixels_reuse_the_header(encoding):
    rng = random.Random(1)
    reader = FrameReader()
    for _ in range(3):
        content = bytearray(image(rng, encoding))
        for _ in range(5):
            content[STAMP] = rng.randbytes(8)
            content[-16:] = rng.randbytes(16)
            assert outcome(reader, content) == outcome(frame_from_image, content)


def test_header_that_differs_elsewhere_is_parsed_again(golden_messages):
    rng = random.Random(2)
    reader = FrameReader()
    content = image(rng, 'bgr8')
    good = outcome(reader, content)
    others = 0
    for place in range(len(content)):
        for value in (0, 1, 255, content[place] ^ 1):
            changed = bytearray(content)
            changed[place] = value
            expected = outcome(frame_from_image, changed)
            assert outcome(reader, changed) == expected, place
            others += expected != good
        assert outcome(reader, content) == good
    assert others > len(content)
    for size in range(len(content)):
        with golden_messages.raises(ImageError):
            reader(arrived(content[:size]))
        assert outcome(reader, content) == good
    for behind in (b'\0', bytes(4)):
        assert outcome(reader, content + behind) == good


def test_messages_of_alternating_cameras_are_read_correctly():
    rng = random.Random(3)
    reader = FrameReader()
    for _ in range(20):
        content = image(rng, rng.choice(sorted(ENCODINGS)), rng.choice(['', 'left', 'right']))
        assert outcome(reader, content) == outcome(frame_from_image, content)


def compressed(rng, frame_id='camera', kind='jpeg'):
    """Return a serialised compressed image in any byte order, with any bytes as its file."""
    message = CompressedImage(header=Header(frame_id=frame_id), format=kind)
    message.header.stamp.sec = rng.randrange(-(2**31), 2**31)
    message.header.stamp.nanosec = rng.randrange(2**32)
    message.data = rng.randbytes(rng.randrange(20))
    return cdr_and_length_offsets(message, rng.choice('<>'))[0]


def file_outcome(read, content):
    """Return all values of a message, or the reason of its refusal. Files with a 7 are bad."""
    message, files = arrived(content), []

    def frame_of(file):
        files.append(file.tobytes())
        if 7 in file:
            raise ImageError('not_decodable', 'JPEG', 'a seven')
        return files[-1]

    try:
        frame = read(message, frame_of)
    except ImageError as error:
        return error.reason, str(error)
    return message.header, frame, files


def test_compressed_images_are_read_as_by_a_new_reader():
    """First, files and sizes differ. Then all other fields differ, too."""
    rng = random.Random(5)
    of_frame = []
    reader = CompressedReader(lambda file: of_frame[-1](file))

    def read(message, frame_of):
        of_frame.append(frame_of)
        return reader(message)

    reasons = set()
    for _ in range(150):
        frame_id, kind = rng.choice(['', 'left', 'right']), rng.choice(['jpeg', 'mono8; jpeg'])
        content = compressed(rng, frame_id, kind)
        for _ in range(4):
            assert file_outcome(read, content) == file_outcome(frame_from_compressed, content)
            content = compressed(rng, frame_id, kind)
        for place in range(len(content)):
            changed = bytearray(content)
            changed[place] = rng.choice([0, 1, 7, 255, content[place] ^ 1])
            expected = file_outcome(frame_from_compressed, changed)
            assert file_outcome(read, changed) == expected, place
            reasons.add(expected[0] if isinstance(expected[0], str) else 'read')
        for size in range(len(content)):
            cut = content[:size]
            assert file_outcome(read, cut) == file_outcome(frame_from_compressed, cut)
    of_messages = {'bad_message', 'bad_frame_id', 'unknown_encoding'}
    assert reasons == {'read', 'not_decodable', *of_messages}


IMAGE = Image(width=1, height=1, step=3, encoding='bgr8', data=b'abc')


@pytest.mark.parametrize(
    ('reader', 'content'),
    [
        (FrameReader(), image(random.Random(4), 'bgr8')),
        (CompressedReader(lambda file: None), compressed(random.Random(4))),
    ],
    ids=['raw', 'compressed'],
)
def test_reader_keeps_no_memory_of_a_message(reader, content):
    buffers = MessageBuffers()
    for _ in range(3):
        reader(arrived(content, buffers))
        gc.collect()
    assert buffers.count == 1


@pytest.mark.parametrize(
    ('reader', 'message'),
    [
        (FrameReader(), Image(width=1, height=1, step=3, encoding='bgr8', data=b'abc')),
        (CompressedReader(bytes), CompressedImage(format='é' * 2000, data=b'abc')),
    ],
    ids=['raw', 'compressed'],
)
@pytest.mark.parametrize('frame_id', ['front' + '\0' * 4000, 'front\0' + 'x' * 2**24])
def test_reader_keeps_no_long_text_of_a_message(reader, message, frame_id):
    message.header.frame_id = 'y' * len(frame_id)
    content = cdr_and_length_offsets(message, '<')[0].replace(
        b'y' * len(frame_id), frame_id.encode()
    )
    incoming = arrived(content)

    tracemalloc.start()
    try:
        with contextlib.suppress(ImageError):
            reader(incoming)
        gc.collect()
        kept_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert kept_bytes < 2**16


@pytest.mark.parametrize(
    ('read', 'message'),
    [
        (lambda message: FrameReader()(message).data.tobytes(), IMAGE),
        (CompressedReader(bytes), CompressedImage(format='jpeg', data=b'abc')),
    ],
    ids=['raw', 'compressed'],
)
def test_rclpy_messages_are_read_and_too_large_messages_are_refused(read, message):
    assert read(message) == b'abc'
    with pytest.raises(ImageError) as caught:
        read(SerializedMessage(np.empty(0, np.uint8), 2**30, None))
    assert caught.value.reason == 'too_large'
