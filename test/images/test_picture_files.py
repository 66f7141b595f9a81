"""Picture files: every format that is decoded is bounded by its header, every other is refused."""

import io
import os
import struct
import time

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from trt_perception.errors import ImageError
from trt_perception.images import picture_files
from trt_perception.images.compressed import MAX_PIXELS
from trt_perception.images.frame import MAX_SIDE, PIXEL_FORMATS
from trt_perception.images.image_source import IMAGE_SUFFIXES
from trt_perception.images.picture_files import frame_of, read_picture
from trt_perception.images.picture_headers import declared_size

HUGE = 65_000  # squared 32 times what is allowed


def pixels(width, height, channels=3):
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(7).integers(0, 256, shape, np.uint8)


def encoded(suffix, width, height, channels=3, *options):
    done, content = cv2.imencode(suffix, pixels(width, height, channels), options)
    assert done
    return content.tobytes()


def pillow(kind, width, height, mode='RGB', **options):
    file = io.BytesIO()
    Image.fromarray(pixels(width, height, len(mode))).save(file, kind, **options)
    return file.getvalue()


def refused(path, reason, monkeypatch):
    """Return why a file was refused; OpenCV must not have seen it."""
    with monkeypatch.context() as patch:
        patch.setattr(cv2, 'imdecode', None)
        with pytest.raises(ImageError) as caught:
            read_picture(path)
    assert caught.value.reason == reason
    assert str(path) in str(caught.value)
    return str(caught.value)


EXIF = Image.Exif()
EXIF[0x112] = 6
FORMATS = {
    **{suffix: lambda w, h, s=suffix: encoded(s, w, h) for suffix in IMAGE_SUFFIXES[:-1]},
    '.pgm': lambda w, h: encoded('.pgm', w, h, 1),
    'text ppm': lambda w, h: encoded('.ppm', w, h, 3, cv2.IMWRITE_PXM_BINARY, 0),
    'commented ppm': lambda w, h: (
        f'P6\n# a b\n#\n {w} # c\n\t{h}\n255\n'.encode() + bytes(3 * w * h)
    ),
    'lossy webp': lambda w, h: encoded('.webp', w, h, 3, cv2.IMWRITE_WEBP_QUALITY, 80),
    'lossless webp': lambda w, h: encoded('.webp', w, h, 3, cv2.IMWRITE_WEBP_QUALITY, 101),
    'extended webp': lambda w, h: pillow('WEBP', w, h, icc_profile=bytes(200)),
    'big-endian tiff': lambda w, h: pillow('TIFF', w, h, big_endian=True),
    'compressed tiff': lambda w, h: pillow('TIFF', w, h, compression='tiff_lzw'),
    'OS/2 bmp': lambda w, h: os2(w, h),
    'bmp upside down': lambda w, h: upside_down(w, h),
}


def os2(width, height):
    row = -(-3 * width // 4) * 4
    head = struct.pack(
        '<2sIHHIIHHHH', b'BM', 26 + row * height, 0, 0, 26, 12, width, height, 1, 24
    )
    return head + bytes(row * height)


def upside_down(width, height):
    content = bytearray(encoded('.bmp', width, height))
    content[22:26] = struct.pack('<i', -height)
    return bytes(content)


@pytest.mark.parametrize('name', FORMATS)
def test_declared_size_is_that_of_the_picture(name, tmp_path):
    rng = np.random.default_rng(3)
    path = tmp_path / 'picture'
    for width, height in [(1, 1), (1, 9), (300, 2), *rng.integers(1, 90, (8, 2)).tolist()]:
        content = FORMATS[name](width, height)
        path.write_bytes(content)
        found = np.frombuffer(content, np.uint8)
        assert declared_size(found) in ((width, height), None)
        bgr = read_picture(path)
        assert (bgr == cv2.imdecode(found, cv2.IMREAD_COLOR)).all()
        assert bgr.shape == (height, width, 3)
        assert bgr.dtype == np.uint8


def bombs():
    """Return small files that declare gigabytes."""
    big = struct.pack('<i', HUGE)
    bmp = bytearray(encoded('.bmp', 4, 4))
    bmp[18:26] = big + big
    low = bytearray(bmp)
    low[22:26] = struct.pack('<i', -HUGE)
    core = bytearray(os2(4, 4))
    core[18:22] = struct.pack('<HH', HUGE, HUGE)
    extended = bytearray(pillow('WEBP', 4, 4, icc_profile=bytes(200)))
    extended[24:30] = 2 * struct.pack('<I', HUGE)[:3]
    lossy = bytearray(encoded('.webp', 4, 4, 3, cv2.IMWRITE_WEBP_QUALITY, 80))
    lossy[26:30] = struct.pack('<HH', 16383, 16383)
    lossless = bytearray(encoded('.webp', 4, 4, 3, cv2.IMWRITE_WEBP_QUALITY, 101))
    lossless[21:25] = struct.pack('<I', 2**28 - 1)
    return {
        'bmp': bytes(bmp),
        'bmp upside down': bytes(low),
        'OS/2 bmp': bytes(core),
        'webp': bytes(lossy),
        'extended webp': bytes(extended),
        'lossless webp': bytes(lossless),
        'ppm': f'P6 {HUGE} {HUGE} 255\n'.encode(),
        'pgm': f'P5\n#x\n{HUGE}\n#y\n{HUGE}\n255\n'.encode(),
        'tiff': tiff('<', [(256, 4, HUGE), (257, 4, HUGE)]),
        'big-endian tiff': tiff('>', [(256, 4, HUGE), (257, 4, HUGE)]),
        'png': b'\x89PNG\r\n\x1a\n'
        + struct.pack('>I4sII', 13, b'IHDR', HUGE, HUGE)
        + b'\x08\2\0\0\0'
        + bytes(4)
        + b'\0\0\0\0IDAT\0\0\0\0\0\0\0\0IEND\xaeB`\x82',
    }


def tiff(order, tags):
    rows = b''.join(
        struct.pack(f'{order}HHI', tag, kind, 1)
        + (struct.pack(f'{order}I', size) if kind == 4 else struct.pack(f'{order}HH', size, 0))
        for tag, kind, size in tags
    )
    head = b'II*\0' if order == '<' else b'MM\0*'
    return head + struct.pack(f'{order}IH', 8, len(tags)) + rows + bytes(4)


@pytest.mark.parametrize('name', bombs())
def test_bombs_are_refused_before_they_are_decoded(name, tmp_path, monkeypatch):
    path = tmp_path / 'bomb.jpg'
    path.write_bytes(bombs()[name])
    assert 'pixels' in refused(path, 'too_large', monkeypatch)


def test_the_limit_is_the_limit(tmp_path, monkeypatch):
    path = tmp_path / 'x.bmp'
    # Compressed, so that few bytes may be many pixels.
    sides = 16384, MAX_PIXELS // 16384
    head = struct.pack('<2sIIIIiiHHI', b'BM', 54, 0, 54, 40, *sides, 1, 8, 1) + bytes(20)
    for larger in ((sides[0], sides[1] + 1), (MAX_SIDE + 1, 1), (1, MAX_SIDE + 1)):
        path.write_bytes(head[:18] + struct.pack('<ii', *larger) + head[26:])
        refused(path, 'too_large', monkeypatch)
    path.write_bytes(head)
    given = []
    monkeypatch.setattr(cv2, 'imdecode', lambda *_: given.append(1))
    with pytest.raises(ImageError, match='damaged'):
        read_picture(path)
    assert given


@pytest.mark.parametrize(
    'content',
    [
        b'',
        b'no picture',
        pillow('GIF', 4, 4),
        pillow('JPEG2000', 4, 4),
        encoded('.sr', 4, 4),
        encoded('.hdr', 4, 4),
        encoded('.pam', 4, 4),
        b'P4 4 4\n' + bytes(4),
        b'#EXTM3U\nhttp://localhost/\n',
        b'II+\0\x08\0\0\0' + bytes(40),
        encoded('.bmp', 4, 4)[:20],
        encoded('.webp', 4, 4)[:24],
        encoded('.tiff', 4, 4)[:10],
        tiff('<', [(256, 4, 4)]),
        tiff('<', [(256, 5, 4), (257, 5, 4)]),
    ],
)
def test_nothing_else_reaches_a_decoder(content, tmp_path, monkeypatch):
    path = tmp_path / 'picture.png'
    path.write_bytes(content)
    assert 'cannot be decoded' in refused(path, 'not_decodable', monkeypatch)


def test_what_is_no_file(tmp_path, monkeypatch):
    assert 'No such file' in refused(tmp_path / 'gone.png', 'not_decodable', monkeypatch)
    os.mkfifo(tmp_path / 'pipe.png')
    assert 'prw' in refused(tmp_path / 'pipe.png', 'not_decodable', monkeypatch)
    (tmp_path / 'large.png').touch()
    os.truncate(tmp_path / 'large.png', picture_files.MAX_BYTES + 1)
    assert 'at most' in refused(tmp_path / 'large.png', 'too_large', monkeypatch)


@pytest.mark.parametrize('suffix', ['.bmp', '.webp', '.tiff', '.ppm'])
def test_damage_is_an_error_or_a_picture_of_the_declared_size(suffix, tmp_path):
    path = tmp_path / f'picture{suffix}'
    whole = encoded(suffix, 40, 30)

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), max_size=4))
    def check(changes):
        content = bytearray(whole)
        for at, value in changes:
            content[at % len(content)] = value
        path.write_bytes(content)
        try:
            bgr = read_picture(path)
        except ImageError:
            return
        declared = declared_size(np.frombuffer(bytes(content), np.uint8))
        assert bgr.shape[0] * bgr.shape[1] == declared[0] * declared[1]

    check()


def test_comments_cost_no_time():
    start = time.process_time()
    content = np.frombuffer(b'P6 ' + 300 * b'# # ' + 400 * b'#\n', np.uint8)
    assert declared_size(content) is None
    assert time.process_time() - start < 1


def test_turned_as_asked(tmp_path):
    path = tmp_path / 'turned.jpg'
    path.write_bytes(pillow('JPEG', 60, 20, exif=EXIF))
    assert read_picture(path).shape == (60, 20, 3)
    assert read_picture(path, upright=False).shape == (20, 60, 3)


def test_a_picture_becomes_a_frame():
    bgr = pixels(8, 6)
    frame = frame_of(bgr[:, 1:6])
    assert (frame.width, frame.height, frame.step) == (5, 6, 15)
    assert frame.format is PIXEL_FORMATS['bgr8']
    assert (frame.data.reshape(6, 5, 3) == bgr[:, 1:6]).all()


def test_an_empty_file_is_called_empty(tmp_path, monkeypatch):
    path = tmp_path / 'a.png'
    path.touch()
    assert 'begins with nothing' in refused(path, 'not_decodable', monkeypatch)


def test_a_tiff_of_floating_point(tmp_path):
    path = tmp_path / 'a.tif'
    Image.fromarray(np.zeros((4, 6), np.float32)).save(path)
    with pytest.raises(ImageError, match='expected 8 or 16 bits') as caught:
        read_picture(path)
    assert caught.value.reason == 'not_decodable'
