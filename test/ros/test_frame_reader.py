"""What is read once for all images of a camera is what would be read of each."""

import gc
import random

import numpy as np
import pytest
from raw_messages import written
from reference_images import ENCODINGS
from sensor_msgs.msg import Image
from std_msgs.msg import Header

from trt_perception.errors import ImageError
from trt_perception.images.frame import PIXEL_FORMATS
from trt_perception.ros.intake.buffers import MessageBuffers
from trt_perception.ros.intake.intake import Arrived
from trt_perception.ros.messages import FrameReader
from trt_perception.ros.messages import frame_from_image

STAMP = slice(4, 12)


def arrived(content, buffers=None):
    lease = (buffers or MessageBuffers()).lend(len(content))
    data = lease.array()[: len(content)]
    data[:] = np.frombuffer(content, np.uint8)
    return Arrived(data, len(content), lease)


def image(rng, encoding, frame_id='camera'):
    """Return an image of 4 x 4 pixels with padded rows, in any byte order, as bytes."""
    step = 4 * PIXEL_FORMATS[encoding].bytes_per_pixel + 3
    message = Image(header=Header(frame_id=frame_id), width=4, height=4, encoding=encoding)
    message.header.stamp.sec = rng.randrange(-(2**31), 2**31)
    message.header.stamp.nanosec = rng.randrange(2**32)
    message.step, message.is_bigendian = step, rng.randrange(2)
    message.data = rng.randbytes(step * PIXEL_FORMATS[encoding].rows(4))
    return written(message, rng.choice('<>'))[0]


def outcome(read, content):
    """Return all that is read of a message, or why it is refused."""
    message = arrived(content)
    try:
        frame = read(message)
    except ImageError as error:
        return str(error)
    assert frame.memory is message.lease.memory
    described = frame.width, frame.height, frame.step, frame.format, frame.big_endian
    return message.header, described, frame.data.tobytes()


@pytest.mark.parametrize('encoding', sorted(ENCODINGS))
def test_images_that_differ_in_stamp_and_pixels(encoding):
    rng = random.Random(1)
    reader = FrameReader()
    for _ in range(3):
        content = bytearray(image(rng, encoding))
        for _ in range(5):
            content[STAMP] = rng.randbytes(8)
            content[-16:] = rng.randbytes(16)
            assert outcome(reader, content) == outcome(frame_from_image, content)


def test_whatever_else_differs_is_read_anew():
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
        with pytest.raises(ImageError, match='message'):
            reader(arrived(content[:size]))
        assert outcome(reader, content) == good
    for behind in (b'\0', bytes(4)):
        assert outcome(reader, content + behind) == good


def test_cameras_that_take_turns():
    rng = random.Random(3)
    reader = FrameReader()
    for _ in range(20):
        content = image(rng, rng.choice(sorted(ENCODINGS)), rng.choice(['', 'left', 'right']))
        assert outcome(reader, content) == outcome(frame_from_image, content)


def test_no_memory_is_kept():
    buffers = MessageBuffers()
    reader = FrameReader()
    content = image(random.Random(4), 'bgr8')
    for _ in range(3):
        reader(arrived(content, buffers))
        gc.collect()
    assert buffers.count == 1


def test_other_messages():
    reader = FrameReader()
    message = Image(width=1, height=1, step=3, encoding='bgr8', data=b'abc')
    assert reader(message).data.tobytes() == b'abc'
    with pytest.raises(ImageError) as caught:
        reader(Arrived(np.empty(0, np.uint8), 2**30, None))
    assert caught.value.reason == 'too_large'
