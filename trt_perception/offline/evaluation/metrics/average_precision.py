# SPDX-License-Identifier: Apache-2.0
"""Mean average precision as COCO defines it, computed by pycocotools.

Average precision is the mean precision at 101 recalls. mAP is its mean over categories and over
IoU thresholds from 0.50 to 0.95, with the 100 best detections per category and image. Definition:
https://cocodataset.org/#detection-eval. For keypoints, the similarity OKS replaces IoU, and the
20 best detections count (https://cocodataset.org/#keypoints-eval). For oriented boxes, IoU is
computed from rotated rectangles.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.offline.evaluation.coco.annotations import Annotations
from trt_perception.offline.evaluation.coco.library import pycocotools_module
from trt_perception.offline.evaluation.metrics.measure import BOXES, Measure

_ALL_AREAS_INDEX: Final = 0
_LAST_LIMIT_INDEX: Final = -1  # index of the largest detection limit: 100, for keypoints 20
_Curve = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ClassMetrics:
    """Metrics of one category. Precisions are None if the category has no annotated objects.

    Attributes:
        objects: number of annotated objects without crowds.
        ap: average precision, mean over IoU thresholds from 0.50 to 0.95.
        ap50: average precision at IoU 0.50.
    """

    objects: int
    detections: int
    ap: float | None
    ap50: float | None


@dataclass(frozen=True)
class Metrics:
    """Metrics of one model. A figure is None if no annotated object contributes.

    Attributes:
        objects: number of annotated objects in these images, without crowds.
        figures: ``mAP`` at IoU 0.50 to 0.95; ``mAP50`` and ``mAP75`` at one IoU; ``mAP_small``
            for objects below 32² square pixels, ``mAP_medium`` below 96², ``mAP_large`` for
            others; ``AR100``, the mean recall with 100 detections at IoU 0.50 to 0.95. For
            keypoints, ``mAP_small`` is None and ``AR20`` replaces ``AR100``.
        recalls: float64 (101,), 0 to 1.
        precisions50: float64 (101,) by category name: precision at each recall, IoU 0.50.
    """

    images: int
    objects: int
    figures: Mapping[str, float | None]
    classes: Mapping[str, ClassMetrics]
    recalls: _Curve = field(repr=False)
    precisions50: Mapping[str, _Curve] = field(repr=False)
    measure: Measure = BOXES

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as a JSON object, without the curves."""
        return {
            **self.measure.as_dict(),
            **self.figures,
            'images': self.images,
            'objects': self.objects,
            'classes': {
                name: {
                    'objects': one.objects,
                    'detections': one.detections,
                    'AP': one.ap,
                    'AP50': one.ap50,
                }
                for name, one in self.classes.items()
            },
        }


def compute_metrics(
    annotations: Annotations,
    image_ids: Collection[int],
    categories: Mapping[int, str],
    rows: Sequence[Mapping[str, Any]],
    measure: Measure = BOXES,
) -> Metrics:
    """Compute COCO's metrics from detections and annotations.

    Args:
        image_ids: ids of the measured images, including images without objects.
        rows: detections from ``coco_rows``. Rows of other images and categories are ignored.

    Raises:
        ConfigError: pycocotools is not installed.
    """
    truth = _ground_truth_rows(annotations, image_ids, categories, measure)
    found = [r for r in rows if r['image_id'] in image_ids and r['category_id'] in categories]
    evaluation = _evaluate(sorted(image_ids), sorted(categories), truth, found, measure)
    precision = evaluation.eval['precision']  # axes: IoU, recall, category, area, limit
    classes, curves = {}, {}
    objects = Counter(row['category_id'] for row in truth if not row['ignore'])
    detections = Counter(row['category_id'] for row in found)
    for index, id_ in enumerate(sorted(categories)):
        curve = precision[:, :, index, _ALL_AREAS_INDEX, _LAST_LIMIT_INDEX]
        classes[categories[id_]] = ClassMetrics(
            objects[id_],
            detections[id_],
            _mean_precision(curve),
            _mean_precision(curve[0]),
        )
        if curve[0].min() > -1:
            curves[categories[id_]] = curve[0].astype(np.float64)
    return Metrics(
        images=len(image_ids),
        objects=sum(one.objects for one in classes.values()),
        # pycocotools returns -1 if no object contributes to a figure.
        figures=measure.figures([None if it < 0 else float(it) for it in evaluation.stats]),
        classes=classes,
        recalls=np.asarray(evaluation.params.recThrs, np.float64),
        precisions50=curves,
        measure=measure,
    )


def _ground_truth_rows(
    annotations: Annotations,
    image_ids: Collection[int],
    categories: Mapping[int, str],
    measure: Measure,
) -> list[dict[str, Any]]:
    """Return annotated objects as rows. Ids start at 1, because pycocotools ignores id 0."""
    chosen = [
        (image_id, box)
        for image_id, boxes in annotations.objects.items()
        if image_id in image_ids
        for box in boxes
        if box.category_id in categories
    ]
    return [
        {
            'id': number,
            'image_id': image_id,
            'category_id': box.category_id,
            'bbox': list(box.xywh),
            'area': box.area,
            'iscrowd': int(box.crowd),
            'ignore': int(box.crowd),
            **measure.extra_pycocotools_fields(box),
        }
        for number, (image_id, box) in enumerate(chosen, 1)
    ]


def _evaluate(
    image_ids: Sequence[int],
    category_ids: Sequence[int],
    truth: list[dict[str, Any]],
    found: Sequence[Mapping[str, Any]],
    measure: Measure,
) -> Any:
    """Return the finished evaluation of pycocotools, without its progress output."""
    tables, evaluator = pycocotools_module('coco').COCO, pycocotools_module('cocoeval').COCOeval
    with contextlib.redirect_stdout(io.StringIO()):
        both = []
        for rows in (truth, _result_rows(found, measure)):
            table = tables()
            table.dataset = {
                # pycocotools needs the size only for polygons. Here, all masks are run lengths.
                'images': [{'id': id_, 'height': 0, 'width': 0} for id_ in image_ids],
                'categories': [{'id': id_} for id_ in category_ids],
                'annotations': rows,
            }
            table.createIndex()
            both.append(table)
        evaluation = evaluator(*both, measure.coco_kind)
        measure.configure(evaluation)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


def _result_rows(found: Sequence[Mapping[str, Any]], measure: Measure) -> list[dict[str, Any]]:
    """Return detections with the fields that loadRes() of pycocotools adds.

    loadRes() itself fails for an empty list.
    """
    return [
        {**row, 'id': number, 'area': measure.detection_area(row), 'iscrowd': 0}
        for number, row in enumerate(found, 1)
    ]


def _mean_precision(precision: npt.NDArray[np.float64]) -> float | None:
    """Return the mean without the value -1, which means no data; None if nothing is left."""
    there = precision[precision > -1]
    return float(there.mean()) if there.size else None
