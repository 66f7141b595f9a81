# SPDX-License-Identifier: Apache-2.0
"""Counts correct and wrong detections at each of 101 score thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.images.detections import Detections
from trt_perception.offline.evaluation.coco.annotations import AnnotatedObject
from trt_perception.offline.evaluation.coco.classes import ClassMap
from trt_perception.offline.evaluation.metrics.measure import Measure
from trt_perception.offline.evaluation.metrics.mistakes import FALSE_KINDS, ImageMatcher

#: A detection counts if its score is above the threshold.
THRESHOLDS: Final = tuple(index / 100 for index in range(101))
#: What a detection or an object can be, except ignored.
KINDS: Final = ('right', 'wrong class', *FALSE_KINDS, 'missed')
#: Largest area of each size of objects in square pixels, as COCO defines the sizes.
SIZES: Final = {'small': 32.0**2, 'medium': 96.0**2, 'large': float('inf')}
_Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ImageHistory:
    """What each detection and object of one image is at each threshold.

    Attributes:
        shown: int64 (n,), the number of thresholds below the score of each detection. Detection
            ``i`` counts at the first ``shown[i]`` thresholds.
        right: (detection, object) pairs of the same class.
        wrong_class: (detection, object, first, end): the detection has the wrong class at the
            thresholds from index ``first`` up to, but not including, ``end``.
        false_kinds: kind of each detection where it is neither right nor of a wrong class; empty
            if it is right or ignored.
        objects: indices of the objects that can be found or missed.
    """

    shown: _Counts
    right: tuple[tuple[int, int], ...]
    wrong_class: tuple[tuple[int, int, int, int], ...]
    false_kinds: tuple[str, ...]
    objects: tuple[int, ...]

    @classmethod
    def of_image(
        cls,
        found: Detections,
        truth: Sequence[AnnotatedObject],
        classes: ClassMap,
        measure: Measure,
    ) -> ImageHistory:
        """Match the detections of an image at all thresholds.

        Args:
            found: all detections in source pixels, best score first.
        """
        matcher = ImageMatcher(found, truth, classes, measure)
        # The same comparison as in filter_by_score.
        above = found.scores[:, None] > np.array(THRESHOLDS, np.float32)
        counts = above.sum(axis=0)
        # Between these indices, the number of detections stays the same.
        starts = [0, *(np.flatnonzero(np.diff(counts)) + 1).tolist()]
        pairs: dict[tuple[int, int], list[list[int]]] = {}
        for first, end in zip(starts, [*starts[1:], len(THRESHOLDS)], strict=True):
            for pair in matcher.wrong_class(int(counts[first])):
                ranges = pairs.setdefault(pair, [])
                if ranges and ranges[-1][1] == first:
                    ranges[-1][1] = end
                else:
                    ranges.append([first, end])
        return cls(
            above.sum(axis=1),
            matcher.right,
            tuple((*pair, first, end) for pair, all_ in pairs.items() for first, end in all_),
            tuple(
                kind if can_be else ''
                for kind, can_be in zip(matcher.false_kinds, matcher.can_be_false, strict=True)
            ),
            matcher.objects,
        )


class ThresholdCounts:
    """The counts of one model over all images. Each array has a count for each threshold.

    Attributes:
        kinds: maps each of ``KINDS`` to its counts, int64 (101,).
        class_names: names of the measured categories.
        class_objects: number of objects of each category.
        class_right: correct detections of each category, int64 (categories, 101).
        class_detections: detections of each category that are not ignored, of the same shape.
        size_objects: number of objects of each of ``SIZES``.
        size_right: found objects of each of ``SIZES``, int64 (3, 101).
        confusions: maps (category of the object, category of the detection), as indices of
            ``class_names``, to its counts, int64 (101,). The index of a missed object's
            detection, and of a false detection's object, is -1.
    """

    def __init__(self, classes: ClassMap) -> None:
        self._index_by_id = {id_: index for index, id_ in enumerate(classes.categories)}
        self._category_ids = classes.category_ids
        self.class_names = tuple(classes.categories.values())
        shape = len(self.class_names), len(THRESHOLDS)
        self.kinds = {kind: np.zeros(len(THRESHOLDS), np.int64) for kind in KINDS}
        self.class_objects = [0] * len(self.class_names)
        self.class_right = np.zeros(shape, np.int64)
        self.class_detections = np.zeros(shape, np.int64)
        self.size_objects = [0] * len(SIZES)
        self.size_right = np.zeros((len(SIZES), len(THRESHOLDS)), np.int64)
        self.confusions: dict[tuple[int, int], _Counts] = {}

    def add(
        self, history: ImageHistory, found: Detections, truth: Sequence[AnnotatedObject]
    ) -> None:
        """Add an image, with the arguments of ``ImageHistory.of_image``."""
        of_object = {i: self._index_by_id[truth[i].category_id] for i in history.objects}
        size_of = {i: _size_index(truth[i].area) for i in history.objects}
        ends = history.shown.tolist()
        for index, category in of_object.items():
            self.class_objects[category] += 1
            self.size_objects[size_of[index]] += 1
            self._count('missed', category, -1, 0, len(THRESHOLDS))
        for detection, index in history.right:
            category, end = of_object[index], ends[detection]
            self.class_right[category, :end] += 1
            self.class_detections[category, :end] += 1
            self.size_right[size_of[index], :end] += 1
            self._count('right', category, category, 0, end)
            self._count('missed', category, -1, 0, end, -1)
        detected = [self._category_index(class_id) for class_id in found.class_ids.tolist()]
        for detection, kind in enumerate(history.false_kinds):
            if kind:
                self.class_detections[detected[detection], : ends[detection]] += 1
                self._count(kind, -1, detected[detection], 0, ends[detection])
        for detection, index, first, end in history.wrong_class:
            category, kind = of_object[index], history.false_kinds[detection]
            self._count('wrong class', category, detected[detection], first, end)
            self._count(kind, -1, detected[detection], first, end, -1)
            self._count('missed', category, -1, first, end, -1)

    def _category_index(self, class_id: int) -> int:
        category_id = self._category_ids[class_id]
        return -1 if category_id is None else self._index_by_id[category_id]

    def _count(
        self, kind: str, category: int, detected: int, first: int, end: int, count: int = 1
    ) -> None:
        pair = category, detected
        if pair not in self.confusions:
            self.confusions[pair] = np.zeros(len(THRESHOLDS), np.int64)
        for counts in (self.kinds[kind], self.confusions[pair]):
            counts[first:end] += count


def _size_index(area: float) -> int:
    return next(index for index, most in enumerate(SIZES.values()) if area < most)
