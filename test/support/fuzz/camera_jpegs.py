# SPDX-License-Identifier: Apache-2.0
"""Make JPEGs such as cameras send: usual files, files with harmless defects, truncated files."""

import io
import re
import struct

import cv2
import numpy as np
from PIL import Image

from support.fuzz.jpeg_fuzz import joined_segments, segments

EOI = b'\xff\xd9'
SEGMENT_MARKER = re.compile(rb'\xff[\xc0-\xcf\xda-\xff]')
RESTART_MARKER = re.compile(rb'\xff[\xd0-\xd7]')
BGR = cv2.GaussianBlur(
    np.random.default_rng(5).integers(0, 256, (120, 160, 3), np.uint8), (5, 5), 2
)


def scene_jpeg(mode='RGB', **options):
    """Return the scene as a JPEG. Pillow encodes it, because OpenCV will decode the file."""
    file = io.BytesIO()
    rgb = Image.fromarray(np.ascontiguousarray(BGR[..., ::-1]))
    rgb.convert(mode).save(file, 'JPEG', **options)
    return file.getvalue()


def without_huffman_tables(content):
    """Return a JPEG without its Huffman tables, as in Motion JPEG."""
    while (at := content.find(b'\xff\xc4')) > 0:
        end = at + 2 + int.from_bytes(content[at + 2 : at + 4], 'big')
        content = content[:at] + content[end:]
    return content


def with_jfif_version(content, major):
    at = content.index(b'JFIF\0') + 5
    return content[:at] + bytes((major,)) + content[at + 1 :]


def with_luma_sampling(content, luma):
    """Return a grey JPEG whose components have other sampling factors."""
    at = content.index(b'\xff\xc0') + 11
    return content[:at] + bytes((luma,)) + content[at + 1 :]


def jpeg_with_samplings(*samplings):
    """Return a whole JPEG whose components have these sampling factors (0x21: 2 across, 1 down).

    No encoder writes all samplings. The coded blocks come from a grey JPEG of as many blocks, so
    the image shows no scene, but each bit is a part of one of its blocks.
    """
    count = len(samplings)
    across, down = [sampling >> 4 for sampling in samplings], [each & 15 for each in samplings]
    blocks = sum(h * v for h, v in zip(across, down, strict=True))
    grey = cv2.resize(BGR[..., 0], (8 * blocks * 4, 8 * 5))
    parts = segments(cv2.imencode('.jpg', grey)[1].tobytes())
    body = dict(parts)
    rows = b''.join(bytes((i, factor, 0)) for i, factor in enumerate(samplings, 1))
    body[0xC0][:] = struct.pack('>BHHB', 8, 40 * max(down), 32 * max(across), count) + rows
    tables = b''.join(bytes((i, 0)) for i in range(1, count + 1))
    body[0xDA][:] = bytes((count,)) + tables + b'\0\x3f\0'
    return joined_segments(parts)


def with_comments(content, size):
    """Return a JPEG with at least ``size`` bytes of comments before its other segments."""
    comment = b'\xff\xfe' + struct.pack('>H', 65535) + bytes(65533)
    return content[:2] + comment * (size // len(comment) + 1) + content[2:]


def with_scan_of_one_component(content, side):
    """Return a JPEG of side x side pixels whose only scan lacks all components but the first.

    libjpeg expects further scans, so it keeps the coefficients of all components.
    """
    parts = segments(content)
    body = dict(parts)
    body[0xDA][:] = b'\1\1\0\0\x3f\0'
    body[0xC0][1:5] = struct.pack('>HH', side, side)
    return joined_segments(parts)


JPEG_WITH_RESTARTS = cv2.imencode('.jpg', BGR, [cv2.IMWRITE_JPEG_RST_INTERVAL, 4])[1].tobytes()
BASELINE_JPEG = scene_jpeg()
WHOLE_JPEGS = {
    **{f'subsampling {number}': scene_jpeg(subsampling=number) for number in range(3)},
    'restart markers': JPEG_WITH_RESTARTS,
    'no Huffman tables': without_huffman_tables(BASELINE_JPEG),
    'grey': scene_jpeg('L'),
    'CMYK': scene_jpeg('CMYK'),
    'progressive': scene_jpeg(progressive=True),
    'progressive grey': scene_jpeg('L', progressive=True),
    'progressive, restart markers': scene_jpeg(progressive=True, restart_marker_blocks=4),
}
#: Sampling factors of luma and both chroma components that simplejpeg does not support.
UNUSUAL_SAMPLINGS = (
    *((0x13, 0x11, 0x11), (0x31, 0x11, 0x11), (0x42, 0x11, 0x11), (0x11, 0x21, 0x21)),
    *((0x21, 0x12, 0x11), (0x22, 0x21, 0x11), (0x14, 0x12, 0x11), (0x22, 0x11, 0x22)),
)
#: Complete files with defects that libjpeg warns about, although no pixels are missing.
JPEGS_WITH_HARMLESS_DEFECTS = {
    'spare bytes before EOI': BASELINE_JPEG[:-2] + bytes(16) + EOI,
    'spare bytes before restart markers': RESTART_MARKER.sub(
        lambda found: bytes(5) + found[0], JPEG_WITH_RESTARTS
    ),
}
#: Files with JFIF versions that libjpeg does not know, by version.
JPEGS_OF_UNKNOWN_VERSIONS = {
    f'JFIF {major}.1': with_jfif_version(BASELINE_JPEG, major) for major in (0, 2, 9)
}


def cut_files(whole):
    """Yield files cut within their coded pixels, each without and with an EOI marker."""
    start = whole.index(b'\xff\xda') + 14
    step = (len(whole) - start) // 40
    for size in range(start + 16, len(whole) - 40, step):
        cut = whole[:size].rstrip(b'\xff')
        if SEGMENT_MARKER.match(whole, len(cut)):
            continue  # the cut is between two scans: the file is complete, with lower quality
        yield cut
        yield cut + EOI
