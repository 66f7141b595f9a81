# SPDX-License-Identifier: Apache-2.0
"""Tests of decoding JPEG and PNG: sizes are checked first, and bombs are refused."""

import io
import re
import struct
import sys
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image

from support.fuzz.camera_jpegs import with_scan_of_one_component
from trt_perception.errors import ImageError
from trt_perception.images import compressed
from trt_perception.images import decompress as decoders
from trt_perception.images.compressed import MAX_PIXELS, decode_image_file
from trt_perception.images.decompress import DecodedImage


def as_uint8(content):
    return np.frombuffer(content, np.uint8)


def refusal(content, reason):
    with pytest.raises(ImageError) as caught:
        decode_image_file(as_uint8(content))
    assert caught.value.reason == reason
    return str(caught.value)


def chunk(kind, content):
    """Return a PNG chunk."""
    return (
        struct.pack('>I', len(content))
        + kind
        + content
        + struct.pack('>I', zlib.crc32(kind + content))
    )


def png(width, height, pixels=b''):
    """Return a one-bit PNG that declares a given size."""
    header = struct.pack('>IIBBBBB', width, height, 1, 0, 0, 0, 0)
    return (
        b'\x89PNG\r\n\x1a\n'
        + chunk(b'IHDR', header)
        + chunk(b'IDAT', zlib.compress(pixels, 9))
        + chunk(b'IEND', b'')
    )


def picture(width=37, height=21):
    rng = np.random.default_rng(5)
    return rng.integers(0, 256, (height, width, 3), np.uint8)


def refusing(calls):
    """Return a decoder that appends each call to `calls` and refuses all files."""

    def decode(*_):
        calls.append(1)
        raise ImageError('not_decodable', 'image', 'a file')

    return decode


def by_pillow(kind, **options):
    """Return an image file that Pillow wrote, not OpenCV."""
    file = io.BytesIO()
    Image.fromarray(picture()[..., ::-1]).save(file, kind, **options)
    return file.getvalue()


WRITTEN = {
    'png': by_pillow('png'),
    'png with a resolution': by_pillow('png', dpi=(72, 72)),
    'baseline jpeg': by_pillow('jpeg', quality=90),
    'progressive jpeg': by_pillow('jpeg', progressive=True),
    'jpeg with an ICC profile': by_pillow('jpeg', icc_profile=bytes(range(256)) * 300),
    'jpeg with EXIF': by_pillow('jpeg', exif=b'Exif\0\0' + b'\xff\xd9\xff\xda' * 50),
    'jpeg with restart markers': cv2.imencode(
        '.jpg', picture(), [cv2.IMWRITE_JPEG_RST_INTERVAL, 1]
    )[1].tobytes(),
    'jpeg with a comment': by_pillow('jpeg', comment=b'\xff\xc0' * 100),
    'jpeg with bytes after its end': by_pillow('jpeg') + bytes(4096),
    'jpeg with fill bytes': by_pillow('jpeg').replace(b'\xff\xdb', b'\xff\xff\xff\xdb'),
}


@pytest.mark.parametrize('content', WRITTEN.values(), ids=WRITTEN.keys())
def test_size_and_pixels_equal_opencv(content):
    expected = cv2.imdecode(as_uint8(content), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    assert expected.shape == (21, 37, 3)
    assert (decode_image_file(as_uint8(content)) == expected).all()


@pytest.mark.parametrize('content', WRITTEN.values(), ids=WRITTEN.keys())
def test_every_truncated_image_is_refused(content):
    end = re.search(rb'\xff\xd9\0*$|....IEND\xaeB`\x82$', content, re.DOTALL)
    # A PNG's last chunk of pixels ends with its checksum.
    last = end.start() - (0 if content.startswith(b'\xff') else 4)
    for size in {*range(0, last, 97), last - 1, last - 2, last - 3}:
        # EXIF bytes can look like an end marker. OpenCV must then detect the truncation.
        refusal(content[:size], 'not_decodable')


def test_bytes_of_no_segment_are_reported_as_damage(golden_messages):
    at = WRITTEN['baseline jpeg'].index(b'\xff\xdb')
    message = refusal(WRITTEN['baseline jpeg'][:at] + bytes(9), 'not_decodable')
    assert 'truncated' not in message
    golden_messages.add(message)


@pytest.mark.parametrize(
    ('length', 'bits', 'components'),
    [(17, 12, 3), (14, 8, 2), (18, 8, 3), (14, 8, 3), (7, 8, 3)],
    ids=str,
)
def test_frame_header_of_an_unsupported_or_damaged_jpeg_is_refused(
    length, bits, components, golden_messages
):
    header = struct.pack('>BHHB', bits, 21, 37, components) + bytes(range(12))
    segment = b'\xff\xc0' + struct.pack('>H', length) + header[: length - 2]
    golden_messages.add(refusal(b'\xff\xd8' + segment + b'\xff\xd9', 'not_decodable'))


@pytest.mark.parametrize(
    'content',
    [cv2.imencode(kind, picture())[1].tobytes() for kind in ('.bmp', '.webp', '.tiff', '.ppm')],
    ids=['bmp', 'webp', 'tiff', 'ppm'],
)
def test_files_of_other_formats_reach_no_decoder(content, monkeypatch, golden_messages):
    monkeypatch.setattr(compressed, 'decode_jpeg', None)
    monkeypatch.setattr(compressed, 'decode_png', None)
    message = refusal(content, 'not_decodable')
    golden_messages.add(message)


def test_bombs_are_refused_before_they_are_decoded(monkeypatch, golden_messages):
    side = 20_000
    monkeypatch.setattr(compressed, 'decode_jpeg', None)
    monkeypatch.setattr(compressed, 'decode_png', None)
    bomb = png(side, side, bytes((side // 8 + 1) * side))
    assert len(bomb) < 100_000
    golden_messages.add(refusal(bomb, 'too_large'))
    refusal(png(2**31 - 1, 2**31 - 1), 'too_large')
    jpeg = bytearray(by_pillow('jpeg'))
    at = jpeg.index(b'\xff\xc0')
    jpeg[at + 5 : at + 9] = struct.pack('>HH', 65500, 65500)
    golden_messages.add(refusal(bytes(jpeg), 'too_large'))


def test_image_of_the_largest_size_reaches_the_decoder(monkeypatch):
    calls = []
    monkeypatch.setattr(compressed, 'decode_png', refusing(calls))
    refusal(png(2**14, 2**13), 'not_decodable')
    refusal(png(2**14, 2**13 + 1), 'too_large')
    assert MAX_PIXELS == 2**14 * 2**13
    assert len(calls) == 1


def test_jpeg_with_a_thousand_scans_is_refused(monkeypatch, golden_messages):
    monkeypatch.setattr(compressed, 'decode_jpeg', None)
    jpeg = by_pillow('jpeg', progressive=True)
    at = jpeg.rindex(b'\xff\xda')
    golden_messages.add(refusal(jpeg[:at] + jpeg[at:-2] * 1000 + jpeg[-2:], 'too_large'))


@pytest.mark.parametrize(
    ('options', 'most_side'),
    [
        ({'progressive': True, 'subsampling': 2}, 2**13 * 2**0.5),  # 1.5 coefficients per pixel
        ({'progressive': True, 'subsampling': 0}, 2**13),
        ({'subsampling': 0}, 2**13 * 2**0.5),  # libjpeg stores no coefficients of a baseline file
    ],
    ids=['4:2:0', '4:4:4', 'baseline'],
)
def test_jpeg_whose_coefficients_need_too_much_memory_is_refused(options, most_side, monkeypatch):
    """Without this limit, libjpeg needed 2 GB for a progressive file of 1 KB."""
    calls = []
    monkeypatch.setattr(compressed, 'decode_jpeg', refusing(calls))
    jpeg = bytearray(by_pillow('jpeg', **options))
    at = re.search(rb'\xff[\xc0\xc2]\0', jpeg).start()
    for side, reason in ((int(most_side), 'not_decodable'), (int(most_side) + 8, 'too_large')):
        jpeg[at + 5 : at + 9] = struct.pack('>HH', side, side)
        refusal(bytes(jpeg), reason)
    assert len(calls) == 1


def test_scan_without_all_components_has_the_same_limit_of_coefficients(monkeypatch):
    calls = []
    monkeypatch.setattr(compressed, 'decode_jpeg', refusing(calls))
    whole = by_pillow('jpeg', subsampling=0)
    for side, reason in ((2**13, 'not_decodable'), (2**13 + 8, 'too_large')):
        refusal(with_scan_of_one_component(whole, side), reason)
    assert len(calls) == 1


def test_jpeg_with_only_fill_bytes_is_refused():
    refusal(b'\xff\xd8' + b'\xff' * 50_000_000, 'not_decodable')


def test_image_with_another_size_than_declared_is_refused(monkeypatch, golden_messages):
    monkeypatch.setattr(compressed, 'decode_png', lambda _: DecodedImage(picture(9, 9)))
    golden_messages.add(refusal(by_pillow('png'), 'not_decodable'))


def test_exception_of_opencv_becomes_an_image_error(monkeypatch, golden_messages):
    def raising(*_):
        raise cv2.error('out of memory')

    monkeypatch.setattr(decoders, 'load_simplejpeg', lambda: (None, 'missing'))
    monkeypatch.setattr(decoders.cv2, 'imdecode', raising)
    golden_messages.add(refusal(by_pillow('jpeg'), 'not_decodable'))


def test_missing_pillow_becomes_an_image_error(monkeypatch, golden_messages):
    monkeypatch.setitem(sys.modules, 'PIL.PngImagePlugin', None)
    golden_messages.add(refusal(WRITTEN['png'], 'not_decodable'))


@pytest.mark.parametrize('size_wh', [(0, 5), (5, 0), (0, 0)])
def test_image_without_pixels_is_refused(size_wh):
    refusal(png(*size_wh), 'not_decodable')


def test_png_with_a_flipped_bit_is_refused_without_a_line_on_stderr(capfd):
    for dtype, channels in ((np.uint8, 3), (np.uint16, 1)):
        pixels = np.random.default_rng(2).integers(0, 256, (40, 50, channels)).astype(dtype)
        whole = cv2.imencode('.png', pixels)[1].tobytes()
        start = whole.index(b'IDAT') + 4
        for at in range(start, len(whole) - 12, 7):
            damaged = whole[:at] + bytes((whole[at] ^ 16,)) + whole[at + 1 :]
            refusal(damaged, 'not_decodable')
    assert capfd.readouterr() == ('', '')


def test_damaged_pixels_with_right_checksums_are_refused_without_a_line_on_stderr(capfd):
    rows = bytes(5 * 40)
    packed = zlib.compress(rows)
    header = chunk(b'IHDR', struct.pack('>IIBBBBB', 32, 40, 1, 0, 0, 0, 0))
    for pixels in (
        packed[:-6],
        packed[:6] + b'\xff' + packed[7:],
        b'no zlib stream',
        b'',
    ):
        content = b'\x89PNG\r\n\x1a\n' + header + chunk(b'IDAT', pixels) + chunk(b'IEND', b'')
        refusal(content, 'not_decodable')
    assert capfd.readouterr() == ('', '')


@pytest.mark.parametrize('bits', [1, 2, 4, 8, 16])
@pytest.mark.parametrize('kind', [0, 2, 3, 4, 6], ids=['grey', 'RGB', 'palette', 'LA', 'RGBA'])
def test_png_of_every_kind_equals_opencv(kind, bits):
    if bits not in {0: (1, 2, 4, 8, 16), 3: (1, 2, 4, 8)}.get(kind, (8, 16)):
        pytest.skip('PNG has no such kind')
    rng = np.random.default_rng(bits)
    samples = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind]
    rows = b''.join(b'\0' + rng.bytes(-(-21 * samples * bits // 8)) for _ in range(13))
    palette = chunk(b'PLTE', rng.bytes(3 * 2**bits)) if kind == 3 else b''
    content = b''.join(
        (
            b'\x89PNG\r\n\x1a\n',
            chunk(b'IHDR', struct.pack('>IIBBBBB', 21, 13, bits, kind, 0, 0, 0)),
            palette,
            chunk(b'IDAT', zlib.compress(rows)),
            chunk(b'IEND', b''),
        )
    )

    bgr = decode_image_file(as_uint8(content))

    assert (bgr == cv2.imdecode(as_uint8(content), cv2.IMREAD_COLOR)).all()
