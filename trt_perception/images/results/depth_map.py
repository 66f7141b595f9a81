"""The depth of each pixel of an image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.map_resize import Upsampling, image_part, resize_map

__all__ = ['DepthMap']


@dataclass(frozen=True)
class DepthMap:
    """The depth of one image. The map is computed when ``depth`` is called.

    Attributes:
        grid: the network's output, a copy: float32 (rows, columns). It covers the network's input.
        letterbox: geometry of the image.
        upsampling: how the family's own code resizes the output.
        is_metric: whether values are metres. Otherwise they have no unit, and larger values are
            nearer.
    """

    grid: npt.NDArray[np.float32]
    letterbox: Letterbox
    upsampling: Upsampling
    is_metric: bool

    def depth(self, size_wh: tuple[int, int] | None = None) -> npt.NDArray[np.float32]:
        """Return the depth of each pixel.

        Args:
            size_wh: width and height of the map; None for the size of the image.

        Returns:
            float32 (height, width), contiguous, in metres or relative.
        """
        part = image_part(self.grid, self.letterbox, self.upsampling)
        resized = resize_map(part, size_wh or self.letterbox.source_wh, self.upsampling)
        return np.ascontiguousarray(resized, np.float32)
