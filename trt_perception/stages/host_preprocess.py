# SPDX-License-Identifier: Apache-2.0
"""Preprocess a frame to the network's input on the CPU.

Uses OpenCV, Pillow for antialiasing, and NumPy without rounding. The GPU's letterbox kernel must
give the same values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.errors import EngineError
from trt_perception.images.frame import Frame
from trt_perception.images.frame_pixels import pixels_and_bgr_order
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.preprocessing import Preprocessing, ResizeFilter


def resize(
    image: npt.NDArray[np.uint8],
    size_wh: tuple[int, int],
    *,
    antialias: bool,
    round_pixels: bool,
    resize_filter: ResizeFilter = 'bilinear',
    window_xyxy: tuple[int, int, int, int] | None = None,
) -> npt.NDArray[Any]:
    """Resize an image with half-pixel centres.

    Args:
        image: uint8 (height, width, channels) with 1, 3 or 4 channels.
        size_wh: new width and height in pixels.
        antialias: if True, Pillow computes each pixel from all source pixels under it, first
            horizontally, then vertically. If False, each pixel comes from 4 (bicubic: 16) pixels.
        round_pixels: if True, the result is rounded to bytes. If False, to float32, and bicubic
            values may lie outside 0…255.
        resize_filter: ``bilinear`` or ``bicubic``.
        window_xyxy: the part of the resized image to return, in its pixels. None: all of it.

    Returns:
        uint8 or float32 (height and width of the window, channels).

    Raises:
        EngineError: ``antialias`` is True and Pillow is not installed.
    """
    height, width, channels = image.shape
    left, top, right, bottom = window_xyxy or (0, 0, *size_wh)
    # A crop of a narrow image may enlarge it to gigabytes. Then compute only the window. Such an
    # image grows more than twofold, so antialiasing has no effect on a bilinear filter.
    most_pixels = 4 * max(width * height, (right - left) * (bottom - top), 2**22)
    is_huge = math.prod(size_wh) > most_pixels
    if is_huge or not (antialias or round_pixels):
        columns = _taps(width, size_wh[0], (left, right), resize_filter, antialias)
        rows = _taps(height, size_wh[1], (top, bottom), resize_filter, antialias)
        exact = _interpolate(image, columns, rows)
        return exact.round().clip(0, 255).astype(np.uint8) if round_pixels else exact
    window = left, top, right, bottom
    if antialias:
        return _resize_with_pillow(image, size_wh, round_pixels, resize_filter, window)
    kind = cv2.INTER_CUBIC if resize_filter == 'bicubic' else cv2.INTER_LINEAR
    resized = cv2.resize(image, size_wh, interpolation=kind)
    return resized.reshape(*size_wh[::-1], channels)[top:bottom, left:right]


def _resize_with_pillow(
    image: npt.NDArray[np.uint8],
    size_wh: tuple[int, int],
    round_pixels: bool,
    resize_filter: ResizeFilter,
    window_xyxy: tuple[int, int, int, int],
) -> npt.NDArray[Any]:
    """Resize with antialiasing. Arguments and result are those of ``resize``."""
    height, width, channels = image.shape
    left, top, right, bottom = window_xyxy
    pil = _import_pillow()
    if round_pixels:
        # Not RGBA, because Pillow would then weight the colours by the fourth channel.
        mode = {1: 'L', 3: 'RGB', 4: 'RGBX'}[channels]
        pixels = np.ascontiguousarray(image)
        pictures = [pil.frombuffer(mode, (width, height), pixels, 'raw', mode, 0, 1)]
    else:  # float images of Pillow have one channel
        planes = image.transpose(2, 0, 1).astype(np.float32)
        pictures = [pil.fromarray(plane) for plane in planes]
    kind = pil.Resampling.BICUBIC if resize_filter == 'bicubic' else pil.Resampling.BILINEAR
    # Resize one axis at a time. From release 13 on, Pillow chooses the order of the axes itself,
    # which rounds differently.
    window_width = right - left
    for size, part in (
        ((size_wh[0], height), (left, 0, right, height)),
        ((window_width, size_wh[1]), (0, top, window_width, bottom)),
    ):
        pictures = [picture.resize(size, kind).crop(part) for picture in pictures]
    return np.dstack(pictures).reshape(bottom - top, window_width, channels)


#: For one axis: the index of a source pixel and its weight, for each pixel of the result.
_Tap = tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]


def _interpolate(
    image: npt.NDArray[np.uint8], columns: Sequence[_Tap], rows: Sequence[_Tap]
) -> npt.NDArray[np.float32]:
    """Return the weighted sums of pixels, in the float32 arithmetic and order of torch."""
    # Two or three times faster than an inner loop over the channels.
    columns = [
        (place, np.repeat(share[:, None], image.shape[2], axis=1)) for place, share in columns
    ]
    total: Any = 0
    for row, row_share in rows:
        lines = image.take(row, 0)
        across: Any = sum(lines.take(place, 1) * share for place, share in columns)
        total = total + across * row_share[:, None, None]
    return total  # type: ignore[no-any-return]


def _taps(
    size: int, resized: int, window: tuple[int, int], resize_filter: ResizeFilter, antialias: bool
) -> list[_Tap]:
    """Return the source pixels of each resized pixel on one axis, with their weights.

    Args:
        size: pixels of the image on this axis.
        resized: pixels of the resized image.
        window: first and last pixel of the result, the last not included.
        resize_filter: ``bilinear`` with two taps, or ``bicubic`` with four.
        antialias: choose Pillow's bicubic filter for enlarging, which repeats no border pixels.
    """
    # torch rounds the ratio and the position to float32, but not the product in between (FMA).
    ratio = np.float32(size / resized)
    positions = ((np.arange(*window) + 0.5) * ratio - 0.5).astype(np.float32)
    if resize_filter == 'bilinear':
        positions = positions.clip(0, size - 1)
    first = np.floor(positions)
    share = positions - first
    start = first.astype(np.intp)
    if resize_filter == 'bilinear':
        return [(start, 1 - share), (np.minimum(start + 1, size - 1), share)]
    weights = _cubic_weights(share, -0.5 if antialias else -0.75)
    places = [start + step for step in (-1, 0, 1, 2)]
    if antialias:
        weights = weights * [(place >= 0) & (place < size) for place in places]
        weights /= weights.sum(axis=0)
    return [
        (place.clip(0, size - 1), weight) for place, weight in zip(places, weights, strict=True)
    ]


def _cubic_weights(fraction: npt.NDArray[np.float32], a: float) -> npt.NDArray[np.float32]:
    """Return the weights of four pixels around positions, float32 (4, n), with Keys' kernel.

    Args:
        fraction: float32 (n,), distance from the second pixel to the position.
        a: slope of the kernel at distance 1.
    """
    near, far = np.stack([fraction, 1 - fraction]), np.stack([fraction + 1, 2 - fraction])
    inner = ((a + 2) * near - (a + 3)) * near * near + 1
    outer = ((a * far - 5 * a) * far + 8 * a) * far - 4 * a
    return np.stack([outer[0], inner[0], inner[1], outer[1]])


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
            place: index of the frame in the batch.

        Returns:
            The whole tensor, (batch, 3, height, width) or (batch, height, width, 3), in the
            preprocessing's dtype and valid until the next call; and the frame's geometry.
        """
        image, bgr_order = pixels_and_bgr_order(frame)
        letterbox = self._preprocessing.letterbox((frame.width, frame.height))
        if letterbox != self._padded[place]:
            self._channels[place] = self._preprocessing.padding()[:, None, None]
            self._padded[place] = letterbox
        left, top, right, bottom = letterbox.image_xyxy
        inside = self._channels[place, :, top:bottom, left:right]
        resized = resize(
            image,
            letterbox.resized_wh,
            antialias=self._preprocessing.antialias,
            round_pixels=self._preprocessing.round_pixels or self._tensor.dtype == np.uint8,
            resize_filter=self._preprocessing.filter,
            window_xyxy=letterbox.visible_xyxy,
        )
        channels = bgr_order if self._preprocessing.color_order == 'bgr' else bgr_order[::-1]
        for index, channel in enumerate(channels):
            plane = (
                inside[index]
                if self._plane is None
                else self._plane[: bottom - top, : right - left]
            )
            np.multiply(resized[..., channel], self._gain[index], out=plane)
            if self._bias[index]:
                plane += self._bias[index]
            if self._plane is not None:
                inside[index] = plane
        return self._tensor, letterbox
