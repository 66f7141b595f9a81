# SPDX-License-Identifier: Apache-2.0
"""Tests that image files give the same pixels as OpenCV, or are refused."""

import io
import os
import struct
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image, ImageFile

from trt_perception.errors import ImageError
from trt_perception.images import image_files
from trt_perception.images.compressed import MAX_PIXELS
from trt_perception.images.frame import MAX_SIDE
from trt_perception.images.image_files import read_image_file
from trt_perception.images.image_source import IMAGE_SUFFIXES

# Pillow warns about unusual files. The package ignores the warnings, pytest does not.
pytestmark = pytest.mark.filterwarnings('ignore:::PIL')
HUGE = 65_000  # HUGE x HUGE pixels are 32 times the limit


def pixels(width, height, channels=3, dtype=np.uint8):
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(7).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def opencv(suffix, image, *options):
    done, content = cv2.imencode(suffix, image, options)
    assert done
    return content.tobytes()


def pillow(kind, image, mode=None, orientation=None, **options):
    if orientation is not None:
        exif = Image.Exif()
        exif[0x112] = orientation
        options['exif'] = exif
    file = io.BytesIO()
    Image.fromarray(image).convert(mode).save(file, kind, **options)
    return file.getvalue()


def written(suffix, *options, channels=3, dtype=np.uint8):
    return lambda w, h: opencv(suffix, pixels(w, h, channels, dtype), *options)


def saved(kind, mode=None, **options):
    return lambda w, h: pillow(kind, pixels(w, h), mode, **options)


FORMATS = {
    **{suffix: written(suffix) for suffix in IMAGE_SUFFIXES[:-1]},
    '.pgm': written('.pgm', channels=1),
    **{f'jpeg {n}': saved('JPEG', subsampling=n, quality=60) for n in (0, 1, 2)},
    'progressive jpeg': saved('JPEG', progressive=True),
    'grey jpeg': saved('JPEG', 'L'),
    **{f'{m} png': saved('PNG', m) for m in ('L', 'LA', 'P', '1', 'RGBA')},
    'transparent palette png': saved('PNG', 'P', transparency=3),
    **{f'16 bit {s}': written(s, channels=1, dtype=np.uint16) for s in ('.png', '.tif', '.pgm')},
    '16 bit colour png': written('.png', dtype=np.uint16),
    **{f'{m} bmp': saved('BMP', m) for m in ('L', 'P', '1', 'RGBA')},
    'OS/2 bmp': lambda w, h: os2(w, h),
    'bmp upside down': lambda w, h: upside_down(w, h),
    **{f'{m} webp': saved('WEBP', m, quality=60) for m in ('RGB', 'RGBA')},
    'lossless webp': saved('WEBP', lossless=True),
    'extended webp': saved('WEBP', icc_profile=bytes(200)),
    **{f'{m} tiff': saved('TIFF', m) for m in ('RGBA', 'L', 'P', '1', 'CMYK')},
    **{
        f'{method} tiff': saved('TIFF', compression=method)
        for method in ('tiff_lzw', 'tiff_adobe_deflate', 'packbits')
    },
    'big-endian tiff': saved('TIFF', big_endian=True),
    'text ppm': written('.ppm', cv2.IMWRITE_PXM_BINARY, 0),
    'commented ppm': lambda w, h: (
        f'P6\n# a b\n#\n {w} # c\n\t{h}\n255\n'.encode() + bytes(3 * w * h)
    ),
    **{
        f'{kind} turned {n}': saved(kind, orientation=n, **options)
        for n in range(1, 9)
        for kind, options in (
            ('JPEG', {}),
            ('PNG', {}),
            ('WEBP', {'lossless': True}),
            ('TIFF', {}),
            ('TIFF', {'compression': 'tiff_lzw'}),
        )
    },
}


def os2(width, height):
    row = -(-3 * width // 4) * 4
    head = struct.pack(
        '<2sIHHIIHHHH', b'BM', 26 + row * height, 0, 0, 26, 12, width, height, 1, 24
    )
    return head + bytes(row * height)


def upside_down(width, height):
    content = bytearray(opencv('.bmp', pixels(width, height)))
    content[22:26] = struct.pack('<i', -height)
    return bytes(content)


@pytest.mark.parametrize('name', FORMATS)
def test_pixels_equal_opencv(name, tmp_path):
    path = tmp_path / 'image'
    for width, height in [(1, 1), (1, 9), (67, 50)]:
        content = FORMATS[name](width, height)
        path.write_bytes(content)
        for upright in (True, False):
            flag = 0 if upright else cv2.IMREAD_IGNORE_ORIENTATION

            bgr = read_image_file(path, upright=upright)

            decoded = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR | flag)
            assert bgr.shape == decoded.shape
            assert (bgr == decoded).all()
            assert bgr.dtype == np.uint8
            assert bgr.flags.writeable


def test_samples_are_scaled_to_the_largest_value_that_a_pgm_declares(tmp_path):
    path = tmp_path / 'image.pgm'
    path.write_bytes(b'P5 3 1 4095\n' + np.array([0, 2048, 4095], '>u2').tobytes())

    assert read_image_file(path)[0, :, 0].tolist() == [0, 128, 255]


def refusal(path, content=None):
    """Return the reason and the message of a refused file."""
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ImageError) as caught:
        read_image_file(path)
    assert str(path) in str(caught.value)
    return caught.value.reason, str(caught.value)


def tiff(order, width, height):
    """Return a grey TIFF with a single byte of pixel data."""
    tags = {256: width, 257: height, 258: 8, 259: 1, 262: 1, 273: 8, 278: height, 279: 1}
    rows = b''.join(struct.pack(f'{order}HHII', tag, 4, 1, each) for tag, each in tags.items())
    head = b'II*\0' if order == '<' else b'MM\0*'
    return head + struct.pack(f'{order}IH', 8, len(tags)) + rows + bytes(4)


def bombs():
    """Return small files that declare gigabytes."""
    big = struct.pack('<i', HUGE)
    bmp = bytearray(opencv('.bmp', pixels(4, 4)))
    bmp[18:26] = big + big
    low = bytearray(bmp)
    low[22:26] = struct.pack('<i', -HUGE)
    core = bytearray(os2(4, 4))
    core[18:22] = struct.pack('<HH', HUGE, HUGE)
    lossy = bytearray(pillow('WEBP', pixels(4, 4)))
    lossy[26:30] = struct.pack('<HH', 16383, 16383)
    lossless = bytearray(pillow('WEBP', pixels(4, 4), lossless=True))
    lossless[21:25] = struct.pack('<I', 2**28 - 1)
    jpeg = bytearray(pillow('JPEG', pixels(4, 4)))
    frame = jpeg.index(b'\xff\xc0')
    jpeg[frame + 5 : frame + 9] = struct.pack('>HH', HUGE, HUGE)
    header = b'IHDR' + struct.pack('>IIBBBBB', HUGE, HUGE, 8, 2, 0, 0, 0)
    return {
        'jpeg': bytes(jpeg),
        'bmp': bytes(bmp),
        'bmp upside down': bytes(low),
        'OS/2 bmp': bytes(core),
        'webp': bytes(lossy),
        'lossless webp': bytes(lossless),
        'ppm': f'P6 {HUGE} {HUGE} 255\n'.encode(),
        'pgm': f'P5\n#x\n{HUGE}\n#y\n{HUGE}\n255\n'.encode(),
        'tiff': tiff('<', HUGE, HUGE),
        'big-endian tiff': tiff('>', HUGE, HUGE),
        'png': b'\x89PNG\r\n\x1a\n\0\0\0\x0d'
        + header
        + struct.pack('>I', zlib.crc32(header))
        + b'\0\0\0\0IDAT\x35\xaf\x06\x1e',
    }


@pytest.fixture
def undecoded(monkeypatch):
    """Make the decoding of pixels fail."""
    monkeypatch.setattr(ImageFile.ImageFile, 'load', lambda _: pytest.fail('it was decoded'))


@pytest.mark.parametrize('name', bombs())
@pytest.mark.usefixtures('undecoded')
def test_bomb_is_refused_before_it_is_decoded(name, tmp_path, golden_messages):
    reason, message = refusal(tmp_path / 'bomb.jpg', bombs()[name])

    assert reason == 'too_large', message
    golden_messages.add(message)


@pytest.mark.parametrize(
    'size_wh', [(16384, MAX_PIXELS // 16384 + 1), (MAX_SIDE + 1, 1), (1, MAX_SIDE + 1)]
)
@pytest.mark.usefixtures('undecoded')
def test_image_just_above_the_limit_is_refused(size_wh, tmp_path, golden_messages):
    content = f'P5 {size_wh[0]} {size_wh[1]} 255\n'.encode()

    golden_messages.add(refusal(tmp_path / 'image', content)[0])


def test_image_file_of_the_largest_size_reaches_the_decoder(
    tmp_path, monkeypatch, golden_messages
):
    monkeypatch.setattr(ImageFile.ImageFile, 'load', lambda _: 1 / 0)
    content = f'P5 16384 {MAX_PIXELS // 16384} 255\n'.encode()

    golden_messages.add(refusal(tmp_path / 'image', content)[1])


WHOLE = [suffix for suffix in FORMATS if suffix.startswith('.')]


@pytest.mark.parametrize('name', WHOLE)
def test_truncated_file_is_refused(name, tmp_path, golden_messages):
    content = FORMATS[name](67, 50)
    for share in (0.3, 0.7, 0.95):
        cut = content[: int(len(content) * share)]

        golden_messages.add(refusal(tmp_path / 'image', cut)[0])


@pytest.mark.parametrize('name', WHOLE)
def test_damaged_file_is_refused_or_decoded(name, tmp_path):
    rng = np.random.default_rng(3)
    path, whole = tmp_path / 'image', FORMATS[name](40, 30)
    outcomes = set()
    for _ in range(100):
        content = np.frombuffer(whole, np.uint8).copy()
        places = rng.integers(0, min(len(whole), 120), 3)
        content[places] = rng.integers(0, 256, 3)
        path.write_bytes(content.tobytes())
        try:
            outcomes.add(read_image_file(path).shape[2])
        except ImageError as error:
            outcomes.add(error.reason)
    assert 'not_decodable' in outcomes
    assert outcomes <= {3, 'not_decodable', 'too_large'}


@pytest.mark.parametrize(
    'content',
    [
        b'no image',
        pillow('GIF', pixels(4, 4)),
        pillow('JPEG2000', pixels(4, 4)),
        opencv('.sr', pixels(4, 4)),
        opencv('.hdr', pixels(4, 4)),
        b'#EXTM3U\nhttp://localhost/\n',
        b'II+\0\x08\0\0\0' + bytes(40),
    ],
)
@pytest.mark.usefixtures('undecoded')
def test_other_formats_do_not_reach_a_decoder(content, tmp_path, golden_messages):
    reason, message = refusal(tmp_path / 'image.png', content)

    assert reason == 'not_decodable'
    golden_messages.add(message)


def test_message_about_an_empty_file_says_that_it_is_empty(tmp_path, golden_messages):
    golden_messages.add(refusal(tmp_path / 'image.png', b'')[1])


def test_floating_point_is_refused(tmp_path, golden_messages):
    path = tmp_path / 'image.tif'
    Image.fromarray(np.zeros((4, 6), np.float32)).save(path)

    reason, message = refusal(path)

    assert reason == 'not_decodable'
    golden_messages.add(message)


def test_damaged_tiff_prints_nothing(tmp_path, capfd):
    content = bytearray(pillow('TIFF', pixels(64, 64), compression='tiff_lzw'))
    content[60:400] = bytes(340)

    reason, _ = refusal(tmp_path / 'image.tif', bytes(content))

    assert reason == 'not_decodable'
    assert capfd.readouterr() == ('', '')


def test_missing_file_pipe_and_too_large_file_are_refused(tmp_path):
    os.mkfifo(tmp_path / 'pipe.png')
    (tmp_path / 'large.png').touch()
    os.truncate(tmp_path / 'large.png', image_files.MAX_IMAGE_FILE_BYTES + 1)

    missing = refusal(tmp_path / 'gone.png')
    pipe = refusal(tmp_path / 'pipe.png')
    large = refusal(tmp_path / 'large.png')

    assert missing[0] == pipe[0] == 'not_decodable'
    assert 'No such file' in missing[1]
    assert 'prw' in pipe[1]
    assert large[0] == 'too_large'
    assert 'at most' in large[1]
