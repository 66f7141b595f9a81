# SPDX-License-Identifier: Apache-2.0
"""Tests that plain JPEGs are rewritten with equal pixels, for decoders other than libjpeg."""

import io
import random
import struct
import tracemalloc
from collections import Counter

import cv2
import numpy as np
import pytest
from PIL import Image

from support.fuzz import jpeg_fuzz
from support.fuzz.camera_jpegs import with_comments
from trt_perception.errors import ImageError
from trt_perception.images import compressed
from trt_perception.images.compressed import check_image_file
from trt_perception.images.jpeg import JpegFrameReader, as_plain_jpeg, decode_on_cpu

PLAIN = jpeg_fuzz.plain_jpegs()
SMALL_JPEG = PLAIN['35x23 420 0']
BGR = jpeg_fuzz.scene_bgr(40, 30)


def as_uint8(content):
    return np.frombuffer(content, np.uint8)


def by_opencv(content):
    return cv2.imdecode(as_uint8(content), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)


def by_pillow(content):
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image.convert('RGB'))[..., ::-1]


def read(content):
    return as_plain_jpeg(check_image_file(as_uint8(content)))


def written(mode='RGB', **options):
    """Return the scene as a file from Pillow."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(BGR[..., ::-1])).convert(mode).save(
        file, options.pop('kind', 'JPEG'), **options
    )
    return file.getvalue()


def with_parts(change, content=SMALL_JPEG):
    """Return a file after changing its segments."""
    parts = jpeg_fuzz.segments(content)
    change(dict(reversed(parts)), parts)
    return jpeg_fuzz.joined_segments(parts)


def without_tables(content, marker):
    return jpeg_fuzz.joined_segments(
        part for part in jpeg_fuzz.segments(content) if part[0] != marker
    )


USUAL = {
    **PLAIN,
    'by Pillow': written(),
    'by Pillow, 4:4:4': written(subsampling=0),
    'by Pillow, optimised': written(optimize=True),
    'grey by Pillow': written('L'),
    'with a profile, EXIF and a comment': written(
        icc_profile=bytes(range(256)) * 300, exif=b'Exif\0\0' + bytes(50), comment=b'\xff\xc0'
    ),
    'with bytes after its end': written() + bytes(4096),
    'with fill bytes': written().replace(b'\xff\xdb', b'\xff\xff\xff\xdb'),
    'without JFIF': with_parts(lambda _, parts: parts.pop(0)),
    'extended sequential with 8 bits': SMALL_JPEG.replace(b'\xff\xc0', b'\xff\xc1'),
    'components 0, 1 and 2': with_parts(
        lambda body, _: (
            body[0xC0].__setitem__(slice(6, None, 3), b'\0\1\2'),
            body[0xDA].__setitem__(slice(1, -3, 2), b'\0\1\2'),
        )
    ),
    'two tables, of which the second is right': with_parts(
        lambda body, parts: parts.insert(0, [0xDB, b'\0' + bytes(range(1, 65))])
    ),
    'without Huffman tables, as Motion JPEG': without_tables(SMALL_JPEG, 0xC4),
    "without chroma's tables for AC": with_parts(lambda _, parts: parts.pop(-3)),
    'grey without Huffman tables': without_tables(PLAIN['35x23 grey'], 0xC4),
    'a restart interval that a second segment sets to 0': with_parts(
        lambda _, parts: parts.__setitem__(slice(0, 0), [[0xDD, b'\0\5'], [0xDD, b'\0\0']])
    ),
}


@pytest.mark.parametrize('content', USUAL.values(), ids=USUAL)
def test_rewritten_jpeg_has_the_same_pixels(content):
    frame = read(content)
    assert not isinstance(frame, str), frame
    expected = by_opencv(content)
    assert (frame.height, frame.width) == expected.shape[:2]
    file = b''.join(frame.jpeg)
    assert (by_opencv(file) == expected).all()
    assert (by_pillow(file) == by_pillow(content)).all()
    decoded = decode_on_cpu(frame)
    assert (decoded.width, decoded.height, decoded.step) == (frame.width, frame.height, frame.step)
    assert (decoded.plane().reshape(expected.shape) == expected).all()
    assert not isinstance(read(file), str)
    assert b''.join(read(file).jpeg) == file


def set_body(marker, at, values):
    """Return a function that changes bytes in the first segment with a marker."""
    return lambda body, _: body[marker].__setitem__(slice(at, at + len(values)), values)


def append(marker, content):
    return lambda _, parts: parts.insert(0, [marker, bytearray(content)])


def bits(change):
    return lambda body, _: change(body[0])


OTHERS = {
    'PNG': [written(kind='PNG')],
    'progressive JPEG': [written(progressive=True)],
    'JPEG with more than 33554432 pixels': [
        with_parts(set_body(0xC0, 1, struct.pack('>HH', 8192, 4097)))
    ],
    'JPEG with several scans': [
        with_parts(lambda _, parts: parts.extend([[0xC4, parts[-4][1]]])),
        with_parts(
            lambda body, parts: parts.extend([[0xDA, bytearray(body[0xDA])], [0, b'\x55\x55']])
        ),
        with_parts(set_body(0xDA, 7, b'\1')),
        with_parts(set_body(0xDA, 8, b'\x3e')),
        with_parts(set_body(0xDA, 9, b'\1')),
        with_parts(set_body(0xDA, 1, b'\2')),
        with_parts(set_body(0xDA, 0, b'\2')),
        with_parts(lambda body, _: body[0xDA].append(0)),
    ],
    'JPEG with an Adobe segment': [
        written('CMYK'),
        with_parts(append(0xEE, b'Adobe\0d\0\0\0\0\0')),
        with_parts(append(0xEE, b'Adobe\0d\0\0\0\0\1')),
        with_parts(append(0xEE, b'Adobe')),
    ],
    'JPEG with a colour space other than YCbCr': [
        with_parts(set_body(0xC0, 6, b'R\x22\0G\x11\1B\x11\1')),
        with_parts(set_body(0xC0, 9, b'\1')),
    ],
    'JPEG with unusual chroma sampling': [
        with_parts(set_body(0xC0, 7, bytes([value])))
        for value in (0, 0x10, 0x14, 0x31, 0x33, 0x42, 0x44, 0xFF)
    ]
    + [
        with_parts(set_body(0xC0, 10, b'\x21')),
        with_parts(set_body(0xC0, 13, b'\x12')),
        with_parts(set_body(0xC0, 7, b'\x22'), PLAIN['35x23 grey']),
    ],
    'JPEG with unusual quantisation': [
        with_parts(set_body(0xDB, 0, b'\x10')),
        with_parts(set_body(0xDB, 0, b'\x04')),
        with_parts(set_body(0xDB, 30, b'\0')),
        with_parts(lambda body, _: body[0xDB].append(1)),
        with_parts(lambda body, _: body[0xDB].pop()),
    ],
    'JPEG with unusual Huffman tables': [
        with_parts(set_body(0xC4, 0, b'\x02')),
        with_parts(set_body(0xC4, 0, b'\x20')),
        with_parts(set_body(0xC4, 17, b'\x0c')),
        with_parts(set_body(0xC4, 1, b'\2')),
        with_parts(set_body(0xC4, 1, b'\3')),
        with_parts(set_body(0xC4, 16, b'\1')),
        with_parts(lambda body, _: body[0xC4].append(1)),
        with_parts(lambda body, _: body[0xC4].pop()),
        with_parts(append(0xC4, bytes(17))),
        with_parts(append(0xC4, b'\x10\2' + bytes(15) + b'\0\1')),
        with_parts(append(0xC4, b'\x10\1' + bytes(15) + b'\x10')),
        with_parts(append(0xC4, b'\x10\1' + bytes(15) + b'\x0b')),
    ],
    'JPEG without all its tables': [
        without_tables(SMALL_JPEG, 0xDB),
        with_parts(set_body(0xC0, 8, b'\2')),
        with_parts(set_body(0xDA, 2, b'\x20')),
        with_parts(set_body(0xDA, 2, b'\x02')),
    ],
    'JPEG with an unusual restart interval': [with_parts(append(0xDD, b'\0\5\0'))],
    'JPEG with unusual restart markers': [
        with_parts(append(0xDD, b'\0\2')),
        with_parts(bits(lambda coded: coded.__setitem__(slice(9, 9), b'\xff\xd0'))),
        with_parts(bits(lambda coded: coded.__setitem__(slice(9, 9), b'\xff\xff\0'))),
        with_parts(bits(lambda coded: coded.append(0xFF))),
        PLAIN['35x23 422 1'].replace(b'\xff\xd1', b'\xff\xd2'),
        PLAIN['35x23 422 1'].replace(b'\xff\xd1', b''),
    ],
    'JPEG with too few bytes': [
        with_parts(bits(lambda coded: coded.__delitem__(slice(6, None)))),
        with_parts(set_body(0xC0, 1, struct.pack('>HH', 4000, 4000))),
    ],
}


@pytest.mark.parametrize(
    ('kind', 'content'),
    [(kind, content) for kind, contents in OTHERS.items() for content in contents],
    ids=[f'{kind} {i}' for kind, contents in OTHERS.items() for i, _ in enumerate(contents)],
)
def test_unusual_file_is_not_rewritten(kind, content, golden_messages):
    found = read(content)
    assert isinstance(found, str), kind
    golden_messages.add(found)


def test_each_format_that_the_cpu_decodes_is_logged_once(caplog):
    frames = JpegFrameReader()
    for content in (
        SMALL_JPEG,
        OTHERS['PNG'][0],
        OTHERS['progressive JPEG'][0],
        *OTHERS['PNG'],
        SMALL_JPEG,
    ):
        frame = frames(as_uint8(content))
        if content is SMALL_JPEG:
            assert not frame.is_decoded
        else:
            expected = by_opencv(content)
            assert (frame.plane().reshape(expected.shape) == expected).all()
    said = 'The CPU decodes compressed images of this format: '
    assert [r.message for r in caplog.records] == [f'{said}PNG', f'{said}progressive JPEG']


def test_reader_expects_the_decoding_speed_of_its_last_file():
    frames = JpegFrameReader()
    assert not frames.is_fast_to_decode
    png, large = OTHERS['PNG'][0], jpeg_fuzz.encoded_jpeg(jpeg_fuzz.scene_bgr(2600, 1700))
    for content, quick in (
        (SMALL_JPEG, True),
        (png, False),
        (SMALL_JPEG, True),
        (large, False),
        (SMALL_JPEG, True),
    ):
        frames(as_uint8(content))
        assert frames.is_fast_to_decode is quick
    with pytest.raises(ImageError):
        frames(as_uint8(SMALL_JPEG[:40]))
    assert not frames.is_fast_to_decode


def test_reader_does_not_keep_long_headers():
    file = as_uint8(with_comments(SMALL_JPEG, 10_000_000))
    frames = JpegFrameReader()

    tracemalloc.start()
    try:
        first = b''.join(frames(file).jpeg)
        kept_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert kept_bytes < 2**16
    assert first == b''.join(frames(file).jpeg) == b''.join(read(SMALL_JPEG).jpeg)


def outcome(read, content):
    """Return the frame of a file, or the reason of the refusal."""
    try:
        frame = read(as_uint8(content))
    except ImageError as error:
        return error.reason
    return frame.data.tobytes() if frame.is_decoded else b''.join(frame.jpeg)


@pytest.mark.parametrize('interval', [0, 1, 5])
def test_reused_headers_give_the_same_frame_as_a_new_reader(interval):
    rng = random.Random(interval)
    file = jpeg_fuzz.encoded_jpeg(jpeg_fuzz.scene_bgr(320, 240), interval=interval)
    outcomes = Counter()
    frames = JpegFrameReader()
    assert not frames(as_uint8(file)).is_decoded
    for index in range(250):
        changed = bytearray(file)
        at = rng.randrange(len(file) // 2, len(file))
        piece = rng.choice((b'\xff', b'\0', b'\xff\xd0', b'\xff\xd9', b'\xff\xff', b'\xff\xda'))
        changed[at : at + rng.randrange(3)] = piece
        content = bytes(changed[: rng.choice((len(changed), len(changed), at))])
        found = outcome(frames, content)
        assert found == outcome(JpegFrameReader(), content), (index, content.hex())
        outcomes['read' if isinstance(found, bytes) else found] += 1
        other = file if index % 3 else jpeg_fuzz.randomly_changed_jpeg(rng, {'': file})
        outcome(frames, other)  # usually with different headers
    assert outcomes['read'] > 5
    assert outcomes['not_decodable'] > 5


def test_scan_with_all_restart_markers_is_accepted():
    content = jpeg_fuzz.encoded_jpeg(jpeg_fuzz.scene_bgr(320, 240), '420', interval=1)
    assert content.count(b'\xff\xd7') > 30
    assert not isinstance(read(content), str)
    swapped = content.replace(b'\xff\xd7', b'\xff\xd6', 1)
    assert read(swapped) == 'JPEG with unusual restart markers'


def test_pixels_of_changed_files_stay_the_same():
    """A rewritten JPEG is decoded to the pixels of its original, damaged or not."""
    rng = random.Random(7)
    outcomes = Counter()
    for _ in range(2400):
        content = jpeg_fuzz.randomly_changed_jpeg(rng, PLAIN)
        try:
            picture = check_image_file(as_uint8(content))
        except ImageError:
            outcomes['refused'] += 1
            continue
        frame = as_plain_jpeg(picture)
        if isinstance(frame, str):
            outcomes[frame] += 1
            continue
        assert (frame.width, frame.height) == picture.size_wh
        try:
            expected = picture.decode().bgr
        except ImageError:
            with pytest.raises(ImageError):
                decode_on_cpu(frame)
            outcomes['refused by its decoder'] += 1
            continue
        found = decode_on_cpu(frame).plane().reshape(expected.shape)
        assert (found == expected).all(), content.hex()
        outcomes['plain'] += 1
    print(outcomes)
    assert outcomes['plain'] > 800
    assert len(outcomes) > 8


def simple_scan_end(content, at):
    """Return the expected result of find_scan_end, from a search byte by byte."""
    markers = b''
    while at + 1 < len(content):
        following = content[at + 1]
        if content[at] == 0xFF and following:
            if not (0xD0 <= following <= 0xD7 or following == 0xFF):
                return at, markers
            markers += bytes((following,))
        at += 1
    return None


@pytest.mark.parametrize('look', [1, 2, 7, 64, 2**20])
def test_end_and_markers_of_a_scan_are_found(monkeypatch, look, golden_messages):
    """Random bytes put markers, fill bytes and ends at every position of a searched chunk."""
    monkeypatch.setattr(compressed, '_SEARCH_BYTES', look)
    rng = np.random.default_rng(look)
    found = Counter()
    for turn in range(800):
        rare = turn % 4 == 0
        values = (0x00, 0x12, 0xFF, 0xFF, 0xD0, 0xD7, *((0xD9, 0xDA) if rare else ()))
        content = rng.choice(values, int(rng.integers(0, 40))).astype(np.uint8)
        if turn % 3 == 0:
            content = np.concatenate([content, np.frombuffer(b'\xff\xd9', np.uint8)])
        at = int(rng.integers(0, content.size + 1))
        expected = simple_scan_end(content.tobytes(), at)
        if expected is None:
            with golden_messages.raises(ImageError):
                compressed.find_scan_end(content, at)
        else:
            assert compressed.find_scan_end(content, at) == expected, content.tobytes().hex()
        found[expected is None, bool(expected and expected[1])] += 1
    assert len(found) == 3
    assert min(found.values()) > 40
