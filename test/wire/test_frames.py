# SPDX-License-Identifier: Apache-2.0
"""Frames of serialised images: every encoding is read, and every wrong field is refused."""

import array
import importlib.util
import sys
import types

import cv2
import numpy as np
import pytest
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, Image

from support.fuzz import camera_jpegs
from support.optional_packages import needs
from trt_perception.errors import ImageError
from trt_perception.images.encode import encode_bgr
from trt_perception.images.frame_pixels import frame_to_bgr
from trt_perception.images.jpeg import JpegFrameReader, decode_on_cpu
from trt_perception.wire.cdr import StampFields
from trt_perception.wire.frames import decode_file, read_compressed_frame, read_image_frame

pytestmark = [pytest.mark.ros, pytest.mark.each_distro]


def image_of(encoding, data, width, height, step, **fields):
    message = Image(encoding=encoding, width=width, height=height, step=step, **fields)
    message.data = array.array('B', data)
    return message


def image_frame(message):
    return read_image_frame(serialize_message(message))[1]


def compressed_frame(message, read_file=decode_file):
    return read_compressed_frame(serialize_message(message), read_file)[1]


@pytest.mark.parametrize(
    ('read', 'message'),
    [
        (read_image_frame, image_of('bgr8', bytes(12), 4, 1, 12)),
        (read_compressed_frame, CompressedImage(data=cv2.imencode('.png', np.zeros((4, 4)))[1])),
    ],
    ids=['raw', 'compressed'],
)
def test_header_is_returned_and_its_frame_id_is_checked(read, message):
    message.header.frame_id = 'camera'
    message.header.stamp.sec, message.header.stamp.nanosec = -5, 4_000_000_000
    assert read(serialize_message(message))[0] == (StampFields(-5, 4_000_000_000), 'camera')
    for frame_id in ('a\nb', 'x' * 257):
        message.header.frame_id = frame_id
        assert_refused(read, serialize_message(message), 'bad_frame_id')


@pytest.mark.parametrize('read', [read_image_frame, read_compressed_frame])
@pytest.mark.parametrize('content', [b'', b'\0\1\0', b'\0\1\0\0', bytes(4) + b'\xff' * 40])
def test_bytes_that_are_no_message_are_refused(read, content):
    assert_refused(read, content, 'bad_message')


def test_pixels_are_viewed_not_copied():
    message = serialize_message(image_of('bgr8', bytes(range(2 * 14)), 4, 2, 14))
    _, frame = read_image_frame(message)
    assert (frame.width, frame.height, frame.step, frame.format.name) == (4, 2, 14, 'bgr8')
    assert np.shares_memory(frame.data, np.frombuffer(message, np.uint8))
    assert (frame_to_bgr(frame)[1, 0] == (14, 15, 16)).all()


def test_byte_order_follows_is_bigendian():
    for big_endian, value in ((0, 2), (1, 1)):
        message = image_of('mono16', [1, 2], 1, 1, 2, is_bigendian=big_endian)
        assert (frame_to_bgr(image_frame(message)) == value).all()


def assert_refused(read, message, reason, *words):
    with pytest.raises(ImageError) as refusal:
        read(message)
    assert refusal.value.reason == reason
    for word in words:
        assert word in str(refusal.value)


def test_image_with_too_few_bytes_is_refused():
    message = image_of('bgr8', bytes(27), 4, 2, 14)
    assert_refused(image_frame, message, 'bad_length', '28', '27')


def test_unknown_encoding_without_cv_bridge_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, 'cv_bridge', None)
    message = image_of('bgra16', bytes(16), 2, 1, 16)
    words = 'bgra16', 'cv_bridge', 'apt install', 'yuyv'
    assert_refused(image_frame, message, 'unknown_encoding', *words)


@pytest.mark.parametrize(
    'encoding', ['16UC1', '32FC1', '64FC1', '16SC1', '32SC1', '16UC', '32FC3']
)
@pytest.mark.parametrize('has_cv_bridge', [False, True])
def test_raw_depth_is_refused_without_advice_to_install_cv_bridge(
    encoding, has_cv_bridge, monkeypatch
):
    class CvBridge:
        imgmsg_to_cv2 = None

    module = types.SimpleNamespace(CvBridge=CvBridge) if has_cv_bridge else None
    monkeypatch.setitem(sys.modules, 'cv_bridge', module)
    with pytest.raises(ImageError) as caught:
        image_frame(image_of(encoding, bytes(16), 2, 1, 16))
    assert caught.value.reason == 'unknown_encoding'
    assert encoding in caught.value.found
    assert 'cv_bridge' not in str(caught.value)
    assert 'mono16' in caught.value.fix


def test_encoding_that_nothing_reads_gets_no_advice_to_install_cv_bridge(monkeypatch):
    monkeypatch.setitem(sys.modules, 'cv_bridge', None)
    with pytest.raises(ImageError) as caught:
        image_frame(image_of('i420', bytes(16), 2, 1, 16))
    assert caught.value.reason == 'unknown_encoding'
    assert 'cv_bridge' not in str(caught.value)


@pytest.mark.skipif(
    importlib.util.find_spec('cv_bridge') is None,
    reason='cv_bridge is not installed (it is not on PyPI): sudo apt install ros-jazzy-cv-bridge',
)
class TestWithCvBridge:
    def test_encoding_that_only_cv_bridge_supports_is_read(self):
        values = np.array([[[1, 2, 3, 255], [100, 150, 200, 255]]], np.uint16) * 257
        message = image_of('bgra16', values.tobytes(), 2, 1, 16)
        frame = image_frame(message)
        assert frame.format.name == 'bgr8'
        difference = frame_to_bgr(frame).astype(int) - [[[1, 2, 3], [100, 150, 200]]]
        assert np.abs(difference).max() <= 1

    def test_encoding_that_cv_bridge_does_not_support_is_refused(self):
        message = image_of('no_such_encoding', bytes(6), 2, 1, 6)
        words = 'no_such_encoding', 'cv_bridge'
        assert_refused(image_frame, message, 'unknown_encoding', *words)

    def test_image_with_too_few_bytes_for_cv_bridge_is_refused(self):
        message = image_of('bgra16', bytes(8), 2, 1, 16)
        assert_refused(image_frame, message, 'unknown_encoding', 'bgra16')


@pytest.fixture
def picture():
    rows, columns = np.mgrid[0:12, 0:16]
    return np.dstack([4 * columns, 5 * rows, 255 - 4 * columns]).astype(np.uint8)


def compressed(content, name):
    message = CompressedImage(format=name)
    message.data = array.array('B', content)
    return message


@pytest.mark.parametrize(('name', 'tolerance'), [('png', 0), ('jpeg', 12)])
def test_compressed_image_becomes_a_bgr_frame(picture, name, tolerance):
    suffix = {'png': '.png', 'jpeg': '.jpg'}[name]
    content = cv2.imencode(suffix, picture)[1].tobytes()
    frame = compressed_frame(compressed(content, name))
    assert (frame.width, frame.height, frame.format.name) == (16, 12, 'bgr8')
    assert np.abs(frame_to_bgr(frame).astype(int) - picture).max() <= tolerance


def transported(picture, original, suffix, stored):
    """Return the format and file that compressed_image_transport makes of a BGR picture.

    OpenCV takes the stored pixels for BGR, whatever their order is.
    """
    pixels = picture[..., ::-1] if stored.startswith('rgb') else picture
    if stored.endswith('16'):
        pixels = pixels.astype(np.uint16) * 257
    codec = {'.png': 'png', '.jpg': 'jpeg'}[suffix]
    content = cv2.imencode(suffix, np.ascontiguousarray(pixels))[1].tobytes()
    return content, f'{original}; {codec} compressed {stored}'


@pytest.mark.parametrize('original', ['rgb8', 'bgr8', 'rgba8', 'bgra8', 'rgb16', 'bgr16', 'yuyv'])
@pytest.mark.parametrize(
    ('suffix', 'stored', 'tolerance'),
    [
        *(('.png', name, 0) for name in ('bgr8', 'rgb8', 'bgr16', 'rgb16')),
        *(('.jpg', name, 12) for name in ('bgr8', 'rgb8')),
    ],
)
@pytest.mark.parametrize('camera', [False, True], ids=['at once', 'jpeg stays undecoded'])
def test_order_of_the_stored_colours_is_read(picture, original, suffix, stored, tolerance, camera):
    content, name = transported(picture, original, suffix, stored)
    read_file = JpegFrameReader() if camera else decode_file
    frame = compressed_frame(compressed(content, name), read_file)
    assert frame.is_decoded != (camera and suffix == '.jpg')
    pixels = frame_to_bgr(decode_on_cpu(frame)).astype(int)
    assert np.abs(pixels - picture).max() <= tolerance


def test_colour_without_a_word_for_the_stored_pixels_is_stored_as_rgb(picture):
    """Publishers before December 2012 wrote no last word, and the subscriber still swaps."""
    content = cv2.imencode('.png', picture[..., ::-1])[1].tobytes()
    for name in ('rgb8; png compressed', 'bgr8; png compressed '):
        frame = compressed_frame(compressed(content, name))
        np.testing.assert_array_equal(frame_to_bgr(frame), picture)


@pytest.mark.parametrize(
    'name', ['16UC1; png compressed ', '16UC1', '32FC1; compressedDepth png', 'rgb8; jpeg']
)
def test_format_of_no_picture_is_refused(name):
    content = cv2.imencode('.png', np.full((4, 6), 2**12, np.uint16))[1].tobytes()
    assert_refused(compressed_frame, compressed(content, name), 'unknown_encoding')


@pytest.mark.parametrize(
    ('name', 'content'),
    [
        ('bgr8; tiff compressed ', cv2.imencode('.tiff', np.zeros((4, 6, 3), np.uint8))[1]),
        ('webp', cv2.imencode('.webp', np.zeros((4, 6, 3), np.uint8))[1]),
        ('h264', np.array([0, 0, 0, 1, 0x67, 0x42], np.uint8)),
        ('bgr8; qoi compressed bgr8', np.frombuffer(b'qoif' + bytes(30), np.uint8)),
    ],
)
def test_other_codecs_are_refused_by_name_with_a_way_out(name, content):
    with pytest.raises(ImageError) as caught:
        compressed_frame(compressed(content.tobytes(), name))
    assert caught.value.reason in ('not_decodable', 'unknown_encoding')
    assert name in caught.value.subject
    assert caught.value.fix


@pytest.mark.parametrize(
    ('name', 'depth', 'is_reported'),
    [
        ('png', np.uint16, True),
        ('mono8; png compressed ', np.uint16, True),
        ('mono16; png compressed ', np.uint16, False),
        ('png', np.uint8, False),
    ],
)
def test_grey_of_16_bits_is_reported_unless_the_format_says_mono16(name, depth, is_reported):
    content = cv2.imencode('.png', np.full((4, 6), 200, depth))[1].tobytes()
    frame = compressed_frame(compressed(content, name))
    assert bool(frame.warning) == is_reported


@pytest.mark.parametrize('depth', [np.uint8, np.uint16])
def test_grey_png_becomes_a_bgr_frame(depth):
    grey = np.full((4, 6), 128 if depth == np.uint8 else 128 * 257, depth)
    content = cv2.imencode('.png', grey)[1].tobytes()
    frame = compressed_frame(compressed(content, 'png'))
    assert (frame_to_bgr(frame) == 128).all()


BAYER = ['bayer_rggb8', 'bayer_bggr8', 'bayer_gbrg8', 'bayer_grbg8']


@pytest.mark.parametrize('encoding', BAYER)
@pytest.mark.parametrize('kind', ['png', 'jpeg'])
def test_compressed_mosaic_is_read_as_a_mosaic(picture, encoding, kind):
    """image_transport compresses a mosaic as a grey PNG file, other drivers as grey JPEG."""
    mosaic = encode_bgr(picture, encoding)
    content = cv2.imencode({'png': '.png', 'jpeg': '.jpg'}[kind], mosaic)[1]
    stored = cv2.imdecode(content, cv2.IMREAD_UNCHANGED)
    assert kind == 'jpeg' or (stored == mosaic).all()
    raw = image_frame(image_of(encoding, stored.tobytes(), 16, 12, 16))
    message = compressed(content.tobytes(), f'{encoding}; {kind} compressed ')
    for read_file in (decode_file, JpegFrameReader()):
        frame = compressed_frame(message, read_file)
        assert frame.format == raw.format
        np.testing.assert_array_equal(frame_to_bgr(frame), frame_to_bgr(raw))


@pytest.mark.parametrize(
    ('name', 'grey'),
    [
        ('bayer_rggb8; jpeg compressed mono8', True),  # a JPEG file of image_transport
        ('bayer_rggb8; jpeg compressed bgr8', False),
        ('bayer_rggb8; png compressed ', False),
        ('mono8; png compressed ', True),
    ],
)
def test_compressed_image_with_colours_is_not_a_mosaic(picture, name, grey):
    pixels = picture[..., :1].repeat(3, axis=2) if grey else picture
    content = cv2.imencode('.png', pixels)[1].tobytes()
    frame = compressed_frame(compressed(content, name))
    np.testing.assert_array_equal(frame_to_bgr(frame), pixels)


def test_mosaic_with_unsupported_encoding_is_refused():
    content = cv2.imencode('.png', np.full((4, 6), 2**12, np.uint16))[1].tobytes()
    message = compressed(content, 'bayer_rggb16; png compressed ')
    words = 'bayer_rggb16', '8 bits', 'image_proc'
    assert_refused(compressed_frame, message, 'unknown_encoding', *words)


def test_exif_orientation_of_a_jpeg_is_ignored(picture):
    # EXIF requests a rotation by 90 degrees. Boxes refer to the pixels as stored.
    jpeg = cv2.imencode('.jpg', picture)[1].tobytes()
    tiff = b'II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0'
    exif = b'Exif\0\0' + tiff
    turned = jpeg[:2] + b'\xff\xe1' + (len(exif) + 2).to_bytes(2, 'big') + exif + jpeg[2:]
    assert cv2.imdecode(np.frombuffer(turned, np.uint8), cv2.IMREAD_COLOR).shape[:2] == (16, 12)
    frame = compressed_frame(compressed(turned, 'jpeg'))
    assert (frame.width, frame.height) == (16, 12)


@pytest.mark.parametrize('suffix', ['.jpg', '.png'])
@pytest.mark.parametrize('part', [0.0, 0.05, 0.5, 0.95])
def test_truncated_image_is_refused(picture, suffix, part):
    large = cv2.resize(picture, (320, 240), interpolation=cv2.INTER_LINEAR)
    content = cv2.imencode(suffix, large)[1].tobytes()
    cut = content[: int(part * len(content))]
    words = repr('some format'), f'{len(cut)} bytes'
    message = compressed(cut, 'some format')
    assert_refused(compressed_frame, message, 'not_decodable', *words)


@pytest.mark.parametrize('content', [b'\0', b'no picture at all', b'\xff\xd8\xff', bytes(5000)])
def test_content_without_an_image_is_refused(content):
    message = compressed(content, 'jpeg')
    assert_refused(compressed_frame, message, 'not_decodable')


@needs('simplejpeg')
@pytest.mark.parametrize('image_format', ['jpeg', 'bayer_rggb8; jpeg compressed'])
def test_warning_about_a_file_is_passed_on(image_format):
    content = camera_jpegs.JPEGS_WITH_HARMLESS_DEFECTS['spare bytes before EOI']

    frame = compressed_frame(compressed(content, image_format))

    assert 'extraneous bytes' in frame.warning
