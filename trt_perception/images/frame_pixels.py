# SPDX-License-Identifier: Apache-2.0
"""Convert frames of all pixel formats to BGR, as the reference for the GPU's kernels."""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.images.frame import Frame

_BGR_CHANNELS: Final = (0, 1, 2)
_RGB_CHANNELS: Final = (2, 1, 0)
_GRAY_CHANNELS: Final = (0, 0, 0)

# Maps each packed format to the indices of its blue, green and red channel.
_CHANNELS_BY_PACKED_FORMAT: Final = {
    'bgr8': _BGR_CHANNELS,
    'bgra8': _BGR_CHANNELS,
    'rgb8': _RGB_CHANNELS,
    'rgba8': _RGB_CHANNELS,
    'mono8': _GRAY_CHANNELS,
}

# YUV is BT.601, limited range. OpenCV names a Bayer pattern after the second and third pixel of
# the second row, ROS after the first two pixels of the first row: rggb is BayerBG.
_OPENCV_CONVERSIONS: Final[dict[str, int]] = {
    'uyvy': cv2.COLOR_YUV2BGR_UYVY,
    'yuyv': cv2.COLOR_YUV2BGR_YUYV,
    'nv12': cv2.COLOR_YUV2BGR_NV12,
    'nv21': cv2.COLOR_YUV2BGR_NV21,
    'bayer_rggb8': cv2.COLOR_BayerBG2BGR,
    'bayer_bggr8': cv2.COLOR_BayerRG2BGR,
    'bayer_gbrg8': cv2.COLOR_BayerGR2BGR,
    'bayer_grbg8': cv2.COLOR_BayerGB2BGR,
}


def pixels_and_bgr_order(frame: Frame) -> tuple[npt.NDArray[np.uint8], tuple[int, int, int]]:
    """Return a frame's pixels with 8 bits per channel, and the order of their channels.

    Returns:
        uint8 (height, width, channels), a view of the frame if the format is packed; and the
        indices of the blue, green and red channel.
    """
    name = frame.format.name
    plane = frame.plane()
    if name in _CHANNELS_BY_PACKED_FORMAT:
        return plane.reshape(frame.height, frame.width, -1), _CHANNELS_BY_PACKED_FORMAT[name]
    if name == 'mono16':
        values = plane.view('>u2' if frame.big_endian else '<u2')
        # 65535 / 257 = 255: scale the range of 16 bits to the range of 8 bits, rounded half up.
        wide = values.astype(np.uint32)
        wide += 128
        wide //= 257
        return wide.astype(np.uint8)[..., None], _GRAY_CHANNELS
    if name in ('uyvy', 'yuyv'):
        plane = plane.reshape(frame.height, frame.width, 2)
    bgr = cv2.cvtColor(plane, _OPENCV_CONVERSIONS[name])
    return bgr, _BGR_CHANNELS  # type: ignore[return-value]


def frame_to_bgr(frame: Frame, out: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
    """Return a frame as a BGR image, uint8 (height, width, 3). The pixels are copied.

    Args:
        frame: a decoded frame in any pixel format.
        out: array for the result, uint8 (height, width, 3). If None, a new array is allocated.
    """
    image, bgr_order = pixels_and_bgr_order(frame)
    if out is None:
        out = np.empty((frame.height, frame.width, 3), np.uint8)
    for target, source in enumerate(bgr_order):  # five times faster than image[..., bgr_order]
        out[..., target] = image[..., source]
    return out
