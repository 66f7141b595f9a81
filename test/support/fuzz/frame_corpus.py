# SPDX-License-Identifier: Apache-2.0
"""Make a corpus of image messages: most are invalid, some are valid but unusual.

Equal seeds give equal corpora, in pytest and under compute-sanitizer. reference_images and the
sizes decide whether a case is invalid, not the code under test. A case may have several faults;
each is a correct reason to refuse it.
"""

import random
import struct
import zlib
from dataclasses import dataclass, replace

import cv2
import numpy as np

from support.oracles.reference_images import ENCODINGS, TWO_PLANES, YUV, byte_rows, row_bytes
from trt_perception.images.encode import encode_bgr
from trt_perception.images.frame import PIXEL_FORMATS, Frame

MAX_SIDE = 32767
UINT32 = 2**32 - 1
STRANGE_SIZES = (0, 1, 2, 3, 5, 4095, 32767, 32768, 65536, 2**31 - 1, 2**31, UINT32)
STRANGE_ENCODINGS = (
    '',
    'BGR8',
    'bgr8 ',
    '16UC1',
    '32FC1',
    '64FC4',
    'jpeg',
    'bayer_rggb16',
    'no_such_encoding',
    '8UC',
    'bgr8; rgb8',
    'é' * 40,
    'x' * 4000,
)


@dataclass(frozen=True)
class Case:
    """An image message without its header. The name says how the message was changed."""

    name: str
    data: bytes
    width: int
    height: int
    step: int
    encoding: str
    big_endian: bool = False

    def frame(self):
        return Frame.view(
            self.data,
            width=self.width,
            height=self.height,
            step=self.step,
            encoding=self.encoding,
            big_endian=self.big_endian,
        )

    @property
    def faults(self):
        """Return all correct reasons to refuse the image; empty if it must be accepted."""
        faults = set()
        if self.encoding not in ENCODINGS:
            return {'unknown_encoding'}  # the expected size is unknown
        name = ENCODINGS[self.encoding]
        low = 3 if name.startswith('bayer') else 1
        if not (low <= self.width <= MAX_SIDE and low <= self.height <= MAX_SIDE):
            faults.add('bad_size')
        if (name in YUV and self.width % 2) or (name in TWO_PLANES and self.height % 2):
            faults.add('odd_size')
        if self.step < row_bytes(self.encoding, self.width):
            faults.add('bad_step')
        if len(self.data) != self.step * byte_rows(self.encoding, self.height):
            faults.add('bad_length')
        return faults


def picture(rng, width, height):
    """Return a picture of a gradient and noise."""
    seed = np.random.default_rng(rng.getrandbits(32))
    across = np.linspace(rng.randrange(256), rng.randrange(256), width)[None, :, None]
    down = np.linspace(0, rng.randrange(1, 128), height)[:, None, None]
    noise = seed.normal(0, 12, (height, width, 3))
    return np.clip(across + down + noise, 0, 255).astype(np.uint8)


def random_valid_case(rng):
    """Return a random valid image such as a camera driver sends. Most images are small."""
    encoding = rng.choice(sorted(ENCODINGS))
    width, height = rng.randrange(4, 100), rng.randrange(4, 100)
    rows = encode_bgr(picture(rng, width, height), encoding)
    padding = rng.choice((0, 0, 1, 2, 13, 64))
    rows = np.pad(rows, ((0, 0), (0, padding)), constant_values=rng.randrange(256))
    return Case(
        'real',
        rows.tobytes(),
        (rows.shape[1] - padding) // (row_bytes(encoding, 2) // 2),
        PIXEL_FORMATS[encoding].image_height(rows.shape[0]),
        rows.shape[1],
        encoding,
        rng.random() < 0.2,
    )


# Each function takes a random generator and a valid case, and returns a changed case.


def _without_data(rng, case):
    return replace(case, data=b'')


def _with_less_data(rng, case):
    return replace(case, data=case.data[: rng.randrange(len(case.data))])


def _with_more_data(rng, case):
    return replace(case, data=case.data + rng.randbytes(rng.choice((1, 2, 3, 4096))))


def _with_size_off_by_one(rng, case):
    field = rng.choice(('width', 'height', 'step'))
    return replace(case, **{field: max(0, getattr(case, field) + rng.choice((-1, 1)))})


def _with_strange_size(rng, case):
    fields = rng.sample(('width', 'height', 'step'), rng.randrange(1, 4))
    return replace(case, **{field: rng.choice(STRANGE_SIZES) for field in fields})


def _with_random_size(rng, case):
    fields = rng.sample(('width', 'height', 'step'), rng.randrange(1, 4))
    return replace(case, **{field: rng.getrandbits(rng.randrange(1, 33)) for field in fields})


def _with_small_step(rng, case):
    return replace(case, step=rng.randrange(row_bytes(case.encoding, case.width)))


def _with_swapped_sides(rng, case):
    return replace(case, width=case.height, height=case.width)


def _with_other_encoding(rng, case):
    return replace(case, encoding=rng.choice(sorted(ENCODINGS)))


def _with_strange_encoding(rng, case):
    return replace(case, encoding=rng.choice(STRANGE_ENCODINGS))


def _image_with_odd_chroma(rng, case):
    encoding = rng.choice([name for name, same in ENCODINGS.items() if same in YUV])
    width, height = rng.randrange(1, 60), rng.randrange(1, 60)
    step = row_bytes(encoding, width) + rng.randrange(3)
    data = rng.randbytes(step * byte_rows(encoding, height))
    return Case('', data, width, height, step, encoding)


def _with_noise(rng, case):
    return replace(case, data=rng.randbytes(len(case.data)))


def _with_other_byte_order(rng, case):
    return replace(case, big_endian=not case.big_endian)


def _long_and_thin_image(rng, case):
    """Return an image one or a few pixels thin, sometimes of the largest possible length."""
    sides = [rng.choice((1, 2, 3, 4, 6)), rng.choice((1, 2, 7, 640, 4096, MAX_SIDE - 1, MAX_SIDE))]
    rng.shuffle(sides)
    width, height = sides
    encoding = rng.choice(sorted(ENCODINGS))
    step = row_bytes(encoding, width) + rng.choice((0, 0, 1, 700))
    return Case('', bytes(step * byte_rows(encoding, height)), width, height, step, encoding)


def _image_with_far_rows(rng, case):
    """Return an image with much padding between its rows."""
    encoding = rng.choice(sorted(ENCODINGS))
    width, height = 4 * rng.randrange(1, 5), 4 * rng.randrange(1, 5)
    step = row_bytes(encoding, width) + rng.randrange(1000, 100_000)
    return Case('', bytes(step * byte_rows(encoding, height)), width, height, step, encoding)


def _with_two_changes(rng, case):
    for change in rng.sample(
        (
            _with_less_data,
            _with_size_off_by_one,
            _with_strange_encoding,
            _with_swapped_sides,
            _image_with_odd_chroma,
        ),
        2,
    ):
        if case.data:
            case = change(rng, case)
    return case


CASE_CHANGES = (
    _without_data,
    _with_less_data,
    _with_more_data,
    _with_size_off_by_one,
    _with_strange_size,
    _with_random_size,
    _with_small_step,
    _with_swapped_sides,
    _with_other_encoding,
    _with_strange_encoding,
    _image_with_odd_chroma,
    _with_noise,
    _with_other_byte_order,
    _long_and_thin_image,
    _image_with_far_rows,
    _with_two_changes,
)


def frame_cases(count, seed=1):
    """Return ``count`` cases. All kinds of change are equally frequent."""
    rng = random.Random(seed)
    cases = []
    for index in range(count):
        change = CASE_CHANGES[index % len(CASE_CHANGES)]
        case = change(rng, random_valid_case(rng))
        cases.append(replace(case, name=f'{index}{change.__name__}'))
    return cases


# Compressed images.


@dataclass(frozen=True)
class CompressedCase:
    """A CompressedImage without its header.

    ``reasons`` are all correct reasons to refuse the message. ``must`` is False if the message may
    also be accepted.
    """

    name: str
    data: bytes
    reasons: frozenset
    must: bool


def _chunk(kind, content):
    whole = kind + content
    return struct.pack('>I', len(content)) + whole + struct.pack('>I', zlib.crc32(whole))


def png_bomb(width, height):
    """Return a one-bit PNG with this size in its header, and without pixels above 400 MP."""
    rows = bytes((width // 8 + 1) * height) if width * height <= 20_000**2 else b''
    head = struct.pack('>IIBBBBB', width, height, 1, 0, 0, 0, 0)
    pixels = _chunk(b'IDAT', zlib.compress(rows, 9))
    return b'\x89PNG\r\n\x1a\n' + _chunk(b'IHDR', head) + pixels + _chunk(b'IEND', b'')


def jpeg_bomb(jpeg, width, height):
    """Return a JPEG with another size in its header."""
    at = jpeg.index(b'\xff\xc0') + 5
    return jpeg[:at] + struct.pack('>HH', height, width) + jpeg[at + 4 :]


def compressed_corpus(count, seed=2):
    """Return compressed cases: bombs, truncation, flipped bits, other formats, noise."""
    rng = random.Random(seed)
    damaged = frozenset({'not_decodable'})
    bombs = [png_bomb(20_000, 20_000), png_bomb(2**31 - 1, 2**31 - 1), png_bomb(2**20, 2**10)]
    cases = []
    for index in range(count):
        suffix = rng.choice(('.jpg', '.png'))
        size = rng.randrange(8, 120), rng.randrange(8, 120)
        whole = cv2.imencode(suffix, picture(rng, *size))[1].tobytes()
        kind = ('truncated', 'flipped', 'bomb', 'format', 'noise', 'empty', 'whole')[index % 7]
        reasons, must = damaged, True
        if kind == 'truncated':
            data = whole[: rng.randrange(len(whole) - 12)]
        elif kind == 'flipped':
            data = bytearray(whole)
            for _ in range(rng.randrange(1, 9)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            # A flipped bit may change the size or only a pixel.
            data, must = bytes(data), False
            reasons = damaged | {'too_large', 'bad_size'}
        elif kind == 'bomb':
            jpeg = cv2.imencode('.jpg', picture(rng, 16, 16))[1].tobytes()
            data = rng.choice([*bombs, jpeg_bomb(jpeg, 65500, 65500), jpeg_bomb(jpeg, 0, 9)])
            reasons = damaged | {'too_large'}
        elif kind == 'format':
            other = rng.choice(('.bmp', '.webp', '.tiff', '.ppm'))
            data = cv2.imencode(other, picture(rng, *size))[1].tobytes()
        elif kind == 'noise':
            start = rng.choice((b'', b'\xff\xd8', b'\xff\xd8\xff', b'\x89PNG\r\n\x1a\n'))
            data = start + rng.randbytes(rng.randrange(400))
        elif kind == 'empty':
            data = b''
        else:
            data, reasons, must = whole, frozenset(), False
        cases.append(CompressedCase(f'{index} {kind} {suffix}', data, reasons, must))
    return cases
