# SPDX-License-Identifier: Apache-2.0
"""Compares the accuracy of the built model with the accuracy of the original."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trt_perception.errors import ConfigError, EngineError
from trt_perception.model.build_record import AccuracyRecord
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.task import Task
from trt_perception.offline.building.build_inputs import BuildInputs
from trt_perception.offline.building.report import BuildLog
from trt_perception.offline.building.steps.agreement_gate import (
    AgreementResult,
    ImageAgreementResult,
    ObjectAgreementResult,
)
from trt_perception.offline.evaluation.compare import AccuracyReport, compare_models
from trt_perception.offline.evaluation.dataset import Dataset
from trt_perception.offline.evaluation.image_tasks.compare import (
    ImageTaskReport,
    compare_image_models,
)
from trt_perception.offline.evaluation.image_tasks.labels import find_labels
from trt_perception.offline.evaluation.metrics.agreement import Agreement
from trt_perception.offline.evaluation.metrics.measure import BOXES
from trt_perception.offline.evaluation.metrics.task_measures import measure_of
from trt_perception.pipelines.pipeline import Pipeline

#: Name of the built model among the measured models.
BUILT_MODEL_NAME: Final = 'built'


def check_labels(
    images: Sequence[Path],
    annotations: Path | None,
    class_names: Sequence[str],
    task: Task = DETECT,
    source: str = '',
) -> None:
    """Check that images, labels, classes and task fit together, before any slow step.

    ``source`` is the value of --validate, which names the images.

    Raises:
        ConfigError: images, labels, classes and task do not fit together, or the labels are empty.
    """
    if not images:
        return
    if not task.finds_objects:
        find_labels(images, source, annotations, task, class_names, allow_missing=True)
        return
    dataset = Dataset.read(images, annotations, allow_missing=True)
    try:
        classes = dataset.class_map(class_names)
    except ConfigError as error:
        raise ConfigError(
            error.subject,
            error.found,
            expected=error.expected,
            fix='build_engine cannot map class names: give --class-names as in the annotations, '
            'or build without --annotations and measure with evaluate_engine',
        ) from error
    if classes is not None:
        dataset.with_shapes(measure_of(task), classes.categories)


def measure_accuracy(
    inputs: BuildInputs, models: Mapping[str, Pipeline], runtime: str, log: BuildLog
) -> tuple[AccuracyRecord | None, AgreementResult]:
    """Run the original and the built model on the images of --validate, and compare them.

    Args:
        models: the original by its description, then the built model by ``BUILT_MODEL_NAME``. The
            built model is the engine, or without a GPU the converted ONNX model.
        log: log of the build. Its report receives the figures.

    Returns:
        the record for the manifest (None if there are neither labels nor detections), and the
        agreement of both models.

    Raises:
        ConfigError: images and labels do not fit together, or are missing.
        EngineError: accuracy fell by more than --max-accuracy-drop, or cannot be measured.
        ImageError: an image cannot be read.
    """
    original, options = next(iter(models)), inputs.options
    if not models[original].spec.task.finds_objects:
        return _measure_image_task(inputs, models, runtime, log)
    report = compare_models(
        models,
        inputs.validation,
        options.annotations,
        progress=lambda name, done, total: log.progress(f'running {name}', done, total),
    )
    agreement = report.agreements[BUILT_MODEL_NAME]
    assert agreement is not None  # both models have the same class names
    images = report.images
    compared = ObjectAgreementResult(
        agreement=agreement,
        images=images,
        given=images,
        images_of='validation',
        runtime=runtime,
        original=original,
    )
    record = _accuracy_record(report, agreement, runtime)
    if record is not None:
        log.report.accuracy = _report_entry(record, report, compared)
        _check_drop(log.report.accuracy, options.max_accuracy_drop)
    elif options.max_accuracy_drop is not None:
        raise EngineError(
            '--max-accuracy-drop',
            f'neither {original} nor the built model finds objects on these '
            f'{images} images, so there is nothing to compare',
            fix='use images with objects of these classes',
        )
    return record, compared


def _measure_image_task(
    inputs: BuildInputs, models: Mapping[str, Pipeline], runtime: str, log: BuildLog
) -> tuple[AccuracyRecord, AgreementResult]:
    """Measure models that describe the whole image, as ``measure_accuracy`` explains."""
    (original, reference), _ = models.items()
    options, spec = inputs.options, reference.spec
    labelled = find_labels(
        inputs.validation,
        options.validate or '',
        options.annotations,
        spec.task,
        spec.class_names,
        allow_missing=True,
    )
    report = compare_image_models(
        models, labelled, {}, lambda done, total: log.progress('running both models', done, total)
    )
    first, built = report.models
    assert built.agreement is not None  # both models have the same class names
    images, figure = report.images, report.main_figure
    compared = ImageAgreementResult(
        agreement=built.agreement,
        task=spec.task.name,
        images=images,
        given=images,
        images_of='validation',
        runtime=runtime,
        original=original,
    )
    before, after = first.figures.get(figure), built.figures.get(figure)
    record = AccuracyRecord(images, 'agreement', 1.0, built.agreement.mean, runtime)
    if before is not None and after is not None:
        record = AccuracyRecord(images, figure, before, after, runtime)
    log.report.accuracy = _report_entry(record, report, compared)
    _check_drop(log.report.accuracy, options.max_accuracy_drop)
    return record, compared


def _report_entry(
    record: AccuracyRecord, report: AccuracyReport | ImageTaskReport, compared: AgreementResult
) -> dict[str, Any]:
    """Return the entry ``accuracy`` of the build report."""
    original = compared.original
    figures = f'{record.measure} {record.built:.4f}, {original} {record.reference:.4f}'
    if record.measure == 'agreement':
        figures = f'{record.built:.1%} {compared.what} with {original}'
    return {
        **vars(record),
        'drop': report.accuracy_drop(BUILT_MODEL_NAME),
        'summary': f'{figures}, on {record.images} images, through {record.runtime}',
        'details': report.as_dict(classes=False),
    }


def _check_drop(figures: Mapping[str, Any], most: float | None) -> None:
    """Raise an error if accuracy falls by more than ``most``."""
    if most is not None and figures['drop'] > most:
        raise EngineError(
            'accuracy',
            f'falls by {figures["drop"]:.4f}, more than --max-accuracy-drop {most}: '
            f'{figures["summary"]}',
            fix='keep sensitive layers in a wider type (--keep-fp32, --keep-float), calibrate '
            'with more images, or use fp16',
        )


def _accuracy_record(
    report: AccuracyReport, agreement: Agreement, runtime: str
) -> AccuracyRecord | None:
    first, second = (model.metrics for model in report.models)
    if first is None or second is None:
        share = agreement.overall.f1
        if share is None:
            return None
        return AccuracyRecord(report.images, 'agreement', 1.0, share, runtime)
    before, after = first.figures['mAP50'], second.figures['mAP50']
    if before is None or after is None:
        raise EngineError(
            'the annotations',
            'have no objects on these images, so mAP is undefined',
            fix='use annotations of these images',
        )
    measure = 'mAP50' if report.measure == BOXES else f'mAP50 of {report.measure.kind}'
    return AccuracyRecord(report.images, measure, before, after, runtime)
