"""Preprocess a frame to the network's input on the CPU.

Uses OpenCV, Pillow for antialiasing, and NumPy without rounding. The GPU's letterbox kernel must
give the same values.
"""

from __future__ import annotations

from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.errors import EngineError
from trt_perception.images.frame import Frame
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.preprocessing import Preprocessing

__all__ = ['HostPreprocessor', 'frame_to_bgr', 'pixels_and_bgr_order', 'resize']

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
        return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)[
            ..., None
        ], _GRAY_CHANNELS
    if name in ('uyvy', 'yuyv'):
        plane = plane.reshape(frame.height, frame.width, 2)
    bgr: npt.NDArray[np.uint8] = cv2.cvtColor(plane, _OPENCV_CONVERSIONS[name])  # type: ignore[assignment]
    return bgr, _BGR_CHANNELS


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


def resize(
    image: npt.NDArray[np.uint8], size_wh: tuple[int, int], *, antialias: bool, round_pixels: bool
) -> npt.NDArray[Any]:
    """Resize an image bilinearly, with half-pixel centres.

    Args:
        image: uint8 (height, width, channels) with 1, 3 or 4 channels.
        size_wh: new width and height in pixels.
        antialias: if True, Pillow computes each pixel from all source pixels under it, first
            horizontally, then vertically. If False, each pixel comes from four.
        round_pixels: if True, the result is rounded to bytes. If False, to float32.

    Returns:
        uint8 or float32 (new height, new width, channels).

    Raises:
        EngineError: ``antialias`` is True and Pillow is not installed.
    """
    height, width, channels = image.shape
    resized: npt.NDArray[Any]
    if antialias:
        pil = _import_pillow()
        if round_pixels:
            # Not RGBA, because Pillow would then weight the colours by the fourth channel.
            mode = {1: 'L', 3: 'RGB', 4: 'RGBX'}[channels]
            pixels = np.ascontiguousarray(image)
            pictures = [pil.frombuffer(mode, (width, height), pixels, 'raw', mode, 0, 1)]
        else:  # a picture of floats has one channel
            planes = image.transpose(2, 0, 1).astype(np.float32)
            pictures = [pil.fromarray(plane) for plane in planes]
        # Resize one axis at a time. From release 13 on, Pillow chooses the order of the axes
        # itself, which rounds differently.
        for size in ((size_wh[0], height), size_wh):
            pictures = [picture.resize(size, pil.Resampling.BILINEAR) for picture in pictures]
        resized = np.dstack(pictures)
    elif round_pixels:
        resized = cv2.resize(image, size_wh, interpolation=cv2.INTER_LINEAR)
    else:
        resized = _resize_without_rounding(image, size_wh)
    return resized.reshape(size_wh[1], size_wh[0], channels)


def _resize_without_rounding(
    image: npt.NDArray[np.uint8], size_wh: tuple[int, int]
) -> npt.NDArray[Any]:
    """Resize bilinearly without rounding, in the float32 arithmetic of torch. Return float32."""
    height, width, channels = image.shape
    left, right, right_share = _neighbours(width, size_wh[0])
    top, bottom, bottom_share = _neighbours(height, size_wh[1])
    # Two or three times faster than an inner loop over the channels.
    right_share = np.repeat(right_share[:, None], channels, axis=1)
    bottom_share = bottom_share[:, None, None]
    upper, lower = (
        rows.take(left, 1) * (1 - right_share) + rows.take(right, 1) * right_share
        for rows in (image.take(top, 0), image.take(bottom, 0))
    )
    return upper * (1 - bottom_share) + lower * bottom_share


def _neighbours(
    size: int, resized: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.float32]]:
    """Return the two source pixels of each resized pixel on one axis, and the second's weight."""
    # torch rounds the ratio and the position to float32, but not the product in between (FMA).
    ratio = np.float32(size / resized)
    positions = ((np.arange(resized) + 0.5) * ratio - 0.5).astype(np.float32).clip(0, size - 1)
    first = positions.astype(np.intp)
    return first, np.minimum(first + 1, size - 1), positions - first.astype(np.float32)


def _import_pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise EngineError(
            'preprocessing.antialias, model.antialias',
            f'Pillow is missing ({error}), and antialiasing on the CPU needs it',
            fix='sudo apt install python3-pil, or python3 -m pip install pillow',
        ) from error
    return Image


class HostPreprocessor:
    """Applies letterbox, colour order and normalisation. All frames share one input tensor.

    Args:
        preprocessing: the model's preprocessing.
        batch: number of frames in the tensor.

    Raises:
        EngineError: the preprocessing needs Pillow, which is not installed.
    """

    def __init__(self, preprocessing: Preprocessing, batch: int = 1) -> None:
        if preprocessing.antialias:
            _import_pillow()  # report a missing package before the first frame
        self._preprocessing = preprocessing
        width, height = preprocessing.input_size
        # (x * scale - mean) / std as one multiplication and one addition.
        self._gain, self._bias = preprocessing.gain_and_bias()
        is_nhwc = preprocessing.layout == 'nhwc'
        shape = (batch, height, width, 3) if is_nhwc else (batch, 3, height, width)
        self._tensor = np.zeros(shape, np.dtype(preprocessing.dtype))
        # A view of the tensor as (batch, 3, height, width), for both layouts.
        self._channels = self._tensor.transpose(0, 3, 1, 2) if is_nhwc else self._tensor
        # Arithmetic is in float32. Other types are converted once, at the end.
        self._plane = None if preprocessing.dtype == 'float32' else np.empty((height, width), 'f4')
        # For each place in the batch: the geometry of the padding that the tensor contains; None
        # before the first frame.
        self._padded: list[Letterbox | None] = [None] * batch

    def __call__(self, frame: Frame, place: int = 0) -> tuple[npt.NDArray[Any], Letterbox]:
        """Write one frame into the tensor.

        Args:
            frame: a decoded frame.
            place: index of the frame in the batch.

        Returns:
            The whole tensor, (batch, 3, height, width) or (batch, height, width, 3), in the
            preprocessing's dtype and valid until the next call; and the frame's geometry.
        """
        image, bgr_order = pixels_and_bgr_order(frame)
        letterbox = Letterbox.fit(
            (frame.width, frame.height), self._preprocessing.input_size, self._preprocessing.resize
        )
        if letterbox != self._padded[place]:
            self._channels[place] = self._preprocessing.padding()[:, None, None]
            self._padded[place] = letterbox
        width, height = letterbox.resized_wh
        inside = self._channels[
            place,
            :,
            letterbox.pad_top : letterbox.pad_top + height,
            letterbox.pad_left : letterbox.pad_left + width,
        ]
        resized = resize(
            image,
            (width, height),
            antialias=self._preprocessing.antialias,
            round_pixels=self._preprocessing.round_pixels or self._tensor.dtype == np.uint8,
        )
        channels = bgr_order if self._preprocessing.color_order == 'bgr' else bgr_order[::-1]
        for index, channel in enumerate(channels):
            plane = inside[index] if self._plane is None else self._plane[:height, :width]
            np.multiply(resized[..., channel], self._gain[index], out=plane)
            if self._bias[index]:
                plane += self._bias[index]
            if self._plane is not None:
                inside[index] = plane
        return self._tensor, letterbox
