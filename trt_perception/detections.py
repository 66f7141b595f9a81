"""What a model found in one image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ['Detections', 'oriented_corners']


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
    """

    xyxy: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]
    class_ids: npt.NDArray[np.int32]
    keypoints: npt.NDArray[np.float32] | None = None
    oriented: npt.NDArray[np.float32] | None = None

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

    def take(self, which: npt.NDArray[Any]) -> Detections:
        """Return some of them with all that they carry.

        Args:
            which: bool (n,), or indices, in whose order they come.
        """
        return Detections(
            self.xyxy[which],
            self.scores[which],
            self.class_ids[which],
            None if self.keypoints is None else self.keypoints[which],
            None if self.oriented is None else self.oriented[which],
        )

    def as_supervision(self) -> dict[str, Any]:
        """Return the arguments of ``supervision.Detections(**…)``: xyxy, confidence, class_id.

        Of oriented boxes also data, with the corners as ``xyxyxyxy``.
        """
        found: dict[str, Any] = {
            'xyxy': self.xyxy,
            'confidence': self.scores,
            'class_id': self.class_ids,
        }
        if self.oriented is not None:
            found['data'] = {'xyxyxyxy': oriented_corners(self.oriented)}
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
