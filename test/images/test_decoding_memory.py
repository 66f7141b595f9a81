# SPDX-License-Identifier: Apache-2.0
"""Test the documented memory for decoding compressed images, and pixels decoded in strips."""

import struct
import subprocess
import sys
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image

from support.programs import DEADLINE_S
from trt_perception.images import decompress
from trt_perception.images.compressed import MAX_PIXELS
from trt_perception.images.results import image_limits

#: The largest message of a camera.
MAX_MESSAGE_BYTES = 256 * 2**20

SIDE = 4000
#: The documented limit for the largest image, as bytes for a pixel.
LIMIT_BYTES = 1.9e9 / MAX_PIXELS
#: A file may have as many bytes for a pixel as the largest message with the largest image.
FILE_BYTES = int(SIDE * SIDE * MAX_MESSAGE_BYTES / MAX_PIXELS) - 2**16
RNG = np.random.default_rng(0)

DECODE = """
import sys
import numpy as np
from PIL import JpegImagePlugin, PngImagePlugin
import simplejpeg
from trt_perception.images.compressed import decode_image_file

def memory(name):
    line = next(line for line in open('/proc/self/status') if line.startswith(name))
    return 1024 * int(line.split()[1])

content = np.fromfile(sys.argv[1], np.uint8)
before = memory('VmRSS:')
pixels = decode_image_file(content)
print((memory('VmHWM:') - before) / (pixels.size / 3))
"""


def png(bits, colour, channels):
    """Return a PNG with random values at its start, up to FILE_BYTES, and then zeros."""
    header = struct.pack('>IIBBBBB', SIDE, SIDE, bits, colour, 0, 0, 0)
    row_bytes = SIDE * channels * bits // 8
    compress = zlib.compressobj(1)
    coded = b''
    for _ in range(SIDE):
        row = RNG.bytes(row_bytes) if len(coded) + 2 * row_bytes < FILE_BYTES else bytes(row_bytes)
        coded += compress.compress(b'\0' + row)
    parts = [(b'IHDR', header), (b'IDAT', coded + compress.flush()), (b'IEND', b'')]
    if colour == 3:
        parts.insert(1, (b'PLTE', bytes(range(256)) * 3))
    chunks = [
        struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
        for kind, data in parts
    ]
    return b'\x89PNG\r\n\x1a\n' + b''.join(chunks)


def jpeg(*samplings, is_progressive=False):
    """Return a JPEG of one colour, in which each block is coded with one or two bits.

    Args:
        samplings: the sampling factors of each component, such as 0x21.
        is_progressive: whether the decoder must keep all coefficients.
    """

    def segment(marker, data):
        return bytes((0xFF, marker)) + struct.pack('>H', len(data) + 2) + data

    across, down = max(each >> 4 for each in samplings), max(each & 15 for each in samplings)
    blocks = sum((each >> 4) * (each & 15) for each in samplings)
    blocks *= -(-SIDE // (8 * across)) * -(-SIDE // (8 * down))
    components = [bytes((number, each, 0)) for number, each in enumerate(samplings, 1)]
    table = bytes((1, *(0,) * 15, 0))  # the only code is one bit, and its value is 0
    frame = struct.pack('>BHHB', 8, SIDE, SIDE, len(samplings)) + b''.join(components)
    scan = b''.join(bytes((each[0], 0)) for each in components)
    last = b'\0\0\0' if is_progressive else b'\0\x3f\0'
    coded = bytes(-(-blocks // 8) * (1 if is_progressive else 2))
    return b''.join(
        (
            b'\xff\xd8',
            segment(0xDB, b'\0' + bytes((1,)) * 64),
            segment(0xC2 if is_progressive else 0xC0, frame),
            segment(0xC4, b'\0' + table + b'\x10' + table),
            segment(0xDA, bytes((len(samplings),)) + scan + last),
            coded,
            b'\xff\xd9',
        )
    )


@pytest.mark.parametrize(
    'make_file',
    [
        pytest.param(lambda: png(8, 2, 3), id='PNG'),
        pytest.param(lambda: png(8, 3, 1), id='PNG with a palette'),
        pytest.param(lambda: png(8, 6, 4), id='PNG with transparency'),
        pytest.param(lambda: png(16, 6, 4), id='PNG of 16 bits with transparency'),
        pytest.param(lambda: png(16, 0, 1), id='grey PNG of 16 bits'),
        pytest.param(lambda: jpeg(0x22, 0x11, 0x11), id='JPEG'),
        pytest.param(lambda: jpeg(0x22, 0x11, 0x11, is_progressive=True), id='progressive JPEG'),
        pytest.param(lambda: jpeg(0x31, 0x11, 0x11), id='JPEG of unusual sampling'),
        pytest.param(lambda: jpeg(0x31, 0x11, 0x11, 0x11), id='CMYK JPEG of unusual sampling'),
        pytest.param(lambda: jpeg(0x11, 0x11, 0x11, 0x11), id='CMYK JPEG'),
    ],
)
def test_decoding_needs_at_most_the_documented_memory(tmp_path, make_file):
    path = tmp_path / 'image'
    path.write_bytes(make_file())
    ended = subprocess.run(
        [sys.executable, '-c', DECODE, path], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert ended.returncode == 0, ended.stderr
    assert float(ended.stdout) < LIMIT_BYTES


@pytest.mark.parametrize('strip_pixels', [1, 1000, 2**30])
@pytest.mark.parametrize('mode', ['1', 'L', 'LA', 'P', 'RGB', 'RGBA', 'CMYK', 'YCbCr', 'I;16'])
def test_strips_of_an_image_have_the_pixels_of_the_whole_image(monkeypatch, mode, strip_pixels):
    monkeypatch.setattr(image_limits, '_STRIP_PIXELS', strip_pixels)
    if mode == 'I;16':
        values = RNG.integers(0, 2**16, (37, 61), np.uint16)
        image, expected = Image.fromarray(values), np.dstack([values >> 8] * 3)
    else:
        image = Image.fromarray(RNG.integers(0, 256, (37, 61, 3), np.uint8)).convert(mode)
        expected = cv2.cvtColor(np.asarray(image.convert('RGB')), cv2.COLOR_RGB2BGR)
    assert np.array_equal(decompress.pillow_to_bgr(image), expected)
