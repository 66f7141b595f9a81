"""Mean average precision as COCO defines it, computed by pycocotools.

Average precision is the mean precision at 101 recalls; mAP is its mean over the categories and
over IoU thresholds from 0.50 to 0.95. Of each image the 100 best detections of each category
count. Definition: https://cocodataset.org/#detection-eval. Of keypoints the similarity OKS takes
the place of IoU and the 20 best count (https://cocodataset.org/#keypoints-eval). Of oriented boxes
IoU is that of the rotated rectangles; all else is as with boxes.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ConfigError
from trt_perception.evaluation.coco.annotations import Annotations, TrueBox
from trt_perception.evaluation.coco.run_lengths import counts_of
from trt_perception.evaluation.metrics.measure import BOXES, Measure
from trt_perception.evaluation.metrics.overlap import oriented_overlaps

__all__ = ['ClassMetrics', 'Metrics', 'check_pycocotools', 'measure']

#: pycocotools' first figures, in its order.
_FIGURES: Final = ('mAP', 'mAP50', 'mAP75', 'mAP_small', 'mAP_medium', 'mAP_large')
_AR100: Final = 8
#: Those of keypoints: there are no small ones.
_KEYPOINT_FIGURES: Final = ('mAP', 'mAP50', 'mAP75', 'mAP_medium', 'mAP_large', 'AR20')
_ALL_AREAS: Final = 0
_MOST_DETECTIONS: Final = -1  # the last of COCO's limits 1, 10 and 100; of keypoints 20
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
        sigmas = {'oks_sigmas': list(self.measure.sigmas)} if self.measure.sigmas else {}
        return {
            'of': self.measure.kind,
            **sigmas,
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


def check_pycocotools() -> None:
    """Find out before the work whether metrics can be computed.

    Raises:
        ConfigError: pycocotools is not installed.
    """
    try:
        importlib.import_module('pycocotools.cocoeval')
    except ImportError as error:
        raise ConfigError(
            'mAP', f'needs pycocotools ({error})', fix='python3 -m pip install pycocotools'
        ) from error


def measure(
    annotations: Annotations,
    image_ids: Collection[int],
    categories: Mapping[int, str],
    rows: Sequence[Mapping[str, Any]],
    of: Measure = BOXES,
) -> Metrics:
    """Compute COCO's figures.

    Args:
        annotations: the truth; with shapes where they are measured.
        image_ids: what is measured; an image without objects may still have false detections.
        categories: id and name of what is measured.
        rows: detections as ``coco_rows`` makes them, of any image and category.
        of: what of the objects is compared.

    Raises:
        ConfigError: pycocotools is not installed.
    """
    check_pycocotools()
    truth = _truth_rows(annotations, image_ids, categories, of)
    found = [r for r in rows if r['image_id'] in image_ids and r['category_id'] in categories]
    evaluation = _evaluate(sorted(image_ids), sorted(categories), truth, found, of)
    precision = evaluation.eval['precision']  # IoU, recall, category, area, limit
    classes, curves = {}, {}
    objects = Counter(row['category_id'] for row in truth if not row['ignore'])
    detections = Counter(row['category_id'] for row in found)
    for index, id_ in enumerate(sorted(categories)):
        curve = precision[:, :, index, _ALL_AREAS, _MOST_DETECTIONS]
        classes[categories[id_]] = ClassMetrics(
            objects[id_],
            detections[id_],
            _mean(curve),
            _mean(curve[0]),
        )
        if curve[0].min() > -1:
            curves[categories[id_]] = curve[0].astype(np.float64)
    return Metrics(
        images=len(image_ids),
        objects=sum(one.objects for one in classes.values()),
        figures=_figures(evaluation.stats, of),
        classes=classes,
        recalls=np.asarray(evaluation.params.recThrs, np.float64),
        precisions50=curves,
        measure=of,
    )


def _figures(stats: Sequence[float], of: Measure) -> dict[str, float | None]:
    """Return pycocotools' figures by name, in our order."""
    # Where it has nothing to measure, pycocotools says -1.
    values = [None if value < 0 else float(value) for value in stats]
    if of.kind == 'keypoints':
        named = dict(zip(_KEYPOINT_FIGURES, values, strict=False))
        # In the places where those of boxes stand.
        return {name: named.get(name) for name in (*_FIGURES, _KEYPOINT_FIGURES[-1])}
    return {**dict(zip(_FIGURES, values, strict=False)), 'AR100': values[_AR100]}


def _truth_rows(
    annotations: Annotations,
    image_ids: Collection[int],
    categories: Mapping[int, str],
    of: Measure,
) -> list[dict[str, Any]]:
    """Return what is to be found, numbered from 1: to pycocotools a match with 0 is none."""
    chosen = [
        (image_id, box)
        for image_id, boxes in annotations.boxes.items()
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
            'ignore': int(box.is_ignored if of.kind == 'keypoints' else box.crowd),
            **_truth_shape(box, of),
        }
        for number, (image_id, box) in enumerate(chosen, 1)
    ]


def _truth_shape(box: TrueBox, of: Measure) -> dict[str, Any]:
    """Return what is compared of an object, under COCO's names."""
    if of.kind == 'masks':
        return {'segmentation': box.mask}
    if of.kind == 'keypoints':
        points = box.keypoints or ()
        labelled = sum(flag > 0 for flag in points[2::3])
        return {'keypoints': list(points), 'num_keypoints': labelled}
    return {'oriented_bbox': box.oriented} if of.kind == 'oriented boxes' else {}


def _evaluate(
    image_ids: Sequence[int],
    category_ids: Sequence[int],
    truth: list[dict[str, Any]],
    found: Sequence[Mapping[str, Any]],
    of: Measure,
) -> Any:
    """Return pycocotools' evaluation, whose progress on stdout is nobody's business."""
    tables: Any = importlib.import_module('pycocotools.coco').COCO
    evaluator: Any = importlib.import_module('pycocotools.cocoeval').COCOeval
    with contextlib.redirect_stdout(io.StringIO()):
        both = []
        for rows in (truth, _result_rows(found, of)):
            table = tables()
            table.dataset = {
                # Sizes are for polygons; here all masks are run lengths.
                'images': [{'id': id_, 'height': 0, 'width': 0} for id_ in image_ids],
                'categories': [{'id': id_} for id_ in category_ids],
                'annotations': rows,
            }
            table.createIndex()
            both.append(table)
        kinds = {'masks': 'segm', 'keypoints': 'keypoints'}
        evaluation = evaluator(*both, kinds.get(of.kind, 'bbox'))
        if of.kind == 'keypoints':
            evaluation.params.kpt_oks_sigmas = np.array(of.sigmas)
        if of.kind == 'oriented boxes':
            evaluation.computeIoU = functools.partial(_oriented_iou, evaluation)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


def _result_rows(found: Sequence[Mapping[str, Any]], of: Measure) -> list[dict[str, Any]]:
    """Return detections with what pycocotools' loadRes() adds; it cannot take an empty list."""
    rows = []
    for number, row in enumerate(found, 1):
        width, height = row['bbox'][2:]
        area = width * height
        if of.kind == 'masks':
            area = float(counts_of(row['segmentation']['counts'])[1::2].sum())
        elif of.kind == 'oriented boxes':
            area = row['oriented_bbox'][2] * row['oriented_bbox'][3]
        rows.append({**row, 'id': number, 'area': area, 'iscrowd': 0})
    return rows


def _oriented_iou(evaluation: Any, image_id: int, category_id: int) -> Any:
    """Return what COCOeval.computeIoU does, of rotated rectangles: best score first."""
    truth = evaluation._gts[image_id, category_id]
    found = evaluation._dts[image_id, category_id]
    if not truth or not found:
        return []
    order = np.argsort([-row['score'] for row in found], kind='mergesort')
    best = [found[index] for index in order[: evaluation.params.maxDets[-1]]]
    one, other = (
        np.array([row['oriented_bbox'] for row in rows], np.float64) for rows in (best, truth)
    )
    return oriented_overlaps(one, other, np.array([bool(row['iscrowd']) for row in truth]))


def _mean(precision: npt.NDArray[np.float64]) -> float | None:
    """Return the mean, None where pycocotools has nothing to measure and says -1."""
    there = precision[precision > -1]
    return float(there.mean()) if there.size else None
