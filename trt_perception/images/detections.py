"""What a model found in one image."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ['Detections', 'MaskGeometry', 'Masks', 'NumberedMasks', 'oriented_corners']


# Places in an array, and how much of what lies there counts.
_Tap = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]


@dataclass(frozen=True)
class MaskGeometry:
    """Where an image lies in the prototypes of its masks, which cover the network's input.

    Attributes:
        size_wh: of the image.
        scale: prototype pixels of a source pixel along x and y.
        offset: where the image's corner lies in the prototypes, in x and y.
        fine: into how many parts of a prototype pixel the padding's border divides it.
    """

    size_wh: tuple[int, int]
    scale: tuple[float, float]
    offset: tuple[float, float]
    fine: int = 1


class NumberedMasks(Protocol):
    """Masks of one image as a picture of their numbers."""

    def number(self, out: npt.NDArray[np.uint16]) -> None:
        """Write i into the pixels of the i-th mask, counted from 1, the better one on top.

        Args:
            out: uint16 (height, width); pixels of no mask become 0.
        """


@dataclass(frozen=True)
class Masks:
    """What the masks of one image are made of; a mask is made when it is asked for.

    A pixel belongs to a mask where its logit, the coefficients' sum of the prototypes interpolated
    bilinearly with half-pixel centres, is above 0, as Ultralytics' ``process_mask_native`` has it.
    Outside its box a mask is empty.

    Attributes:
        xyxy: float32 (n, 4), the boxes in source pixels, inside the image.
        coefficients: float32 (n, m).
        prototypes: float32 (m, rows, columns), over the whole input of the network.
        geometry: where the image lies in them.
        is_own: the prototypes are the masks' logits, and the one coefficient is the place there.
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
        """Return some of them; see ``Detections.take``."""
        return replace(self, xyxy=self.xyxy[which], coefficients=self.coefficients[which])

    # A network may say anything; what is no logit is in no mask, without a warning.
    @np.errstate(over='ignore', under='ignore', invalid='ignore')
    def one(self, index: int) -> tuple[int, int, npt.NDArray[np.bool_]]:
        """Return left and top of a mask's box in pixels, and the mask within it: bool (h, w)."""
        left, top, right, bottom = np.ceil(self.xyxy[index]).astype(int).tolist()
        if right <= left or bottom <= top:
            return left, top, np.zeros((max(0, bottom - top), max(0, right - left)), np.bool_)
        columns, across = self._taps(0, left, right)
        rows, down = self._taps(1, top, bottom)
        # Not by matrix products: threads of BLAS wait for each other where cores are busy.
        logits: Any
        if self.are_logits:
            logits = self.prototypes[int(self.coefficients[index, 0]), rows, columns]
        else:
            logits = np.einsum(
                'm,mrc->rc', self.coefficients[index], self.prototypes[:, rows, columns]
            )
        lines = sum(logits[place] * share[:, None] for place, share in down)
        return left, top, sum(lines[:, place] * share for place, share in across) > 0

    def whole(self) -> npt.NDArray[np.bool_]:
        """Return all masks at the image's size: bool (n, height, width)."""
        width, height = self.size_wh
        found = np.zeros((len(self), height, width), np.bool_)
        for index, mask in enumerate(found):
            left, top, part = self.one(index)
            mask[top : top + part.shape[0], left : left + part.shape[1]] = part
        return found

    def number(self, out: npt.NDArray[np.uint16]) -> None:
        """See NumberedMasks."""
        out[:] = 0
        for index in reversed(range(min(len(self), 65535))):
            left, top, part = self.one(index)
            out[top : top + part.shape[0], left : left + part.shape[1]][part] = index + 1

    def _taps(self, axis: int, first: int, last: int) -> tuple[slice, list[_Tap]]:
        """Return which prototype pixels are in source pixels, and how much of each.

        From ``fine`` times as many, themselves interpolated, so that the padding ends between two
        of them: what lies behind counts not.

        Returns:
            The region of prototype pixels, and its places with their shares for each source pixel.
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
    """Return the pixels around places, the second below ``end``, and how near the second is."""
    low = np.floor(places).astype(np.int64)
    return low, np.minimum(low + 1, end - 1), places - low


@dataclass(frozen=True)
class Detections:
    """Boxes of one image, best score first.

    Attributes:
        xyxy: float32 (n, 4); left, top, right, bottom in source pixels, inside the image, of
            positive area.
        scores: float32 (n,) in (0, 1].
        class_ids: int32 (n,), an index into the model's class names.
        keypoints: of pose models, else None: float32 (n, k, 3); x and y in source pixels, inside
            the image, and a score from 0 to 1, which is 1 where the model gives none.
        oriented: of models of oriented boxes, else None: float32 (n, 5); centre x and y, inside
            the image, width and height in source pixels, and the angle of the width's axis in
            radians, from -π/2 to π/2, clockwise as seen (from x to y). ``xyxy`` is then the part
            of the image that the upright box around it covers.
        masks: of models of masks, else None: what each mask is made of.
        numbered: of pipelines that make the masks themselves, in place of ``masks``: which mask
            each pixel is in, of frames of which that was asked.
    """

    xyxy: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]
    class_ids: npt.NDArray[np.int32]
    keypoints: npt.NDArray[np.float32] | None = None
    oriented: npt.NDArray[np.float32] | None = None
    masks: Masks | None = None
    numbered: NumberedMasks | None = None

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

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def pictured(self) -> NumberedMasks | None:
        """What knows which mask each pixel is in, None where there are no masks."""
        return self.masks if self.numbered is None else self.numbered

    def take(self, which: npt.NDArray[Any]) -> Detections:
        """Return some of them with all that they carry, which must not be ``numbered``.

        Args:
            which: bool (n,), or indices, in whose order they come.
        """
        assert self.numbered is None
        values: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in fields(Detections)
        }
        taken: dict[str, Any] = {
            name: value.take(which) if isinstance(value, Masks) else value[which]
            for name, value in values.items()
            if value is not None
        }
        return Detections(**taken)

    def as_supervision(self) -> dict[str, Any]:
        """Return the arguments of ``supervision.Detections(**…)``: xyxy, confidence, class_id.

        Of oriented boxes also data, with the corners as ``xyxyxyxy``; of masks also mask, bool
        (n, height, width).
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
        return found

    @classmethod
    def empty(cls) -> Detections:
        """Return no detections."""
        return cls(np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int32))


def oriented_corners(oriented: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the corners of oriented boxes, one after the other around each.

    Args:
        oriented: float32 (n, 5), centre x, centre y, width, height, angle.

    Returns:
        float32 (n, 4, 2): x and y.
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
