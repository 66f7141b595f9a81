# SPDX-License-Identifier: Apache-2.0
"""Maps that the kernels of a GPU have made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.map_resize import (
    checked_size,
    resize_map,
    without_shared_memory,
)

#: Bytes in front of the pixels of each map, for the header of a serialised message.
HEADER_ROOM: Final = 1024


class MapMemory(Protocol):
    """The memory of one map.

    Attributes:
        size_wh: width and height in pixels.
        dtype: type of a pixel.
    """

    size_wh: tuple[int, int]
    dtype: np.dtype[Any]

    def memory(self) -> npt.NDArray[np.uint8]:
        """Return HEADER_ROOM free bytes, then the pixels. Waits for the GPU.

        The array is valid while this object exists.

        Returns:
            uint8, one-dimensional.

        Raises:
            CudaError: the GPU work failed.
        """


@dataclass(frozen=True)
class KernelMaps:
    """The maps of one image, made by kernels. Only maps with a subscriber are made.

    Kernels make maps in the size of the parameter ``map_size``. `image` resizes a map to another
    size with ``nearest``.

    Attributes:
        maps: the maps by kind: ``class_ids`` and ``confidence``, uint8, or ``depth``, float32.
        is_metric: whether a depth is in metres. Otherwise larger values are nearer.
    """

    maps: Mapping[str, MapMemory]
    letterbox: Letterbox
    is_metric: bool = False

    def image(self, kind: str, size_wh: tuple[int, int] | None = None) -> npt.NDArray[Any] | None:
        """Return the pixels of a map: (height, width). None if the map was not made.

        Args:
            kind: key in `maps`.
            size_wh: width and height of the map; None for the size of the image.
        """
        made = self.maps.get(kind)
        if made is None:
            return None
        width, height = made.size_wh
        pixels = made.memory()[HEADER_ROOM:].view(made.dtype).reshape(height, width)
        wanted_wh = checked_size(size_wh, self.letterbox)
        return without_shared_memory(resize_map(pixels, wanted_wh, 'nearest'), pixels)
