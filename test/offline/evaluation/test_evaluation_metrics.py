# SPDX-License-Identifier: Apache-2.0
"""Tests of mean average precision against known figures and against pycocotools."""

from dataclasses import replace

import numpy as np
import pytest

from support.optional_packages import needs
from support.oracles.evaluation_support import CLASSES, expected_stats, found, truth, written
from trt_perception.offline.evaluation.coco.annotations import read_annotations
from trt_perception.offline.evaluation.coco.classes import match_classes
from trt_perception.offline.evaluation.coco.results import coco_rows
from trt_perception.offline.evaluation.metrics.average_precision import compute_metrics

pytestmark = needs('pycocotools')
BOX = (100, 100, 100, 100)


def measure(tmp_path, content, answers):
    """Return the metrics of detections, and the COCO result rows that were measured."""
    annotations = read_annotations(written(tmp_path, content))
    classes = match_classes(CLASSES, annotations)
    rows = [
        row
        for number, image in enumerate(annotations.images)
        for row in coco_rows(image.id, answers.get(number, found()), classes.category_ids)
    ]
    ids = [image.id for image in annotations.images]
    return compute_metrics(annotations, ids, classes.categories, rows), rows


def shifted(pixels):
    return (BOX[0] + pixels, *BOX[1:])


@pytest.mark.parametrize(
    ('boxes', 'answers', 'm_ap', 'm_ap50', 'm_ap75'),
    [
        # No detections at all.
        ([(0, 'cat', BOX)], {}, 0, 0, 0),
        ([(0, 'cat', BOX)], {0: found(('cat', 0.3, BOX))}, 1, 1, 1),
        # An IoU of 2/3 is enough at the four thresholds from 0.50 to 0.65.
        ([(0, 'cat', BOX)], {0: found(('cat', 0.3, shifted(20)))}, 0.4, 1, 0),
        # An IoU of 1/3 is below every threshold.
        ([(0, 'cat', BOX)], {0: found(('cat', 0.3, shifted(50)))}, 0, 0, 0),
        # A false detection with a higher score halves the precision. A lower score has no effect.
        (
            [(0, 'cat', BOX)],
            {0: found(('cat', 0.3, BOX), ('cat', 0.4, (0, 0, 50, 50)))},
            0.5,
            0.5,
            0.5,
        ),
        (
            [(0, 'cat', BOX)],
            {0: found(('cat', 0.3, BOX), ('cat', 0.2, (0, 0, 50, 50)))},
            1,
            1,
            1,
        ),
        # A second detection of the same object is false.
        (
            [(0, 'cat', BOX), (1, 'cat', BOX)],
            {0: found(('cat', 0.9, BOX), ('cat', 0.8, BOX)), 1: found(('cat', 0.7, BOX))},
            (51 + 50 * 2 / 3) / 101,
            (51 + 50 * 2 / 3) / 101,
            (51 + 50 * 2 / 3) / 101,
        ),
        # One of two objects is found: precision 1 at the 51 recalls from 0 to 0.5.
        ([(0, 'cat', BOX), (1, 'cat', BOX)], {1: found(('cat', 0.3, BOX))}, *[51 / 101] * 3),
        # A detection of another class is false, and the object is missed.
        ([(0, 'cat', BOX), (1, 'dog', BOX)], {0: found(('dog', 0.9, BOX))}, 0, 0, 0),
        # mAP is the mean over classes, not over objects.
        (
            [(0, 'cat', BOX), (1, 'cat', BOX), (2, 'cat', BOX), (3, 'dog', BOX)],
            {3: found(('dog', 0.9, BOX))},
            *[0.5] * 3,
        ),
        # An image without objects can have false detections.
        (
            [(0, 'cat', BOX)],
            {0: found(('cat', 0.3, BOX)), 1: found(('cat', 0.4, BOX))},
            *[0.5] * 3,
        ),
        # A crowd is not missed, and detections inside it are not false.
        (
            [(0, 'cat', BOX), (0, 'cat', (200, 0, 100, 100), {'iscrowd': 1})],
            {
                0: found(
                    ('cat', 0.3, BOX),
                    ('cat', 0.9, (210, 10, 30, 30)),
                    ('cat', 0.8, (240, 0, 9, 9)),
                )
            },
            *[1] * 3,
        ),
    ],
)
def test_metrics_equal_known_figures(tmp_path, boxes, answers, m_ap, m_ap50, m_ap75):
    content = truth(boxes, images=max([box[0] for box in boxes] + list(answers)) + 1)
    metrics, rows = measure(tmp_path, content, answers)
    expected = {'mAP': m_ap, 'mAP50': m_ap50, 'mAP75': m_ap75}
    assert {key: metrics.figures[key] for key in expected} == pytest.approx(expected)
    assert metrics.objects == sum(len(box) == 3 for box in boxes)
    assert sum(one.detections for one in metrics.classes.values()) == len(rows)


def test_small_medium_and_large_objects_have_separate_figures(tmp_path):
    boxes = [(0, 'cat', (0, 0, 31, 31)), (0, 'cat', (50, 0, 33, 33)), (0, 'cat', (100, 0, 97, 97))]
    metrics, _ = measure(tmp_path, truth(boxes), {0: found(('cat', 0.9, (50, 0, 33, 33)))})
    sizes = [metrics.figures[f'mAP_{size}'] for size in ('small', 'medium', 'large')]
    assert sizes == [0, pytest.approx(1), 0]
    # If the file has the area of an outline, this area replaces the area of the box.
    boxes = [(0, 'cat', (0, 0, 97, 97), {'area': 1000})]
    metrics, _ = measure(tmp_path, truth(boxes), {0: found(('cat', 0.9, (0, 0, 97, 97)))})
    sizes = [metrics.figures[f'mAP_{size}'] for size in ('small', 'medium', 'large')]
    assert sizes == [pytest.approx(1), None, None]


def test_category_without_objects_has_no_figure(tmp_path):
    metrics, _ = measure(
        tmp_path, truth([(0, 'dog', BOX)]), {0: found(('dog', 0.9, BOX), ('cat', 0.9, BOX))}
    )
    assert metrics.figures['mAP'] == pytest.approx(1)
    assert metrics.classes['cat'].ap is None
    assert metrics.classes['cat'].detections == 1
    assert metrics.classes['dog'].ap == pytest.approx(1)
    assert set(metrics.precisions50) == {'dog'}
    assert metrics.as_dict()['classes']['cat'] == {
        'objects': 0,
        'detections': 1,
        'AP': None,
        'AP50': None,
    }


def test_precision_curve_has_a_value_for_each_recall(tmp_path):
    boxes = [(0, 'cat', BOX), (1, 'cat', BOX)]
    answers = {
        0: found(('cat', 0.9, BOX), ('cat', 0.8, (0, 0, 50, 50))),
        1: found(('cat', 0.7, BOX)),
    }
    metrics, _ = measure(tmp_path, truth(boxes), answers)
    assert metrics.recalls == pytest.approx(np.linspace(0, 1, 101))
    curve = metrics.precisions50['cat']
    assert curve[:51] == pytest.approx(1)
    assert curve[51:] == pytest.approx(2 / 3)


@pytest.mark.parametrize('seed', range(6))
def test_random_cases_equal_pycocotools(tmp_path, seed):
    rng = np.random.default_rng(seed)
    images = 12

    def random_box():
        size = np.exp(rng.uniform(np.log(8), np.log(150), 2)).round(1)
        return tuple((rng.uniform(0, 1, 2) * (np.array([320, 240]) - size)).round(1)) + tuple(size)

    boxes, rows = [], {number: [] for number in range(images)}
    for number in range(images):
        for _ in range(rng.integers(0, 9)):
            name, box = CLASSES[rng.integers(2)], random_box()
            boxes.append((number, name, box, {'iscrowd': int(rng.random() < 0.1)}))
            if rng.random() < 0.8:
                jitter = rng.normal(0, 0.08, 4) * [box[2], box[3], box[2], box[3]]
                detected_name = name if rng.random() < 0.9 else CLASSES[rng.integers(2)]
                near = np.array(box) + jitter
                rows[number].append((detected_name, rng.random(), tuple(near)))
        rows[number] += [(CLASSES[rng.integers(2)], rng.random(), random_box())] * 2
    content = truth(boxes, images=images)
    for entry in content['annotations']:
        entry['id'] += 1  # pycocotools ignores matches with id 0
    answers = {number: found(*some) for number, some in rows.items()}
    metrics, rows = measure(tmp_path, content, answers)
    stats = expected_stats(tmp_path, rows)
    assert 0.1 < metrics.figures['mAP50'] < 0.9
    names = ['mAP', 'mAP50', 'mAP75', 'mAP_small', 'mAP_medium', 'mAP_large', 'AR100']
    assert list(metrics.figures) == names
    expected = [*stats[:6], stats[8]]
    assert list(metrics.figures.values()) == pytest.approx(expected, abs=1e-12)


def test_coco_rows_have_image_category_box_and_score():
    detections = found(('dog', 0.5, (10.25, 20.5, 30, 40)), ('cat', 0.25, (1, 2, 3, 4)))
    assert coco_rows(5, found(), (1, 2)) == []
    assert coco_rows(5, detections, (None, 90)) == [
        {'image_id': 5, 'category_id': 90, 'bbox': [10.25, 20.5, 30, 40], 'score': 0.5}
    ]


def test_rows_of_poses_have_keypoints():
    detections = found(('dog', 0.5, (10.25, 20.5, 30, 40)), ('cat', 0.25, (1, 2, 3, 4)))
    points = np.array([[[1, 2.5, 0.5], [3, 4, 0.25]], [[5, 6, 1], [7, 8, 0]]], np.float32)
    first, second = coco_rows(5, replace(detections, keypoints=points), (7, 90))
    assert first['keypoints'] == [1, 2.5, 2, 3, 4, 1]
    assert first['keypoint_scores'] == [0.5, 0.25]
    assert (second['category_id'], second['keypoints']) == (7, [5, 6, 2, 7, 8, 1])
    (only,) = coco_rows(5, replace(detections, keypoints=points), (7, None))
    assert only == second


def test_rows_of_oriented_boxes_have_corners():
    detections = found(('dog', 0.5, (10, 20, 30, 40)))
    turned = np.array([[25, 40, 40, 30, np.pi / 2]], np.float32)
    (row,) = coco_rows(5, replace(detections, oriented=turned), (7, 90))
    assert row['bbox'] == [10, 20, 30, 40]
    assert row['oriented_bbox'] == pytest.approx([25, 40, 40, 30, np.pi / 2], abs=1e-6)
    (outline,) = row['segmentation']
    corners = {(round(x), round(y)) for x, y in zip(outline[::2], outline[1::2], strict=True)}
    assert corners == {(10, 20), (40, 20), (40, 60), (10, 60)}


def test_metrics_are_measured_without_printing(tmp_path, capfd):
    measure(tmp_path, truth([(0, 'cat', BOX)]), {0: found(('cat', 0.9, BOX))})
    assert capfd.readouterr() == ('', '')
