# SPDX-License-Identifier: Apache-2.0
"""Counts correct and wrong detections, image by image, at one score threshold.

mAP measures the ranking of detections. These counts show the quality of a node's output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.images.detections import Detections
from trt_perception.offline.evaluation.coco.annotations import AnnotatedObject
from trt_perception.offline.evaluation.coco.classes import ClassMap
from trt_perception.offline.evaluation.metrics.agreement import match_by_iou
from trt_perception.offline.evaluation.metrics.measure import BOXES, Measure
from trt_perception.offline.evaluation.metrics.shapes import Shapes

_MIN_IOU = 0.5
_MAX_SQUARE_RATIO = 1.1
#: The kinds of false detections, and the overlap with an object from which each counts. Source of
#: the limits: Bolya et al., "TIDE: A General Toolbox for Identifying Object Detection Errors",
#: 2020. From 0.5 on, another detection took the object.
FALSE_KINDS: Final = {'duplicate': _MIN_IOU, 'wrong place': 0.1, 'background': 0.0}


@dataclass(frozen=True)
class ImageMatches:
    """Detections of one image matched with its objects, as indices. ``len`` counts mistakes.

    Attributes:
        right: (detection, object) pairs of the same class.
        wrong_class: (detection, object) pairs with a correct box and a wrong class.
        false: detections without an object, including repeated detections of one object.
        missed: objects without a detection.
        ignored: detections inside a crowd, or of a class that is not measured.
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
    """Angle in degrees, 0 to 90, between oriented boxes and the objects that they match.

    A rotation by 180° does not change a box, and a rotation by 90° does not change a square. If
    the sides of either box differ by less than 10 %, the angle is taken modulo 90°. Otherwise it
    is the angle between the longer sides.

    Attributes:
        p90: 90th percentile of the angles.
    """

    median: float
    p90: float


@dataclass(frozen=True)
class DetectionCounts:
    """Counts of correct and wrong detections over all images.

    Attributes:
        wrong_class: number of detections with a correct box and a wrong class.
        false: number of detections without an object.
        missed: number of objects without a detection.
        confusions: (category of the object, category of the detection, count), most frequent
            first.
        angle_error: angle error of correct detections; None if boxes are upright.
    """

    right: int
    wrong_class: int
    false: int
    missed: int
    confusions: tuple[tuple[str, str, int], ...]
    angle_error: AngleError | None = None

    @property
    def precision(self) -> float | None:
        """Share of correct detections, 0 to 1; None without detections."""
        total = self.right + self.wrong_class + self.false
        return self.right / total if total else None

    @property
    def recall(self) -> float | None:
        """Share of objects found with the correct class, 0 to 1; None without objects."""
        total = self.right + self.wrong_class + self.missed
        return self.right / total if total else None

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as a JSON object."""
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
    """Match the detections of one image with its objects, as ``ImageMatcher`` explains."""
    return ImageMatcher(found, truth, classes, measure).match(len(found))


class ImageMatcher:
    """Matches the detections of one image with its objects, at any score threshold.

    The matching follows COCO at IoU 0.50. Each detection, best score first, takes the free object
    of its class with the largest overlap. If a remaining detection overlaps a remaining object,
    the detection has the wrong class.

    Args:
        found: detections in source pixels, best score first.
        truth: all objects of the image. Objects of categories that are not measured are ignored.

    Attributes:
        false_kinds: the kind of mistake of each detection if the detection is false: the key of
            the first entry of ``FALSE_KINDS`` that its largest overlap with an object reaches.
        objects: indices of the objects that can be found or missed.
        right: (detection, object) pairs of the same class, at the lowest threshold. At a higher
            threshold, the pairs of weaker detections are missing.
        can_be_false: bool (n,), whether each detection is neither right nor ignored.
    """

    def __init__(
        self,
        found: Detections,
        truth: Sequence[AnnotatedObject],
        classes: ClassMap,
        measure: Measure = BOXES,
    ) -> None:
        ids = [classes.category_ids[class_id] for class_id in found.class_ids]
        detected_categories = np.array([id_ or 0 for id_ in ids], np.int64)
        is_counted = np.array([id_ is not None for id_ in ids], np.bool_)
        measured = np.array([box.category_id in classes.categories for box in truth], np.bool_)
        crowds = np.array([box.is_ignored for box in truth], np.bool_)
        categories = np.array([box.category_id for box in truth], np.int64)
        shapes, annotated_shapes = Shapes.from_detections(found), Shapes.from_annotations(truth)
        overlap = measure.overlaps(shapes, annotated_shapes)
        same_class = detected_categories[:, None] == categories
        self._is_object = measured & ~crowds
        self.objects = tuple(np.flatnonzero(self._is_object).tolist())
        # Weaker detections never change the objects that stronger detections take.
        self.right = tuple(_take_objects(overlap, same_class, is_counted, self._is_object))
        is_right = np.zeros(len(found), np.bool_)
        is_right[[index for index, _ in self.right]] = True
        # A crowd is larger than a detection, so use the covered share of the detection, not IoU.
        covered = measure.share_inside(shapes, annotated_shapes)
        in_crowd = (same_class & (measured & crowds) & (covered >= _MIN_IOU)).any(axis=1)
        self._is_ignored = ~is_counted | (in_crowd & ~is_right)
        self.can_be_false = ~self._is_ignored & ~is_right
        self._other_class_overlap = np.where(same_class, 0.0, overlap)
        largest = np.where(self._is_object, overlap, 0.0).max(axis=1, initial=0.0)
        self.false_kinds = tuple(
            next(kind for kind, lowest in FALSE_KINDS.items() if value >= lowest)
            for value in largest
        )

    def match(self, count: int) -> ImageMatches:
        """Match the ``count`` best detections, and ignore the others."""
        right = tuple(pair for pair in self.right if pair[0] < count)
        wrong_class = tuple(self.wrong_class(count))
        is_free, is_false = self._is_object.copy(), self.can_be_false[:count].copy()
        for index, partner in (*right, *wrong_class):
            is_free[partner] = is_false[index] = False
        return ImageMatches(
            right,
            wrong_class,
            tuple(int(index) for index in np.flatnonzero(is_false)),
            tuple(int(index) for index in np.flatnonzero(is_free)),
            tuple(int(index) for index in np.flatnonzero(self._is_ignored[:count])),
        )

    def wrong_class(self, count: int) -> list[tuple[int, int]]:
        """Return ``ImageMatches.wrong_class`` of the ``count`` best detections."""
        is_free = self._is_object.copy()
        is_free[[partner for index, partner in self.right if index < count]] = False
        usable = self.can_be_false[:count, None] & is_free
        return match_by_iou(np.where(usable, self._other_class_overlap[:count], 0.0), _MIN_IOU)


def _take_objects(
    overlap: npt.NDArray[np.float64],
    same_class: npt.NDArray[np.bool_],
    is_counted: npt.NDArray[np.bool_],
    is_object: npt.NDArray[np.bool_],
) -> list[tuple[int, int]]:
    """Return (detection, object) pairs of one class. Each detection takes the best free object."""
    is_free = is_object.copy()
    pairs = []
    for index in np.flatnonzero(is_counted):
        best = np.where(is_free & same_class[index], overlap[index], 0.0)
        if best.size and best.max() >= _MIN_IOU:
            partner = int(best.argmax())
            is_free[partner] = False
            pairs.append((int(index), partner))
    return pairs


def count_mistakes(
    images: Sequence[tuple[ImageMatches, Detections, Sequence[AnnotatedObject]]], classes: ClassMap
) -> DetectionCounts:
    """Count correct and wrong detections over all images.

    Args:
        images: result of ``match_detections`` for each image, with its detections and objects.
    """
    confusions: Counter[tuple[str, str]] = Counter()
    for mistakes, found, truth in images:
        for index, partner in mistakes.wrong_class:
            detected_category = classes.category_ids[found.class_ids[index]]
            assert detected_category is not None
            true_category = truth[partner].category_id
            confusions[
                classes.categories[true_category], classes.categories[detected_category]
            ] += 1
    all_matches = [mistakes for mistakes, _, _ in images]
    angles = [angle for image in images for angle in _angle_errors(*image)]
    return DetectionCounts(
        sum(len(one.right) for one in all_matches),
        sum(len(one.wrong_class) for one in all_matches),
        sum(len(one.false) for one in all_matches),
        sum(len(one.missed) for one in all_matches),
        tuple(
            (one, other, count)
            for (one, other), count in sorted(confusions.items(), key=lambda i: (-i[1], i[0]))
        ),
        AngleError(*map(float, np.percentile(angles, (50, 90)))) if angles else None,
    )


def angle_between(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the angle between two oriented boxes in degrees; see ``AngleError``."""
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
