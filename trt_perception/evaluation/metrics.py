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

#: pycocotools' first figures, in its order.
_FIGURES: Final = ('mAP', 'mAP50', 'mAP75', 'mAP_small', 'mAP_medium', 'mAP_large')
_AR100: Final = 8
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
        figures: ``mAP`` at IoU 0.50 to 0.95; ``mAP50`` and ``mAP75`` at one IoU; ``mAP_small`` of
            objects below 32² square pixels, ``mAP_medium`` from there to 96², ``mAP_large`` from
            there on; ``AR100``, the mean recall with 100 detections at IoU 0.50 to 0.95.
        classes: by category name.
        recalls: float64 (101,), 0 to 1.
        precisions50: float64 (101,) by category name: precision at each recall, IoU 0.50.
    """

    images: int
    objects: int
    figures: Mapping[str, float | None]
    classes: Mapping[str, ClassMetrics]
    recalls: _Curve = field(repr=False)
    precisions50: Mapping[str, _Curve] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures, without the curves, as JSON has them."""
        return {
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
    # Where it has nothing to measure, pycocotools says -1.
    figures = [None if value < 0 else float(value) for value in evaluation.stats]
    return Metrics(
        images=len(image_ids),
        objects=sum(one.objects for one in classes.values()),
        figures={**dict(zip(_FIGURES, figures, strict=False)), 'AR100': figures[_AR100]},
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
