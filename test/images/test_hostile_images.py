# SPDX-License-Identifier: Apache-2.0
"""Tests that images are refused if they need too much memory or if decoders may differ."""

import io
import json
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from trt_perception import commands
from trt_perception.errors import ConfigError, ImageError
from trt_perception.images import compressed
from trt_perception.images.compressed import MAX_PIXELS, decode_image_file
from trt_perception.images.decompress import decode_jpeg, decode_png
from trt_perception.images.image_source import ImageSource

SIDE = 65_500  # SIDE x SIDE pixels are 32 times the limit
BGR = cv2.GaussianBlur(np.random.default_rng(4).integers(0, 256, (21, 37, 3), np.uint8), (5, 5), 1)


def pillow(kind, mode='RGB', **options):
    """Return the image as a file that Pillow wrote, not OpenCV."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(BGR[..., ::-1])).convert(mode).save(file, kind, **options)
    return file.getvalue()


@pytest.fixture
def refusal(monkeypatch):
    """Return a function that returns the refusal of a file. No decoder may receive the file."""
    monkeypatch.setattr(compressed, 'decode_jpeg', None)
    monkeypatch.setattr(compressed, 'decode_png', None)

    def check(content):
        with pytest.raises(ImageError) as caught:
            decode_image_file(np.frombuffer(content, np.uint8))
        return caught.value

    return check


def chunk(kind, content, size=None):
    return (
        struct.pack('>I', len(content) if size is None else size)
        + kind
        + content
        + struct.pack('>I', zlib.crc32(kind + content))
    )


def png(*chunks):
    return b'\x89PNG\r\n\x1a\n' + b''.join(chunks)


PNG_HEADER = chunk(b'IHDR', struct.pack('>IIBBBBB', 4, 4, 8, 0, 0, 0, 0))
PNG_PIXELS = chunk(b'IDAT', zlib.compress(bytes(20)))
PNG_END = chunk(b'IEND', b'')
FRAME = struct.pack('>HBHHB', 17, 8, SIDE, SIDE, 3) + b'\1\x22\0\2\x11\1\3\x11\1'
JPEG, PROGRESSIVE = pillow('JPEG'), pillow('JPEG', progressive=True)
FIRST = 2  # offset of the first segment in a JPEG
SCAN = PROGRESSIVE[PROGRESSIVE.rindex(b'\xff\xda') : -2]


def put(content, at, more):
    return content[:at] + more + content[at:]


def two_faced():
    """Return a JPEG that is small to readers that accept marker 00, and huge to other readers."""
    at = PROGRESSIVE.index(b'\xff\xc2')
    small = PROGRESSIVE[at : at + 19]
    # libjpeg ignores marker 00. It reads the huge frame, then a comment around the small frame.
    inside = b'\xff\xc2' + FRAME + b'\xff\xfe' + struct.pack('>H', 2 + len(small))
    return put(PROGRESSIVE, at, b'\xff\0' + struct.pack('>H', 2 + len(inside)) + inside)


def of_four_bytes(number):
    return struct.pack('>I', number)


PNGS = {
    'text of 4 GB': png(PNG_HEADER, b'\xff\xff\xff\xf0tEXt' + bytes(8), PNG_END),
    'pixels of 4 GB': png(PNG_HEADER, b'\xff\xff\xff\xf0IDAT' + bytes(8), PNG_END),
    'unknown chunk of 2 GB': png(
        PNG_HEADER, b'\x7f\xff\xff\xffabcd' + bytes(8), PNG_PIXELS, PNG_END
    ),
    'header that is not first': png(chunk(b'tEXt', b'a\0b'), PNG_HEADER, PNG_PIXELS, PNG_END),
    'two headers': png(
        PNG_HEADER, chunk(b'IHDR', of_four_bytes(SIDE) * 2 + b'\x08\0\0\0\0'), PNG_PIXELS, PNG_END
    ),
    'header of another length': png(chunk(b'IHDR', bytes(14)), PNG_PIXELS, PNG_END),
    "Apple's own": png(chunk(b'CgBI', bytes(4)), PNG_HEADER, PNG_PIXELS, PNG_END),
    'unknown critical chunk': png(PNG_HEADER, chunk(b'ABCD', b''), PNG_PIXELS, PNG_END),
    'no pixels': png(PNG_HEADER, PNG_END),
    'no end, and not all pixels': png(PNG_HEADER, chunk(b'IDAT', zlib.compress(bytes(19)))),
    'an end inside a text, and not all pixels': png(
        PNG_HEADER,
        chunk(b'IDAT', zlib.compress(bytes(20))[:-1]),
        chunk(b'tEXt', b'a\0' + PNG_END)[:-8],
    ),
    'no end, and a bomb': png(
        PNG_HEADER, chunk(b'IDAT', zlib.compress(bytes(2**28), 9) + bytes(2**20))
    ),
    'no end, too large': png(
        chunk(b'IHDR', struct.pack('>IIBBBBB', SIDE, SIDE, 8, 0, 0, 0, 0)), PNG_PIXELS
    ),
    '100,000 chunks': png(PNG_HEADER, *[chunk(b'tIME', bytes(7))] * 100_000, PNG_PIXELS, PNG_END),
}
JPEGS = {
    'a frame for each of two readers': two_faced(),
    'frame after marker 00': put(JPEG, FIRST, b'\xff\0\xff\xc2' + FRAME),
    'frame after marker 00 and all other segments': put(
        JPEG, FIRST, b'\xff\0\0\x04\0\0\xff\xc0' + FRAME
    ),
    'frame after bytes of no segment': put(JPEG, FIRST, b'\1\2\3\xff\xc0' + FRAME),
    'two frames': put(JPEG, FIRST, b'\xff\xc0' + FRAME),
    'a frame after the pixels': put(JPEG, -2, b'\xff\xc0' + FRAME),
    'a start inside': put(JPEG, FIRST, b'\xff\xd8'),
    'a restart before the pixels': put(JPEG, FIRST, b'\xff\xd0'),
    'arithmetic coding': JPEG.replace(b'\xff\xc0', b'\xff\xc9'),
    'lossless': JPEG.replace(b'\xff\xc0', b'\xff\xc3'),
    'hierarchical': put(JPEG, FIRST, b'\xff\xde' + FRAME),
    'number of lines after the scan': put(JPEG, -2, b'\xff\xdc\0\4\xff\xff'),
    'ten components': JPEG.replace(
        JPEG[JPEG.index(b'\xff\xc0') :][:19],
        b'\xff\xc0' + struct.pack('>HBHHB', 38, 8, 9, 9, 10) + bytes(30),
    ),
    'twelve bits': JPEG.replace(b'\xff\xc0\0\x11\x08', b'\xff\xc0\0\x11\x0c'),
    'segment shorter than its length': put(JPEG, FIRST, b'\xff\xfe\0\1'),
    'segment longer than the file': put(JPEG, FIRST, b'\xff\xfe\xff\xff'),
    'end inside a comment': JPEG[:-2] + b'\xff\xfe\0\x10ab\xff\xd9cd',
    'no pixels': b'\xff\xd8\xff\xc0' + FRAME + b'\xff\xd9',
    'scans after marker 00': PROGRESSIVE[:-2] + b'\xff\0' + SCAN * 1000 + b'\xff\xd9',
    'scans with fill bytes': PROGRESSIVE[:-2] + (b'\xff' + SCAN) * 1000 + b'\xff\xd9',
    'scans with tables between': PROGRESSIVE[:-2]
    + (b'\xff\xdd\0\4\0\0' + SCAN) * 65
    + b'\xff\xd9',
}


@pytest.mark.parametrize('content', PNGS.values(), ids=PNGS)
def test_malformed_png_is_refused(content, refusal):
    refusal(content)


@pytest.mark.parametrize('content', JPEGS.values(), ids=JPEGS)
def test_malformed_jpeg_is_refused(content, refusal):
    refusal(content)


@pytest.mark.parametrize('kind', ['BMP', 'TIFF', 'WEBP', 'PPM', 'GIF'])
def test_other_formats_are_refused(kind, refusal):
    assert 'expected JPEG or PNG' in str(refusal(pillow(kind)))


def test_decoder_receives_only_the_parts_for_the_pixels(monkeypatch):
    """Texts, profiles, thumbnails, further images and trailing bytes are left out."""
    texts = PngImagePlugin.PngInfo()
    texts.add_text('Raw profile type exif', '\nexif\n 99999999\n4142')
    texts.add_text('z', 'secret' * 9, zip=True)
    turned = Image.Exif()
    turned[0x112] = 6
    frames = {'save_all': True, 'append_images': [Image.new('RGB', (37, 21))]}
    colors = {'icc_profile': b'secret' * 9, 'exif': turned}
    given = []

    def noting(decode):
        def run(content, *options):
            given.append(content)
            return decode(content, *options)

        return run

    monkeypatch.setattr(compressed, 'decode_jpeg', noting(decode_jpeg))
    monkeypatch.setattr(compressed, 'decode_png', noting(decode_png))

    for plain, rich in {
        pillow('PNG'): [pillow('PNG', pnginfo=texts, **colors), pillow('PNG', **frames)],
        pillow('JPEG'): [pillow('JPEG', comment=b'secret', **colors)],
        PROGRESSIVE: [PROGRESSIVE.replace(b'\xff\xdb', b'\xff\xff\xff\xdb')],
    }.items():
        for content in (plain, *rich):
            found = decode_image_file(np.frombuffer(content + b'secret\xff\xd9', np.uint8))
            expected = cv2.imdecode(np.frombuffer(plain, np.uint8), cv2.IMREAD_COLOR)
            assert (found == expected).all()
        assert len(set(given)) == 1
        assert not re.search(rb'secret|exif|eXIf|acTL|fcTL|fdAT|iCCP|zTXt|tEXt', given[0])
        given.clear()


@pytest.mark.unmeasured
def test_changed_files_never_exceed_the_limits_of_memory_and_time():
    """Change lengths, sizes, markers, chunks and tags. Check memory, time and image size."""
    script = Path(__file__).parents[1] / 'support' / 'fuzz' / 'picture_fuzz.py'
    done = subprocess.run(
        [sys.executable, script, '3', '1000'],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    found = json.loads(done.stdout)
    print(found['outcomes'])
    assert found['wrong'] == []
    assert found['outcomes']['decoded'] > 100
    assert found['outcomes']['refused by its decoder'] > 10


def test_opencv_refuses_images_above_the_limit_in_commands(tmp_path):
    (tmp_path / 'tool.py').write_text(
        'import cv2, numpy, sys\n'
        'def main():\n'
        '    try:\n'
        f'        cv2.imdecode(numpy.frombuffer({b"P6 16384 8193 255 "!r}, numpy.uint8), 1)\n'
        '    except cv2.error:\n'
        '        return 7\n'
        '    return 0\n'
    )
    run = 'import sys; from trt_perception import commands; sys.exit(commands._run_main("tool"))'
    done = subprocess.run([sys.executable, '-c', run], cwd=tmp_path, capture_output=True)
    assert done.returncode == 7
    assert commands._MAX_PIXELS == MAX_PIXELS == 16384 * 8192


class Video:
    """A stand-in for cv2.VideoCapture, with one declared size and frames of given sizes."""

    def __init__(self, declared, sizes):
        self._declared = declared
        self._frames = [np.zeros((height, width, 3), np.uint8) for width, height in sizes]

    def isOpened(self):  # noqa: N802 (OpenCV's name)
        return True

    def get(self, what):
        sides = {cv2.CAP_PROP_FRAME_WIDTH: 0, cv2.CAP_PROP_FRAME_HEIGHT: 1}
        return float(self._declared[sides[what]])

    def read(self):
        return (True, self._frames.pop(0)) if self._frames else (False, None)

    def release(self):
        self._frames.clear()


@pytest.mark.parametrize(
    ('declared', 'sizes', 'says'),
    [
        ((40, 30), [(40, 30), (40, 30)], None),
        ((40, 30), [(30, 40)], None),
        ((40, 30), [(40, 30), (400, 30)], 'frame 1 measures 400x30, the file says 40x30'),
        ((SIDE, SIDE), [(40, 30)], f'at most {MAX_PIXELS} pixels'),
        ((0, 0), [(40, 30)], 'no pixels'),
    ],
)
def test_video_frames_must_have_the_declared_size(
    declared, sizes, says, tmp_path, monkeypatch, golden_messages
):
    path = tmp_path / 'drive.mp4'
    path.touch()
    monkeypatch.setattr(cv2, 'VideoCapture', lambda _: Video(declared, sizes))
    if says is None:
        assert [frame.shape[1::-1] for _, frame in ImageSource(str(path))] == sizes
    else:
        with golden_messages.raises(ConfigError):
            list(ImageSource(str(path)))
