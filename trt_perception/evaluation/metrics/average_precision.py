"""Mean average precision as COCO defines it, computed by pycocotools.

Average precision is the mean precision at 101 recalls; mAP is its mean over the categories and
over IoU thresholds from 0.50 to 0.95. Of each image the 100 best detections of each category
count. Definition: https://cocodataset.org/#detection-eval. Of keypoints the similarity OKS takes
the place of IoU and the 20 best count (https://cocodataset.org/#keypoints-eval). Of oriented boxes
IoU is that of the rotated rectangles; all else is as with boxes.
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

from trt_perception.evaluation.coco.annotations import Annotations
from trt_perception.evaluation.coco.library import pycocotools
from trt_perception.evaluation.metrics.measure import BOXES, Measure

__all__ = ['ClassMetrics', 'Metrics', 'compute_metrics']

_ALL_AREAS: Final = 0
_LAST_LIMIT: Final = -1  # the last of COCO's limits 1, 10 and 100; of keypoints 20
_Curve = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ClassMetrics:
    """Figures of one category; None where nothing is annotated with it.

    Attributes:
        objects: annotated ones, crowds left out.
        detections: of whatever score.
        ap: mean over IoU thresholds from 0.50 to 0.95.
        ap50: at IoU 0.50.
    """

    objects: int
    detections: int
    ap: float | None
    ap50: float | None


@dataclass(frozen=True)
class Metrics:
    """Figures of one model; None where nothing annotated is of that kind.

    Attributes:
        images: measured ones.
        objects: annotated in them, crowds left out.
        figures: ``mAP`` at IoU 0.50 to 0.95; ``mAP50`` and ``mAP75`` at one IoU; ``mAP_small`` of
            objects below 32² square pixels, ``mAP_medium`` from there to 96², ``mAP_large`` from
            there on; ``AR100``, the mean recall with 100 detections at IoU 0.50 to 0.95. Of
            keypoints ``mAP_small`` is None and ``AR20`` stands in the place of ``AR100``.
        classes: by category name.
        recalls: float64 (101,), 0 to 1.
        precisions50: float64 (101,) by category name: precision at each recall, IoU 0.50.
        measure: what of the objects was compared.
    """

    images: int
    objects: int
    figures: Mapping[str, float | None]
    classes: Mapping[str, ClassMetrics]
    recalls: _Curve = field(repr=False)
    precisions50: Mapping[str, _Curve] = field(repr=False)
    measure: Measure = BOXES

    def as_dict(self) -> dict[str, Any]:
        """Return the figures, without the curves, as JSON has them."""
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
    """Compute COCO's figures.

    Args:
        annotations: the truth; with shapes where they are measured.
        image_ids: what is measured; an image without objects may still have false detections.
        categories: id and name of what is measured.
        rows: detections as ``coco_rows`` makes them, of any image and category.
        measure: what of the objects is compared.

    Raises:
        ConfigError: pycocotools is not installed.
    """
    truth = _ground_truth_rows(annotations, image_ids, categories, measure)
    found = [r for r in rows if r['image_id'] in image_ids and r['category_id'] in categories]
    evaluation = _evaluate(sorted(image_ids), sorted(categories), truth, found, measure)
    precision = evaluation.eval['precision']  # IoU, recall, category, area, limit
    classes, curves = {}, {}
    objects = Counter(row['category_id'] for row in truth if not row['ignore'])
    detections = Counter(row['category_id'] for row in found)
    for index, id_ in enumerate(sorted(categories)):
        curve = precision[:, :, index, _ALL_AREAS, _LAST_LIMIT]
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
        # Where it has nothing to measure, pycocotools says -1.
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
    """Return what is to be found, numbered from 1: to pycocotools a match with 0 is none."""
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
            **measure.ground_truth_fields(box),
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
    """Return pycocotools' evaluation, whose progress on stdout is nobody's business."""
    tables, evaluator = pycocotools('coco').COCO, pycocotools('cocoeval').COCOeval
    with contextlib.redirect_stdout(io.StringIO()):
        both = []
        for rows in (truth, _result_rows(found, measure)):
            table = tables()
            table.dataset = {
                # Sizes are for polygons; here all masks are run lengths.
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
    """Return detections with what pycocotools' loadRes() adds; it cannot take an empty list."""
    return [
        {**row, 'id': number, 'area': measure.detection_area(row), 'iscrowd': 0}
        for number, row in enumerate(found, 1)
    ]


def _mean_precision(precision: npt.NDArray[np.float64]) -> float | None:
    """Return the mean, None where pycocotools has nothing to measure and says -1."""
    there = precision[precision > -1]
    return float(there.mean()) if there.size else None
