# SPDX-License-Identifier: Apache-2.0
"""Non-maximum suppression equals ONNX's operator, OpenCV's function and plain Python code."""

from fractions import Fraction

import cv2
import numpy as np
import onnxruntime
import pytest

from support.properties import given, settings, st
from trt_perception.stages.nms import best_candidates, non_maximum_suppression

CASES = 1000
# If an IoU is this close to the threshold, rounding decides and the oracles may differ.
MARGIN = 1e-6


def suppress(boxes, class_ids, threshold, limit=1000, agnostic=False):
    xyxy = np.array(boxes, np.float32).reshape(-1, 4)
    ids = np.array(class_ids, np.int32)
    kept = non_maximum_suppression(xyxy, ids, threshold, limit, class_agnostic=agnostic)
    assert kept.dtype == np.int64
    return kept.tolist()


def exact_iou(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    total = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return Fraction(shared) / Fraction(total)


def suppress_in_plain_python(boxes, class_ids, threshold, limit=1000, agnostic=False):
    """Apply the rule box by box: drop each box that overlaps a better kept box too much."""
    kept = []
    for index, box in enumerate(boxes):
        rivals = [k for k in kept if agnostic or class_ids[k] == class_ids[index]]
        if all(exact_iou(box, boxes[k]) <= Fraction(threshold) for k in rivals):
            kept.append(index)
    return kept[:limit]


UNIT = [0, 0, 10, 10]
HALF = [0, 0, 10, 5]  # IoU with UNIT exactly 1/2
APART = [20, 20, 30, 30]
TOUCHING = [10, 0, 20, 10]
TABLE = {
    'no boxes': ([], [], 0.5, []),
    'one box': ([UNIT], [0], 0.5, [0]),
    'the same box twice': ([UNIT, UNIT], [0, 0], 0.5, [0]),
    'the same box, two classes': ([UNIT, UNIT], [0, 1], 0.5, [0, 1]),
    'IoU at the threshold stays': ([UNIT, HALF], [0, 0], 0.5, [0, 1]),
    'IoU above the threshold is dropped': ([UNIT, HALF], [0, 0], 0.4999, [0]),
    'threshold 1 keeps equal boxes': ([UNIT, UNIT], [0, 0], 1.0, [0, 1]),
    'threshold 0 keeps separate boxes': ([UNIT, APART], [0, 0], 0.0, [0, 1]),
    'threshold 0 keeps boxes that touch': ([UNIT, TOUCHING], [0, 0], 0.0, [0, 1]),
    'threshold 0 drops any overlap': ([UNIT, [9, 9, 19, 19]], [0, 0], 0.0, [0]),
    # The first box drops the second box, which therefore cannot drop the third box.
    'a dropped box drops nothing': (
        [[0, 0, 10, 10], [4, 0, 14, 10], [8, 0, 18, 10]],
        [0, 0, 0],
        0.4,
        [0, 2],
    ),
    'boxes far below a pixel': ([[0, 0, 1e-3, 1e-3]] * 2, [0, 0], 0.9, [0]),
    'one inside the other': ([UNIT, [4, 4, 6, 6]], [0, 0], 0.5, [0, 1]),
    'negative coordinates': ([[-10, -10, 0, 0], [-9, -10, 0, 0]], [0, 0], 0.5, [0]),
}


@pytest.mark.parametrize(('boxes', 'ids', 'threshold', 'kept'), TABLE.values(), ids=TABLE.keys())
def test_suppression_keeps_the_expected_boxes(boxes, ids, threshold, kept):
    assert suppress(boxes, ids, threshold) == kept


def test_boxes_suppress_other_classes_only_if_class_agnostic():
    assert suppress([UNIT, HALF, APART], [0, 1, 2], 0.4) == [0, 1, 2]
    boxes, ids = np.array([UNIT, UNIT], np.float32), np.array([0, 1], np.int32)
    assert non_maximum_suppression(boxes, ids, 0.4, 10).tolist() == [0, 1]  # by default
    assert suppress([UNIT, HALF, APART], [0, 1, 2], 0.4, agnostic=True) == [0, 2]


def test_limit_of_nms_keeps_the_best_boxes():
    boxes = [[20 * i, 0, 20 * i + 10, 10] for i in range(5)]
    assert suppress(boxes, [0] * 5, 0.5, limit=1) == [0]
    assert suppress(boxes, [0] * 5, 0.5, limit=3) == [0, 1, 2]
    assert suppress(boxes, [0] * 5, 0.5, limit=5) == [0, 1, 2, 3, 4]
    # Dropped boxes do not count.
    assert suppress([UNIT, UNIT, APART], [0] * 3, 0.5, limit=2) == [0, 2]


@pytest.mark.filterwarnings('error', 'ignore::ResourceWarning')
def test_areas_beyond_float32_suppress_nothing_and_do_not_warn():
    huge, tiny = [-1e30, -1e30, 1e30, 1e30], [0, 0, 1e-30, 1e-30]
    assert suppress([huge, huge, tiny, tiny, UNIT], [0] * 5, 0.45) == [0, 1, 2, 3, 4]


grid = st.integers(0, 12)
extent = st.integers(1, 12)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(grid, grid, extent, extent, st.integers(0, 2)), max_size=25),
    st.sampled_from([0.0, 0.125, 0.25, 0.5, 0.75, 1.0]),
    st.integers(1, 8),
    st.booleans(),
)
def test_whole_pixel_boxes_agree_with_plain_python(rows, threshold, limit, agnostic):
    # Small whole numbers and these thresholds are exact in float32, so no margin is needed.
    boxes = [[x, y, x + w, y + h] for x, y, w, h, _ in rows]
    ids = [row[4] for row in rows]
    kept = suppress(boxes, ids, threshold, limit, agnostic)
    assert kept == suppress_in_plain_python(boxes, ids, threshold, limit, agnostic)


def onnx_operator():
    """Return a session of NonMaxSuppression. The score threshold excludes other classes."""
    from onnx import TensorProto, helper

    names = ['boxes', 'scores', 'max_output', 'iou_threshold', 'score_threshold']
    shapes = [[1, 'n', 4], [1, 'c', 'n'], [1], [1], [1]]
    kinds = [TensorProto.FLOAT] * 2 + [TensorProto.INT64] + [TensorProto.FLOAT] * 2
    inputs = [
        helper.make_tensor_value_info(*entry) for entry in zip(names, kinds, shapes, strict=True)
    ]
    output = helper.make_tensor_value_info('kept', TensorProto.INT64, ['m', 3])
    node = helper.make_node('NonMaxSuppression', names, ['kept'])
    graph = helper.make_graph([node], 'nms', inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 13)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=['CPUExecutionProvider']
    )


def kept_by_onnx(session, xyxy, scores, class_ids, threshold):
    by_class = np.zeros((1, class_ids.max() + 1, len(xyxy)), np.float32)
    by_class[0, class_ids, np.arange(len(xyxy))] = scores
    (kept,) = session.run(
        None,
        {
            'boxes': xyxy[None][..., [1, 0, 3, 2]],
            'scores': by_class,
            'max_output': np.array([1000], np.int64),
            'iou_threshold': np.array([threshold], np.float32),
            'score_threshold': np.array([0.001], np.float32),
        },
    )
    return sorted(kept[:, 2].tolist())


def kept_by_opencv(xyxy, scores, class_ids, threshold):
    kept = []
    for class_id in set(class_ids.tolist()):  # Ubuntu 24.04's OpenCV is older than NMSBoxesBatched
        chosen = np.flatnonzero(class_ids == class_id)
        corner, size = xyxy[chosen, :2], xyxy[chosen, 2:] - xyxy[chosen, :2]
        xywh = np.concatenate([corner, size], axis=1).astype(np.float64).tolist()
        stay = cv2.dnn.NMSBoxes(xywh, scores[chosen].tolist(), 0.001, float(threshold))
        kept += chosen[np.asarray(stay, int).ravel()].tolist()
    return sorted(kept)


def near_threshold(xyxy, class_ids, threshold):
    """Return whether an IoU is so close to the threshold that float32 rounding decides."""
    left, top, right, bottom = xyxy.astype(np.float64).T
    width = np.minimum(right[:, None], right) - np.maximum(left[:, None], left)
    height = np.minimum(bottom[:, None], bottom) - np.maximum(top[:, None], top)
    shared = np.maximum(width, 0) * np.maximum(height, 0)
    area = (right - left) * (bottom - top)
    iou = shared / (area[:, None] + area - shared)
    pairs = np.triu(class_ids[:, None] == class_ids, 1)
    return bool((np.abs(iou - threshold)[pairs] < MARGIN).any())


def random_case(rng):
    """Return crowded boxes, best first, often with equal scores."""
    count = int(rng.integers(0, 60))
    centre = rng.uniform(-20, 120, (count, 2))
    size = rng.uniform(0.1, rng.choice([20, 100]), (count, 2))
    xyxy = np.concatenate([centre - size / 2, centre + size / 2], axis=1).astype(np.float32)
    if count > 4:
        xyxy[rng.integers(count, size=3)] = xyxy[rng.integers(count)]  # repeat the same box
    scores = rng.uniform(0.01, 1, count)
    if rng.integers(2):
        scores = np.round(scores, 1) + 0.01
    scores = np.sort(scores.astype(np.float32))[::-1].copy()
    class_ids = rng.integers(0, rng.integers(1, 5), count).astype(np.int32)
    threshold = np.float32(rng.choice([rng.uniform(0.05, 0.95), 0.45, 0.7]))
    return xyxy, scores, class_ids, threshold, bool(rng.integers(2))


def test_random_cases_agree_with_both_operators():
    rng = np.random.default_rng(20)
    session = onnx_operator()
    compared = excluded = empty = dropped = 0
    for case in range(CASES):
        xyxy, scores, class_ids, threshold, agnostic = random_case(rng)
        kept = non_maximum_suppression(
            xyxy, class_ids, float(threshold), 1000, class_agnostic=agnostic
        ).tolist()
        if len(xyxy) == 0:
            assert kept == []
            empty += 1
            continue
        seen_ids = np.zeros_like(class_ids) if agnostic else class_ids
        if near_threshold(xyxy, seen_ids, float(threshold)):
            excluded += 1
            continue
        assert kept == kept_by_onnx(session, xyxy, scores, seen_ids, threshold), case
        assert kept == kept_by_opencv(xyxy, scores, seen_ids, threshold), case
        compared += 1
        dropped += len(xyxy) - len(kept)
    print(f'{compared} compared, {empty} empty, {excluded} excluded near the threshold')
    assert compared + excluded + empty == CASES
    assert excluded <= CASES // 100  # 0 with this seed
    assert empty >= 5
    assert dropped > CASES  # the boxes do overlap


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.sampled_from([0.1, 0.25, 0.5, 0.5000001, 0.9, 1.0]), max_size=40),
    st.integers(1, 50),
)
def test_best_candidates_are_sorted_by_score_then_index(scores, limit):
    found = best_candidates(np.array(scores, np.float32), limit)
    single = [float(np.float32(score)) for score in scores]
    expected = sorted(range(len(scores)), key=lambda index: (-single[index], index))[:limit]
    assert found.tolist() == expected
    assert found.dtype == np.int64


def test_empty_array_has_no_best_candidates():
    assert best_candidates(np.empty(0, np.float32), 10).tolist() == []
