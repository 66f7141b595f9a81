# SPDX-License-Identifier: Apache-2.0
"""Damage lengths, sizes and markers of JPEG and PNG files, and read them in a watched process.

    python picture_fuzz.py SEED COUNT

The program prints outcomes and errors as JSON. Errors are a crash, a size other than declared, and
more memory or CPU time than the declared pixels need. The original files have some kilobytes.
"""

import collections
import contextlib
import io
import json
import os
import random
import struct
import sys
import time
import zlib
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, PngImagePlugin

from trt_perception.errors import ImageError
from trt_perception.images import compressed

_BATCH_SIZE = 200
_MIB = 2**20
_SPECIAL_NUMBERS = (
    *(0, 1, 2, 3, 4, 8, 16, 0x7F, 0x80, 0xFF, 0x100, 30_000, 65_500, 0xFFFF, 0x10000),
    *(2**20, 2**24, 2**27, 100_000_000, 2**29, 2**30, 2**31 - 1, 2**31, 2**32 - 16, 2**32 - 1),
)
_PNG_CHUNK_NAMES = (
    *(b'tEXt', b'zTXt', b'iTXt', b'iCCP', b'sPLT', b'eXIf', b'acTL', b'fcTL', b'fdAT', b'bKGD'),
    *(b'tRNS', b'PLTE', b'IDAT', b'IHDR', b'IEND', b'CgBI', b'abcd', b'ABCD'),
)


def pictures():
    """Return small pictures by name."""
    bgr = cv2.GaussianBlur(
        np.random.default_rng(1).integers(0, 256, (23, 35, 3), np.uint8), (5, 5), 2
    )
    rgb = Image.fromarray(bgr)
    exif = Image.Exif()
    exif[0x112] = 6
    texts = PngImagePlugin.PngInfo()
    texts.add_text('a', 'b' * 50)
    texts.add_text('z', 'c' * 900, zip=True)
    more = {'save_all': True, 'append_images': [rgb.rotate(9), rgb.rotate(30)]}
    by_pillow = {
        'baseline.jpg': ('JPEG', {'exif': exif, 'icc_profile': bytes(300), 'comment': b'x'}),
        'progressive.jpg': ('JPEG', {'progressive': True, 'subsampling': 0}),
        'cmyk.jpg': ('JPEG', {'mode': 'CMYK'}),
        'texts.png': ('PNG', {'pnginfo': texts, 'exif': exif, 'icc_profile': bytes(400)}),
        'palette.png': ('PNG', {'mode': 'P', 'transparency': 3}),
        'animated.png': ('PNG', more),
    }
    found = {}
    for name, (kind, options) in by_pillow.items():
        file = io.BytesIO()
        rgb.convert(options.pop('mode', 'RGB')).save(file, kind, **options)
        found[name] = file.getvalue()
    by_opencv = {
        'restarts.jpg': ('.jpg', bgr, (cv2.IMWRITE_JPEG_RST_INTERVAL, 1)),
        'deep.png': ('.png', bgr.astype(np.uint16) * 257, ()),
    }
    for name, (kind, picture, options) in by_opencv.items():
        found[name] = cv2.imencode(kind, picture, options)[1].tobytes()
    return found


def randomly_changed_picture(rng, whole):
    """Return a picture with a few changes."""
    content = bytearray(rng.choice(list(whole.values())))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(min(len(content), rng.choice((40, 120, 400, 2**30))))
        rng.choice(
            (
                _overwrite_number,
                _overwrite_number,
                _flip_bit,
                _remove_bytes,
                _insert_other_bytes,
                _insert_jpeg_marker,
                _insert_png_chunk,
            )
        )(rng, content, at, whole)
        if len(content) < 20:
            break
    if content[:4] == b'\x89PNG' and rng.random() < 0.8:
        _repair_png_checksums(content)
    return bytes(content)


def _overwrite_number(rng, content, at, _):
    width = rng.choice((1, 2, 4, 4))
    value = rng.choice((*_SPECIAL_NUMBERS, len(content), len(content) - at, rng.getrandbits(32)))
    order = rng.choice(('big', 'little'))
    content[at : at + width] = (value % 256**width).to_bytes(width, order)


def _flip_bit(rng, content, at, _):
    content[at] ^= 1 << rng.randrange(8)


def _remove_bytes(rng, content, at, _):
    del content[at : at + rng.choice((1, 2, 4, 12, 50))]


def _insert_other_bytes(rng, content, at, whole):
    other = rng.choice((bytes(content), *whole.values()))
    start = rng.randrange(len(other))
    content[at:at] = other[start : start + rng.choice((1, 4, 12, 40, 200))]


def _insert_jpeg_marker(rng, content, at, _):
    """Insert a JPEG marker with or without a segment, mostly in the place of another marker."""
    places = [i for i in range(len(content) - 1) if content[i] == 0xFF and content[i + 1] > 0xBF]
    at = rng.choice(places) if places and rng.random() < 0.8 else at
    frame = (
        struct.pack('>HBHHB', 17, 8, 65500, rng.choice((9, 65500)), 3)
        + b'\1\x22\0\2\x11\1\3\x11\1'
    )
    length = struct.pack('>H', rng.choice((0, 1, 2, 3, 8, 17, 100, 65535)))
    content[at:at] = b'\xff' * rng.choice((1, 1, 2, 5)) + rng.choice(
        (
            bytes([rng.randrange(256)]) + rng.choice((b'', length)),
            bytes([rng.randrange(0xC0, 0xD0)]) + frame,
            b'\0\xff' + bytes([rng.choice((0xC0, 0xC2))]) + frame,
        )
    )


def _insert_png_chunk(rng, content, at, _):
    """Insert a PNG chunk with a right or wrong length."""
    kind = rng.choice(_PNG_CHUNK_NAMES)
    inside = rng.choice(
        (
            *(b'', b'x' * 8, b'a\0b', bytes(26), b'key\0\0' + zlib.compress(bytes(100_000))),
            struct.pack('>IIIIIHHBB', 0, 65500, 65500, 0, 0, 1, 1, 0, 0),
        )
    )
    size = len(inside) if rng.random() < 0.6 else rng.choice(_SPECIAL_NUMBERS)
    at = rng.choice((8, 33, 33, len(content) - 12, at))
    content[at:at] = struct.pack('>I', size) + kind + inside + bytes(4)


def _repair_png_checksums(content):
    """Correct the checksums of a PNG, so that decoders read on."""
    at = 8
    while at + 12 <= len(content):
        end = at + 8 + struct.unpack_from('>I', content, at)[0]
        if end + 4 > len(content):
            return
        struct.pack_into('>I', content, end, zlib.crc32(content[at + 4 : end]))
        at = end + 4


class PictureReader:
    """Decodes files in this process, and reports errors."""

    def __init__(self):
        self._given = False
        compressed.decode_jpeg = self._noting(compressed.decode_jpeg)
        compressed.decode_png = self._noting(compressed.decode_png)

    def _noting(self, decode):
        def run(*given):
            self._given = True
            return decode(*given)

        return run

    def read(self, content):
        """Return the outcome and a list of errors."""
        self._given, pixels, bgr = False, 0, None
        Path('/proc/self/clear_refs').write_text('5')  # 5 resets the peak memory of the process
        before, start = _process_memory('VmRSS'), time.process_time()
        try:
            picture = compressed.check_image_file(np.frombuffer(content, np.uint8))
            pixels = picture.size_wh[0] * picture.size_wh[1]
            bgr = picture.decode().bgr
            outcome = 'decoded'
        except ImageError:
            outcome = 'refused by its decoder' if self._given else 'refused'
        seconds, taken = time.process_time() - start, _process_memory('VmHWM') - before
        wrong = []
        if taken > 32 * _MIB + 4 * len(content) + 24 * pixels:
            wrong.append(f'{outcome}: {taken} bytes for {pixels} pixels')
        if seconds > 5 + 1e-6 * pixels:
            wrong.append(f'{outcome}: {seconds} s for {pixels} pixels')
        if bgr is not None and bgr.size != 3 * pixels:
            wrong.append(f'{outcome}: {bgr.shape}, not {pixels} pixels')
        return outcome, wrong


def _process_memory(name):
    for line in Path('/proc/self/status').read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def _read_in_child_process(contents):
    """Read pictures in a child process; return a line of JSON for each picture read."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            reader = PictureReader()
            for content in contents:
                os.write(write, (json.dumps(reader.read(content)) + '\n').encode())
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        lines = [json.loads(line) for line in pipe]
    _, status = os.waitpid(child, 0)
    if len(lines) < len(contents):
        lines.append([f'ended with {status}', [f'{contents[len(lines)][:2000].hex()}']])
    return lines


def main(seed, count):
    """Read ``count`` damaged pictures and print the results."""
    cv2.setNumThreads(1)
    rng, whole = random.Random(seed), pictures()
    outcomes, wrong = collections.Counter(), []
    while outcomes.total() < count:
        contents = [randomly_changed_picture(rng, whole) for _ in range(_BATCH_SIZE)]
        for outcome, found in _read_in_child_process(contents):
            outcomes[outcome] += 1
            wrong += found
    print(json.dumps({'outcomes': outcomes, 'wrong': wrong[:5]}))


if __name__ == '__main__':
    main(int(sys.argv[1]), int(sys.argv[2]))
