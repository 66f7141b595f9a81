# SPDX-License-Identifier: Apache-2.0
"""Tests of the comparison of models: metrics, agreement, the gate's loss, and the digits model."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from support.optional_packages import needs
from support.oracles.evaluation_support import (
    CLASSES,
    WrittenModel,
    expected_stats,
    found,
    pictures,
    truth,
    written,
)
from trt_perception.errors import ConfigError, ImageError
from trt_perception.images.detections import Detections
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.evaluation.compare import (
    accuracy_report,
    compare_models,
    evaluate_model,
)
from trt_perception.offline.evaluation.dataset import Dataset
from trt_perception.offline.evaluation.metrics.agreement import compare_detections
from trt_perception.offline.evaluation.metrics.shapes import box_iou
from trt_perception.offline.evaluation.offline_detection import open_for_evaluation

ROOT = Path(__file__).resolve().parents[3]
BOX = (100, 100, 100, 100)
NEAR = (120, 100, 100, 100)  # IoU 2/3 with BOX
FAR = (150, 100, 100, 100)  # IoU 1/3


def ignore_progress(*_):
    pass


def compared(one, other, class_names=CLASSES):
    return compare_detections(one, other, class_names)


def test_f1_is_unknown_without_detections():
    agreement = compared([], [])
    assert agreement.overall.f1 is None
    assert agreement.classes == {}
    agreement = compared([found(), found()], [found(), found()])
    assert (agreement.overall.reference, agreement.overall.matched) == (0, 0)
    assert agreement.as_dict()['F1'] is None


@pytest.mark.parametrize(
    ('one', 'other', 'matched', 'mean_iou', 'f1'),
    [
        (found(('cat', 0.9, BOX)), found(), 0, None, 0),
        (found(), found(('cat', 0.9, BOX)), 0, None, 0),
        (found(('cat', 0.9, BOX)), found(('cat', 0.5, BOX)), 1, 1, 1),
        (found(('cat', 0.9, BOX)), found(('cat', 0.9, NEAR)), 1, 2 / 3, 1),
        (found(('cat', 0.9, BOX)), found(('cat', 0.9, FAR)), 0, None, 0),
        (found(('cat', 0.9, BOX)), found(('dog', 0.9, BOX)), 0, None, 0),
        # Each detection is in one pair at most.
        (found(('cat', 0.9, BOX)), found(('cat', 0.9, BOX), ('cat', 0.8, NEAR)), 1, 1, 2 / 3),
        # The pair with the larger IoU comes first, independent of scores.
        (
            found(('cat', 0.9, NEAR), ('cat', 0.8, BOX)),
            found(('cat', 0.9, BOX)),
            1,
            1,
            2 / 3,
        ),
    ],
)
def test_agreement_matches_boxes_within_a_class(one, other, matched, mean_iou, f1):
    agreement = compared([one], [other])
    assert agreement.overall.matched == matched
    assert agreement.overall.mean_iou == (mean_iou and pytest.approx(mean_iou))
    assert agreement.overall.f1 == pytest.approx(f1)
    swapped = compared([other], [one])
    assert swapped.overall.f1 == pytest.approx(f1)


def test_agreement_has_f1_by_class_and_the_largest_score_difference():
    one = [found(('cat', 0.9, BOX), ('dog', 0.75, BOX)), found(('dog', 0.5, BOX))]
    other = [found(('cat', 0.5, BOX), ('dog', 0.5, NEAR)), found()]
    agreement = compared(one, other)
    assert agreement.classes['cat'].f1 == 1
    assert agreement.classes['dog'].f1 == pytest.approx(2 / 3)
    assert agreement.classes['dog'].mean_iou == pytest.approx(2 / 3)
    assert agreement.overall.f1 == pytest.approx(4 / 5)
    assert agreement.max_score_difference == pytest.approx(0.4)
    assert compared(one, other, ()) == replace(agreement, classes={})


def test_iou_equals_pycocotools():
    from pycocotools import mask

    rng = np.random.default_rng(5)
    xywh = [rng.uniform(0, 60, (n, 4)).round(2) for n in (40, 30)]
    ours = box_iou(*[np.concatenate([b[:, :2], b[:, :2] + b[:, 2:]], axis=1) for b in xywh])
    assert ours == pytest.approx(mask.iou(*xywh, [0] * 30), abs=1e-12)
    nothing = np.array([[5.0, 5, 5, 5]])
    assert box_iou(nothing, nothing) == [[0]]


@needs('pycocotools')
def test_annotations_give_metrics_for_each_model(tmp_path):
    boxes = [(0, 'cat', BOX), (1, 'dog', BOX)]
    perfect = {0: found(('cat', 0.9, BOX)), 1: found(('dog', 0.9, BOX))}
    models = {
        'same': WrittenModel(perfect),
        'shifted': WrittenModel({0: found(('cat', 0.9, NEAR)), 1: found(('dog', 0.9, NEAR))}),
        'shy': WrittenModel({0: found(('cat', 0.2, BOX)), 1: found(('dog', 0.2, BOX))}),
        'blind': WrittenModel({}),
    }
    steps = []
    reference = WrittenModel(perfect)
    report = compare_models(
        {'reference': reference, **models},
        pictures(tmp_path, 2),
        written(tmp_path, truth(boxes)),
        progress=lambda *step: steps.append(step),
    )
    assert report.reference == 'reference'
    assert report.difference('shifted') == pytest.approx({'mAP': -0.6, 'mAP50': 0, 'mAP75': -1})
    drops = {name: report.accuracy_drop(name) for name in models}
    assert drops == pytest.approx({'same': 0, 'shifted': 0, 'shy': 0, 'blind': 1})
    # Low scores do not change mAP, but the node's thresholds remove the detections.
    f1 = {name: report.agreements[name].overall.f1 for name in models}
    assert f1 == pytest.approx({'same': 1, 'shifted': 1, 'shy': 0, 'blind': 0})
    assert {thresholds.confidence_threshold for _, thresholds in reference.asked} == {0.001}
    assert steps[:3] == [('reference', 0, 2), ('reference', 1, 2), ('reference', 2, 2)]
    assert {name for name, _, _ in steps} == {'reference', *models}
    saved = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert saved['images'] == 2
    assert saved['annotations'] == 'truth.json'
    assert saved['models']['shifted']['metrics']['mAP50'] == pytest.approx(1)
    assert saved['models']['blind']['drop'] == pytest.approx(1)
    assert saved['models']['shifted']['agreement']['classes']['cat']['mean_IoU'] > 0.6
    assert 'agreement' not in saved['models']['reference']
    short = report.as_dict(classes=False)['models']['shifted']
    assert 'classes' not in short['metrics']
    assert 'classes' not in short['agreement']


def test_comparison_without_annotations_measures_agreement_only(tmp_path):
    reference = WrittenModel({0: found(('cat', 0.9, BOX), ('dog', 0.1, BOX))})
    other = WrittenModel({0: found(('cat', 0.3, NEAR)), 1: found(('cat', 0.3, BOX))})
    report = compare_models(
        {'fp32': reference, 'other': other},
        pictures(tmp_path, 2),
        progress=ignore_progress,
        thresholds=Thresholds(0.2, 0.5),
    )
    assert report.annotations is None
    assert report.difference('other') == {}
    assert report.agreements['other'].overall.f1 == pytest.approx(2 / 3)
    assert report.accuracy_drop('other') == pytest.approx(1 / 3)
    assert {thresholds.confidence_threshold for _, thresholds in reference.asked} == {0.2}
    entry = report.as_dict()['models']
    assert entry['fp32']['metrics'] is None
    assert (entry['fp32']['detections'], entry['other']['detections']) == (1, 2)


def test_drop_is_0_if_no_model_finds_anything(tmp_path):
    models = {'reference': WrittenModel({}), 'other': WrittenModel({})}
    report = compare_models(models, pictures(tmp_path, 1), progress=ignore_progress)
    assert report.accuracy_drop('other') == 0


@needs('pycocotools')
def test_images_that_the_annotation_file_does_not_list_are_skipped(tmp_path):
    paths = pictures(tmp_path, 4)
    annotations = written(tmp_path, truth([(1, 'cat', BOX)], images=3))
    model = WrittenModel({1: found(('cat', 0.9, BOX)), 3: found(('cat', 0.95, BOX))})
    report = compare_models({'model': model}, paths[1:], annotations, progress=ignore_progress)
    assert report.images == 2
    assert {number for number, _ in model.asked} == {1, 2}
    assert report.models[0].metrics.figures['mAP'] == pytest.approx(1)


@needs('pycocotools')
def test_mismatched_inputs_are_refused(tmp_path, golden_messages):
    paths = pictures(tmp_path, 1)
    annotations = written(tmp_path, truth([(0, 'cat', BOX)]))
    cats = WrittenModel({})
    models = {'reference': cats, 'other': WrittenModel({}, ('cow',))}
    with golden_messages.raises(ConfigError):
        compare_models(models, paths, progress=ignore_progress)
    with golden_messages.raises(ConfigError):
        compare_models({'cats': cats}, [], progress=ignore_progress)
    wrong = {'wrong': WrittenModel({}, ('Cat', 'dog'))}
    with golden_messages.raises(ConfigError):
        compare_models(wrong, paths, annotations, progress=ignore_progress)
    paths[0].write_bytes(b'no picture')
    with golden_messages.raises(ImageError):
        compare_models({'cats': cats}, paths, progress=ignore_progress)


def test_exception_in_the_progress_function_ends_the_comparison(tmp_path):
    def interrupt(step, done, total):
        if done == 2:
            raise KeyboardInterrupt

    model = WrittenModel({})
    with pytest.raises(KeyboardInterrupt):
        compare_models({'model': model}, pictures(tmp_path, 9), progress=interrupt)
    assert {number for number, _ in model.asked} == {0, 1}


def test_comparison_needs_pycocotools_only_with_annotations(
    tmp_path, monkeypatch, golden_messages
):
    import sys

    monkeypatch.setitem(sys.modules, 'pycocotools.cocoeval', None)
    annotations = written(tmp_path, truth([(0, 'cat', BOX)]))
    paths = pictures(tmp_path, 1)
    with golden_messages.raises(ConfigError):
        compare_models({'any': WrittenModel({})}, paths, annotations, progress=ignore_progress)
    compare_models({'any': WrittenModel({})}, paths, progress=ignore_progress)


# The digits model.


@pytest.fixture(scope='module')
def digits():
    """Return the demo scenes, and the shipped model run over them once."""
    pytest.importorskip('pycocotools')
    dataset = Dataset.read(sorted(ROOT.glob('demo/scenes/*.jpg')), ROOT / 'demo' / 'truth.json')
    pipeline = open_for_evaluation(
        read_model_file(ROOT / 'models' / 'digits.onnx'), PipelineOptions()
    )
    classes = dataset.class_map(pipeline.spec.class_names)
    return (
        dataset,
        evaluate_model('digits', pipeline, dataset, classes, progress=ignore_progress),
        pipeline,
    )


def test_figures_of_digits_equal_pycocotools(digits, tmp_path):
    _, model, _ = digits
    (tmp_path / 'truth.json').write_bytes((ROOT / 'demo' / 'truth.json').read_bytes())
    stats = expected_stats(tmp_path, model.rows)
    ours = model.metrics
    figures = list(ours.figures.values())[:5]
    assert figures == pytest.approx(list(stats[:5]), abs=1e-12)
    assert (ours.images, ours.objects) == (60, 430)


def test_figures_of_digits_equal_the_recorded_independent_evaluation(digits):
    recorded = json.loads((ROOT / 'models' / 'digits.metrics.json').read_text())['demo']
    metrics = digits[1].metrics
    # Another release of OpenCV decoded and resized the images, so single grey levels differ.
    assert metrics.figures['mAP50'] == pytest.approx(recorded['mAP50'], abs=0.002)
    assert metrics.figures['mAP'] == pytest.approx(recorded['mAP50_95'], abs=0.002)


def test_evaluation_with_annotations_keeps_the_detections_above_the_nodes_threshold(digits):
    dataset, model, pipeline = digits
    few = Dataset(dataset.images[:5])
    direct = evaluate_model('again', pipeline, few, None, progress=ignore_progress)
    for one, other in zip(direct.detections, model.detections[:5], strict=True):
        assert len(one) > 0
        assert np.array_equal(one.xyxy, other.xyxy)
        assert np.array_equal(one.scores, other.scores)
        assert np.array_equal(one.class_ids, other.class_ids)


def test_agreement_is_none_between_models_of_different_classes(digits):
    dataset, model, _ = digits
    few = Dataset(dataset.images[:1])
    other = evaluate_model('other', FixedModel(), few, None, progress=ignore_progress)
    assert accuracy_report([model, other], few, Thresholds()).agreements == {'other': None}


def test_agreement_matches_classes_by_name(digits):
    dataset, model, _ = digits
    few = Dataset(dataset.images[:5])
    last = len(model.class_names) - 1
    model = replace(model, detections=model.detections[:5])
    turned = [Detections(one.xyxy, one.scores, last - one.class_ids) for one in model.detections]
    other = replace(model, name='other', class_names=model.class_names[::-1], detections=turned)
    agreement = accuracy_report([model, other], few, Thresholds()).agreements['other']
    assert (agreement.overall.f1, agreement.overall.mean_iou) == (1, pytest.approx(1))
    assert agreement.overall.matched > 20


class FixedModel(WrittenModel):
    def __init__(self):
        super().__init__({}, ('cow',))

    def enqueue(self, slot, frames, thresholds):
        self._waiting = SimpleNamespace(data=[0]), *thresholds

    def collect(self, slot):
        self.answers = {0: Detections.empty()}
        return super().collect(slot)
