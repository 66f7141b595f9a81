# SPDX-License-Identifier: Apache-2.0
"""The objects that a model found in one image."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trt_perception.images.results.image_limits import row_strips
from trt_perception.images.results.image_result import ImageResult
from trt_perception.images.results.short_repr import ShortRepr

# Indices along one axis of the prototypes, and the weight of the value at each index.
_Tap = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]


@dataclass(frozen=True)
class MaskGeometry:
    """The position of an image in its mask prototypes. Prototypes cover the network's input.

    Attributes:
        size_wh: width and height of the image in source pixels.
        scale: prototype pixels per source pixel, in x and y.
        offset: top-left corner of the image in prototype pixels, x and y.
        fine: number of parts into which a prototype pixel is divided on each axis. The border of
            the image then lies between two parts.
    """

    size_wh: tuple[int, int]
    scale: tuple[float, float]
    offset: tuple[float, float]
    fine: int = 1


class NumberedMasks(Protocol):
    """The masks of one image, which can be drawn as an image of mask numbers."""

    def number(self, out: npt.NDArray[np.uint16]) -> None:
        """Write i into the pixels of the i-th mask, counted from 1.

        Where masks overlap, the mask of the better detection wins.

        Args:
            out: uint16 (height, width). Pixels outside all masks become 0.
        """


@dataclass(frozen=True)
class SelectedMasks:
    """A selection of masks that are drawn as one image of mask numbers.

    A pixel of several masks has only the number of the best one. If this mask is not selected, the
    pixel is in no mask.

    Attributes:
        masks: all masks.
        which: int (n,), the indices of the selected masks, in the order of their new numbers.
    """

    masks: NumberedMasks
    which: npt.NDArray[np.int64]

    def number(self, out: npt.NDArray[np.uint16]) -> None:
        """Write the new mask numbers into an image; see ``NumberedMasks``."""
        self.masks.number(out)
        new_numbers = np.zeros(np.iinfo(np.uint16).max + 1, np.uint16)
        new_numbers[self.which + 1] = np.arange(1, len(self.which) + 1)
        for rows in row_strips((out.shape[1], out.shape[0])):
            out[rows] = new_numbers[out[rows]]


@dataclass(frozen=True, repr=False)
class Masks(ShortRepr):
    """The coefficients and prototypes of one image's masks. Methods compute masks at each call.

    A pixel belongs to a mask if its logit is above 0. The logit is the sum of the prototypes,
    weighted by the coefficients and interpolated bilinearly with half-pixel centres. Ultralytics'
    ``process_mask_native`` computes the same. A mask is empty outside its box: Ultralytics cuts at
    the first whole coordinates inside the box. torchvision and RF-DETR output a separate mask for
    each object, and do not cut. Pixels that their boxes cover only partly stay in the mask.

    Attributes:
        xyxy: float32 (n, 4), the boxes in source pixels, inside the image.
        coefficients: float32 (n, m).
        prototypes: float32 (m, rows, columns), over the network's whole input.
        are_logits: whether each prototype holds the logits of one mask. The single coefficient of
            an object is then the index of its prototype.
    """

    xyxy: npt.NDArray[np.float32]
    coefficients: npt.NDArray[np.float32]
    prototypes: npt.NDArray[np.float32]
    geometry: MaskGeometry
    are_logits: bool = False

    def __len__(self) -> int:
        return len(self.coefficients)

    @property
    def size_wh(self) -> tuple[int, int]:
        """Width and height of the image."""
        return self.geometry.size_wh

    def take(self, which: npt.NDArray[Any]) -> Masks:
        """Return the selected masks; see ``Detections.take``."""
        return replace(self, xyxy=self.xyxy[which], coefficients=self.coefficients[which])

    def one(self, index: int) -> tuple[int, int, npt.NDArray[np.bool_]]:
        """Return left and top of a mask's box in pixels, and the mask in the box: bool (h, w)."""
        left, top, right, bottom = self._pixel_box(index)
        mask = np.zeros((max(0, bottom - top), max(0, right - left)), np.bool_)
        self._paint(index, mask, True)
        return left, top, mask

    def _pixel_box(self, index: int) -> tuple[int, int, int, int]:
        """Return left, top, right and bottom of the pixels that a mask may cover."""
        first = np.floor if self.are_logits else np.ceil
        left, top = first(self.xyxy[index, :2]).astype(int).tolist()
        right, bottom = np.ceil(self.xyxy[index, 2:]).astype(int).tolist()
        return left, top, right, bottom

    # Networks may output infinity or NaN. Such pixels are in no mask, and need no warning.
    @np.errstate(over='ignore', under='ignore', invalid='ignore')
    def _paint(self, index: int, part: npt.NDArray[Any], value: int) -> None:
        """Write a value into the pixels of a mask.

        Args:
            index: index of the mask.
            part: the part of an image that lies in the mask's box, (h, w). Changed in place.
            value: the new value of the pixels.
        """
        left, top, right, bottom = self._pixel_box(index)
        if right <= left or bottom <= top:
            return
        columns, across = self._taps(0, left, right)
        rows, down = self._taps(1, top, bottom)
        # einsum instead of a matrix product: BLAS threads wait for each other on busy cores.
        logits: Any
        if self.are_logits:
            logits = self.prototypes[int(self.coefficients[index, 0]), rows, columns]
        else:
            logits = np.einsum(
                'm,mrc->rc', self.coefficients[index], self.prototypes[:, rows, columns]
            )
        for strip in row_strips((right - left, bottom - top)):
            lines: Any = sum(logits[place[strip]] * share[strip, None] for place, share in down)
            inside: Any = sum(lines[:, place] * share for place, share in across) > 0
            part[strip][inside] = value

    def whole(self) -> npt.NDArray[np.bool_]:
        """Return all masks in the size of the image: bool (n, height, width)."""
        width, height = self.size_wh
        found = np.zeros((len(self), height, width), np.bool_)
        for index, mask in enumerate(found):
            self._paint(index, self._part_in_box(index, mask), True)
        return found

    def number(self, out: npt.NDArray[np.uint16]) -> None:
        """Write mask numbers into an image; see ``NumberedMasks``."""
        out[:] = 0
        for index in reversed(range(min(len(self), 65535))):
            self._paint(index, self._part_in_box(index, out), index + 1)

    def _part_in_box(self, index: int, image: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the part of an image, (height, width), that lies in the box of a mask."""
        left, top, right, bottom = self._pixel_box(index)
        return image[top : max(top, bottom), left : max(left, right)]

    def _taps(self, axis: int, first: int, last: int) -> tuple[slice, list[_Tap]]:
        """Return the prototype pixels and weights that interpolate source pixels along one axis.

        The source pixels are interpolated from ``fine`` parts of each prototype pixel, which are
        interpolated too. The border of the padding lies between two parts, so no part behind the
        border contributes.

        Args:
            axis: 0 for x, 1 for y.
            first: first source pixel.
            last: end of the source pixels, not included.

        Returns:
            The range of prototype pixels, and indices in this range with their weights. Each
            array has one value for each source pixel.
        """
        geometry, count = self.geometry, self.prototypes.shape[2 - axis]
        fine = geometry.fine
        scale, offset = geometry.scale[axis] * fine, geometry.offset[axis] * fine
        begin = round(offset)
        end = begin + max(1, round(geometry.size_wh[axis] * scale))
        places = (np.arange(first, last) + 0.5) * scale + offset - 0.5
        low, following, part = _neighbours(places.clip(begin, end - 1), end)
        taps = []
        for of_fine, share in ((low, 1 - part), (following, part)):
            middle = ((of_fine + 0.5) / fine - 0.5).clip(0, count - 1)
            before, behind, near = _neighbours(middle, count)
            taps += [(before, share * (1 - near)), (behind, share * near)]
        used = [(place, share) for place, share in taps if share.any()]
        start = min(int(place[0]) for place, _ in used)
        stop = max(int(place[-1]) for place, _ in used) + 1
        return slice(start, stop), [
            (place - start, share.astype(np.float32)) for place, share in used
        ]


def _neighbours(
    places: npt.NDArray[np.float64], end: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the two pixels around each position, below ``end``, and the weight of the second."""
    low = np.floor(places).astype(np.int64)
    return low, np.minimum(low + 1, end - 1), places - low


@dataclass(frozen=True, repr=False)
class Detections(ImageResult):
    """Detected objects of one image, best score first.

    Attributes:
        xyxy: float32 (n, 4). Left, top, right and bottom in source pixels, inside the image.
            The area is positive.
        scores: float32 (n,) in (0, 1].
        class_ids: int32 (n,), indices into the model's class names.
        keypoints: float32 (n, k, 3), None without the task ``pose``. x and y in source pixels,
            inside the image, and a score from 0 to 1. The score is 1 if the model outputs none.
        oriented: float32 (n, 5), None without the task ``obb``. Centre x and y, width and height
            in source pixels, and the angle of the width's axis. The box touches the image, and
            its centre may be outside. The angle is in radians from -π/2 to π/2, from x to y, which
            is clockwise on the screen. ``xyxy`` is then the upright box around the oriented box,
            clipped to the image.
        masks: coefficients and prototypes of the masks, None without the task ``segment``.
        numbered: masks that the GPU computes; replaces ``masks`` in pipelines that compute
            masks. None for frames whose masks were not requested.
        ids: int64 (n,), the number of each object's track, from 1; -1 for an object without a
            confirmed track. None without a tracker.
        left_out: number of boxes above the threshold that did not enter NMS, because the
            ``max_candidates`` (1024) best boxes of the image have higher scores.

    >>> found = tp.load('digits_segment.onnx')(cv2.imread('image.jpg'))
    >>> best = found.take([0])
    >>> best.xyxy.shape, best.class_ids.tolist()
    ((1, 4), [4])
    >>> best.masks.whole().shape
    (1, 480, 640)
    >>> cv2.imwrite('plotted.jpg', found.plot())
    True
    """

    xyxy: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]
    class_ids: npt.NDArray[np.int32]
    keypoints: npt.NDArray[np.float32] | None = None
    oriented: npt.NDArray[np.float32] | None = None
    masks: Masks | None = None
    numbered: NumberedMasks | None = None
    ids: npt.NDArray[np.int64] | None = None
    left_out: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        count = len(self.scores)
        shapes = self.xyxy.shape, self.scores.shape, self.class_ids.shape
        if shapes != ((count, 4), (count,), (count,)):
            raise ValueError(f'expected shapes (n, 4), (n,) and (n,) (got {shapes})')
        if self.keypoints is not None:
            shape = self.keypoints.shape
            if len(shape) != 3 or (shape[0], shape[2]) != (count, 3):
                raise ValueError(f'expected keypoints of shape ({count}, k, 3) (got {shape})')
        if self.oriented is not None and self.oriented.shape != (count, 5):
            raise ValueError(
                f'expected oriented boxes of shape ({count}, 5) (got {self.oriented.shape})'
            )
        if self.ids is not None and self.ids.shape != (count,):
            raise ValueError(f'expected ids of shape ({count},) (got {self.ids.shape})')

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def pictured(self) -> NumberedMasks | None:
        """The masks that ``number`` can write into an image; None without masks."""
        return self.masks if self.numbered is None else self.numbered

    def take(self, which: npt.NDArray[Any]) -> Detections:
        """Return the selected objects with all their values.

        Args:
            which: bool (n,), or indices. Indices also define the order of the result.
        """
        values: dict[str, Any] = {
            each.name: getattr(self, each.name) for each in fields(Detections)
        }
        left_out, numbered = values.pop('left_out'), values.pop('numbered')
        taken: dict[str, Any] = {
            name: value.take(which) if isinstance(value, Masks) else value[which]
            for name, value in values.items()
            if value is not None
        }
        if numbered is not None:
            taken['numbered'] = SelectedMasks(numbered, np.arange(len(self))[which])
        found = Detections(**taken, left_out=left_out)
        if self._plotted is not None:
            found.remember_image(*self._plotted)
        return found

    def with_ids(self, ids: npt.NDArray[np.int64]) -> Detections:
        """Return the same objects with the numbers of their tracks, int64 (n,)."""
        found = replace(self, ids=ids)
        if self._plotted is not None:
            found.remember_image(*self._plotted)
        return found

    def as_supervision(self) -> dict[str, Any]:
        """Return the arguments of ``supervision.Detections(**…)``: xyxy, confidence, class_id.

        Oriented boxes add ``data`` with the corners as ``xyxyxyxy``. Masks add ``mask``, bool
        (n, height, width). A tracker adds ``tracker_id``.
        """
        found: dict[str, Any] = {
            'xyxy': self.xyxy,
            'confidence': self.scores,
            'class_id': self.class_ids,
        }
        if self.oriented is not None:
            found['data'] = {'xyxyxyxy': oriented_corners(self.oriented)}
        if self.masks is not None:
            found['mask'] = self.masks.whole()
        if self.ids is not None:
            found['tracker_id'] = self.ids
        return found

    @classmethod
    def empty(cls) -> Detections:
        """Return detections without objects."""
        return cls(np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int32))


def oriented_corners(oriented: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the corners of oriented boxes, in order around each box.

    Args:
        oriented: float32 (n, 5): centre x, centre y, width and height in pixels, angle in radians.

    Returns:
        float32 (n, 4, 2): x and y in pixels.
    """
    center, half, angle = oriented[:, :2], oriented[:, 2:4] / 2, oriented[:, 4]
    cos, sin = np.cos(angle), np.sin(angle)
    along = np.stack([cos, sin], axis=1) * half[:, :1]
    across = np.stack([-sin, cos], axis=1) * half[:, 1:]
    corners: npt.NDArray[np.float32] = np.stack(
        [
            center + along + across,
            center + along - across,
            center - along - across,
            center - along + across,
        ],
        axis=1,
    )
    return corners
