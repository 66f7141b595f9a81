# SPDX-License-Identifier: Apache-2.0
"""Measures several models on the same images, and compares each model with the first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from trt_perception.errors import ConfigError
from trt_perception.images.detections import Detections
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.evaluation.coco.classes import ClassMap
from trt_perception.offline.evaluation.coco.results import coco_rows
from trt_perception.offline.evaluation.dataset import Dataset
from trt_perception.offline.evaluation.metrics.agreement import (
    Agreement,
    compare_detections,
    filter_by_score,
)
from trt_perception.offline.evaluation.metrics.average_precision import Metrics, compute_metrics
from trt_perception.offline.evaluation.metrics.measure import BOXES, Measure
from trt_perception.offline.evaluation.metrics.mistakes import (
    DetectionCounts,
    ImageMatches,
    count_mistakes,
    match_detections,
)
from trt_perception.offline.evaluation.metrics.task_measures import common_measure
from trt_perception.offline.evaluation.offline_detection import (
    MIN_SCORE,
    ImageProgress,
    Latency,
    detect_in_files,
)
from trt_perception.pipelines.pipeline import Pipeline

#: Called with the name of the model, the number of finished images and the number of all images.
ModelProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ModelAccuracy:
    """Accuracy of one model on a data set.

    Attributes:
        class_names: names of the model's classes, in the model's order.
        detections: detections at the thresholds of the node, one entry for each image.
        all_detections: detections above ``MIN_SCORE``; empty without annotations.
        classes: categories of the model's classes; None without annotations.
        metrics: COCO metrics of the task's shapes; None without annotations.
        image_matches: detections of each image matched with its objects; empty without
            annotations.
        mistakes: counts of correct and wrong detections; None without annotations.
        rows: all detections in COCO's results format; empty without annotations.
        box_metrics: COCO metrics of the boxes, if ``metrics`` measures other shapes; else None.
    """

    name: str
    class_names: tuple[str, ...]
    latency: Latency
    detections: Sequence[Detections] = field(repr=False)
    metrics: Metrics | None
    image_matches: Sequence[ImageMatches] = field(repr=False)
    mistakes: DetectionCounts | None
    rows: Sequence[Mapping[str, Any]] = field(repr=False)
    box_metrics: Metrics | None = None
    all_detections: Sequence[Detections] = field(default=(), repr=False)
    classes: ClassMap | None = None


@dataclass(frozen=True)
class AccuracyReport:
    """Results of several models side by side.

    Attributes:
        models: results of each model, the reference first.
        agreements: maps the name of each other model to its agreement with the reference. None
            if their class names differ.
        annotations: name of the annotation file; None without annotations.
        thresholds: thresholds of the compared detections. mAP uses all scores above 0.001.
    """

    models: tuple[ModelAccuracy, ...]
    agreements: Mapping[str, Agreement | None]
    images: int
    annotations: str | None
    thresholds: Thresholds
    measure: Measure = BOXES

    @property
    def reference(self) -> str:
        """Name of the first model, with which the others are compared."""
        return self.models[0].name

    def difference(self, name: str) -> dict[str, float | None]:
        """Return the differences of mAP, mAP50 and mAP75: the model minus the reference.

        The result is empty without annotations. A value is None if either model lacks the figure.
        """
        ours = next(model.metrics for model in self.models if model.name == name)
        first = self.models[0].metrics
        if ours is None or first is None:
            return {}
        difference: dict[str, float | None] = {}
        for key in ('mAP', 'mAP50', 'mAP75'):
            one, other = ours.figures[key], first.figures[key]
            difference[key] = None if one is None or other is None else one - other
        return difference

    def accuracy_drop(self, name: str) -> float:
        """Return the loss of accuracy relative to the reference, for the check of a build.

        With annotations, the loss is the drop of mAP50, negative if mAP50 rose. Otherwise, the
        loss is 1 - F1 of the agreement, and 0 if neither model detected anything.
        """
        m_ap50 = self.difference(name).get('mAP50')
        if m_ap50 is not None:
            return -m_ap50
        agreement = self.agreements.get(name)
        f1 = agreement.overall.f1 if agreement else None
        return 0.0 if f1 is None else 1 - f1

    def as_dict(self, *, classes: bool = True) -> dict[str, Any]:
        """Return the report as a JSON object.

        Args:
            classes: whether to include the figures of each class.
        """
        models = {}
        for model in self.models:
            agreement = self.agreements.get(model.name)
            entry: dict[str, Any] = {
                'metrics': model.metrics.as_dict() if model.metrics else None,
                **({'box_metrics': model.box_metrics.as_dict()} if model.box_metrics else {}),
                'at_threshold': model.mistakes.as_dict() if model.mistakes else None,
                'difference': self.difference(model.name) or None,
                'agreement': agreement.as_dict() if agreement else None,
                'detections': sum(map(len, model.detections)),
                'latency_ms': model.latency.as_dict(),
                'batch': model.latency.batch,
            }
            if not classes:
                for key in ('metrics', 'box_metrics', 'agreement'):
                    (entry.get(key) or {}).pop('classes', None)
            if model is self.models[0]:
                del entry['difference'], entry['agreement']
            else:
                entry['drop'] = self.accuracy_drop(model.name)
            models[model.name] = entry
        return {
            'reference': self.reference,
            'images': self.images,
            'annotations': self.annotations,
            'confidence_threshold': self.thresholds.confidence_threshold,
            'iou_threshold': self.thresholds.iou_threshold,
            'compared': self.measure.kind,
            'models': models,
        }


def compare_models(
    models: Mapping[str, Pipeline],
    images: Sequence[Path],
    annotations: Path | None = None,
    *,
    progress: ModelProgress,
    thresholds: Thresholds = Thresholds(),  # noqa: B008  frozen
) -> AccuracyReport:
    """Run models on the same images and compare each model with the first.

    Args:
        models: maps a model's name to its pipeline, opened with ``open_for_evaluation``. The
            first model is the reference, often the FP32 model.
        images: at least one image file. Images that the annotations do not list are skipped.
        annotations: COCO annotation file; None compares detections with the reference only.
        progress: called after each step; an exception of this function ends the comparison.

    Raises:
        ConfigError: the images do not fit the annotations, or class names differ.
        ImageError: an image cannot be read.
    """
    first = next(iter(models))
    for name, pipeline in models.items():
        if pipeline.spec.class_names != models[first].spec.class_names:
            raise ConfigError(
                f'{name} and {first}',
                'different class names, so their detections cannot be compared',
                fix='build both engines from one model',
            )
    # The accuracy check of a build uses only some of the annotated images.
    dataset = Dataset.read(images, annotations, allow_missing=True)
    measure = common_measure({name: one.spec.task for name, one in models.items()})
    classes = dataset.class_map(models[first].spec.class_names)
    dataset = dataset.with_shapes(measure, classes.categories if classes else ())
    results = [
        evaluate_model(
            name,
            pipeline,
            dataset,
            classes,
            progress=functools.partial(progress, name),
            thresholds=thresholds,
        )
        for name, pipeline in models.items()
    ]
    return accuracy_report(results, dataset, thresholds)


def evaluate_model(
    name: str,
    pipeline: Pipeline,
    dataset: Dataset,
    classes: ClassMap | None,
    *,
    progress: ImageProgress,
    thresholds: Thresholds = Thresholds(),  # noqa: B008  frozen
) -> ModelAccuracy:
    """Run one model on a data set and measure its accuracy.

    Args:
        pipeline: pipeline that ``open_for_evaluation`` opened, with no frames in flight.
        classes: categories of the model's classes, from ``dataset.class_map``.
        progress: called after each batch.

    Raises:
        ImageError: an image cannot be read.
    """
    low = thresholds if classes is None else replace(thresholds, confidence_threshold=MIN_SCORE)
    run = detect_in_files(
        pipeline,
        [(image.path, image.size_wh) for image in dataset.images],
        low,
        progress,
        dataset.measure,
    )
    confident = filter_by_score(run.detections, thresholds.confidence_threshold)
    if classes is None or dataset.annotations is None:
        names = pipeline.spec.class_names
        return ModelAccuracy(name, names, run.latency, confident, None, (), None, ())
    rows = [
        row
        for image, found in zip(dataset.images, run.detections, strict=True)
        for row in coco_rows(image.id, found, classes.category_ids)
    ]
    ids = {image.id for image in dataset.images}
    truths = [dataset.ground_truth(image) for image in dataset.images]
    errors = [
        match_detections(*pair, classes, dataset.measure)
        for pair in zip(confident, truths, strict=True)
    ]
    measured = [
        compute_metrics(dataset.annotations, ids, classes.categories, rows, kind)
        for kind in dict.fromkeys((dataset.measure, BOXES))
    ]
    return ModelAccuracy(
        name,
        pipeline.spec.class_names,
        run.latency,
        confident,
        measured[0],
        errors,
        count_mistakes(list(zip(errors, confident, truths, strict=True)), classes),
        rows,
        measured[1] if len(measured) > 1 else None,
        run.detections,
        classes,
    )


def accuracy_report(
    models: Sequence[ModelAccuracy],
    dataset: Dataset,
    thresholds: Thresholds,
) -> AccuracyReport:
    """Compare the results of models with the first model.

    Args:
        models: results of at least one model on the data set.
    """
    first = models[0]
    agreements = {
        model.name: compare_detections(
            first.detections,
            _renumber_classes(model, first.class_names),
            first.class_names,
            dataset.measure,
        )
        if sorted(model.class_names) == sorted(first.class_names)
        else None
        for model in models[1:]
    }
    truth = dataset.annotations.path.name if dataset.annotations else None
    count = len(dataset.images)
    return AccuracyReport(tuple(models), agreements, count, truth, thresholds, dataset.measure)


def _renumber_classes(model: ModelAccuracy, names: tuple[str, ...]) -> Sequence[Detections]:
    """Return a model's detections with the class ids of another model.

    Args:
        model: results with the same class names in any order.
        names: class names of the other model, in its order.
    """
    index = {name: place for place, name in enumerate(names)}
    ids = np.array([index[name] for name in model.class_names], np.int32)
    return [replace(one, class_ids=ids[one.class_ids]) for one in model.detections]
