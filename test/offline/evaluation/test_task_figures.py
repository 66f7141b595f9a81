# SPDX-License-Identifier: Apache-2.0
"""Tests of metrics, comparison and gates for masks, keypoints and oriented boxes."""

import contextlib
import io
import json
from dataclasses import replace

import numpy as np
import pytest

from support.optional_packages import needs
from support.oracles.evaluation_support import (
    CLASSES,
    SIZE_WH,
    WrittenModel,
    found,
    pictures,
    truth,
    written,
)
from support.oracles.task_truth import (
    BOX,
    FOUR,
    HEIGHT,
    OBB,
    SEGMENT,
    WIDTH,
    ellipse,
    read_truth,
    run_lengths,
    with_masks,
)
from trt_perception.errors import ConfigError
from trt_perception.model.tasks.detect import DETECT
from trt_perception.offline.building.steps.accuracy_gate import check_labels
from trt_perception.offline.building.steps.agreement_gate import compare_on_sample
from trt_perception.offline.evaluation.coco.classes import match_classes
from trt_perception.offline.evaluation.coco.results import coco_rows
from trt_perception.offline.evaluation.coco.run_lengths import with_run_lengths
from trt_perception.offline.evaluation.compare import compare_models
from trt_perception.offline.evaluation.dataset import Dataset
from trt_perception.offline.evaluation.metrics.average_precision import compute_metrics
from trt_perception.offline.evaluation.metrics.mistakes import match_detections
from trt_perception.offline.evaluation.metrics.task_measures import measure_of
from trt_perception.offline.evaluation.report.worst_images import LEGEND_COLORS, draw_mistakes

pytestmark = needs('pycocotools')


# Metrics.


def scene(seed, images=8):
    """Return annotations and detections: boxes with masks, four keypoints and an angle."""
    rng = np.random.default_rng(seed)
    boxes, rows = [], {number: [] for number in range(images)}

    def random_box():
        size = np.exp(rng.uniform(np.log(12), np.log(120), 2)).round()
        return (*(rng.uniform(0, 1, 2) * (np.array(SIZE_WH) - size)).round(), *size)

    def corners(xywh, noise=0.0):
        left, top, width, height = xywh
        points = np.array([[left, top], [left + width, top], [left, top + height], [left, top]])
        return points + rng.normal(0, 1, (4, 2)) * noise * np.sqrt(width * height)

    for number in range(images):
        for _ in range(rng.integers(0, 6)):
            name, box = CLASSES[rng.integers(2)], random_box()
            flags = rng.integers(0, 3, 4) * int(rng.random() < 0.9)
            points = np.column_stack([corners(box), flags]).ravel().tolist()
            more = {
                'iscrowd': int(rng.random() < 0.1),
                'segmentation': run_lengths(ellipse(box)),
                'keypoints': points,
                'num_keypoints': int((flags > 0).sum()),
            }
            boxes.append((number, name, tuple(map(float, box)), more))
            if rng.random() < 0.8:
                jitter = rng.normal(0, 0.05, 4) * [box[2], box[3], box[2], box[3]]
                detected_name = name if rng.random() < 0.9 else CLASSES[rng.integers(2)]
                near = np.array(box) + jitter
                rows[number].append(
                    (detected_name, rng.random(), near, rng.uniform(0.6, 1), corners(near, 0.05))
                )
        other = random_box()
        rows[number].append(('cat', rng.random(), np.array(other), 1.0, corners(other)))
    content = truth(boxes, images=images)
    for entry in content['annotations']:
        entry['id'] += 1  # pycocotools ignores matches with id 0
    answers = {}
    for number, some in rows.items():
        some = sorted(some, key=lambda row: -row[1])
        detections = found(*((name, score, tuple(box)) for name, score, box, _, _ in some))
        points = np.array([np.column_stack([place, np.ones(4)]) for *_, place in some])
        detections = replace(detections, keypoints=points.astype(np.float32))
        wholes = [ellipse(box, share) for _, _, box, share, _ in some]
        answers[number] = with_run_lengths(with_masks(detections, wholes))
    return content, answers


def measure(folder, content, answers, task, sigmas=()):
    annotations = read_truth(folder, content, task, sigmas)
    classes = match_classes(CLASSES, annotations)
    rows = [
        row
        for number, image in enumerate(annotations.images)
        for row in coco_rows(image.id, answers[number], classes.category_ids)
    ]
    ids = [image.id for image in annotations.images]
    kind = measure_of(task, sigmas)
    return compute_metrics(annotations, ids, classes.categories, rows, kind), rows


def pycocotools_figures(folder, rows, kind, sigmas=()):
    """Return figures that pycocotools computes as in its example."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    path = folder / 'results.json'
    path.write_text(json.dumps(rows))
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(folder / 'truth.json'))
        evaluation = COCOeval(coco, coco.loadRes(str(path)), kind)
        if sigmas:
            evaluation.params.kpt_oks_sigmas = np.array(sigmas)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [None if figure < 0 else figure for figure in evaluation.stats]


@pytest.mark.parametrize('seed', range(2))
def test_figures_of_masks_equal_pycocotools(tmp_path, seed):
    content, answers = scene(seed)
    metrics, rows = measure(tmp_path, content, answers, SEGMENT)
    for row in rows:  # with these keys, pycocotools uses the area of the box
        del row['bbox'], row['keypoints'], row['keypoint_scores']
    stats = pycocotools_figures(tmp_path, rows, 'segm')
    assert list(metrics.figures.values()) == pytest.approx([*stats[:6], stats[8]], abs=1e-12)
    assert 0 < metrics.figures['mAP75'] < metrics.figures['mAP50'] < 0.95
    boxes, _ = measure(tmp_path, content, answers, DETECT)
    assert boxes.figures['mAP'] != pytest.approx(metrics.figures['mAP'], abs=0.01)
    assert metrics.as_dict()['of'] == 'masks'


@pytest.mark.parametrize('seed', range(2))
def test_figures_of_keypoints_equal_pycocotools(tmp_path, seed):
    content, answers = scene(seed)
    sigmas = [0.02, 0.05, 0.1, 0.07]
    metrics, rows = measure(tmp_path, content, answers, FOUR, sigmas)
    for row in rows:
        del row['segmentation']
    stats = pycocotools_figures(tmp_path, rows, 'keypoints', sigmas)
    names = ['mAP', 'mAP50', 'mAP75', 'mAP_medium', 'mAP_large', 'AR20']
    assert [metrics.figures[name] for name in names] == pytest.approx(stats[:6], abs=1e-12)
    assert 0.05 < metrics.figures['mAP50'] < 0.95
    assert list(metrics.figures)[-1] == 'AR20'
    assert metrics.objects == sum(
        not entry['iscrowd'] and any(entry['keypoints'][2::3]) for entry in content['annotations']
    )
    assert metrics.as_dict()['oks_sigmas'] == sigmas


@pytest.mark.parametrize('seed', range(2))
def test_rotated_scene_has_the_figures_of_the_upright_scene(tmp_path, seed):
    content, answers = scene(seed)
    upright, rows = measure(tmp_path, content, answers, DETECT)
    for row in rows:
        del row['segmentation'], row['keypoints']
    stats = pycocotools_figures(tmp_path, rows, 'bbox')
    assert list(upright.figures.values()) == pytest.approx([*stats[:6], stats[8]], abs=1e-12)
    angle = 0.7
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])

    def turned(xywh):
        xywh = np.array(xywh, np.float64).reshape(-1, 4)
        center = (xywh[:, :2] + xywh[:, 2:] / 2) @ turn
        return np.column_stack([center, xywh[:, 2:], np.full(len(xywh), angle)])

    for entry in content['annotations']:
        entry['oriented_bbox'] = turned(entry['bbox'])[0].tolist()
    for number, detections in answers.items():
        xywh = detections.xyxy.copy()
        xywh[:, 2:] -= xywh[:, :2]
        answers[number] = replace(detections, oriented=turned(xywh).astype(np.float32))
    metrics, _ = measure(tmp_path, content, answers, OBB)
    # Rows are rounded to 1e-6, so the IoU of a pair may cross a threshold.
    assert metrics.figures == pytest.approx(upright.figures, abs=0.002)
    assert metrics.figures['mAP50'] == pytest.approx(upright.figures['mAP50'], abs=1e-9)


def test_oriented_box_with_wrong_angle_is_not_found(tmp_path):
    turned = [150, 130, 120, 30, np.pi / 6]
    content = truth([(0, 'cat', (90, 74, 119, 112), {'oriented_bbox': turned})])
    box = found(('cat', 0.9, (90, 74, 119, 112)))
    for degrees, right in ((30, True), (33, True), (60, False), (0, False)):
        detected_box = np.array([[150, 130, 120, 30, np.radians(degrees)]], np.float32)
        answers = {0: replace(box, oriented=detected_box)}
        metrics, _ = measure(tmp_path, content, answers, OBB)
        assert metrics.figures['mAP50'] == pytest.approx(float(right))
    assert measure(tmp_path, content, answers, DETECT)[0].figures['mAP50'] == pytest.approx(1)


# Comparison and gates.


def write_models(folder):
    """Return a data set with masks, a correct model, and a model with half-size masks."""
    content = truth(
        [(n, 'cat', BOX, {'segmentation': run_lengths(ellipse(BOX))}) for n in range(2)]
    )
    box = found(('cat', 0.9, BOX))
    right = {n: with_masks(box, [ellipse(BOX)]) for n in range(2)}
    thin = {n: with_masks(box, [ellipse(BOX, 0.5)]) for n in range(2)}
    path = written(folder, content)
    return path, WrittenModel(right, task=SEGMENT), WrittenModel(thin, task=SEGMENT)


def test_model_with_wrong_masks_has_a_drop_of_1(tmp_path):
    path, right, thin = write_models(tmp_path)
    images = pictures(tmp_path, 2)
    both = {'right': right, 'thin': thin}
    report = compare_models(both, images, path, progress=lambda *_: None)
    assert report.accuracy_drop('thin') == pytest.approx(1)
    assert [model.box_metrics.figures['mAP50'] for model in report.models] == [1, 1]
    assert report.agreements['thin'].overall.f1 == 0
    saved = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert saved['compared'] == saved['models']['thin']['metrics']['of'] == 'masks'
    assert saved['models']['thin']['box_metrics']['mAP'] == pytest.approx(1)
    assert 'classes' not in report.as_dict(classes=False)['models']['thin']['box_metrics']
    unlabelled = compare_models(both, images, progress=lambda *_: None)
    assert unlabelled.accuracy_drop('thin') == 1
    compared = compare_on_sample(right, thin, images, lambda *_: None, 'it', 'ONNX Runtime')
    assert (compared.share, len(compared.files)) == (0, 2)
    again = write_models(tmp_path)[1]
    same = compare_on_sample(right, again, images, lambda *_: None, 'it', 'ONNX Runtime')
    assert same.agreement.figures == {'F1': 1, 'IoU': 1, 'score difference': 0}


def test_models_of_different_tasks_are_refused(tmp_path, golden_messages):
    _, right, _ = write_models(tmp_path)
    both = {'masks': right, 'boxes': WrittenModel({})}
    with golden_messages.raises(ConfigError):
        compare_models(both, pictures(tmp_path, 1), progress=lambda *_: None)


def test_gate_refuses_labels_without_masks_before_the_build(tmp_path, golden_messages):
    images = pictures(tmp_path, 1)
    path = written(tmp_path, truth([(0, 'cat', BOX)]))
    check_labels(images, path, CLASSES)
    with golden_messages.raises(ConfigError):
        check_labels(images, path, CLASSES, SEGMENT)
    check_labels(images, None, CLASSES, SEGMENT)


# Drawings.


def matching_and_different(task, folder):
    """Return a matching detection, a detection with only the right box, and the objects."""
    turned = np.array([[150, 130, 120, 30, np.pi / 6]], np.float32)
    corners = [[100, 100, 2], [200, 100, 2], [200, 160, 2], [0, 0, 0]]
    more = {
        'segmentation': run_lengths(ellipse(BOX)),
        'keypoints': np.ravel(corners).tolist(),
        'oriented_bbox': turned[0].tolist(),
    }
    box = read_truth(folder, truth([(0, 'cat', BOX, more)]), task).objects[100]
    right = replace(found(('cat', 0.9, BOX)), oriented=None)
    points = np.array([corners], np.float32)
    if task is SEGMENT:
        right = with_run_lengths(with_masks(right, [ellipse(BOX)]))
        wrong = with_run_lengths(with_masks(found(('cat', 0.9, BOX)), [ellipse(BOX, 0.3)]))
    elif task is FOUR:
        wrong = replace(right, keypoints=points + np.float32(60))
        right = replace(right, keypoints=points)
    else:
        wrong = replace(right, oriented=turned * np.float32([1, 1, 1, 1, -1]))
        right = replace(right, oriented=turned)
    return right, wrong, box


@pytest.mark.parametrize('task', [SEGMENT, FOUR, OBB], ids=str)
def test_match_by_box_alone_is_drawn_as_a_mistake(tmp_path, task):
    right, wrong, box = matching_and_different(task, tmp_path)
    annotations = Dataset.read(pictures(tmp_path, 1), tmp_path / 'truth.json')
    classes = annotations.class_map(CLASSES)
    kind = measure_of(task)
    assert match_detections(right, box, classes, kind).right == ((0, 0),)
    assert match_detections(wrong, box, classes).right == ((0, 0),)
    errors = match_detections(wrong, box, classes, kind)
    assert (errors.false, errors.missed) == ((0,), (0,))
    grey = np.full((2 * HEIGHT, 2 * WIDTH, 3), 128, np.uint8)
    drawn = draw_mistakes(grey, errors, wrong, box, CLASSES, classes.categories)
    for name in ('false', 'missed'):
        assert (
            np.abs(drawn[: 2 * HEIGHT].astype(int) - LEGEND_COLORS[name]).max(axis=2) < 8
        ).any()
    plain = draw_mistakes(
        grey,
        errors,
        found(('cat', 0.9, BOX)),
        [replace(box[0], mask=None, keypoints=None, oriented=None)],
        CLASSES,
        classes.categories,
    )
    changed = (plain != drawn).any(axis=2)
    assert changed.sum() > 100
