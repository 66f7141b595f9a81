"""From a frame to the network's input on the CPU, by OpenCV; by PIL where it antialiases.

The reference for the GPU's letterbox kernel.
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

__all__ = ['HostPreprocessor', 'channel_image', 'frame_to_bgr', 'resize']

_BGR: Final = (0, 1, 2)
_RGB: Final = (2, 1, 0)
_GRAY: Final = (0, 0, 0)

# Channel order of the packed formats: which channel holds blue, green and red.
_PACKED: Final = {'bgr8': _BGR, 'bgra8': _BGR, 'rgb8': _RGB, 'rgba8': _RGB, 'mono8': _GRAY}

# YUV is BT.601, limited range. OpenCV names a Bayer pattern by the second row's second and third
# pixel, ROS by the first row's first two: rggb is BayerBG.
_CONVERSIONS: Final[dict[str, int]] = {
    'uyvy': cv2.COLOR_YUV2BGR_UYVY,
    'yuyv': cv2.COLOR_YUV2BGR_YUYV,
    'nv12': cv2.COLOR_YUV2BGR_NV12,
    'nv21': cv2.COLOR_YUV2BGR_NV21,
    'bayer_rggb8': cv2.COLOR_BayerBG2BGR,
    'bayer_bggr8': cv2.COLOR_BayerRG2BGR,
    'bayer_gbrg8': cv2.COLOR_BayerGR2BGR,
    'bayer_grbg8': cv2.COLOR_BayerGB2BGR,
}


def channel_image(frame: Frame) -> tuple[npt.NDArray[np.uint8], tuple[int, int, int]]:
    """Return the pixels as bytes per channel, with as little work as the format allows.

    Returns:
        uint8 (height, width, channels), a view of the frame where the format is packed; and which
        channels hold blue, green and red.
    """
    name = frame.format.name
    plane = frame.plane()
    if name in _PACKED:
        return plane.reshape(frame.height, frame.width, -1), _PACKED[name]
    if name == 'mono16':
        values = plane.view('>u2' if frame.big_endian else '<u2')
        # 65535 / 257 = 255: the full range of 16 bits onto that of 8, rounded half up.
        return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)[..., None], _GRAY
    if name in ('uyvy', 'yuyv'):
        plane = plane.reshape(frame.height, frame.width, 2)
    bgr: npt.NDArray[np.uint8] = cv2.cvtColor(plane, _CONVERSIONS[name])  # type: ignore[assignment]
    return bgr, _BGR


def frame_to_bgr(frame: Frame, out: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
    """Return the frame as OpenCV's usual image: uint8 (height, width, 3), BGR, a copy.

    Args:
        frame: of any pixel format.
        out: filled and returned, where it is given; of that shape and type.
    """
    image, order = channel_image(frame)
    if out is None:
        out = np.empty((frame.height, frame.width, 3), np.uint8)
    for target, source in enumerate(order):  # five times as fast as image[..., order]
        out[..., target] = image[..., source]
    return out


def resize(
    image: npt.NDArray[np.uint8], size_wh: tuple[int, int], *, antialias: bool
) -> npt.NDArray[np.uint8]:
    """Return an image at another size, bilinear with half-pixel centres.

    Args:
        image: uint8 (height, width, channels), 1, 3 or 4 channels.
        size_wh: width and height in pixels.
        antialias: by PIL, where all pixels that one covers make it, horizontally first; else by
            OpenCV, from four.

    Returns:
        uint8 (height, width, channels).

    Raises:
        EngineError: PIL is needed and not installed.
    """
    height, width, channels = image.shape
    if antialias:
        pil = _pil()
        # Not RGBA: PIL would weight colours by the fourth channel.
        mode = {1: 'L', 3: 'RGB', 4: 'RGBX'}[channels]
        pixels = np.ascontiguousarray(image)
        picture = pil.frombuffer(mode, (width, height), pixels, 'raw', mode, 0, 1)
        # One axis at a time: from release 13 on Pillow itself chooses which goes first, and then
        # rounds otherwise.
        for size in ((size_wh[0], height), size_wh):
            picture = picture.resize(size, pil.Resampling.BILINEAR)
        resized = np.asarray(picture)
    else:
        resized = cv2.resize(image, size_wh, interpolation=cv2.INTER_LINEAR)
    return resized.reshape(size_wh[1], size_wh[0], channels)


def _pil() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise EngineError(
            'preprocessing.antialias, model.antialias',
            f'antialiasing on the CPU needs Pillow ({error})',
            fix='sudo apt install python3-pil, or python3 -m pip install pillow',
        ) from error
    return Image


class HostPreprocessor:
    """Letterbox, colour order and normalisation into one tensor, used again for each frame.

    Args:
        preprocessing: the model's.
        batch: how many frames the tensor holds.

    Raises:
        EngineError: a package is missing that the preprocessing needs.
    """

    def __init__(self, preprocessing: Preprocessing, batch: int = 1) -> None:
        if preprocessing.antialias:
            _pil()  # whether it is there is known before the first frame
        self._preprocessing = preprocessing
        width, height = preprocessing.input_size
        std = np.array(preprocessing.std, np.float64)
        # (x * scale - mean) / std as one multiplication and one addition.
        self._gain = (preprocessing.scale / std).astype(np.float32)
        self._bias = (-np.array(preprocessing.mean, np.float64) / std).astype(np.float32)
        by_row = preprocessing.layout == 'nhwc'
        shape = (batch, height, width, 3) if by_row else (batch, 3, height, width)
        self._tensor = np.zeros(shape, np.dtype(preprocessing.dtype))
        # One plane for each channel, wherever its values lie.
        self._channels = self._tensor.transpose(0, 3, 1, 2) if by_row else self._tensor
        # All arithmetic is float32; float16 is rounded once, at the end. Bytes stay as they are.
        self._plane = None if preprocessing.dtype == 'float32' else np.empty((height, width), 'f4')
        self._canvas = np.empty((0, 0, 0), np.uint8)
        self._letterbox: Letterbox | None = None

    def __call__(self, frame: Frame, place: int = 0) -> tuple[npt.NDArray[Any], Letterbox]:
        """Fill one place of the tensor from a frame.

        Returns:
            The whole tensor, (batch, 3, height, width) or (batch, height, width, 3), of the dtype
            that the preprocessing says, valid until the next call; and the geometry.
        """
        image, order = channel_image(frame)
        letterbox = Letterbox.fit(
            (frame.width, frame.height), self._preprocessing.input_size, self._preprocessing.resize
        )
        self._fit_canvas(letterbox, image.shape[2])
        width, height = letterbox.resized_wh
        inside = self._canvas[
            letterbox.pad_top : letterbox.pad_top + height,
            letterbox.pad_left : letterbox.pad_left + width,
        ]
        inside[...] = resize(image, (width, height), antialias=self._preprocessing.antialias)
        channels = order if self._preprocessing.color_order == 'bgr' else order[::-1]
        for index, channel in enumerate(channels):
            target = self._channels[place, index]
            plane = target if self._plane is None else self._plane
            np.multiply(self._canvas[..., channel], self._gain[index], out=plane)
            if self._bias[index]:
                plane += self._bias[index]
            if self._plane is not None:
                target[...] = plane
        return self._tensor, letterbox

    def _fit_canvas(self, letterbox: Letterbox, channels: int) -> None:
        """Make the canvas, padding included, unless the last frame's still serves."""
        if letterbox == self._letterbox and self._canvas.shape[2] == channels:
            return
        width, height = letterbox.network_wh
        self._canvas = np.full((height, width, channels), self._preprocessing.pad_value, np.uint8)
        self._letterbox = letterbox
