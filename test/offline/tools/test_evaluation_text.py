# SPDX-License-Identifier: Apache-2.0
"""Tests of the tables that evaluate_engine prints."""

from support import golden
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.evaluation.compare import AccuracyReport, ModelAccuracy
from trt_perception.offline.evaluation.metrics.agreement import Agreement, ClassAgreement
from trt_perception.offline.evaluation.metrics.average_precision import ClassMetrics, Metrics
from trt_perception.offline.evaluation.metrics.mistakes import DetectionCounts
from trt_perception.offline.evaluation.offline_detection import Latency
from trt_perception.offline.tools.parts.evaluation_text import report_text


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
    mistakes = DetectionCounts(3, 1, 0, 0, (('cat', 'dog', 1),))
    return ModelAccuracy(name, ('a',), Latency(1.0, 2.0, 3.25), [], metrics, [], mistakes, [])


def text(*models, agreement=None, **options):
    agreements = {other.name: agreement for other in models[1:]}
    report = AccuracyReport(models, agreements, 12, 'truth.json', Thresholds())
    return report_text(report, **options)


def test_reports_have_the_recorded_text():
    first = model('a.onnx', 0.75, range(2))
    many = model('a.onnx', 0.75, range(30)[::-1])
    agreement = Agreement(ClassAgreement(11, 9, 8, 0.9375), {}, 0.0625)
    parts = {
        'one model': text(first),
        'two models': text(first, model('b.onnx', 0.7499, range(2))),
        'detections of both models': text(
            first, model('b.onnx', 0.75, range(2)), agreement=agreement
        ),
        'a difference that cannot be seen': text(first, model('b.onnx', 0.74999, range(2))),
        'a rise': text(first, model('b.onnx', 0.875, range(2))),
        'other categories': text(first, model('b.onnx', 0.7499, range(1))),
        'the worst of many categories': text(many),
    }
    golden.check('offline/tools/reports.txt', '\n\n'.join(f'# {k}\n{v}' for k, v in parts.items()))


def test_all_categories_option_shows_each_category():
    lines = text(model('a.onnx', 0.75, range(30)[::-1]), all_classes=True).splitlines()
    shown = [int(line.split()[1]) for line in lines if line.startswith('class ')]
    assert shown == list(range(30))[::-1]
