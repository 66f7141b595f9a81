# SPDX-License-Identifier: Apache-2.0
"""Draw where tracked objects were in the last images."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.images.detections import Detections
from trt_perception.images.drawing import draw_trail

# Seconds that a trail shows by default.
_LENGTH_S: Final = 1.0
# Limits the memory and the time of a drawing, also if all stamps are equal.
_MAX_IMAGES: Final = 240


@dataclass(frozen=True)
class _Positions:
    """The centres of the tracked objects of one image, by id: x and y in pixels."""

    stamp_s: float
    size_wh: tuple[int, int]
    centers: dict[int, tuple[float, float]]


class Trails:
    """Remembers the positions of tracked objects in the images of one camera, and draws them.

    A trail passes through 240 images at most. One object serves one camera and one thread.

    Args:
        length_s: seconds that a trail shows.
    """

    def __init__(self, length_s: float = _LENGTH_S) -> None:
        self._length_s = length_s
        self._images: deque[_Positions] = deque(maxlen=_MAX_IMAGES)

    def draw(self, bgr: npt.NDArray[np.uint8], found: Detections, stamp_s: float) -> None:
        """Draw a line along the last positions of each object, up to this image.

        Without ids, nothing is drawn. All positions are forgotten if the stamp goes back or the
        size of the image changes.

        Args:
            bgr: uint8 (height, width, 3), BGR, contiguous. Changed in place.
            found: the objects in pixels of this image, with ids.
            stamp_s: stamp of the image in seconds.
        """
        if found.ids is None:
            self._images.clear()
            return
        size_wh = bgr.shape[1], bgr.shape[0]
        images = self._images
        if images and (stamp_s < images[-1].stamp_s or size_wh != images[-1].size_wh):
            images.clear()
        while images and stamp_s - images[0].stamp_s > self._length_s:
            images.popleft()
        corners = found.xyxy.tolist()
        centers = {
            id_: ((left + right) / 2, (top + bottom) / 2)
            for id_, (left, top, right, bottom) in zip(found.ids.tolist(), corners, strict=True)
            if id_ > 0
        }
        images.append(_Positions(stamp_s, size_wh, centers))
        for id_ in centers:
            points = [image.centers[id_] for image in images if id_ in image.centers]
            draw_trail(bgr, points, id_)
