"""Which detections are right and which are not, image by image, at one threshold.

mAP says how good a ranking is; this says what a node would have published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from trt_perception.evaluation.coco.annotations import AnnotatedObject
from trt_perception.evaluation.coco.classes import ClassMap
from trt_perception.evaluation.metrics.agreement import match_by_iou
from trt_perception.evaluation.metrics.measure import BOXES, Measure
from trt_perception.evaluation.metrics.shapes import Shapes
from trt_perception.images.detections import Detections

__all__ = [
    *(
        'AngleError',
        'ImageMatches',
        'MistakeCounts',
        'angle_between',
        'match_detections',
        'count_mistakes',
    ),
]

_MIN_IOU = 0.5
_MAX_SQUARE_RATIO = 1.1


@dataclass(frozen=True)
class ImageMatches:
    """Detections of one image compared with the truth; indices into either.

    Attributes:
        right: (detection, object).
        wrong_class: (detection, object): the box is right, the class is not.
        false: detections where no object is left to be found; a second one on the same object too.
        missed: objects that nothing was found at.
        ignored: detections within a crowd, or of a class that does not count.
    """

    right: tuple[tuple[int, int], ...]
    wrong_class: tuple[tuple[int, int], ...]
    false: tuple[int, ...]
    missed: tuple[int, ...]
    ignored: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.wrong_class) + len(self.false) + len(self.missed)


@dataclass(frozen=True)
class AngleError:
    """How far oriented boxes are turned from the objects they were found at, in degrees, 0 to 90.

    A box turned by half a turn is the same, and so is a square by a quarter: where the sides of
    either differ by less than a tenth, only the rest to a quarter counts, else the angle between
    the longer sides.

    Attributes:
        median: half of the boxes are turned less.
        p90: nine tenths are.
    """

    median: float
    p90: float


@dataclass(frozen=True)
class MistakeCounts:
    """Counts over all images.

    Attributes:
        right: detections that are.
        wrong_class: detections of another class than the object they are at.
        false: detections without an object.
        missed: objects without a detection.
        confusions: how often objects of one category were taken for another, most often first:
            (what it is, what it was taken for, how often).
        angle_error: of the right ones, None where boxes are upright.
    """

    right: int
    wrong_class: int
    false: int
    missed: int
    confusions: tuple[tuple[str, str, int], ...]
    angle_error: AngleError | None = None

    @property
    def precision(self) -> float | None:
        """Share of the detections that are right, None without any."""
        total = self.right + self.wrong_class + self.false
        return self.right / total if total else None

    @property
    def recall(self) -> float | None:
        """Share of the objects that were found as what they are, None without any."""
        total = self.right + self.wrong_class + self.missed
        return self.right / total if total else None

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON has them."""
        figures = asdict(self)
        if (error := figures.pop('angle_error')) is not None:
            figures['angle_error_degrees'] = error
        return {
            'precision': self.precision,
            'recall': self.recall,
            **figures,
            'confusions': [
                {'is': one, 'taken_for': other, 'count': count}
                for one, other, count in self.confusions
            ],
        }


def match_detections(
    found: Detections,
    truth: Sequence[AnnotatedObject],
    classes: ClassMap,
    measure: Measure = BOXES,
) -> ImageMatches:
    """Compare the detections of one image with its objects.

    As COCO does at IoU 0.50: from the best score to the worst each detection takes the object of
    its class that it overlaps most and that is still free. What is left of both and overlaps is of
    the wrong class.

    Args:
        found: in source pixels, best score first.
        truth: all objects of the image; those of categories that are not measured are left out.
        classes: which class is which category.
        measure: what of the objects is compared.
    """
    ids = [classes.category_ids[class_id] for class_id in found.class_ids]
    named = np.array([id_ or 0 for id_ in ids], np.int64)
    counted = np.array([id_ is not None for id_ in ids], np.bool_)
    measured = np.array([box.category_id in classes.categories for box in truth], np.bool_)
    crowd = np.array([box.is_ignored for box in truth], np.bool_)
    categories = np.array([box.category_id for box in truth], np.int64)
    shapes, annotated_shapes = Shapes.from_detections(found), Shapes.from_annotations(truth)
    overlap = measure.overlaps(shapes, annotated_shapes)
    same = named[:, None] == categories
    free = measured & ~crowd
    waiting = counted.copy()
    right = []
    for index in np.flatnonzero(counted):
        best = np.where(free & same[index], overlap[index], 0.0)
        if best.size and best.max() >= _MIN_IOU:
            partner = int(best.argmax())
            free[partner] = waiting[index] = False
            right.append((int(index), partner))
    # Of a detection within a crowd, only its own area counts.
    covered = measure.share_inside(shapes, annotated_shapes)
    in_crowd = (same & (measured & crowd) & (covered >= _MIN_IOU)).any(axis=1) & waiting
    waiting &= ~in_crowd
    left = np.where(waiting[:, None] & free, overlap, 0.0)
    wrong = match_by_iou(np.where(same, 0.0, left), _MIN_IOU)
    for index, partner in wrong:
        waiting[index] = free[partner] = False
    return ImageMatches(
        tuple(right),
        tuple(wrong),
        tuple(int(index) for index in np.flatnonzero(waiting)),
        tuple(int(index) for index in np.flatnonzero(free)),
        tuple(int(index) for index in np.flatnonzero(in_crowd | ~counted)),
    )


def count_mistakes(
    images: Sequence[tuple[ImageMatches, Detections, Sequence[AnnotatedObject]]], classes: ClassMap
) -> MistakeCounts:
    """Count the mistakes of all images.

    Args:
        images: what ``match_detections`` returned, and for what.
        classes: which class is which category.
    """
    confusions: Counter[tuple[str, str]] = Counter()
    for mistakes, found, truth in images:
        for index, partner in mistakes.wrong_class:
            taken_for = classes.category_ids[found.class_ids[index]]
            assert taken_for is not None
            is_ = truth[partner].category_id
            confusions[classes.categories[is_], classes.categories[taken_for]] += 1
    every = [mistakes for mistakes, _, _ in images]
    angles = [angle for image in images for angle in _angle_errors(*image)]
    return MistakeCounts(
        sum(len(one.right) for one in every),
        sum(len(one.wrong_class) for one in every),
        sum(len(one.false) for one in every),
        sum(len(one.missed) for one in every),
        tuple(
            (one, other, count)
            for (one, other), count in sorted(confusions.items(), key=lambda i: (-i[1], i[0]))
        ),
        AngleError(*map(float, np.percentile(angles, (50, 90)))) if angles else None,
    )


def angle_between(one: Sequence[float], other: Sequence[float]) -> float:
    """Return by how many degrees two oriented boxes are turned; see ``AngleError``."""
    long_sides = [box[4] + (0.0 if box[2] >= box[3] else np.pi / 2) for box in (one, other)]
    square = any(max(box[2:4]) < _MAX_SQUARE_RATIO * min(box[2:4]) for box in (one, other))
    symmetry = 90.0 if square else 180.0
    apart = float(np.degrees(long_sides[0] - long_sides[1])) % symmetry
    return min(apart, symmetry - apart)


def _angle_errors(
    errors: ImageMatches, found: Detections, truth: Sequence[AnnotatedObject]
) -> list[float]:
    if found.oriented is None:
        return []
    boxes = found.oriented.astype(np.float64).tolist()
    pairs = [(boxes[index], truth[partner].oriented) for index, partner in errors.right]
    return [angle_between(one, other) for one, other in pairs if other is not None]
