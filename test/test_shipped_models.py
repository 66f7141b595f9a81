# SPDX-License-Identifier: Apache-2.0
"""Compare the shipped models of all tasks except boxes with the true demo scenes."""

import hashlib
import json
from collections import defaultdict
from pathlib import Path

import cv2
import numpy as np
import pytest

import trt_perception

ROOT = Path(__file__).resolve().parents[1]
TRUTH = json.loads((ROOT / 'demo' / 'truth.json').read_text())
NAMES = {category['id']: category['name'] for category in TRUTH['categories']}
EVERY = 5
# The model must find at least this share of the digits with a correct shape. A third of the
# digits are partly hidden.
SHARE = 0.8


def load_model(task):
    return trt_perception.load(ROOT / 'models' / f'digits_{task}.onnx')


def scenes(step):
    """Yield every ``step``-th picture, and the true digits in it."""
    annotations = defaultdict(list)
    for one in TRUTH['annotations']:
        annotations[one['image_id']].append(one)
    for image in TRUTH['images'][::step]:
        picture = cv2.imread(str(ROOT / 'demo' / 'scenes' / image['file_name']))
        yield picture, annotations[image['id']]


def digits(task):
    """Yield each true digit, the detections in its picture, and the indices of its class."""
    with load_model(task) as model:
        for picture, annotations in scenes(EVERY):
            found = model(picture)
            names = np.array(model.class_names)[found.class_ids]
            for one in annotations:
                yield one, found, np.flatnonzero(names == NAMES[one['category_id']])


def test_masks_reach_iou_0_5():
    from pycocotools import mask as coco_masks

    right = []
    for one, found, places in digits('segment'):
        true = coco_masks.decode(one['segmentation']).astype(bool)
        masks = found.masks.take(places).whole()
        right.append(any((m & true).sum() >= 0.5 * (m | true).sum() for m in masks))
    assert len(right) > 60
    assert np.mean(right) > SHARE


def test_oriented_boxes_reach_iou_0_5_and_3_5_degrees():
    right, errors = [], []
    for one, found, places in digits('obb'):
        x, y, width, height, angle = one['oriented_bbox']
        for box in found.oriented[places]:
            corners = [
                ((cx, cy), (w, h), np.degrees(turn))
                for cx, cy, w, h, turn in (box.tolist(), (x, y, width, height, angle))
            ]
            _, shared = cv2.rotatedRectangleIntersection(*corners)
            area = 0.0 if shared is None else cv2.contourArea(cv2.convexHull(shared))
            if area >= 0.5 * (width * height + box[2] * box[3] - area):
                errors.append(abs((box[4] - angle + np.pi / 2) % np.pi - np.pi / 2))
                right.append(True)
                break
        else:
            right.append(False)
    assert np.mean(right) > SHARE
    assert np.degrees(np.median(errors)) < 3.5  # upright boxes have an error of 12 degrees


def test_corners_reach_oks_0_5():
    right = []
    for one, found, places in digits('pose'):
        points = np.array(one['keypoints']).reshape(4, 3)
        seen = points[:, 2] > 0
        apart = np.square(found.keypoints[places][:, seen, :2] - points[seen, :2]).sum(-1)
        likeness = np.exp(-apart / (2 * (2 * 0.05) ** 2 * one['area'])).mean(1)  # OKS
        right.append(bool((likeness >= 0.5).any()))
    assert np.mean(right) > SHARE


def test_class_maps_reach_a_mean_iou_of_0_9():
    from pycocotools import mask as coco_masks

    with load_model('semantic') as model:
        assert list(model.class_names) == ['background', *NAMES.values()]
        pairs = np.zeros((11, 11), np.int64)  # pixels by true class and found class
        for picture, annotations in scenes(2):
            true = np.zeros(picture.shape[:2], np.int64)
            for one in annotations:
                mask = coco_masks.decode(one.get('visible', one['segmentation']))
                true[mask > 0] = one['category_id'] + 1
            both = true * 11 + model(picture).class_ids()
            pairs += np.bincount(both.ravel(), minlength=121).reshape(11, 11)
    right = pairs.diagonal()
    iou = right / (pairs.sum(0) + pairs.sum(1) - right)
    assert iou.mean() > 0.9
    assert iou.min() > 0.8


@pytest.mark.parametrize('name', ['digits_classify', 'digits_semantic', 'depth_tiny'])
def test_models_of_the_whole_image_have_at_most_300_kb(name):
    assert (ROOT / 'models' / f'{name}.onnx').stat().st_size <= 300_000


@pytest.mark.parametrize(
    ('task', 'figure', 'least'), [('classify', 'top1', 0.98), ('semantic', 'mean_iou', 0.80)]
)
def test_figures_on_held_out_scenes_are_those_of_the_shipped_model(task, figure, least):
    # training/evaluate_images.py wrote the figures.
    metrics = json.loads((ROOT / 'models' / 'digits_images.metrics.json').read_text())[task]
    content = (ROOT / 'models' / f'digits_{task}.onnx').read_bytes()
    assert metrics['model_sha256'] == hashlib.sha256(content).hexdigest()
    assert metrics['scenes'] == 500
    assert metrics[figure] >= least


def test_best_class_of_a_crop_is_its_digit():
    right, is_whole = [], []
    with load_model('classify') as model:
        for picture, annotations in scenes(1):
            for one in annotations:
                x, y, width, height = one['bbox']
                half = 0.65 * max(width, height)
                low = np.maximum(np.floor([x + width / 2 - half, y + height / 2 - half]), 0)
                high = np.ceil([x + width / 2 + half, y + height / 2 + half]).astype(int)
                (left, top), (right_side, bottom) = low.astype(int), high
                scores = model(picture[top:bottom, left:right_side]).scores
                right.append(model.class_names[scores.argmax()] == NAMES[one['category_id']])
                is_whole.append(one['hidden'] < 0.05)
    assert len(right) == 430
    assert np.mean(right) > 0.95
    assert np.mean(np.array(right)[is_whole]) > 0.97
