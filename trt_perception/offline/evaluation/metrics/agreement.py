# SPDX-License-Identifier: Apache-2.0
"""Measures the agreement of two models' detections, which needs no annotations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trt_perception.images.detections import Detections
from trt_perception.offline.evaluation.metrics.measure import BOXES, Measure
from trt_perception.offline.evaluation.metrics.shapes import Shapes

_Overlap = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ClassAgreement:
    """Agreement of two models on one class.

    Attributes:
        candidate: number of detections of the second model.
        matched: number of pairs with IoU 0.5 or more. A detection is in one pair at most.
        mean_iou: mean IoU of the pairs; None without pairs.
    """

    reference: int
    candidate: int
    matched: int
    mean_iou: float | None

    @property
    def f1(self) -> float | None:
        """Share of all detections that are in a pair, 0 to 1; None without detections."""
        total = self.reference + self.candidate
        return 2 * self.matched / total if total else None

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as a JSON object."""
        return {
            'F1': self.f1,
            'mean_IoU': self.mean_iou,
            'reference': self.reference,
            'candidate': self.candidate,
            'matched': self.matched,
        }


@dataclass(frozen=True)
class Agreement:
    """Agreement of two models on the same images.

    Attributes:
        overall: agreement over all classes. Both detections of a pair have the same class.
        max_score_difference: largest difference of scores within a pair; 0 without pairs.
    """

    overall: ClassAgreement
    classes: dict[str, ClassAgreement]
    max_score_difference: float

    @property
    def figures(self) -> dict[str, float | None]:
        """The main figures by their titles in tables."""
        return {
            'F1': self.overall.f1,
            'IoU': self.overall.mean_iou,
            'score difference': self.max_score_difference,
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as a JSON object."""
        return {
            **self.overall.as_dict(),
            'max_score_difference': self.max_score_difference,
            'classes': {name: one.as_dict() for name, one in self.classes.items()},
        }


def compare_detections(
    reference: Sequence[Detections],
    candidate: Sequence[Detections],
    class_names: Sequence[str],
    measure: Measure = BOXES,
) -> Agreement:
    """Pair the detections of each class and image. Pairs have an IoU of at least 0.5.

    Args:
        reference: detections of the first model, one entry for each image.
        candidate: detections of the second model in the same images.
        class_names: class names of both models; if empty, classes are not measured separately.
    """
    ious: dict[int, list[float]] = defaultdict(list)
    differences = [0.0]
    for one, other in zip(reference, candidate, strict=True):
        overlap = measure.overlaps(Shapes.from_detections(one), Shapes.from_detections(other))
        overlap[one.class_ids[:, None] != other.class_ids] = 0
        for i, j in match_by_iou(overlap):
            ious[int(one.class_ids[i])].append(float(overlap[i, j]))
            differences.append(abs(float(one.scores[i]) - float(other.scores[j])))
    counts = [_count_by_class(run, len(class_names)) for run in (reference, candidate)]
    classes = {
        name: _agreement(int(counts[0][id_]), int(counts[1][id_]), ious[id_])
        for id_, name in enumerate(class_names)
        if counts[0][id_] or counts[1][id_]
    }
    all_ious = [iou for found in ious.values() for iou in found]
    overall = _agreement(int(counts[0].sum()), int(counts[1].sum()), all_ious)
    return Agreement(overall, classes, max(differences))


def filter_by_score(run: Iterable[Detections], confidence: float) -> list[Detections]:
    """Return the detections with a score above the threshold.

    The result equals NMS at this threshold, because weaker boxes never suppress stronger
    boxes. The detections may therefore come from NMS at any lower threshold.
    """
    return [found.take(found.scores > np.float32(confidence)) for found in run]


def match_by_iou(overlap: _Overlap, lowest: float = 0.5) -> list[tuple[int, int]]:
    """Return pairs (row, column), largest overlap first. Each row and column occurs at most once.

    Args:
        overlap: float64 (n, m), overlaps of all pairs, 0 to 1.
        lowest: minimum overlap of a pair.
    """
    rows, columns = np.nonzero(overlap >= lowest)
    pairs, used_rows, used_columns = [], set(), set()
    for index in np.argsort(-overlap[rows, columns], kind='stable'):
        row, column = int(rows[index]), int(columns[index])
        if row not in used_rows and column not in used_columns:
            used_rows.add(row)
            used_columns.add(column)
            pairs.append((row, column))
    return pairs


def _count_by_class(run: Sequence[Detections], classes: int) -> npt.NDArray[np.int64]:
    ids = [found.class_ids for found in run]
    counts: npt.NDArray[np.int64] = np.bincount(
        np.concatenate(ids) if ids else np.empty(0, np.int64), minlength=classes
    ).astype(np.int64)
    return counts


def _agreement(reference: int, candidate: int, ious: Sequence[float]) -> ClassAgreement:
    mean = float(np.mean(ious)) if ious else None
    return ClassAgreement(reference, candidate, len(ious), mean)
