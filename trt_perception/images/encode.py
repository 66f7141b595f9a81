# SPDX-License-Identifier: Apache-2.0
"""Encode an image as the bytes that a camera sends, in each encoding of ``images.frame``."""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.errors import ConfigError
from trt_perception.images.frame import PIXEL_FORMATS

# ITU-R BT.601, limited range. Rows: Y, Cb, Cr. Columns: factors of B, G and R (0…255), offset.
_BGR_TO_YUV_BT601: Final = np.array(
    [
        [24.966 / 255, 128.553 / 255, 65.481 / 255, 16],
        [112.0 / 255, -74.203 / 255, -37.797 / 255, 128],
        [-18.214 / 255, -93.786 / 255, 112.0 / 255, 128],
    ]
)
# The BGR channel of each cell in a Bayer pattern's 2 × 2 square, row by row.
_BAYER_CHANNELS: Final = {
    'bayer_rggb8': (2, 1, 1, 0),
    'bayer_bggr8': (0, 1, 1, 2),
    'bayer_gbrg8': (1, 0, 2, 1),
    'bayer_grbg8': (1, 2, 0, 1),
}


def encode_bgr(bgr: npt.NDArray[np.uint8], encoding: str) -> npt.NDArray[np.uint8]:
    """Encode an image. Encodings with shared chroma omit an odd last row or column.

    Args:
        bgr: uint8 (height, width, 3).
        encoding: a name of PIXEL_FORMATS.

    Returns:
        uint8 (rows, bytes per row), contiguous; ``rows`` is ``PixelFormat.rows`` of the height.

    Raises:
        ConfigError: the encoding is unknown.
    """
    if encoding not in PIXEL_FORMATS:
        raise ConfigError(
            'encoding', repr(encoding), expected=f'one of {", ".join(PIXEL_FORMATS)}'
        )
    pixel_format = PIXEL_FORMATS[encoding]
    height, width = bgr.shape[:2]
    bgr = bgr[
        : height - height % 2 * pixel_format.even_height,
        : width - width % 2 * pixel_format.even_width,
    ]
    height, width = bgr.shape[:2]
    name = pixel_format.name
    encoded: npt.NDArray[np.uint8]
    if name in _BAYER_CHANNELS:
        encoded = np.empty((height, width), np.uint8)
        for cell, channel in enumerate(_BAYER_CHANNELS[name]):
            row, column = divmod(cell, 2)
            encoded[row::2, column::2] = bgr[row::2, column::2, channel]
    elif name in ('uyvy', 'yuyv', 'nv12', 'nv21'):
        encoded = _encode_yuv(bgr, name)
    elif name == 'mono16':
        encoded = (cv2.cvtColor(bgr, cv2.COLOR_BGR2GRAY).astype('<u2') * 257).view(np.uint8)
    elif name == 'bgr8':
        encoded = bgr
    else:
        codes = {'rgb8': 'BGR2RGB', 'bgra8': 'BGR2BGRA', 'rgba8': 'BGR2RGBA', 'mono8': 'BGR2GRAY'}
        encoded = cv2.cvtColor(bgr, getattr(cv2, f'COLOR_{codes[name]}')).astype(
            np.uint8, copy=False
        )
    return np.ascontiguousarray(encoded.reshape(encoded.shape[0], -1))


def _encode_yuv(bgr: npt.NDArray[np.uint8], name: str) -> npt.NDArray[np.uint8]:
    height, width = bgr.shape[:2]
    yuv = cv2.transform(bgr, _BGR_TO_YUV_BT601).astype(np.uint8, copy=False)
    if name in ('nv12', 'nv21'):
        chroma = cv2.resize(yuv[..., 1:], (width // 2, height // 2), interpolation=cv2.INTER_AREA)
        chroma = chroma if name == 'nv12' else chroma[..., ::-1]
        return np.concatenate([yuv[..., 0], chroma.reshape(height // 2, width).astype(np.uint8)])
    chroma = cv2.resize(yuv[..., 1:], (width // 2, height), interpolation=cv2.INTER_AREA)
    packed = np.empty((height, width, 2), np.uint8)
    luma = 1 if name == 'uyvy' else 0
    packed[..., luma] = yuv[..., 0]
    packed[:, 0::2, 1 - luma] = chroma[..., 0]
    packed[:, 1::2, 1 - luma] = chroma[..., 1]
    return packed
