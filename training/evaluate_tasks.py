# SPDX-License-Identifier: Apache-2.0
"""Evaluate the models for masks, oriented boxes and corners on held-out scenes.

`python training/evaluate_tasks.py` draws the evaluation scenes and prints the figures. --write
stores them in models/digits_tasks.metrics.json. pycocotools measures masks and keypoints. For
oriented boxes, OpenCV computes the overlap, and pycocotools does matching and precision. The
package's own code is not used.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import io
import json
import pathlib
import platform
from collections.abc import Iterable

import coco_truth
import evaluate
import numpy as np
import scenes
import task_dense
from pycocotools import mask as coco_masks
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

MODELS = evaluate.MODEL.parent
METRICS = MODELS / 'digits_tasks.metrics.json'
SIGMA = 0.05  # sigma of OKS for every corner; the scale is the area of the box
KINDS = {'segment': 'segm', 'obb': 'bbox', 'pose': 'keypoints'}


class OrientedEval(COCOeval):
    """COCO's evaluation of boxes, with the true overlap of oriented boxes."""

    def computeIoU(self, image_id: int, category_id: int) -> np.ndarray | list:  # noqa: N802
        truth = [row['oriented_bbox'] for row in self._gts[image_id, category_id]]
        rows = sorted(self._dts[image_id, category_id], key=lambda row: -row['score'])
        if not truth or not rows:
            return []
        every = np.array([row['oriented_bbox'] for row in rows[: self.params.maxDets[-1]]])
        wanted = np.array(truth)
        return np.array([[task_dense.oriented_iou(a, b) for b in wanted] for a in every])


def rows_of(found: task_dense.Found, image_id: int) -> list[dict]:
    """Return the detections of one scene as COCO results."""
    rows = []
    for index, (box, score, label) in enumerate(zip(*found[:3], strict=True)):
        x0, y0, x1, y1 = (float(value) for value in box)
        row = {
            'image_id': image_id,
            'category_id': int(label),
            'score': float(score),
            'bbox': [x0, y0, x1 - x0, y1 - y0],
        }
        if found.masks:
            row['segmentation'] = coco_masks.encode(
                np.asfortranarray(found.masks[index], np.uint8)
            )
            del row['bbox']  # with a box, pycocotools would evaluate the box
        if found.oriented.size:
            row['oriented_bbox'] = [float(value) for value in found.oriented[index]]
        if found.corners.size:
            row['keypoints'] = [
                value for x, y in found.corners[index].tolist() for value in (x, y, 2)
            ]
        rows.append(row)
    return rows


def evaluation(task: str, truth: dict, results: list[dict]) -> COCOeval:
    """Return pycocotools' accumulated evaluation of one task."""
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = truth
        coco.createIndex()
        kind = OrientedEval if task == 'obb' else COCOeval
        measured = kind(coco, coco.loadRes(results), KINDS[task])
        if task == 'pose':
            measured.params.kpt_oks_sigmas = np.full(4, SIGMA)
        measured.evaluate()
        measured.accumulate()
    return measured


def figures_of(measured: COCOeval) -> dict[str, float]:
    """Return the mean AP over all thresholds, at 0.5 and at 0.75, over all sizes."""
    precision = measured.eval['precision'][:, :, :, 0, -1]  # axes: thresholds, recalls, classes
    known = np.where(precision < 0, np.nan, precision)
    thresholds = measured.params.iouThrs.round(2).tolist()
    return {
        'mAP50': round(float(np.nanmean(known[thresholds.index(0.5)])), 4),
        'mAP75': round(float(np.nanmean(known[thresholds.index(0.75)])), 4),
        'mAP50_95': round(float(np.nanmean(known)), 4),
    }


def angle_errors(found: task_dense.Found, scene: scenes.Scene) -> list[float]:
    """Return the angle errors in degrees of correct boxes, with an overlap of at least 0.5."""
    errors = []
    sure = np.flatnonzero(found.scores > evaluate.CONFIDENCE)
    for shape, label in zip(scene.shapes, scene.classes, strict=True):
        mine = [index for index in sure if found.classes[index] == label]
        overlaps = [task_dense.oriented_iou(found.oriented[i], shape.oriented) for i in mine]
        if overlaps and max(overlaps) >= 0.5:
            turn = found.oriented[mine[int(np.argmax(overlaps))], 4] - shape.oriented[4]
            errors.append(abs(float(np.degrees((turn + np.pi / 2) % np.pi - np.pi / 2))))
    return errors


def evaluate_task(detector: task_dense.TaskDetector, source: Iterable[scenes.Scene]) -> dict:
    """Return all figures of one model."""
    drawn, results, errors = [], [], []
    for index, scene in enumerate(source):
        found = detector(scene.image, iou_threshold=evaluate.NMS_IOU)
        results += rows_of(found, index + 1)
        if detector.task == 'obb':
            errors += angle_errors(found, scene)
        drawn.append(scene._replace(image=scene.image[:, :, :0]))
    truth = coco_truth.coco_truth(drawn)
    figures: dict = {'scenes': len(drawn), 'digits': len(truth['annotations'])}
    figures |= figures_of(evaluation(detector.task, truth, results)) if results else {}
    if errors:
        figures['median_angle_error_deg'] = round(float(np.median(errors)), 2)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--models', type=pathlib.Path, default=MODELS, help='folder')
    parser.add_argument('--tasks', nargs='+', choices=KINDS, default=list(KINDS))
    parser.add_argument('--scenes', type=int, default=500)
    parser.add_argument('--set', choices=['eval', 'dev'], default='eval')
    parser.add_argument('--write', action='store_true', help=f'store in {METRICS.name}')
    arguments = parser.parse_args()
    config = scenes.EVAL if arguments.set == 'eval' else scenes.DEV
    report: dict = {'command': 'python training/evaluate_tasks.py --write', 'oks_sigma': SIGMA}
    for task in arguments.tasks:
        path = arguments.models / f'digits_{task}.onnx'
        if not path.exists():
            raise SystemExit(f'{path} does not exist; export_tasks.py writes it')
        detector = task_dense.TaskDetector(path)
        found = evaluate_task(detector, evaluate.drawn_scenes(config, arguments.scenes))
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        milliseconds = evaluate.milliseconds_on_one_core(path)
        report[task] = {'model_sha256': sha256, **found, 'one_core_ms': milliseconds}
        print(task, json.dumps(found), flush=True)
    report |= {
        'nms_iou': evaluate.NMS_IOU,
        'dataset': dataclasses.asdict(config),
        'versions': evaluate.versions(),
        'machine': f'{evaluate.processor()}, {platform.system()}',
    }
    if arguments.write:
        METRICS.write_text(json.dumps(report, indent=2) + '\n')


if __name__ == '__main__':
    main()
