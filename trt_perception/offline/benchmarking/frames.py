# SPDX-License-Identifier: Apache-2.0
"""Loads frames for measurements, in the encodings that cameras send."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.errors import ConfigError
from trt_perception.images.encode import encode_bgr
from trt_perception.images.frame import PIXEL_FORMATS, Frame
from trt_perception.images.image_source import ImageSource

DEFAULT_SIZE: Final = (1920, 1080)


def demo_scenes_folder() -> str:
    """Return the folder of the demo's photographs of digits; empty if it is not installed."""
    package = Path(__file__).parents[2]
    # In a checkout, the folder is next to the package. colcon installs it below share.
    places = [package.parent, *(prefix / 'share' / package.name for prefix in package.parents)]
    folders = (place / 'demo' / 'scenes' for place in places)
    return next((str(folder) for folder in folders if folder.is_dir()), '')


def synthetic_image(size_wh: tuple[int, int], seed: int) -> npt.NDArray[np.uint8]:
    """Return an image of gradients, blobs of all sizes and slight sensor noise.

    Args:
        size_wh: width and height in pixels.
        seed: seed of the random numbers. Equal arguments give equal images.

    Returns:
        uint8 (height, width, 3), BGR.
    """
    width, height = size_wh
    rng = np.random.default_rng(seed)
    ramp = np.linspace(0, 1, width, dtype=np.float32) + np.linspace(0, 1, height)[:, None]
    image = ramp[..., None].astype(np.float32) * rng.uniform(20, 90, 3).astype(np.float32) + 30
    for cells in (3, 8, 24, 96):
        coarse = rng.standard_normal((cells, cells, 3)).astype(np.float32)
        blobs = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
        image += 60 / np.sqrt(cells) * blobs
    image += 4 * rng.standard_normal((height, width, 3), np.float32)
    return np.clip(image, 0, 255).astype(np.uint8)


def load_frames(
    source: str, size_wh: tuple[int, int] | None, encoding: str, count: int
) -> list[Frame]:
    """Return frames in pageable host memory. Each frame has its own array.

    Args:
        source: image, video, folder or pattern. The first ``count`` images are used, repeatedly
            if there are fewer. Empty selects the demo's scenes, which contain digits to detect.
            If they are not installed, different synthetic images are used.
        size_wh: size in pixels to which images are resized. None keeps the size of the
            source's images; without a source, it means DEFAULT_SIZE.
        encoding: a name in PIXEL_FORMATS.

    Raises:
        ConfigError: the source cannot be read, or an image is too small for the encoding.
    """
    if not source:
        source, size_wh = demo_scenes_folder(), size_wh or DEFAULT_SIZE
    if source:
        images = [image for _, image in itertools.islice(ImageSource(source), count)]
    else:
        images = [synthetic_image(size_wh or DEFAULT_SIZE, seed) for seed in range(count)]
    if size_wh is not None:
        images = [_resize(image, size_wh) for image in images]
    return [_encode_frame(images[index % len(images)], encoding) for index in range(count)]


def _resize(bgr: npt.NDArray[np.uint8], size_wh: tuple[int, int]) -> npt.NDArray[np.uint8]:
    if (bgr.shape[1], bgr.shape[0]) == size_wh:
        return bgr
    return cv2.resize(bgr, size_wh, interpolation=cv2.INTER_AREA).astype(np.uint8, copy=False)


def _encode_frame(bgr: npt.NDArray[np.uint8], encoding: str) -> Frame:
    pixel_format = PIXEL_FORMATS[encoding]
    smallest = max(pixel_format.min_side, 2 if pixel_format.even_width else 1)
    if min(bgr.shape[:2]) < smallest:
        raise ConfigError(
            f'a {encoding} image',
            f'{bgr.shape[1]}x{bgr.shape[0]}',
            expected=f'at least {smallest} pixels a side',
        )
    encoded = encode_bgr(bgr, encoding)
    rows, step = encoded.shape
    return Frame.view(
        encoded.reshape(-1).copy(),
        width=step // pixel_format.bytes_per_pixel,
        height=pixel_format.image_height(rows),
        step=step,
        encoding=encoding,
    )
