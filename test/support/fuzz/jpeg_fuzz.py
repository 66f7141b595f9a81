# SPDX-License-Identifier: Apache-2.0
"""Change JPEGs so that they remain JPEGs: tables, sizes, sampling, intervals, coded bits.

``picture_fuzz`` changes bytes of files, and most results fail the file check. The changes here
target the decoder after the check: most files pass the check, and the damage is in parts that the
check does not see.
"""

from __future__ import annotations

import functools
import random
import struct

import cv2
import numpy as np

from support.fuzz import picture_fuzz

SAMPLINGS = {
    '444': cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
    '440': cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
    '422': cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    '420': cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    '411': cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
}
PICTURE_SIZES = ((1, 1), (8, 8), (17, 9), (35, 23), (64, 48), (130, 70), (320, 240))


@functools.cache
def scene_bgr(width, height, seed=1):
    """Return a BGR picture with edges and gradients, uint8 (height, width, 3), not writeable."""
    rng = np.random.default_rng(seed)
    along_x = np.exp(1j * np.arange(width)[:, None] / rng.uniform(9, 40, 3))
    along_y = np.exp(1j * np.arange(height)[:, None, None] / rng.uniform(9, 40, 3))
    bgr = 128 + 100 * (along_x * along_y).imag.astype(np.float32)  # sine of the sum of both angles
    noise = rng.normal(0, 6, (min(height, 240), min(width, 320), 3))
    bgr += np.resize(noise.astype(np.float32), bgr.shape)
    for _ in range(4):
        left, top = rng.integers(0, width), rng.integers(0, height)
        bgr[top : top + height // 4, left : left + width // 4] = rng.integers(0, 256, 3)
    picture = bgr.clip(0, 255).astype(np.uint8)
    picture.flags.writeable = False
    return picture


def encoded_jpeg(bgr, sampling='420', quality=90, interval=0, optimise=False):
    """Return a JPEG. A picture with one plane becomes a grey JPEG."""
    options = [
        *(cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_RST_INTERVAL, interval),
        *(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, SAMPLINGS[sampling]),
        *(cv2.IMWRITE_JPEG_OPTIMIZE, int(optimise)),
    ]
    return cv2.imencode('.jpg', bgr, options)[1].tobytes()


def plain_jpegs():
    """Return JPEGs of all samplings and some sizes by name."""
    found = {}
    for index, (width, height) in enumerate(PICTURE_SIZES):
        bgr = scene_bgr(width, height, index)
        found[f'{width}x{height} grey'] = encoded_jpeg(np.ascontiguousarray(bgr[..., 1]))
        for sampling in SAMPLINGS:
            for interval in (0, 1, 5):
                name = f'{width}x{height} {sampling} {interval}'
                found[name] = encoded_jpeg(bgr, sampling, 60 + 5 * index, interval, interval == 5)
    return found


def segments(content):
    """Return [marker, body] of each segment. The last entry has the coded bits, with marker 0."""
    found, at = [], 2
    while True:
        marker, size = content[at + 1], int.from_bytes(content[at + 2 : at + 4], 'big')
        found.append([marker, bytearray(content[at + 4 : at + 2 + size])])
        at += 2 + size
        if marker == 0xDA:
            return [*found, [0, bytearray(content[at:-2])]]


def joined_segments(parts):
    """Return the JPEG file of a list of segments."""
    written = b'\xff\xd8'
    for marker, body in parts:
        if marker:
            written += struct.pack('>BBH', 0xFF, marker, 2 + len(body))
        written += body
    return written + b'\xff\xd9'


def randomly_changed_jpeg(rng: random.Random, files):
    """Return one of the files, with one to three random changes."""
    names = list(files)
    content = files[rng.choice(names)]
    if rng.random() < 0.15:
        return picture_fuzz.randomly_changed_picture(rng, {'one': content})
    parts = segments(content)
    for _ in range(rng.choice((1, 1, 2, 3))):
        change = rng.choice(
            (
                *(
                    _flip_coded_bits,
                    _flip_coded_bits,
                    _overwrite_coded_run,
                    _cut_coded_bits,
                    _cut_coded_bits,
                    _insert_foreign_bits,
                    _change_quantisation,
                ),
                *(
                    _change_huffman_symbols,
                    _change_huffman_lengths,
                    _change_image_size,
                    _change_sampling,
                    _change_restart_interval,
                    _insert_restart_marker,
                    _assign_other_tables,
                    _reorder_or_repeat_segments,
                    _remove_segment,
                    _remove_components_of_scan,
                    _insert_comments,
                ),
            )
        )
        change(rng, parts, files)
    return joined_segments(parts)


def _random_segment_body(rng, parts, marker):
    bodies = [body for kind, body in parts if kind == marker and body]
    return rng.choice(bodies) if bodies else bytearray(64)


def _flip_coded_bits(rng, parts, _):
    bits = _random_segment_body(rng, parts, 0)
    for _ in range(rng.choice((1, 1, 4, 30))):
        at = rng.randrange(len(bits))
        value = bits[at] ^ 1 << rng.randrange(8)
        if value != 0xFF and bits[at] != 0xFF and (at == 0 or bits[at - 1] != 0xFF):
            bits[at] = value


def _overwrite_coded_run(rng, parts, _):
    bits = _random_segment_body(rng, parts, 0)
    at, size = rng.randrange(len(bits)), rng.choice((2, 9, 100, 3000))
    bits[at : at + size] = rng.choice((b'\0', b'\xff\0', b'\x7f', b'\xaa', b'\xfe')) * size


def _cut_coded_bits(rng, parts, _):
    bits = _random_segment_body(rng, parts, 0)
    at = rng.randrange(len(bits))
    del bits[at : rng.choice((at + 1, at + 2, at + 40, len(bits)))]


def _insert_foreign_bits(rng, parts, files):
    other = segments(files[rng.choice(list(files))])[-1][1]
    bits = _random_segment_body(rng, parts, 0)
    at = rng.randrange(len(bits))
    bits[at:] = rng.choice((other, bits[at:] + other, bits * 3))


def _change_quantisation(rng, parts, _):
    table = _random_segment_body(rng, parts, 0xDB)
    for _ in range(rng.choice((1, 8, 64))):
        table[rng.randrange(1, len(table))] = rng.choice(
            (0, 1, 2, 128, 255, 255, rng.getrandbits(8))
        )


def _change_huffman_symbols(rng, parts, _):
    """Change symbols of Huffman codes, sometimes to values that no coefficient has."""
    table = _random_segment_body(rng, parts, 0xC4)
    most = 11 if table[0] < 0x10 else 10
    for _ in range(rng.choice((1, 5, 200))):
        run = 0 if table[0] < 0x10 else rng.randrange(16)
        bits = rng.randrange(most + 1) if rng.random() < 0.02 else rng.randrange(1, most + 1)
        table[rng.randrange(17, len(table))] = 16 * run + bits


def _change_huffman_lengths(rng, parts, _):
    """Change lengths of Huffman codes. The number of codes stays, so the symbols remain valid."""
    table = _random_segment_body(rng, parts, 0xC4)
    for _ in range(rng.choice((1, 1, 6))):
        one, other = rng.randrange(1, 17), rng.randrange(1, 17)
        if table[one] and table[other] < 255:
            table[one] -= 1
            table[other] += 1


def _change_image_size(rng, parts, _):
    frame = _random_segment_body(rng, parts, 0xC0)
    for at in rng.choice(((1,), (3,), (1, 3))):
        side = int.from_bytes(frame[at : at + 2], 'big')
        near = max(1, side + rng.randrange(-20, 20))
        side = rng.choice((near, near, 1, 2, 8, 500, 3 * side, 4000, 0, 65_500))
        frame[at : at + 2] = struct.pack('>H', min(side, 65_535))


def _change_sampling(rng, parts, _):
    frame = _random_segment_body(rng, parts, 0xC0)
    at = rng.choice(range(7, len(frame), 3)) if rng.random() < 0.2 else 7
    if at < len(frame):
        frame[at] = rng.choice((0x11, 0x12, 0x21, 0x22, 0x41, 0x14, 0x44, 0x31, 0x42, 0, 0xFF))


def _change_restart_interval(rng, parts, _):
    interval = struct.pack('>H', rng.choice((0, 1, 2, 3, 5, 7, 100, 65_535)))
    parts[:] = [part for part in parts if part[0] != 0xDD]
    parts.insert(rng.randrange(len(parts) - 1), [0xDD, bytearray(interval)])


def _insert_restart_marker(rng, parts, _):
    bits = _random_segment_body(rng, parts, 0)
    at = rng.randrange(len(bits))
    bits[at:at] = bytes((0xFF, 0xD0 + rng.randrange(8)))


def _assign_other_tables(rng, parts, _):
    """Assign other tables to components."""
    scan, frame = _random_segment_body(rng, parts, 0xDA), _random_segment_body(rng, parts, 0xC0)
    at = rng.choice(range(2, len(scan) - 3, 2))
    scan[at] = rng.choice((0x00, 0x01, 0x10, 0x11, 0x11, 0x22))
    if len(frame) > 14:
        frame[rng.choice((8, 11, 14))] = rng.choice((0, 0, 1, 1, 2))


def _remove_components_of_scan(rng, parts, _):
    """Remove components from the scan. libjpeg expects further scans then."""
    scan = _random_segment_body(rng, parts, 0xDA)
    count = rng.randrange(1, 4)
    scan[:] = bytes((count,)) + scan[1 : 1 + 2 * count] + scan[-3:]


def _insert_comments(rng, parts, _):
    """Insert comments of 64 KiB each before all other segments."""
    parts[:0] = [[0xFE, bytearray(65_533)] for _ in range(rng.choice((1, 2, 20)))]


def _reorder_or_repeat_segments(rng, parts, _):
    """Reorder or repeat segments."""
    one, other = rng.randrange(len(parts) - 1), rng.randrange(len(parts) - 1)
    if rng.random() < 0.5:
        parts[one], parts[other] = parts[other], parts[one]
    else:
        parts.insert(one, [parts[other][0], bytearray(parts[other][1])])


def _remove_segment(rng, parts, _):
    """Remove a segment other than the frame header and the scan."""
    parts.remove(rng.choice([part for part in parts if part[0] not in (0xC0, 0xDA, 0)]))
