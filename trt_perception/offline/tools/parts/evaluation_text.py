# SPDX-License-Identifier: Apache-2.0
"""Formats an accuracy report as text tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from trt_perception.files.plain_text import format_table
from trt_perception.offline.evaluation.compare import AccuracyReport, ModelAccuracy
from trt_perception.offline.evaluation.image_tasks.agreement import AGREEMENT_TITLES
from trt_perception.offline.evaluation.image_tasks.compare import (
    ImageModelAccuracy,
    ImageTaskReport,
)
from trt_perception.offline.evaluation.metrics.measure import BOXES
from trt_perception.offline.evaluation.report.verdicts import Verdict, verdict_text
from trt_perception.offline.tools.parts.command_line import print_message

_MAX_CLASSES: Final = 20
_MAX_CONFUSIONS: Final = 5


def report_text(report: AccuracyReport, *, all_classes: bool = False) -> str:
    """Return all tables of a report. The reference model has the first row.

    Args:
        report: results of at least one model.
        all_classes: whether to show all categories or only the 20 worst.
    """
    parts = [_heading(report)]
    if report.annotations is not None:
        parts.append(_metrics_table(report))
        if report.models[0].box_metrics is not None:
            parts.append(_metrics_table(_with_box_metrics(report)))
        parts.append(_threshold_table(report))
        if report.measure.has_angles:
            parts.append(_angle_table(report))
        parts.append(_class_table(report, all_classes))
    if len(report.models) > 1:
        parts.append(_agreement_table(report))
    parts.append(_latency_table(report.models))
    return '\n\n'.join(filter(None, parts))


def image_report_text(report: ImageTaskReport, *, all_classes: bool = False) -> str:
    """Return all tables of a report about models that describe the whole image.

    Args:
        report: results of at least one model.
        all_classes: whether to show all classes or only the 20 worst.
    """
    first, *others = report.models
    has_labels = bool(first.figures)
    parts = [f'{report.images} images {"with" if has_labels else "without"} labels']
    if has_labels:
        rows = [['', *first.figures]]
        for model in report.models:
            rows.append([model.name, *map(_format_figure, model.figures.values())])
            if model is not first:
                pairs = zip(model.figures.values(), first.figures.values(), strict=True)
                rows.append(['  difference', *(_format_change(*pair) for pair in pairs)])
        parts += [format_table(rows), _image_class_table(report, all_classes)]
    if others:
        heads = [f'against {first.name}: {AGREEMENT_TITLES[report.task]}', 'mean', 'lowest image']
        rows = [heads]
        for model in others:
            one = model.agreement
            values = [f'{one.mean:.4f}', f'{one.lowest:.4f}'] if one else ['other class names', '']
            rows.append([model.name, *values])
        parts.append(format_table(rows))
    parts.append(_latency_table(report.models))
    return '\n\n'.join(filter(None, parts))


def print_excess_losses(verdicts: Mapping[str, Verdict]) -> bool:
    """Print a message for each model that is not known to be within the limit of its loss.

    Returns:
        Whether there is such a model. Without a limit, there is none.
    """
    failed = {
        name: verdict
        for name, verdict in verdicts.items()
        if verdict.limit is not None and not verdict.is_within
    }
    for name, verdict in failed.items():
        print_message('evaluate_engine', f'{name}: loss of accuracy: {verdict_text(verdict)}')
    return bool(failed)


def _image_class_table(report: ImageTaskReport, all_classes: bool) -> str:
    """Return the main figure of each class; empty if there is none."""
    first = {
        name: value for name, value in report.models[0].class_figures.items() if value is not None
    }
    if not first:
        return ''
    shown = sorted(first, key=lambda name: first[name])
    if not all_classes:
        shown = shown[:_MAX_CLASSES]
    rows = [['IoU of class', *(model.name for model in report.models)]]
    for name in first:
        if name in shown:
            figures = (model.class_figures.get(name) for model in report.models)
            rows.append([name, *map(_format_figure, figures)])
    text = format_table(rows)
    if len(shown) < len(first):
        text += f'\nthe {len(shown)} worst of {len(first)} classes (all: --all-classes)'
    return text


def _heading(report: AccuracyReport) -> str:
    metrics = report.models[0].metrics
    if metrics is None:
        return f'{report.images} images without annotations'
    return f'{report.images} images, {metrics.objects} objects, {report.annotations}'


def _with_box_metrics(report: AccuracyReport) -> AccuracyReport:
    """Return a copy of the report with the box metrics in place of the task's metrics."""
    models = tuple(
        replace(one, metrics=one.box_metrics, box_metrics=None) for one in report.models
    )
    return replace(report, models=models)


def _angle_table(report: AccuracyReport) -> str:
    errors = [model.mistakes.angle_error for model in report.models if model.mistakes]
    rows = [
        [model.name, *map(_format_figure, (error.median, error.p90) if error else (None, None))]
        for model, error in zip(report.models, errors, strict=True)
    ]
    return format_table([['angle error of correct detections, degrees', 'p50', 'p90'], *rows])


def _metrics_table(report: AccuracyReport) -> str:
    metrics = report.models[0].metrics
    most = list(metrics.figures)[-1] if metrics else ''
    title = '' if metrics is None or report.measure == BOXES else metrics.measure.title
    head = [title, 'mAP', 'mAP50', 'mAP75', 'small', 'medium', 'large', most]
    first = _figure_values(report.models[0])
    rows = []
    for model in report.models:
        figures = _figure_values(model)
        rows.append([model.name, *map(_format_figure, figures)])
        if _category_names(model) != _category_names(report.models[0]):  # means are not comparable
            rows.append(['  other categories', *[''] * len(figures)])
        elif model is not report.models[0]:
            rows.append(['  difference', *map(_format_change, figures, first)])
    return format_table([head, *rows])


def _category_names(model: ModelAccuracy) -> set[str]:
    return set(model.metrics.classes) if model.metrics else set()


def _figure_values(model: ModelAccuracy) -> list[float | None]:
    return list(model.metrics.figures.values()) if model.metrics else []


def _threshold_table(report: AccuracyReport) -> str:
    """Return the counts of correct and wrong detections at the thresholds of the node."""
    head = [
        f'score > {report.thresholds.confidence_threshold:g}',
        'precision',
        'recall',
        'right',
        'wrong class',
        'false',
        'missed',
    ]
    rows = []
    lines = []
    for model in report.models:
        mistakes = model.mistakes
        assert mistakes is not None
        counts = mistakes.right, mistakes.wrong_class, mistakes.false, mistakes.missed
        shares = _format_figure(mistakes.precision), _format_figure(mistakes.recall)
        rows.append([model.name, *shares, *map(str, counts)])
        confusions = [
            f'{one} detected as {other}: {count} time{"s" * (count != 1)}'
            for one, other, count in mistakes.confusions[:_MAX_CONFUSIONS]
        ]
        if confusions:
            lines.append(f'{model.name}: {", ".join(confusions)}')
    return '\n'.join([format_table([head, *rows]), *lines])


def _class_table(report: AccuracyReport, all_classes: bool) -> str:
    tables = [model.metrics.classes for model in report.models if model.metrics]
    names = [name for name, one in tables[0].items() if one.ap is not None]
    shown = names
    if not all_classes and len(names) > _MAX_CLASSES:
        worst = sorted(names, key=lambda name: tables[0][name].ap or 0)[:_MAX_CLASSES]
        shown = [name for name in names if name in worst]
    if len(tables) == 1:
        head = ['category', 'objects', 'AP', 'AP50']
    else:
        head = ['category: AP', 'objects', *(model.name for model in report.models)]
    rows = []
    for name in shown:
        found = [table.get(name) for table in tables]  # a model may lack a category
        figures = [one.ap if one else None for one in found]
        if len(tables) == 1:
            figures.append(tables[0][name].ap50)
        rows.append([name, str(tables[0][name].objects), *map(_format_figure, figures)])
    text = format_table([head, *rows])
    if len(shown) < len(names):
        text += f'\nthe {len(shown)} worst of {len(names)} categories (all: --all-classes)'
    return text


def _agreement_table(report: AccuracyReport) -> str:
    head = [
        f'against {report.reference}',
        'F1',
        f'mean {report.measure.similarity}',
        'detections',
        'reference detections',
        'pairs',
        'max score diff',
    ]
    rows = []
    for name, agreement in report.agreements.items():
        if agreement is None:
            rows.append([name, 'other class names', *[''] * 5])
            continue
        one = agreement.overall
        counts = one.candidate, one.reference, one.matched
        rows.append(
            [
                name,
                _format_figure(one.f1, 4),
                _format_figure(one.mean_iou, 4),
                *map(str, counts),
                _format_figure(agreement.max_score_difference, 4),
            ]
        )
    return format_table([head, *rows])


def _latency_table(models: Sequence[ModelAccuracy | ImageModelAccuracy]) -> str:
    rows = [
        [
            model.name + (f', {n} at once' if (n := model.latency.batch) > 1 else ''),
            *(f'{value:.2f}' for value in model.latency.as_dict().values()),
        ]
        for model in models
    ]
    return format_table([['latency, ms', 'mean', 'p50', 'p99'], *rows])


def _format_figure(value: float | None, digits: int = 3) -> str:
    return '-' if value is None else f'{value:.{digits}f}'


def _format_change(value: float | None, first: float | None) -> str:
    if value is None or first is None:
        return ''
    # One digit more than in figures, because 0.000 between different figures looks wrong.
    text = f'{value - first:+.4f}'
    return '0.0000' if float(text) == 0 else text
