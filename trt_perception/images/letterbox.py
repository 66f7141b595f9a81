"""Where an image lands in the network's input, and the way back.

The geometry detectors are trained with: one scale for both axes, the smaller of the two that fit;
the resized image is centred, an odd pixel of padding goes to the right and the bottom.
``letterbox_top_left`` puts it into the corner instead, and ``stretch`` fills the input. Sampling
has half-pixel centres, so a source coordinate x lands on x * resized_w / source_w + pad_left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

__all__ = ['Letterbox', 'ResizeMode', 'RowGroups']

ResizeMode = Literal['letterbox', 'letterbox_top_left', 'stretch']


@dataclass(frozen=True)
class RowGroups:
    """Rows of an image, so many out of each few.

    Attributes:
        first: the first of them.
        rows: how many follow each other.
        every: rows from the start of a group to that of the next.
        count: how many groups there are.
    """

    first: int
    rows: int
    every: int
    count: int


@dataclass(frozen=True)
class Letterbox:
    """The mapping between source pixels and network pixels.

    Both measured from the top-left corner.

    Attributes:
        source_wh: size of the image.
        network_wh: size of the network's input.
        resized_wh: size of the image inside the network's input, at least one pixel a side.
        pad_left: network pixels left of the image.
        pad_top: network pixels above the image.
    """

    source_wh: tuple[int, int]
    network_wh: tuple[int, int]
    resized_wh: tuple[int, int]
    pad_left: int
    pad_top: int

    @classmethod
    def fit(
        cls, source_wh: tuple[int, int], network_wh: tuple[int, int], mode: ResizeMode
    ) -> Letterbox:
        """Fit an image of ``source_wh`` pixels into ``network_wh`` pixels."""
        if mode == 'stretch':
            return cls(source_wh, network_wh, network_wh, 0, 0)
        # The axis that fills the input gives the scale, part / whole; in whole numbers, because
        # half a pixel is rounded up, and a float may be just below what it stands for.
        axis = int(network_wh[0] * source_wh[1] > network_wh[1] * source_wh[0])
        part, whole = network_wh[axis], source_wh[axis]
        width, height = (max(1, (2 * side * part + whole) // (2 * whole)) for side in source_wh)
        pad = network_wh[0] - width, network_wh[1] - height
        left, top = (0, 0) if mode == 'letterbox_top_left' else (pad[0] // 2, pad[1] // 2)
        return cls(source_wh, network_wh, (width, height), left, top)

    def to_source(self, xyxy: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Map boxes from network pixels to source pixels and clip them to the image.

        Args:
            xyxy: float32 (n, 4), network pixels.

        Returns:
            float32 (n, 4), source pixels, x in [0, width], y in [0, height].
        """
        return self.points_to_source(xyxy.reshape(-1, 2)).reshape(xyxy.shape)

    def points_to_source(self, xy: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Map points from network pixels to source pixels and clip them to the image.

        Args:
            xy: float32 (…, 2), network pixels.

        Returns:
            float32 (…, 2), source pixels, x in [0, width], y in [0, height].
        """
        pad = np.array([self.pad_left, self.pad_top], np.float32)
        limit = np.array(self.source_wh, np.float32)
        mapped: npt.NDArray[np.float32] = np.clip((xy - pad) * self.ratio, np.float32(0), limit)
        return mapped

    @property
    def sampled_rows(self) -> RowGroups | None:
        """Return the rows that bilinear sampling reads, None where that is every row or irregular.

        The middle of row i of the resized image lies at r * (i + 1/2) - 1/2 of the source, r being
        the ratio. Where it is a whole number, that is the middle of a row if r is odd, and halfway
        between two rows if it is even: 1080p for an input of 640 pixels is read in each third row.
        """
        height, resized = self.source_wh[1], self.resized_wh[1]
        every, rest = divmod(height, resized)
        if rest or every < 3:
            return None
        rows = 1 if every % 2 else 2
        return RowGroups((every - rows) // 2, rows, every, resized)

    @property
    def ratio(self) -> npt.NDArray[np.float32]:
        """Source pixels of a network pixel along x and y, float32 (2,).

        The sides are rounded to whole pixels, so each axis has its own exact ratio.
        """
        source, resized = np.array([self.source_wh, self.resized_wh], np.float32)
        ratio: npt.NDArray[np.float32] = np.divide(source, resized, dtype=np.float32)
        return ratio
