# SPDX-License-Identifier: Apache-2.0
"""Tests that files with defects are decoded if OpenCV or Pillow reads all their pixels."""

import io
import struct
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image, ImageFile

from support.fuzz.camera_jpegs import (
    BASELINE_JPEG,
    BGR,
    EOI,
    JPEG_WITH_RESTARTS,
    RESTART_MARKER,
    WHOLE_JPEGS,
    cut_files,
    jpeg_with_samplings,
)
from support.optional_packages import needs
from trt_perception.errors import ImageError
from trt_perception.images import decompress as decoders
from trt_perception.images.compressed import check_image_file
from trt_perception.images.jpeg import JpegFrameReader, as_plain_jpeg, decode_on_cpu

needs_simplejpeg = needs('simplejpeg')
CUT = BASELINE_JPEG[:-2]
TABLES = BASELINE_JPEG.index(b'\xff\xdb')
LINES = struct.pack('>BBHH', 0xFF, 0xDC, 4, len(BGR))


def as_uint8(content):
    return np.frombuffer(content, np.uint8)


def read_both(content):
    """Return the pixels and the warning, after the path of a camera gave the same pixels."""
    image = check_image_file(as_uint8(content)).decode()
    frame = decode_on_cpu(JpegFrameReader()(as_uint8(content)))
    assert (frame.plane().reshape(image.bgr.shape) == image.bgr).all()
    return image


def by_opencv(content):
    return cv2.imdecode(as_uint8(content), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)


def by_pillow(content, monkeypatch):
    monkeypatch.setattr(ImageFile, 'LOAD_TRUNCATED_IMAGES', True)
    rgb = Image.open(io.BytesIO(content)).convert('RGB')
    return np.asarray(rgb)[..., ::-1]


def put(content, at, more):
    return content[:at] + more + content[at:]


BAD_LENGTH = b'\xff\xe1\0\x06Exif\0\0abcdefgh'  # the segment is longer than it says
JPEGS = {
    'junk after the end': BASELINE_JPEG + b'junk' * 100,
    'a second file after the end': BASELINE_JPEG + BASELINE_JPEG,
    'fill bytes after the end': BASELINE_JPEG + b'\xff' * 9,
    'fill bytes before the end': CUT + b'\xff' * 9 + EOI,
    'zeros before the end': CUT + bytes(500) + EOI,
    'zeros between segments': put(BASELINE_JPEG, TABLES, bytes(4)),
    'junk between segments': put(BASELINE_JPEG, TABLES, b'\1\2\3'),
    'an escaped byte between segments': put(BASELINE_JPEG, TABLES, b'\xff\0'),
    'an application segment that is too short': put(BASELINE_JPEG, 2, BAD_LENGTH),
    'number of lines after the scan': CUT + LINES + EOI,
    'comment after the scan': CUT + b'\xff\xfe\0\5abc' + EOI,
    'fill bytes before restart markers': RESTART_MARKER.sub(
        lambda found: b'\xff' * 3 + found[0], JPEG_WITH_RESTARTS
    ),
    'a restart marker at the end': JPEG_WITH_RESTARTS[:-2] + b'\xff\xd7' + EOI,
}


@pytest.mark.parametrize('content', JPEGS.values(), ids=JPEGS)
def test_jpeg_with_a_harmless_defect_is_decoded_as_in_opencv(content):
    assert (read_both(content).bgr == by_opencv(content)).all()


WITHOUT_END = {
    **{name: whole[:-2] for name, whole in WHOLE_JPEGS.items()},
    'half an end': BASELINE_JPEG[:-1],
    'fill bytes': CUT + b'\xff' * 99,
    'zeros': CUT + bytes(4096),
    'an escaped byte, then zeros': None,
    'a second file': CUT + BASELINE_JPEG,
    'a second file without end': CUT + CUT,
    'progressive, then zeros': WHOLE_JPEGS['progressive'][:-2] + bytes(64),
}


def jpeg_with_an_escaped_last_byte():
    """Return a JPEG whose pixels end with the bytes ff 00."""
    rng = np.random.default_rng(1)
    for _ in range(5000):
        content = cv2.imencode('.jpg', rng.integers(0, 256, (8, 8), np.uint8))[1].tobytes()
        if content.endswith(b'\xff\0\xff\xd9'):
            return content
    raise AssertionError


WITHOUT_END['an escaped byte, then zeros'] = jpeg_with_an_escaped_last_byte()[:-2] + bytes(9)


@needs_simplejpeg
@pytest.mark.parametrize('content', WITHOUT_END.values(), ids=WITHOUT_END)
def test_complete_jpeg_without_an_end_is_decoded_as_in_pillow(content, monkeypatch, capfd):
    expected = by_opencv(content + EOI)
    assert (np.abs(by_pillow(content, monkeypatch).astype(int) - expected) <= 2).all()
    capfd.readouterr()

    image = read_both(content)

    assert (image.bgr == expected).all()
    assert image.warning
    assert capfd.readouterr() == ('', '')


@needs_simplejpeg
@pytest.mark.parametrize('whole', WHOLE_JPEGS.values(), ids=WHOLE_JPEGS)
@pytest.mark.parametrize('after', [b'', b'\xff', bytes(5000), BASELINE_JPEG])
def test_jpeg_without_its_last_bytes_and_its_end_is_refused(whole, after):
    for size in range(len(whole) - 60, len(whole) - 2):
        cut = whole[:size].rstrip(b'\xff')
        with pytest.raises(ImageError) as caught:
            check_image_file(as_uint8(cut + after)).decode()
        assert caught.value.reason == 'not_decodable'


@pytest.mark.parametrize('name', ['progressive', 'progressive grey'])
def test_progressive_jpeg_without_its_last_scans_and_its_end_is_refused(name):
    whole = WHOLE_JPEGS[name]
    scans = [at for at in range(len(whole)) if whole[at : at + 2] == b'\xff\xda']
    assert len(scans) > 5
    for at in scans[1:]:
        with pytest.raises(ImageError):
            check_image_file(as_uint8(whole[:at])).decode()
        check_image_file(as_uint8(whole[:at] + EOI)).decode()  # with lower quality


@pytest.mark.parametrize('content', [CUT, WHOLE_JPEGS['grey'][:-2], CUT + CUT])
def test_gpu_gets_no_jpeg_without_an_end(content):
    """nvJPEG does not report truncated files."""
    assert isinstance(as_plain_jpeg(check_image_file(as_uint8(content))), str)
    frames = JpegFrameReader()
    assert not frames(as_uint8(BASELINE_JPEG)).is_decoded
    for cut in cut_files(BASELINE_JPEG):
        if not cut.endswith(EOI):
            with pytest.raises(ImageError):
                frames(as_uint8(cut))


@needs_simplejpeg
def test_camera_that_omits_the_end_is_read_after_complete_files():
    frames = JpegFrameReader()
    assert not frames(as_uint8(BASELINE_JPEG)).is_decoded
    frame = frames(as_uint8(CUT))
    assert frame.is_decoded
    assert (frame.plane().reshape(BGR.shape) == by_opencv(BASELINE_JPEG)).all()


def test_jpeg_that_only_simplejpeg_can_check_is_refused_without_it(monkeypatch):
    monkeypatch.setattr(decoders, 'load_simplejpeg', lambda: (None, 'missing'))
    with pytest.raises(ImageError) as caught:
        check_image_file(as_uint8(CUT)).decode()
    assert caught.value.fix == decoders.INSTALL_SIMPLEJPEG


@needs_simplejpeg
@pytest.mark.parametrize('samplings', [(0x13, 0x11, 0x11), (0x42, 0x11, 0x11)])
def test_jpeg_of_unusual_sampling_without_an_end_is_refused(samplings):
    """Only Pillow decodes it, and cannot tell whether the last block is complete."""
    with pytest.raises(ImageError):
        check_image_file(as_uint8(jpeg_with_samplings(*samplings)[:-2])).decode()


@pytest.mark.parametrize('height', [0, 1, 119, 65535])
def test_number_of_lines_that_contradicts_the_height_is_refused(height):
    lines = struct.pack('>BBHH', 0xFF, 0xDC, 4, height)
    with pytest.raises(ImageError):
        check_image_file(as_uint8(CUT + lines + EOI))


def chunk(kind, content, checksum=None):
    right = zlib.crc32(kind + content)
    end = right if checksum is None else checksum
    return struct.pack('>I', len(content)) + kind + content + struct.pack('>I', end)


def png_of(mode='RGB', *, bits=8, interlaced=False):
    """Return the parts of a PNG: up to the pixels, the pixels, and its end."""
    if interlaced or bits != 8:
        grey = BGR[:53, :71, 0] >> (8 - min(bits, 8))
        return packed_png(grey, bits, interlaced=interlaced)
    file = io.BytesIO()
    rgb = Image.fromarray(np.ascontiguousarray(BGR[..., ::-1]))
    rgb.convert(mode).save(file, 'PNG')
    content = file.getvalue()
    pixels, end = content.index(b'IDAT') - 4, content.index(b'IEND') - 4
    return content[:pixels], content[pixels:end], content[end:]


def packed_png(grey, bits, *, interlaced):
    """Return the parts of a grey PNG with few bits, or with seven passes."""
    starts = ((0, 0), (4, 0), (0, 4), (2, 0), (0, 2), (1, 0), (0, 1))
    steps = ((8, 8), (8, 8), (4, 8), (4, 4), (2, 4), (2, 2), (1, 2))
    passes = zip(starts, steps, strict=True) if interlaced else [((0, 0), (1, 1))]
    rows = b''
    for (x, y), (step_x, step_y) in passes:
        for row in grey[y::step_y, x::step_x]:
            digits = (np.unpackbits(row[:, None], axis=1)[:, -bits:]).ravel()
            rows += b'\0' + np.packbits(digits).tobytes()
    height, width = grey.shape
    header = struct.pack('>IIBBBBB', width, height, bits, 0, 0, 0, interlaced)
    start = b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header)
    return start, chunk(b'IDAT', zlib.compress(rows)), chunk(b'IEND', b'')


KINDS = {
    **{mode: (mode, {}) for mode in ('RGB', 'RGBA', 'L', 'LA', 'P', 'I;16')},
    **{f'{bits} bits': ('L', {'bits': bits}) for bits in (1, 2, 4)},
    'interlaced': ('L', {'interlaced': True}),
    'interlaced, 2 bits': ('L', {'interlaced': True, 'bits': 2}),
}
ENDS = {
    'no end': b'',
    'half an end': chunk(b'IEND', b'')[:6],
    'a wrong checksum of the end': chunk(b'IEND', b'', 0),
    'zeros instead of an end': bytes(100),
    'junk instead of an end': b'junk' * 9,
    'a truncated text': struct.pack('>I', 100) + b'tEXtab',
    'junk after the end': chunk(b'IEND', b'') + b'junk',
}


@pytest.mark.parametrize('end', ENDS.values(), ids=ENDS)
@pytest.mark.parametrize('kind', KINDS.values(), ids=KINDS)
def test_png_with_all_pixels_is_decoded_as_its_whole_file(kind, end):
    mode, options = kind
    if mode == 'I;16':
        whole = cv2.imencode('.png', BGR[..., 0].astype(np.uint16) * 257)[1].tobytes()
        at = whole.index(b'IDAT') - 4, whole.index(b'IEND') - 4
        start, pixels, last = whole[: at[0]], whole[at[0] : at[1]], whole[at[1] :]
    else:
        start, pixels, last = png_of(mode, **options)
    expected = by_opencv(start + pixels + last)
    assert (check_image_file(as_uint8(start + pixels + end)).decode().bgr == expected).all()
    for missing in (1, 4) if not end else ():  # bytes of the checksum of the pixels
        cut = start + pixels[:-missing]
        assert (check_image_file(as_uint8(cut)).decode().bgr == expected).all()


@pytest.mark.parametrize('kind', KINDS.values(), ids=KINDS)
@pytest.mark.parametrize('end', [b'', bytes(100), b'junk' * 9])
def test_png_without_all_pixels_and_its_end_is_refused(kind, end):
    mode, options = kind
    if mode == 'I;16':
        mode = 'L'
    start, pixels, _ = png_of(mode, **options)
    data = zlib.decompress(pixels[8:-4])
    for cut in (pixels[:-5], pixels[: len(pixels) // 2], pixels[:8], b''):
        with pytest.raises(ImageError):
            check_image_file(as_uint8(start + cut + end))
    for fewer in (data[:-1], data[: len(data) // 2], b''):
        with pytest.raises(ImageError):
            check_image_file(as_uint8(start + chunk(b'IDAT', zlib.compress(fewer)) + end))


def test_png_with_a_damaged_ancillary_chunk_is_decoded_as_in_opencv():
    start, pixels, end = png_of()
    for damaged in (chunk(b'tRNS', bytes(6), 0), chunk(b'tEXt', b'a\0b', 0)):
        content = start + damaged + pixels + end
        assert (check_image_file(as_uint8(content)).decode().bgr == by_opencv(content)).all()


def test_png_with_a_wrong_checksum_of_its_pixels_is_refused():
    start, pixels, end = png_of()
    for last in (end, b''):
        with pytest.raises(ImageError):
            check_image_file(as_uint8(start + chunk(b'IDAT', pixels[8:-4], 0) + last))
