# SPDX-License-Identifier: Apache-2.0
"""Make annotated pictures, and models with fixed answers, for tests of accuracy."""

import contextlib
import io
import json
from types import SimpleNamespace

import cv2
import numpy as np

from trt_perception.images.detections import Detections
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.pipeline import Result

CLASSES = ('cat', 'dog')
SIZE_WH = (320, 240)


def truth(boxes, *, images=None, categories=CLASSES, **changes):
    """Return COCO annotations.

    Args:
        boxes: tuples (index of the image, category name, xywh). A fourth entry may be a dictionary
            of more keys.
        images: number of images; by default from the boxes.
        categories: names of the categories; their ids are 7, 17, 27 …
    """
    ids = {name: 7 + 10 * index for index, name in enumerate(categories)}
    count = 1 + max((box[0] for box in boxes), default=0) if images is None else images
    return {
        'images': [
            {'id': 100 + n, 'file_name': f'{n:03d}.png', 'width': SIZE_WH[0], 'height': SIZE_WH[1]}
            for n in range(count)
        ],
        'categories': [{'id': id_, 'name': name} for name, id_ in ids.items()],
        # Ids start at 0. pycocotools alone would treat the id 0 as "no match".
        'annotations': [
            {
                'id': number,
                'image_id': 100 + image,
                'category_id': ids[name],
                'bbox': list(xywh),
                'area': xywh[2] * xywh[3],
                'iscrowd': 0,
                **(more[0] if more else {}),
            }
            for number, (image, name, xywh, *more) in enumerate(boxes)
        ],
        **changes,
    }


def written(folder, content, name='truth.json'):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def pictures(folder, count):
    """Write pictures with their numbers in the pixels; return their paths."""
    paths = [folder / f'{number:03d}.png' for number in range(count)]
    for number, path in enumerate(paths):
        cv2.imwrite(str(path), np.full((SIZE_WH[1], SIZE_WH[0], 3), number, np.uint8))
    return paths


def found(*rows, class_names=CLASSES):
    """Return detections from (class name, score, xywh), in any order."""
    rows = sorted(rows, key=lambda row: -row[1])
    xywh = np.array([row[2] for row in rows], np.float32).reshape(-1, 4)
    return Detections(
        np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1),
        np.array([row[1] for row in rows], np.float32),
        np.array([class_names.index(row[0]) for row in rows], np.int32),
    )


def expected_stats(tmp_path, rows):
    """Return the twelve figures of truth.json, computed as in pycocotools' own example."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    results = tmp_path / 'results.json'
    results.write_text(json.dumps(rows))
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(tmp_path / 'truth.json'))
        evaluation = COCOeval(coco, coco.loadRes(str(results)), 'bbox')
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats


class WrittenModel:
    """A pipeline that returns the fixed detections of ``pictures`` above the threshold.

    Args:
        answers: detections by number of the picture; other pictures have no detections.
    """

    depth = 1
    batch = 1

    def __init__(self, answers, class_names=CLASSES, task=DETECT):
        self.answers = answers
        self.spec = SimpleNamespace(class_names=tuple(class_names), task=task)
        self.asked = []
        self._waiting = None

    def enqueue(self, slot, frames, thresholds):
        assert slot == 0
        assert self._waiting is None
        (frame,), (own,) = frames, thresholds
        assert (frame.width, frame.height) == SIZE_WH
        assert isinstance(own, Thresholds)
        self._waiting = frame, own

    def is_done(self, slot):
        return True

    def collect(self, slot):
        (frame, thresholds), self._waiting = self._waiting, None
        number = int(frame.data[0])
        self.asked.append((number, thresholds))
        answer = self.answers.get(number, Detections.empty())
        sure = answer.scores > thresholds.confidence_threshold
        return [Result(answer.take(sure), 0.001, frame)]

    def close(self):
        self.answers = None
