"""Pictures that ask for more than they show, or that two readers would take differently."""

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
from trt_perception.images.compressed import MAX_PIXELS, decode_picture
from trt_perception.images.image_source import ImageSource
from trt_perception.images.picture_files import read_picture

SIDE = 65_500  # squared, 32 times what is allowed
BGR = cv2.GaussianBlur(np.random.default_rng(4).integers(0, 256, (21, 37, 3), np.uint8), (5, 5), 1)


def pillow(kind, mode='RGB', **options):
    """Return the picture as another library writes it than the one that reads it."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(BGR[..., ::-1])).convert(mode).save(file, kind, **options)
    return file.getvalue()


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """Return a function that says why nobody reads some content; OpenCV must not see it."""
    monkeypatch.setattr(cv2, 'imdecode', None)

    def check(content):
        path = tmp_path / 'picture'
        path.write_bytes(content)
        with pytest.raises(ImageError) as by_file:
            read_picture(path)
        with pytest.raises(ImageError) as by_camera:
            decode_picture(np.frombuffer(content, np.uint8))
        if content[:2] in (b'\xff\xd8', b'\x89P'):
            assert by_file.value.reason == by_camera.value.reason
            assert str(by_camera.value) in str(by_file.value)
        return by_file.value

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


HEADER = chunk(b'IHDR', struct.pack('>IIBBBBB', 4, 4, 8, 0, 0, 0, 0))
PIXELS = chunk(b'IDAT', zlib.compress(bytes(20)))
END = chunk(b'IEND', b'')
FRAME = struct.pack('>HBHHB', 17, 8, SIDE, SIDE, 3) + b'\1\x22\0\2\x11\1\3\x11\1'
JPEG, PROGRESSIVE = pillow('JPEG'), pillow('JPEG', progressive=True)
FIRST = 2  # where the first segment of a JPEG may stand
SCAN = PROGRESSIVE[PROGRESSIVE.rindex(b'\xff\xda') : -2]


def put(content, at, more):
    return content[:at] + more + content[at:]


def two_faced():
    """Return a JPEG whose frame is small for who takes marker 00 for a segment, else huge."""
    at = PROGRESSIVE.index(b'\xff\xc2')
    small = PROGRESSIVE[at : at + 19]
    # For libjpeg the marker is none, the huge frame follows, and a comment that holds the small.
    inside = b'\xff\xc2' + FRAME + b'\xff\xfe' + struct.pack('>H', 2 + len(small))
    return put(PROGRESSIVE, at, b'\xff\0' + struct.pack('>H', 2 + len(inside)) + inside)


def of_four_bytes(number):
    return struct.pack('>I', number)


PNGS = {
    'text of 4 GB': png(HEADER, b'\xff\xff\xff\xf0tEXt' + bytes(8), END),
    'pixels of 4 GB': png(HEADER, b'\xff\xff\xff\xf0IDAT' + bytes(8), END),
    'unknown chunk of 2 GB': png(HEADER, b'\x7f\xff\xff\xffabcd' + bytes(8), PIXELS, END),
    'header that is not first': png(chunk(b'tEXt', b'a\0b'), HEADER, PIXELS, END),
    'two headers': png(
        HEADER, chunk(b'IHDR', of_four_bytes(SIDE) * 2 + b'\x08\0\0\0\0'), PIXELS, END
    ),
    'header of another length': png(chunk(b'IHDR', bytes(14)), PIXELS, END),
    "Apple's own": png(chunk(b'CgBI', bytes(4)), HEADER, PIXELS, END),
    'unknown critical chunk': png(HEADER, chunk(b'ABCD', b''), PIXELS, END),
    'no pixels': png(HEADER, END),
    'no end': png(HEADER, PIXELS),
    'an end inside a text': png(HEADER, PIXELS, chunk(b'tEXt', b'a\0' + END)[:-8]),
    '100,000 chunks': png(HEADER, *[chunk(b'tIME', bytes(7))] * 100_000, PIXELS, END),
}
JPEGS = {
    'a frame for each of two readers': two_faced(),
    'frame behind marker 00': put(JPEG, FIRST, b'\xff\0\xff\xc2' + FRAME),
    'frame behind marker 00 and all else': put(JPEG, FIRST, b'\xff\0\0\x04\0\0\xff\xc0' + FRAME),
    'frame behind bytes of no segment': put(JPEG, FIRST, b'\1\2\3\xff\xc0' + FRAME),
    'two frames': put(JPEG, FIRST, b'\xff\xc0' + FRAME),
    'a frame behind the pixels': put(JPEG, -2, b'\xff\xc0' + FRAME),
    'a start inside': put(JPEG, FIRST, b'\xff\xd8'),
    'a restart before the pixels': put(JPEG, FIRST, b'\xff\xd0'),
    'arithmetic coding': JPEG.replace(b'\xff\xc0', b'\xff\xc9'),
    'lossless': JPEG.replace(b'\xff\xc0', b'\xff\xc3'),
    'hierarchical': put(JPEG, FIRST, b'\xff\xde' + FRAME),
    'number of lines behind the scan': put(JPEG, -2, b'\xff\xdc\0\4\xff\xff'),
    'ten components': JPEG.replace(
        JPEG[JPEG.index(b'\xff\xc0') :][:19],
        b'\xff\xc0' + struct.pack('>HBHHB', 38, 8, 9, 9, 10) + bytes(30),
    ),
    'twelve bits': JPEG.replace(b'\xff\xc0\0\x11\x08', b'\xff\xc0\0\x11\x0c'),
    'segment shorter than its length': put(JPEG, FIRST, b'\xff\xfe\0\1'),
    'segment longer than the file': put(JPEG, FIRST, b'\xff\xfe\xff\xff'),
    'end inside a comment': JPEG[:-2] + b'\xff\xfe\0\x10ab\xff\xd9cd',
    'no pixels': b'\xff\xd8\xff\xc0' + FRAME + b'\xff\xd9',
    'scans behind marker 00': PROGRESSIVE[:-2] + b'\xff\0' + SCAN * 1000 + b'\xff\xd9',
    'scans with fill bytes': PROGRESSIVE[:-2] + (b'\xff' + SCAN) * 1000 + b'\xff\xd9',
    'scans with tables between': PROGRESSIVE[:-2]
    + (b'\xff\xdd\0\4\0\0' + SCAN) * 65
    + b'\xff\xd9',
}


@pytest.mark.parametrize('content', PNGS.values(), ids=PNGS)
def test_pngs(content, refused):
    refused(content)


@pytest.mark.parametrize('content', JPEGS.values(), ids=JPEGS)
def test_jpegs(content, refused):
    refused(content)


def tiff(order='<', **tags):
    """Return a grey TIFF of 8 by 4; each tag is a list of entries (type, count, value)."""
    strip = bytes(32)
    entries = {
        'w256': [(3, 1, 8)],
        'h257': [(3, 1, 4)],
        'b258': [(3, 1, 8)],
        'c259': [(3, 1, 1)],
        'p262': [(3, 1, 1)],
        'o273': [(4, 1, 8)],
        's277': [(3, 1, 1)],
        'r278': [(3, 1, 4)],
        'l279': [(4, 1, 32)],
        **tags,
    }
    rows = [
        struct.pack(f'{order}HHI', int(tag[1:]), kind, count)
        + struct.pack(f'{order}I' if kind != 3 else f'{order}Hxx', value)
        for tag, values in entries.items()
        for kind, count, value in values
    ]
    head = b'II*\0' if order == '<' else b'MM\0*'
    start = struct.pack(f'{order}I', 8 + len(strip))
    directory = struct.pack(f'{order}H', len(rows)) + b''.join(rows)
    return head + start + strip + directory + bytes(4)


@pytest.mark.parametrize('order', ['<', '>'])
def test_the_tiff_that_the_others_are_made_of(order, tmp_path):
    path = tmp_path / 'picture'
    path.write_bytes(tiff(order))
    assert read_picture(path).shape == (4, 8, 3)


TIFFS = {
    'two widths, the first signed': {'w256': [(9, 1, 30_000), (3, 1, 8)]},
    'two widths': {'w256': [(4, 1, 30_000), (3, 1, 8)]},
    'two heights, the second larger': {'h257': [(3, 1, 4), (4, 1, 30_000)]},
    'a signed width': {'w256': [(9, 1, 30_000)]},
    'a width of one byte': {'w256': [(1, 1, 8)]},
    'a width of two values': {'w256': [(3, 2, 8)]},
    'a width of eight bytes': {'w256': [(16, 1, 8)]},
    'a huge unknown tag': {'x34675': [(7, 2**32 - 16, 8)]},
    'one value for many tags': {f'x{65_000 + i}': [(7, 100, 8)] for i in range(20)},
    'rows without end': {'r278': [(4, 1, 2**24)]},
    'no rows': {'r278': [(4, 1, 0)]},
    'tiles of gigabytes': {
        'w322': [(4, 1, 30_000)],
        'h323': [(4, 1, 30_000)],
        'o324': [(4, 1, 8)],
        'l325': [(4, 1, 32)],
    },
    'large tiles of a narrow picture, all the same bytes': {
        'w256': [(4, 1, 1)],
        'h257': [(4, 1, 2**15)],
        'w322': [(4, 1, 4096)],
        'h323': [(4, 1, 4096)],
        'o324': [(4, 8, 8)],
        'l325': [(4, 8, 8)],
    },
    'lengths of tiles beside those of strips': {'l325': [(4, 1, 100_000_000)]},
    'a strip beyond the end': {'l279': [(4, 1, 2**31)]},
    'fewer strips than rows': {'r278': [(3, 1, 1)]},
    'depth of a tile': {'d32998': [(4, 1, 100_000)]},
    'floating point': {'b258': [(3, 1, 32)]},
    'JPEG inside': {'c259': [(3, 1, 7)]},
    'nine channels': {'s277': [(3, 1, 9)]},
}


@pytest.mark.parametrize('order', ['<', '>'])
@pytest.mark.parametrize('tags', TIFFS.values(), ids=TIFFS)
def test_tiffs(tags, order, refused):
    if any(int(tag[1:]) in (322, 323) for tag in tags):
        tags = {**tags, 'o273': [], 'r278': [], 'l279': []}
    refused(tiff(order, **tags))


def test_pages_of_a_tiff_that_never_end(refused):
    content = tiff()
    refused(content[:-4] + struct.pack('<I', len(content)) + struct.pack('<HI', 0, len(content)))


def webp(width, height, flags=0, canvas=None):
    lossy = (
        b'VP8 ' + struct.pack('<I', 10) + b'\x30\1\0\x9d\1\x2a' + struct.pack('<HH', width, height)
    )
    if canvas is not None:
        sides = b''.join(struct.pack('<I', side - 1)[:3] for side in canvas)
        lossy = b'VP8X' + struct.pack('<II', 10, flags) + sides + lossy
    return b'RIFF' + struct.pack('<I', 4 + len(lossy)) + b'WEBP' + lossy


OTHERS = {
    'comment that ends with a carriage return': b'P6 #\r60000 60000 #\n2 2 255\n' + bytes(12),
    'comment that follows a number': b'P6 2#60000 60000 255\n2 2 255\n' + bytes(12),
    'PPM of a few bytes': b'P6 8000 8000 255\n' + bytes(12),
    'text PPM of a few bytes': b'P3 8000 8000 255\n1 1 1 1\n',
    'bits': b'P4 8 8\n' + bytes(8),
    'PAM': b'P7\nWIDTH 60000\nHEIGHT 60000\nDEPTH 3\nMAXVAL 255\nENDHDR\n',
    'BMP of a few bytes': struct.pack(
        '<2sIIIIiiHHIIiiII', b'BM', 54, 0, 54, 40, 8000, 8000, 1, 24, 0, 0, 0, 0, 0, 0
    ),
    'BMP of a negative width': struct.pack(
        '<2sIIIIiiHHIIiiII', b'BM', 54, 0, 54, 40, -8, 8, 1, 24, 0, 0, 0, 0, 0, 0
    ),
    'BMP with a header of 1 GB': struct.pack('<2sIIIIii', b'BM', 54, 0, 54, 2**30, 8, 8),
    'WebP of several pictures': webp(8, 8, 2, (8, 8)),
    'WebP of two sizes': webp(8, 8, 0, (9000, 9000)),
    'WebP without pixels': b'RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0' + bytes(10),
    'WebP of a length beyond its end': webp(8, 8)[:-1],
    'BigTIFF': b'II+\0\x08\0\0\0' + bytes(40),
}


@pytest.mark.parametrize('content', OTHERS.values(), ids=OTHERS)
def test_other_formats(content, refused):
    refused(content)


def test_the_decoder_gets_what_pixels_need_and_no_more(tmp_path, monkeypatch):
    """Texts, profiles, thumbnails, further pictures and what stands behind the end stay out."""
    texts = PngImagePlugin.PngInfo()
    texts.add_text('Raw profile type exif', '\nexif\n 99999999\n4142')
    texts.add_text('z', 'secret' * 9, zip=True)
    turned = Image.Exif()
    turned[0x112] = 6
    frames = {'save_all': True, 'append_images': [Image.new('RGB', (37, 21))]}
    colors = {'icc_profile': b'secret' * 9, 'exif': turned}
    given = []
    real = cv2.imdecode

    def decode(content, flags):
        given.append(content.tobytes())
        return real(content, flags)

    for plain, rich in {
        pillow('PNG'): [pillow('PNG', pnginfo=texts, **colors), pillow('PNG', **frames)],
        pillow('JPEG'): [pillow('JPEG', comment=b'secret', **colors)],
        PROGRESSIVE: [PROGRESSIVE.replace(b'\xff\xdb', b'\xff\xff\xff\xdb')],
    }.items():
        for content in (plain, *rich):
            monkeypatch.setattr(cv2, 'imdecode', decode)
            found = decode_picture(np.frombuffer(content + b'secret\xff\xd9', np.uint8))
            monkeypatch.setattr(cv2, 'imdecode', real)
            expected = real(np.frombuffer(plain, np.uint8), cv2.IMREAD_COLOR)
            assert (found == expected).all()
        assert len(set(given)) == 1
        assert not re.search(rb'secret|exif|eXIf|acTL|fcTL|fdAT|iCCP|zTXt|tEXt', given[0])
        given.clear()
    path = tmp_path / 'turned'
    for kind in ('PNG', 'JPEG'):
        path.write_bytes(pillow(kind, **colors))
        assert read_picture(path).shape == (37, 21, 3)
        assert read_picture(path, upright=False).shape == (21, 37, 3)


@pytest.mark.unmeasured
def test_no_change_makes_a_picture_ask_for_more():
    """Lengths, sizes, markers, chunks and tags changed; memory, time and size are looked at."""
    script = Path(__file__).parents[1] / 'support' / 'fuzz' / 'picture_fuzz.py'
    done = subprocess.run(
        [sys.executable, script, '3', '4000'],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    found = json.loads(done.stdout)
    print(found['outcomes'])
    assert found['wrong'] == []
    assert found['outcomes']['decoded'] > 400
    assert found['outcomes']['refused by OpenCV'] > 40


def test_opencv_itself_stops_at_the_limit(tmp_path):
    (tmp_path / 'tool.py').write_text(
        'import cv2, numpy, sys\n'
        'def main():\n'
        '    try:\n'
        f'        cv2.imdecode(numpy.frombuffer({b"P6 16384 8193 255 "!r}, numpy.uint8), 1)\n'
        '    except cv2.error:\n'
        '        return 7\n'
        '    return 0\n'
    )
    run = 'import sys; from trt_perception import commands; sys.exit(commands._run("tool"))'
    done = subprocess.run([sys.executable, '-c', run], cwd=tmp_path, capture_output=True)
    assert done.returncode == 7
    assert commands._MAX_PIXELS == MAX_PIXELS == 16384 * 8192


class Video:
    """Stands in for cv2.VideoCapture: frames of some sizes, another one declared."""

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
def test_frames_of_a_video_are_of_the_size_that_it_declares(
    declared, sizes, says, tmp_path, monkeypatch
):
    path = tmp_path / 'drive.mp4'
    path.touch()
    monkeypatch.setattr(cv2, 'VideoCapture', lambda _: Video(declared, sizes))
    if says is None:
        assert [frame.shape[1::-1] for _, frame in ImageSource(str(path))] == sizes
    else:
        with pytest.raises(ConfigError, match=says):
            list(ImageSource(str(path)))
