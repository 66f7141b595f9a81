"""Mean average precision as COCO defines it, computed by pycocotools.

Average precision is the mean precision at 101 recalls; mAP is its mean over the categories and
over IoU thresholds from 0.50 to 0.95. Of each image the 100 best detections of each category
count. Definition: https://cocodataset.org/#detection-eval.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections import Counter
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ConfigError
from trt_perception.evaluation.coco import Annotations

__all__ = ['ClassMetrics', 'Metrics', 'check_pycocotools', 'measure']

_ALL_AREAS: Final = 0
_AT_MOST_100: Final = 2  # the last of COCO's limits 1, 10 and 100
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
        m_ap: mAP at IoU 0.50 to 0.95.
        m_ap50: at IoU 0.50.
        m_ap75: at IoU 0.75.
        m_ap_small: of objects below 32² square pixels.
        m_ap_medium: from there to 96².
        m_ap_large: from there on.
        recall: mean recall with 100 detections at IoU 0.50 to 0.95 (COCO's AR100).
        classes: by category name.
        recalls: float64 (101,), 0 to 1.
        precisions50: float64 (101,) by category name: precision at each recall, IoU 0.50.
    """

    images: int
    objects: int
    m_ap: float | None
    m_ap50: float | None
    m_ap75: float | None
    m_ap_small: float | None
    m_ap_medium: float | None
    m_ap_large: float | None
    recall: float | None
    classes: Mapping[str, ClassMetrics]
    recalls: _Curve = field(repr=False)
    precisions50: Mapping[str, _Curve] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures, without the curves, as JSON has them."""
        return {
            'mAP': self.m_ap,
            'mAP50': self.m_ap50,
            'mAP75': self.m_ap75,
            'mAP_small': self.m_ap_small,
            'mAP_medium': self.m_ap_medium,
            'mAP_large': self.m_ap_large,
            'AR100': self.recall,
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
) -> Metrics:
    """Compute COCO's figures.

    Args:
        annotations: the truth.
        image_ids: what is measured; an image without objects may still have false detections.
        categories: id and name of what is measured.
        rows: detections as ``coco_rows`` makes them, of any image and category.

    Raises:
        ConfigError: pycocotools is not installed.
    """
    check_pycocotools()
    truth = _truth_rows(annotations, image_ids, categories)
    found = [r for r in rows if r['image_id'] in image_ids and r['category_id'] in categories]
    evaluation = _evaluate(sorted(image_ids), sorted(categories), truth, found)
    precision = evaluation.eval['precision']  # IoU, recall, category, area, limit
    classes, curves = {}, {}
    objects = Counter(row['category_id'] for row in truth if not row['iscrowd'])
    detections = Counter(row['category_id'] for row in found)
    for index, id_ in enumerate(sorted(categories)):
        curve = precision[:, :, index, _ALL_AREAS, _AT_MOST_100]
        classes[categories[id_]] = ClassMetrics(
            objects[id_],
            detections[id_],
            _mean(curve),
            _mean(curve[0]),
        )
        if curve[0].min() > -1:
            curves[categories[id_]] = curve[0].astype(np.float64)
    figures = [None if value < 0 else float(value) for value in evaluation.stats]
    return Metrics(
        images=len(image_ids),
        objects=sum(one.objects for one in classes.values()),
        m_ap=figures[0],
        m_ap50=figures[1],
        m_ap75=figures[2],
        m_ap_small=figures[3],
        m_ap_medium=figures[4],
        m_ap_large=figures[5],
        recall=figures[8],
        classes=classes,
        recalls=np.asarray(evaluation.params.recThrs, np.float64),
        precisions50=curves,
    )


def _truth_rows(
    annotations: Annotations, image_ids: Collection[int], categories: Mapping[int, str]
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
        }
        for number, (image_id, box) in enumerate(chosen, 1)
    ]


def _evaluate(
    image_ids: Sequence[int],
    category_ids: Sequence[int],
    truth: list[dict[str, Any]],
    found: Sequence[Mapping[str, Any]],
) -> Any:
    """Return pycocotools' evaluation, whose progress on stdout is nobody's business."""
    tables: Any = importlib.import_module('pycocotools.coco').COCO
    evaluator: Any = importlib.import_module('pycocotools.cocoeval').COCOeval
    # loadRes() adds the same, but cannot take an empty list.
    results = [
        {**row, 'id': number, 'area': row['bbox'][2] * row['bbox'][3], 'iscrowd': 0}
        for number, row in enumerate(found, 1)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        both = []
        for rows in (truth, results):
            table = tables()
            table.dataset = {
                'images': [{'id': id_} for id_ in image_ids],
                'categories': [{'id': id_} for id_ in category_ids],
                'annotations': rows,
            }
            table.createIndex()
            both.append(table)
        evaluation = evaluator(*both, 'bbox')
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


def _mean(precision: npt.NDArray[np.float64]) -> float | None:
    """Return the mean, None where pycocotools has nothing to measure and says -1."""
    there = precision[precision > -1]
    return float(there.mean()) if there.size else None
