# SPDX-License-Identifier: Apache-2.0
"""Tests of the overlap of masks, oriented boxes and keypoints against pycocotools and OpenCV."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_masks
from pycocotools.cocoeval import COCOeval

from support.oracles.evaluation_support import SIZE_WH, found
from support.oracles.task_truth import with_masks
from trt_perception.errors import ConfigError
from trt_perception.images.detections import oriented_corners
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.obb import Obb
from trt_perception.model.tasks.pose import COCO_KEYPOINTS, KeypointSpec, Pose
from trt_perception.model.tasks.segment import Segment
from trt_perception.offline.evaluation.coco.annotations import AnnotatedObject
from trt_perception.offline.evaluation.coco.run_lengths import (
    RunLengthDetections,
    decode_counts,
    encode_counts,
    with_run_lengths,
)
from trt_perception.offline.evaluation.metrics.keypoints import Keypoints
from trt_perception.offline.evaluation.metrics.masks import Masks
from trt_perception.offline.evaluation.metrics.measure import BOXES
from trt_perception.offline.evaluation.metrics.mistakes import angle_between
from trt_perception.offline.evaluation.metrics.oriented_boxes import (
    OrientedBoxes,
    oriented_overlaps,
)
from trt_perception.offline.evaluation.metrics.shapes import Shapes, box_iou
from trt_perception.offline.evaluation.metrics.task_measures import common_measure, measure_of

MASKS = Masks()
RNG_MASKS = (0, 1, 0.5, 0.03, 0.97)


def run_lengths(whole):
    runs = coco_masks.encode(np.asfortranarray(whole.astype(np.uint8)))
    return {'size': list(runs['size']), 'counts': runs['counts'].decode()}


def blobs(rng, count, shape=(41, 67)):
    """Return masks of one size: empty masks, full masks, noise and ellipses."""
    masks = [rng.random(shape) < share for share in RNG_MASKS]
    while len(masks) < count:
        canvas = np.zeros(shape, np.uint8)
        center = rng.integers(0, (shape[1], shape[0]))
        axes, angle = rng.integers(2, 20, 2), float(rng.integers(0, 180))
        cv2.ellipse(canvas, center.tolist(), axes.tolist(), angle, 0, 360, 1, -1)
        masks.append(canvas > 0)
    return masks


def shapes_of(runs, boxes=None):
    n = len(runs)
    boxes = np.zeros((n, 4)) if boxes is None else boxes
    return Shapes(boxes, np.zeros(n), runs, np.zeros((n, 0, 3)), np.zeros((0, 5)))


@pytest.mark.parametrize('seed', range(5))
def test_mask_overlap_equals_the_overlap_of_pixels(seed):
    masks = blobs(np.random.default_rng(seed), 14)
    runs = [run_lengths(whole) for whole in masks]
    flat = np.array(masks, float).reshape(len(masks), -1)
    shared, sizes = flat @ flat.T, flat.sum(axis=1)
    union = sizes[:, None] + sizes - shared

    iou = MASKS.overlaps(shapes_of(runs), shapes_of(runs))
    inside = MASKS.share_inside(shapes_of(runs), shapes_of(runs))

    assert iou == pytest.approx(shared / np.maximum(union, 1), abs=1e-12)
    assert inside == pytest.approx(shared / np.maximum(sizes, 1)[:, None], abs=1e-12)
    assert [encode_counts(decode_counts(run['counts'])) for run in runs] == [
        run['counts'] for run in runs
    ]


def test_masks_are_written_as_pycocotools_writes_them():
    wholes = [whole for whole in blobs(np.random.default_rng(9), 14, SIZE_WH[::-1]) if whole.any()]
    boxes = [('cat', 0.9, (0, 0, *SIZE_WH)) for _ in wholes]

    found_ones = with_run_lengths(with_masks(found(*boxes), wholes))

    assert list(found_ones.runs) == [run_lengths(whole) for whole in wholes]


def test_empty_masks_are_compared_by_their_boxes():
    nothing, something = (run_lengths(np.full((5, 10), there)) for there in (False, True))
    boxes = np.array([[0.0, 0, 10, 5], [0, 0, 5, 5]])

    iou = MASKS.overlaps(
        shapes_of([nothing, nothing], boxes), shapes_of([nothing, something], boxes)
    )

    assert iou.tolist() == [[1, 0], [0.5, 0]]


def test_object_without_a_mask_overlaps_with_no_mask():
    plain = AnnotatedObject(1, (0, 0, 10, 5), 50, crowd=False)
    mask = run_lengths(np.ones((5, 10), bool))
    true = Shapes.from_annotations([plain, replace(plain, mask=mask)])

    assert MASKS.overlaps(shapes_of([mask]), true).tolist() == [[0, 1]]
    assert MASKS.share_inside(shapes_of([mask]), true).tolist() == [[0, 1]]
    assert MASKS.overlaps(shapes_of([mask]), shapes_of([])).shape == (1, 0)


@pytest.mark.parametrize('text', ['', 'o', '\0', 'zé', 'ooooooooo1', '€1'])
def test_invalid_run_lengths_are_refused(text):
    with pytest.raises(ValueError, match='run'):
        decode_counts(text)


def test_selected_detections_keep_their_masks():
    plain = found(
        ('cat', 0.9, (0, 0, 9, 9)), ('dog', 0.8, (1, 1, 9, 9)), ('cat', 0.7, (2, 2, 9, 9))
    )
    runs = tuple({'size': [1, 1], 'counts': str(number)} for number in range(3))
    masked = RunLengthDetections(plain.xyxy, plain.scores, plain.class_ids, runs=runs)
    assert masked.take(np.array([True, False, True])).runs == (runs[0], runs[2])
    assert masked.take(np.array([2, 0])).runs == (runs[2], runs[0])
    assert masked.take(np.array([2, 0])).xyxy[0, 0] == 2


def random_oriented(rng, count):
    return np.column_stack(
        [
            rng.uniform(0, 60, (count, 2)),
            rng.uniform(1, 50, (count, 2)),
            rng.uniform(-np.pi, np.pi, count),
        ]
    )


def corners(box):
    return oriented_corners(box[None])[0].astype(np.float32)


def test_overlap_of_oriented_boxes_equals_opencv():
    rng = np.random.default_rng(3)
    one, other = random_oriented(rng, 60), random_oriented(rng, 50)
    ours = oriented_overlaps(one, other)
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            shared, _ = cv2.intersectConvexConvex(*(corners(box) for box in (a, b)))
            union = a[2] * a[3] + b[2] * b[3] - shared
            assert ours[i, j] == pytest.approx(shared / union, abs=1e-5), (a, b)
    assert (ours > 0.3).any()
    assert (ours == 0).any()
    assert oriented_overlaps(other, one) == pytest.approx(ours.T, abs=1e-9)


def overlap_of_pairs(one, other, *crowd):
    """Return the overlap of each pair of boxes at equal positions. Compute 20 pairs at a time."""
    groups = [slice(first, first + 20) for first in range(0, len(one), 20)]
    return np.concatenate([np.diag(oriented_overlaps(one[g], other[g], *crowd)) for g in groups])


def test_equal_nested_and_touching_oriented_boxes_have_known_overlaps():
    rng = np.random.default_rng(4)
    boxes = random_oriented(rng, 200)
    swapped = boxes[:, [0, 1, 3, 2, 4]] + [0, 0, 0, 0, np.pi / 2]
    nearly = boxes + rng.normal(0, 1e-9, boxes.shape)
    turned = np.column_stack([boxes[:, :4], boxes[:, 4] + np.pi])
    for same in (boxes, swapped, turned, nearly):
        assert overlap_of_pairs(boxes, same) == pytest.approx(1, abs=1e-6)
    half = boxes * [1, 1, 0.5, 1, 1]
    assert overlap_of_pairs(boxes, half) == pytest.approx(0.5)
    along = np.column_stack([np.cos(boxes[:, 4]), np.sin(boxes[:, 4])]) * boxes[:, 2:3]
    touching = np.column_stack([boxes[:, :2] + along, boxes[:, 2:]])
    assert overlap_of_pairs(boxes, touching) == pytest.approx(0, abs=1e-9)
    flat = boxes * [1, 1, 1, 0, 1]
    assert oriented_overlaps(boxes, flat) == pytest.approx(0, abs=1e-12)
    assert overlap_of_pairs(half, boxes, np.ones(20, bool)) == pytest.approx(1)
    assert oriented_overlaps(boxes[:0], boxes).shape == (0, 200)


def test_overlap_of_upright_oriented_boxes_equals_box_iou():
    rng = np.random.default_rng(5)
    boxes = random_oriented(rng, 40)
    boxes[:, 4] = 0
    upright = np.column_stack([boxes[:, :2] - boxes[:, 2:4] / 2, boxes[:, :2] + boxes[:, 2:4] / 2])
    assert oriented_overlaps(boxes, boxes) == pytest.approx(box_iou(upright, upright), abs=1e-12)


@pytest.mark.parametrize('sigmas', [(), (0.05,), tuple(np.linspace(0.02, 0.1, 17))])
def test_similarity_of_keypoints_equals_pycocotools(sigmas):
    rng = np.random.default_rng(6)
    measure = measure_of(Pose(COCO_KEYPOINTS), sigmas)
    points = rng.uniform(0, 100, (5, 17, 3))
    points[:, :, 2] = rng.integers(0, 3, (5, 17))
    near = points[rng.integers(0, 5, 9)] + rng.normal(0, 4, (9, 17, 3))
    areas = rng.uniform(100, 9000, 5)
    nothing = np.zeros((0, 5))
    ours = measure.overlaps(
        Shapes(np.zeros((9, 4)), np.ones(9), [], near, nothing),
        Shapes(np.zeros((5, 4)), areas, [], points, nothing),
    )
    evaluation = COCOeval(iouType='keypoints')
    if sigmas:  # COCO's sigmas are the default of pycocotools
        evaluation.params.kpt_oks_sigmas = np.broadcast_to(sigmas, 17)
    evaluation._gts = {
        (1, 1): [
            {'keypoints': one.ravel(), 'area': area, 'bbox': [0, 0, 9, 9]}
            for one, area in zip(points, areas, strict=True)
        ]
    }
    evaluation._dts = {
        (1, 1): [{'keypoints': one.ravel(), 'score': -place} for place, one in enumerate(near)]
    }
    assert ours == pytest.approx(evaluation.computeOks(1, 1), abs=1e-12)
    assert 0 < ours.max() < 1
    points[:, :, 2] = 0
    unlabelled = Shapes(np.zeros((5, 4)), areas, [], points, nothing)
    detections = Shapes(np.zeros((9, 4)), areas, [], near, nothing)
    assert not measure.overlaps(detections, unlabelled).any()


def test_task_selects_the_measure():
    four = Pose(KeypointSpec(('a', 'b', 'c', 'd'), 2))
    assert measure_of(DETECT) == BOXES
    assert measure_of(Segment(mask_coefficients=32)) == MASKS
    assert measure_of(Obb()) == OrientedBoxes()
    assert measure_of(four) == Keypoints(('a', 'b', 'c', 'd'), (0.05,) * 4)
    assert measure_of(four, [0.1, 0.2, 0.3, 0.4]).sigmas == (0.1, 0.2, 0.3, 0.4)
    assert common_measure({'one': DETECT, 'other': DETECT}) == BOXES
    assert common_measure({'one': four, 'other': four}, [0.1]).sigmas == (0.1,) * 4


@pytest.mark.parametrize(
    ('tasks', 'sigmas'),
    [
        ([DETECT], [0.1]),
        ([Pose(COCO_KEYPOINTS)], [0.1] * 3),
        ([Pose(COCO_KEYPOINTS)], [0.0]),
        ([Pose(COCO_KEYPOINTS)], [float('nan')]),
        ([Obb(), DETECT], []),
    ],
)
def test_unusable_sigmas_and_tasks_are_refused(tasks, sigmas, golden_messages):
    with golden_messages.raises(ConfigError):
        common_measure({f'm{number}': task for number, task in enumerate(tasks)}, sigmas)


@pytest.mark.parametrize(
    ('one', 'other', 'degrees'),
    [
        ((40, 20, 10), (40, 20, 10), 0),
        ((40, 20, 10), (38, 22, 13), 3),
        ((40, 20, 89), (40, 20, -89), 2),
        ((40, 20, 10), (20, 40, 100), 0),
        ((40, 20, 10), (20, 40, 10), 90),
        ((40, 20, 10), (40, 20, -60), 70),
        ((40, 20, 0), (40, 20, 180), 0),
        ((40, 40, 0), (40, 40, 90), 0),
        ((40, 38, 0), (38, 40, 5), 5),
        ((40, 20, 5), (40, 40, 45), 40),
    ],
)
def test_angle_between_boxes_is_symmetric(one, other, degrees):
    boxes = [(0, 0, width, height, np.radians(angle)) for width, height, angle in (one, other)]
    assert angle_between(*boxes) == pytest.approx(degrees, abs=1e-9)
    assert angle_between(*boxes[::-1]) == pytest.approx(degrees, abs=1e-9)
