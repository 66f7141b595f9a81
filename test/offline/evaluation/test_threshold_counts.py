# SPDX-License-Identifier: Apache-2.0
"""Counts at 101 thresholds equal the counts of matching at each threshold alone."""

import numpy as np
import pytest

from support.oracles.evaluation_support import CLASSES, found
from trt_perception.offline.evaluation.coco.annotations import AnnotatedObject
from trt_perception.offline.evaluation.coco.classes import ClassMap
from trt_perception.offline.evaluation.metrics.agreement import filter_by_score
from trt_perception.offline.evaluation.metrics.measure import BOXES
from trt_perception.offline.evaluation.metrics.mistakes import (
    FALSE_KINDS,
    ImageMatcher,
    count_mistakes,
    match_detections,
)
from trt_perception.offline.evaluation.metrics.shapes import box_iou
from trt_perception.offline.evaluation.metrics.threshold_counts import (
    THRESHOLDS,
    ImageHistory,
    ThresholdCounts,
)

CAT, DOG = 7, 17
MAP = ClassMap((CAT, DOG), {CAT: 'cat', DOG: 'dog'})
BOX = (10, 10, 100, 80)


def true(category, xywh=BOX, crowd=False):
    return AnnotatedObject(category, xywh, xywh[2] * xywh[3], crowd)


def random_image(rng):
    """Return detections and objects that overlap often, with scores on and between thresholds."""
    truth = [
        true((CAT, DOG)[rng.integers(2)], tuple(rng.uniform((0, 0, 20, 20), (120, 90, 120, 90))))
        for _ in range(rng.integers(6))
    ]
    if truth and rng.random() < 0.3:
        truth.append(true(CAT, (50, 50, 150, 100), crowd=True))
    rows = []
    for _ in range(rng.integers(12)):
        box = rng.uniform((0, 0, 20, 20), (120, 90, 120, 90))
        if truth and rng.random() < 0.7:
            box = np.array(truth[rng.integers(len(truth))].xywh) + rng.uniform(-8, 8, 4)
        rows.append((CLASSES[rng.integers(2)], round(rng.random(), 2), tuple(np.maximum(box, 1))))
    return found(*rows), truth


def counts_of(images):
    counts = ThresholdCounts(MAP)
    for detections, truth in images:
        counts.add(ImageHistory.of_image(detections, truth, MAP, BOXES), detections, truth)
    return counts


def test_counts_equal_matching_at_each_threshold():
    rng = np.random.default_rng(3)
    images = [random_image(rng) for _ in range(120)]
    counts = counts_of(images)
    totals = []
    for index, threshold in enumerate(THRESHOLDS):
        cases = []
        for detections, truth in images:
            (sure,) = filter_by_score([detections], threshold)
            cases.append((match_detections(sure, truth, MAP), sure, truth))
        expected = count_mistakes(cases, MAP)
        false = sum(counts.kinds[kind][index] for kind in FALSE_KINDS)
        one = {kind: values[index] for kind, values in counts.kinds.items()}
        assert (one['right'], one['wrong class'], false, one['missed']) == (
            expected.right,
            expected.wrong_class,
            expected.false,
            expected.missed,
        )
        confusions = {
            (counts.class_names[row], counts.class_names[column]): values[index]
            for (row, column), values in counts.confusions.items()
            if -1 not in (row, column) and row != column and values[index]
        }
        assert confusions == {(is_, as_): n for is_, as_, n in expected.confusions}
        assert counts.class_right[:, index].sum() == expected.right
        assert counts.size_right[:, index].sum() == expected.right
        measured = sum(len(sure) - len(matches.ignored) for matches, sure, _ in cases)
        assert counts.class_detections[:, index].sum() == measured
        totals.append(tuple(one.values()))
    assert len(set(totals)) > 50  # the random images exercise many thresholds
    assert sum(counts.class_objects) == sum(counts.size_objects)


def test_confusions_count_each_detection_and_object_once():
    rng = np.random.default_rng(4)
    counts = counts_of([random_image(rng) for _ in range(40)])
    for category, objects in enumerate(counts.class_objects):
        row = sum(values for pair, values in counts.confusions.items() if pair[0] == category)
        assert (row == objects).all()
        column = sum(values for pair, values in counts.confusions.items() if pair[1] == category)
        assert (column == counts.class_detections[category]).all()


@pytest.mark.parametrize(
    ('xywh', 'kind'),
    [
        ((12, 12, 100, 80), 'duplicate'),
        ((70, 10, 100, 80), 'wrong place'),  # IoU 0.25
        ((98, 10, 100, 80), 'background'),  # IoU 0.06
        ((300, 200, 10, 10), 'background'),
    ],
)
def test_kind_of_a_false_detection_follows_from_its_overlap(xywh, kind):
    detections = found(('cat', 0.9, BOX), ('cat', 0.8, xywh))
    matcher = ImageMatcher(detections, [true(CAT)], MAP, BOXES)
    assert matcher.match(2).false == (1,)
    assert matcher.false_kinds[1] == kind
    overlap = box_iou(detections.xyxy[1:], np.array([[10, 10, 110, 90]]))[0, 0]
    assert (overlap >= 0.5, overlap >= 0.1) == (kind == 'duplicate', kind != 'background')


def test_score_on_a_threshold_does_not_count_there():
    counts = counts_of([(found(('cat', 0.5, BOX)), [true(CAT)])])
    assert counts.kinds['right'].tolist() == [1] * 50 + [0] * 51
    assert counts.kinds['missed'].tolist() == [0] * 50 + [1] * 51


def test_sizes_follow_the_annotated_area():
    sides = 31, 33, 95, 97
    truth = [true(CAT, (120 * n, 0, side, side)) for n, side in enumerate(sides)]
    rows = [('cat', 0.9, box.xywh) for box in truth[1:]]
    counts = counts_of([(found(*rows), truth)])
    assert counts.size_objects == [1, 2, 1]
    assert counts.size_right[:, 0].tolist() == [0, 2, 1]
