"""The tables that evaluate_engine prints."""

import pytest

from trt_perception.evaluation.compare import AccuracyReport, ModelAccuracy
from trt_perception.evaluation.metrics.average_precision import ClassMetrics, Metrics
from trt_perception.evaluation.metrics.mistakes import Mistakes
from trt_perception.evaluation.run import Latency
from trt_perception.parameters.frame import Thresholds
from trt_perception.tools.evaluation_text import report_text


def model(name, m_ap50, classes):
    """Return a model whose categories have AP 0.00, 0.01, 0.02 …"""
    metrics = Metrics(
        images=1,
        objects=7,
        figures={
            'mAP': 0.5,
            'mAP50': m_ap50,
            'mAP75': None,
            'mAP_small': None,
            'mAP_medium': 0.25,
            'mAP_large': None,
            'AR100': 0.625,
        },
        classes={f'class {n:02d}': ClassMetrics(3, 4, n / 100, 0.9) for n in classes},
        recalls=None,
        precisions50={},
    )
    mistakes = Mistakes(3, 1, 0, 0, (('cat', 'dog', 1),))
    return ModelAccuracy(name, ('a',), Latency(1.0, 2.0, 3.25), [], metrics, [], mistakes, [])


def lines(*models, **options):
    agreements = {other.name: None for other in models[1:]}
    report = AccuracyReport(models, agreements, 12, 'truth.json', Thresholds())
    return [line.split() for line in report_text(report, **options).splitlines()]


def test_one_model():
    found = lines(model('a.onnx', 0.75, range(2)))
    assert found[0] == ['12', 'images,', '7', 'objects,', 'truth.json']
    assert ['a.onnx', '0.500', '0.750', '-', '-', '0.250', '-', '0.625'] in found
    assert ['a.onnx', '0.750', '0.750', '3', '1', '0', '0'] in found
    assert ['a.onnx:', 'cat', 'taken', 'for', 'dog', '1x'] in found
    assert ['class', '01', '3', '0.010', '0.900'] in found
    assert ['a.onnx', '1.00', '2.00', '3.25'] in found
    assert not [line for line in found if 'difference' in line or 'against' in line]


def test_two_models():
    found = lines(model('a.onnx', 0.75, range(2)), model('b.onnx', 0.7499, range(2)))
    (difference,) = [line for line in found if line[:1] == ['difference']]
    assert difference == ['difference', '0.0000', '-0.0001', '0.0000', '0.0000']
    assert ['b.onnx', 'other', 'class', 'names'] in found


def test_a_difference_that_cannot_be_seen_has_no_sign():
    found = lines(model('a.onnx', 0.75, range(1)), model('b.onnx', 0.74999, range(1)))
    assert ['difference', '0.0000', '0.0000', '0.0000', '0.0000'] in found


def test_means_of_other_categories_have_no_difference():
    found = lines(model('a.onnx', 0.75, range(2)), model('b.onnx', 0.7499, range(1)))
    assert ['class', '01', '3', '0.010', '-'] in found  # b leaves it out
    assert ['of', 'other', 'categories'] in found
    assert not [line for line in found if 'difference' in line]


@pytest.mark.parametrize('all_classes', [True, False])
def test_the_worst_of_many_categories(all_classes):
    found = lines(model('a.onnx', 0.75, range(30)[::-1]), all_classes=all_classes)
    shown = [int(line[1]) for line in found if line[:1] == ['class']]
    assert shown == (list(range(30)) if all_classes else list(range(20)))[::-1]
    assert (['the', '20', 'worst', 'of', '30'] in [line[:5] for line in found]) != all_classes


def test_differences_have_a_sign():
    rise = lines(model('a.onnx', 0.5, range(1)), model('b.onnx', 0.625, range(1)))
    assert ['difference', '0.0000', '+0.1250', '0.0000', '0.0000'] in rise
    fall = lines(model('a.onnx', 0.5, range(1)), model('b.onnx', 0.25, range(1)))
    assert ['difference', '0.0000', '-0.2500', '0.0000', '0.0000'] in fall
