# SPDX-License-Identifier: Apache-2.0
"""The depth of each pixel of an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.image_limits import row_strips
from trt_perception.images.results.image_result import ImageResult
from trt_perception.images.results.map_resize import (
    Upsampling,
    checked_size,
    image_part,
    resize_map,
    without_shared_memory,
)

#: Limits of an inverse depth in 1/m, as in transformers' image processor of Depth Pro.
_INVERSE_LIMITS: Final = (1e-4, 1e4)


@dataclass(frozen=True, repr=False)
class DepthMap(ImageResult):
    """The depth of one image. The map is computed when ``depth`` is called.

    Attributes:
        grid: the network's output, a copy: float32 (rows, columns). It covers the network's input.
        upsampling: how the family's own code resizes the output.
        is_metric: whether values are metres. Otherwise they have no unit, and larger values are
            nearer.
        is_inverse: whether the grid holds 1 / depth, which is resized before it is inverted.

    >>> found = tp.load('depth_tiny.onnx', task='depth')(cv2.imread('image.jpg'))
    >>> found.is_metric
    False
    >>> depth = found.depth((320, 240))
    >>> depth.shape, depth.dtype
    ((240, 320), dtype('float32'))
    """

    grid: npt.NDArray[np.float32]
    letterbox: Letterbox
    upsampling: Upsampling
    is_metric: bool
    is_inverse: bool = False

    def depth(self, size_wh: tuple[int, int] | None = None) -> npt.NDArray[np.float32]:
        """Return the depth of each pixel.

        Pixels near a cell with infinity or NaN are NaN, which means unknown (REP 118). So are
        metric depths that are not positive.

        Args:
            size_wh: width and height of the map; None for the size of the image.

        Returns:
            float32 (height, width), contiguous, in metres or relative.

        Raises:
            ValueError: the size is impossible.
        """
        wanted_wh = checked_size(size_wh, self.letterbox)
        with np.errstate(invalid='ignore', over='ignore'):
            part = image_part(self.grid, self.letterbox, self.upsampling)
            resized = resize_map(part, wanted_wh, self.upsampling)
        depth = without_shared_memory(resized, self.grid)
        for rows in row_strips(wanted_wh):
            strip = depth[rows]
            strip[~np.isfinite(strip)] = np.nan
            if self.is_metric and not self.is_inverse:
                strip[strip <= 0] = np.nan
            if self.is_inverse:
                np.clip(strip, *_INVERSE_LIMITS, out=strip)
                np.reciprocal(strip, out=strip)
        return depth

    def image(
        self, kind: str, size_wh: tuple[int, int] | None = None
    ) -> npt.NDArray[np.float32] | None:
        """Return the map ``depth``, as the method of this name does."""
        return {'depth': self.depth}[kind](size_wh)
