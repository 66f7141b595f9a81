# SPDX-License-Identifier: Apache-2.0
"""Tests of annotated masks, keypoints and oriented boxes, valid and invalid."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_masks

from support import golden
from support.oracles.evaluation_support import truth, written
from support.oracles.task_truth import (
    BOX,
    FOUR,
    HEIGHT,
    OBB,
    SEGMENT,
    SQUARE,
    WIDTH,
    only_box,
    read_truth,
    run_lengths,
)
from trt_perception.errors import ConfigError
from trt_perception.model.tasks.pose import KeypointSpec, Pose
from trt_perception.offline.evaluation.coco.annotations import read_annotations
from trt_perception.offline.evaluation.coco.run_lengths import encode_counts
from trt_perception.offline.evaluation.dataset import read_shapes
from trt_perception.offline.evaluation.metrics.measure import BOXES
from trt_perception.offline.evaluation.metrics.oriented_boxes import oriented_overlaps
from trt_perception.offline.evaluation.metrics.shapes import Shapes
from trt_perception.offline.evaluation.metrics.task_measures import measure_of

ROOT = Path(__file__).resolve().parents[3]


def test_masks_are_read_in_every_form(tmp_path):
    whole = np.zeros((HEIGHT, WIDTH), bool)
    whole[100:160, 100:200] = True
    counts = [100 * HEIGHT + 100]
    for _ in range(99):
        counts += [60, HEIGHT - 60]
    counts += [60, HEIGHT * WIDTH - sum(counts) - 60]
    for outline in (SQUARE, {'size': [HEIGHT, WIDTH], 'counts': counts}, run_lengths(whole)):
        box = only_box(
            read_truth(tmp_path, truth([(0, 'cat', BOX, {'segmentation': outline})]), SEGMENT)
        )
        assert np.array_equal(coco_masks.decode(box.mask), whole)
    content = truth([(0, 'cat', BOX, {'segmentation': [SQUARE[0], [0, 0, 9, 0, 9, 9, 0, 9]]})])
    del content['annotations'][0]['area']
    box = only_box(read_truth(tmp_path, content, SEGMENT))
    assert box.area == coco_masks.decode(box.mask).sum() == 6000 + 81


def test_keypoints_are_read(tmp_path):
    points = [1, 2, 2, 3.5, 4, 1, 0, 0, 0, 5, 6, 2]
    box = only_box(read_truth(tmp_path, truth([(0, 'cat', BOX, {'keypoints': points})]), FOUR))
    assert box.keypoints == tuple(points)
    assert not box.is_ignored
    box = only_box(
        read_truth(tmp_path, truth([(0, 'cat', BOX, {'keypoints': [9, 9, 0] * 4})]), FOUR)
    )
    assert box.is_ignored
    box = only_box(read_truth(tmp_path, truth([(0, 'cat', BOX, {'iscrowd': 1})]), FOUR))
    assert box.keypoints == (0,) * 12


@pytest.mark.parametrize('degrees', [0, 1, 30, -40, 89])
def test_oriented_boxes_are_read_as_corners_or_with_an_angle(tmp_path, degrees):
    rectangle = (150.0, 120.0), (80.0, 30.0), degrees
    corners = cv2.boxPoints(rectangle).reshape(1, 8).tolist()
    for more in (
        {'segmentation': corners},
        {'oriented_bbox': [150, 120, 80, 30, np.radians(degrees)], 'segmentation': SQUARE},
    ):
        content = truth([(0, 'cat', BOX, more)])
        del content['annotations'][0]['area']
        box = only_box(read_truth(tmp_path, content, OBB))
        x, y, width, height, angle = box.oriented
        again = cv2.boxPoints(((x, y), (width, height), np.degrees(angle)))
        assert sorted(again.tolist()) == pytest.approx(
            np.array(sorted(np.reshape(corners, (4, 2)).tolist())), abs=0.01
        )
        assert box.area == pytest.approx(2400, rel=1e-4)


SIZED = {'size': [HEIGHT, WIDTH]}
REFUSED = [
    *((SEGMENT, {'segmentation': outline}) for outline in (
        None, [], 5, [[1, 2, 3, 4]], [[1, 2, 3, 4, 5, 6, 7]], [[1, 2, 3, 4, 5, 'x']],
        [[1, 2, 3, 4, 5, 1e9]], [[0, 0, WIDTH, HEIGHT] * 10_000],
        {'size': [WIDTH, HEIGHT], 'counts': '1'}, {'counts': '1'},
        *({**SIZED, 'counts': counts} for counts in (
            [5, 5], [-5, 76805], [10**30], 'ooo', '0' * (2**24 + 1), None,
        )),
    )),
    *((FOUR, {'keypoints': points}) for points in (
        None, 'abc', [1, 2, None] * 4, [1, 2, 2] * 17, [1, 2, 3] * 4, [1, 1e160, 2] * 4,
    )),
    (OBB, {}),
    (OBB, {'segmentation': [[1, 2, 3, 4, 5, 6]]}),
    (OBB, {'segmentation': {**SIZED, 'counts': '1'}}),
    *((OBB, {'oriented_bbox': five}) for five in (
        [1, 2, 3, 4], [1, 2, -3, 4, 0], [1, 2, 3, 4, 'x'], [1, 2, 3, 4, 45.0], [1, 1e308, 3, 4, 0],
    )),
]  # fmt: skip


def test_invalid_masks_keypoints_and_oriented_boxes_are_refused(tmp_path):
    lines = []
    for task, more in REFUSED:
        with pytest.raises(ConfigError) as caught:
            read_truth(tmp_path, truth([(0, 'cat', BOX, more)]), task)
        lines.append(
            f'{task.name} {str(more)[:70]}\n  {golden.without_folder(str(caught.value), tmp_path)}'
        )
        # Invalid shapes are ignored if only boxes, or only other categories, are measured.
        annotations = read_annotations(tmp_path / 'truth.json')
        assert read_shapes(annotations, BOXES, (7,)) == annotations
        assert read_shapes(annotations, measure_of(task), (17,)) == annotations
    golden.check('offline/evaluation/shapes.txt', '\n'.join(lines))


def test_mask_of_an_image_without_a_size_is_refused(tmp_path, golden_messages):
    content = truth([(0, 'cat', BOX, {'segmentation': SQUARE})])
    del content['images'][0]['width'], content['images'][0]['height']
    with golden_messages.raises(ConfigError):
        read_truth(tmp_path, content, SEGMENT)


@pytest.mark.parametrize('seed', range(4))
def test_run_lengths_are_refused_or_read_as_pycocotools_reads_them(tmp_path, seed):
    rng = np.random.default_rng(seed)
    accepted = 0
    for _ in range(40):
        cuts = np.sort(
            rng.integers(0, HEIGHT * WIDTH + 1, rng.integers(0, 9))
        )  # two equal cuts produce an empty run
        text = list(encode_counts(np.diff([0, *cuts, HEIGHT * WIDTH])))
        if rng.random() < 0.5:
            place = rng.integers(len(text))
            text[place] = chr(max(33, ord(text[place]) + rng.integers(-40, 40)))
        runs = {'size': [HEIGHT, WIDTH], 'counts': ''.join(text)}
        try:
            box = only_box(
                read_truth(tmp_path, truth([(0, 'cat', BOX, {'segmentation': runs})]), SEGMENT)
            )
        except ConfigError:
            continue
        accepted += 1
        assert np.array_equal(coco_masks.decode(box.mask), coco_masks.decode(runs))
    assert 10 < accepted < 40


@pytest.mark.parametrize('size', [(2**31, 1), (1, 32768), (20000, 20000)])
def test_masks_of_oversized_images_are_refused(tmp_path, size, golden_messages):
    content = truth([(0, 'cat', BOX, {'segmentation': [SQUARE[0], SQUARE[0]]})])
    content['images'][0]['width'], content['images'][0]['height'] = size
    content['annotations'][0]['bbox'] = [0, 0, 2, 2]
    with golden_messages.raises(ConfigError):
        read_truth(tmp_path, content, SEGMENT)


def test_keypoints_in_another_order_are_refused(tmp_path, golden_messages):
    content = truth([(0, 'cat', BOX, {'keypoints': [1, 2, 2] * 4})])
    content['categories'][0]['keypoints'] = ['b', 'a', 'c', 'd']
    with golden_messages.raises(ConfigError):
        read_truth(tmp_path, content, FOUR)
    content['categories'][0]['keypoints'] = ['w', 'x', 'y', 'z']  # other names are accepted
    assert only_box(read_truth(tmp_path, content, FOUR)).keypoints


def test_file_that_changes_between_reads_is_refused(tmp_path, golden_messages):
    annotations = read_annotations(written(tmp_path, truth([(0, 'cat', BOX)])))
    written(tmp_path, truth([(0, 'cat', BOX, {'segmentation': SQUARE})] * 2))
    with golden_messages.raises(ConfigError):
        read_shapes(annotations, measure_of(SEGMENT), (7,))


@pytest.mark.parametrize('task', [SEGMENT, FOUR, OBB], ids=str)
def test_digits_have_annotations_of_every_task(task):
    annotations = read_annotations(ROOT / 'demo' / 'truth.json')
    if task is FOUR:  # keypoint names from the categories
        corners = 'top_left', 'top_right', 'bottom_right', 'bottom_left'
        task = Pose(KeypointSpec(corners, 3))
    read = read_shapes(annotations, measure_of(task), annotations.categories)
    boxes = [box for found in read.objects.values() for box in found]
    assert len(boxes) == 430
    shapes = Shapes.from_annotations(boxes)
    if task.has_masks:
        for box in boxes[:50]:
            rows, columns = np.nonzero(coco_masks.decode(box.mask))
            left, top, width, height = box.xywh
            assert (columns.min(), rows.min()) == (left, top)
            assert (columns.max() + 1, rows.max() + 1) == (left + width, top + height)
    elif task.is_oriented:
        upright = np.column_stack(
            [
                (shapes.xyxy[:, :2] + shapes.xyxy[:, 2:]) / 2,
                shapes.xyxy[:, 2:] - shapes.xyxy[:, :2],
            ]
        )
        upright = np.column_stack([upright, np.zeros(len(upright))])
        overlap = np.diag(oriented_overlaps(shapes.oriented, upright))
        assert np.median(overlap) > 0.6
        assert overlap.min() > 0.3
    else:
        assert shapes.keypoints.shape == (430, 4, 3)
