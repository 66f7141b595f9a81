# SPDX-License-Identifier: Apache-2.0
"""Map coordinates between an image and the network's input.

Detectors are trained with this geometry. Both axes have the same scale: the largest scale at which
the whole image fits. Exporters round the resized sides differently: see ``SizeRounding``. The
resized image is centred. An odd pixel of padding goes to the right or the bottom.
``letterbox_top_left`` puts the image into the corner, and ``stretch`` fills the input.
Classifiers are trained with ``center_crop``: the image's shorter side gets a fixed length, and the
input is cut from the centre. A crop is negative padding.
Sampling has half-pixel centres: a source coordinate x maps to x * resized_w / source_w + pad_left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

#: Modes that keep the whole image.
WholeImageMode = Literal['letterbox', 'letterbox_top_left', 'stretch']
ResizeMode = Literal['letterbox', 'letterbox_top_left', 'stretch', 'center_crop']
#: How half of an odd number of cropped pixels is rounded: to the even number, or down.
CropRounding = Literal['half_even', 'down']
#: How a letterbox rounds the resized sides to whole pixels: to the nearest number, with half of a
#: pixel rounded up or to the even number; down; or as ``longer_down``, with the shorter side
#: nearest and the longer side down.
SizeRounding = Literal['half_up', 'half_even', 'down', 'longer_down']


@dataclass(frozen=True)
class NeededRows:
    """The source rows that sampling reads: groups of adjacent rows at equal distances.

    Attributes:
        first_row: index of the first row of the first group.
        rows_per_group: number of rows in a group.
        distance: distance between the first rows of adjacent groups, in rows.
        group_count: number of groups.
    """

    first_row: int
    rows_per_group: int
    distance: int
    group_count: int


@dataclass(frozen=True)
class Letterbox:
    """The mapping between source pixels and network pixels.

    Both coordinate systems start at the top-left corner. All sizes are in pixels.

    Attributes:
        resized_wh: width and height of the whole image in network pixels, at least 1. A crop
            makes them larger than the network's input.
        pad_left: network pixels left of the image; negative if the image is cropped there.
        pad_top: network pixels above the image; negative if the image is cropped there.
    """

    source_wh: tuple[int, int]
    network_wh: tuple[int, int]
    resized_wh: tuple[int, int]
    pad_left: int
    pad_top: int

    @classmethod
    def fit(
        cls,
        source_wh: tuple[int, int],
        network_wh: tuple[int, int],
        mode: WholeImageMode,
        rounding: SizeRounding = 'half_up',
    ) -> Letterbox:
        """Fit an image into the network's input.

        Args:
            rounding: how the resized sides are rounded. ``stretch`` needs no rounding.
        """
        if mode == 'stretch':
            return cls(source_wh, network_wh, network_wh, 0, 0)
        width, height = _resized_sides(source_wh, network_wh, rounding)
        pad = network_wh[0] - width, network_wh[1] - height
        left, top = (0, 0) if mode == 'letterbox_top_left' else (pad[0] // 2, pad[1] // 2)
        return cls(source_wh, network_wh, (width, height), left, top)

    @classmethod
    def crop(
        cls,
        source_wh: tuple[int, int],
        network_wh: tuple[int, int],
        shorter_side: int,
        rounding: CropRounding = 'half_even',
    ) -> Letterbox:
        """Resize an image to a shorter side, and cut the network's input from its centre.

        The longer side is rounded down, as in ``Resize`` of torchvision and in transformers. If
        the resized image is smaller than the input, the centred image is padded.

        Args:
            shorter_side: length of the shorter side after resizing, in pixels.
            rounding: ``half_even`` for torchvision, timm and Ultralytics, ``down`` for
                transformers. The results differ by one pixel if the excess is 3, 7, 11, ….
        """
        shorter = min(source_wh)
        width, height = (shorter_side * side // shorter for side in source_wh)
        left, top = (
            _pad_before(side, resized, rounding)
            for side, resized in zip(network_wh, (width, height), strict=True)
        )
        return cls(source_wh, network_wh, (width, height), left, top)

    @property
    def image_xyxy(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the visible image in the network's input, in pixels."""
        return (
            max(0, self.pad_left),
            max(0, self.pad_top),
            min(self.network_wh[0], self.pad_left + self.resized_wh[0]),
            min(self.network_wh[1], self.pad_top + self.resized_wh[1]),
        )

    @property
    def visible_xyxy(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the visible image in the resized image, in its pixels."""
        left, top, right, bottom = self.image_xyxy
        x, y = self.pad_left, self.pad_top
        return left - x, top - y, right - x, bottom - y

    def to_source(self, xyxy: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Map boxes from network pixels to source pixels and clip them to the image.

        Args:
            xyxy: float32 (n, 4), network pixels.

        Returns:
            float32 (n, 4), source pixels, x in [0, width], y in [0, height].
        """
        mapped = self.points_to_source(xyxy.reshape(-1, 2)).reshape(xyxy.shape)
        return mapped.clip(np.float32(0), np.array(self.source_wh * 2, np.float32))

    def points_to_source(self, xy: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Map points from network pixels to source pixels. Points may lie outside the image.

        Args:
            xy: float32 (…, 2), network pixels.

        Returns:
            float32 (…, 2), source pixels.
        """
        pad = np.array([self.pad_left, self.pad_top], np.float32)
        mapped: npt.NDArray[np.float32] = (xy - pad) * self.ratio
        return mapped

    @property
    def needed_rows(self) -> NeededRows | None:
        """The source rows that bilinear sampling without antialiasing reads.

        None if sampling reads every row, or if the rows are not evenly spaced. For a crop, these
        are rows of the whole image.

        Row i of the resized image samples the source at r * (i + 1/2) - 1/2, with the ratio r.
        For an odd integer r, this is the centre of one source row. For an even r, the position is
        halfway between two rows. Example: a 1920 x 1080 image for an input of 640 pixels has
        r = 3, so sampling reads one row in three.
        """
        height, resized = self.source_wh[1], self.resized_wh[1]
        distance, rest = divmod(height, resized)
        if rest or distance < 3:
            return None
        rows = 1 if distance % 2 else 2
        return NeededRows((distance - rows) // 2, rows, distance, resized)

    @property
    def ratio(self) -> npt.NDArray[np.float32]:
        """Source pixels per network pixel in x and y, float32 (2,).

        The resized sides are rounded to whole pixels, so the ratios of the axes differ slightly.
        """
        source, resized = np.array([self.source_wh, self.resized_wh], np.float32)
        ratio: npt.NDArray[np.float32] = np.divide(source, resized, dtype=np.float32)
        return ratio


def _resized_sides(
    source_wh: tuple[int, int], network_wh: tuple[int, int], rounding: SizeRounding
) -> tuple[int, int]:
    """Return width and height of the largest resized image that fits, each at least 1.

    Except for ``half_up``, the floats are those of the exporters, so that the sides are equal even
    where an error of a float decides: YOLOX (``down``), Ultralytics (``half_even``),
    ``get_size_with_aspect_ratio`` of transformers (``longer_down``).
    """
    # The axis that fills the input defines the scale part / whole.
    axis = int(network_wh[0] * source_wh[1] > network_wh[1] * source_wh[0])
    part, whole = network_wh[axis], source_wh[axis]
    scale = part / whole
    if rounding == 'half_up':
        # Integers are exact: a float could be slightly below one half.
        sides = [(2 * side * part + whole) // (2 * whole) for side in source_wh]
    elif rounding == 'half_even':
        sides = [round(side * scale) for side in source_wh]
    elif rounding == 'down':
        sides = [int(side * scale) for side in source_wh]
    else:
        shorter, longer = min(source_wh), max(source_wh)
        resized = part * shorter / longer if whole == longer else part
        sides = [
            round(resized) if side == shorter else int(resized * longer / shorter)
            for side in source_wh
        ]
    width, height = (max(1, side) for side in sides)
    return width, height


def _pad_before(side: int, resized: int, rounding: CropRounding) -> int:
    """Return the padding left or above that centres a resized image; negative for a crop."""
    if resized <= side:
        return (side - resized) // 2
    excess = resized - side
    return -(round(excess / 2) if rounding == 'half_even' else excess // 2)
