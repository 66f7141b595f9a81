# SPDX-License-Identifier: Apache-2.0
"""Runs models that describe the whole image on the same images, and compares them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ConfigError
from trt_perception.images.frame import Frame, frame_from_bgr
from trt_perception.model.tasks.task import TaskResult
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.evaluation.image_tasks.agreement import ImageAgreement, image_agreement
from trt_perception.offline.evaluation.image_tasks.labels import LabelledImage
from trt_perception.offline.evaluation.image_tasks.measures import IMAGE_MEASURES, ImageMeasure
from trt_perception.offline.evaluation.offline_detection import (
    ImageProgress,
    Latency,
    detect_batch,
    read_ahead,
)
from trt_perception.pipelines.pipeline import Pipeline, split_into_batches

#: Called with an image, its pixels (uint8 (height, width, 3), BGR), its label, and the results of
#: the models by name, the reference first.
ImageResults = Callable[
    [
        LabelledImage,
        npt.NDArray[np.uint8],
        str | npt.NDArray[Any] | None,
        Mapping[str, TaskResult],
    ],
    None,
]


@dataclass(frozen=True)
class ImageModelAccuracy:
    """Accuracy of one model.

    Attributes:
        figures: figures by name; empty without labels. A figure without matching
            labels is None.
        class_figures: the main figure of each class; empty without labels.
        agreement: agreement with the first model. None for the first model, and if the class names
            differ.
    """

    name: str
    figures: Mapping[str, float | None]
    class_figures: Mapping[str, float | None]
    agreement: ImageAgreement | None
    latency: Latency


@dataclass(frozen=True)
class ImageTaskReport:
    """Results of several models side by side.

    Attributes:
        models: results of each model, the reference first.
    """

    task: str
    models: tuple[ImageModelAccuracy, ...]
    images: int

    @property
    def main_figure(self) -> str:
        """Name of the figure that decides whether a model is accurate enough."""
        return IMAGE_MEASURES[self.task].main_figure

    def accuracy_drop(self, name: str) -> float:
        """Return the loss of accuracy relative to the reference, for the check of a build.

        With labels, the loss is the drop of the main figure, negative if it rose. Otherwise, the
        loss is 1 - agreement.
        """
        model = next(one for one in self.models if one.name == name)
        before, after = (one.figures.get(self.main_figure) for one in (self.models[0], model))
        if before is not None and after is not None:
            return before - after
        return 1 - model.agreement.mean if model.agreement else 0.0

    def as_dict(self, *, classes: bool = True) -> dict[str, Any]:
        """Return the report as a JSON object.

        Args:
            classes: whether to include the figures of each class.
        """
        return {
            'reference': self.models[0].name,
            'task': self.task,
            'images': self.images,
            'models': {
                model.name: {
                    'metrics': dict(model.figures) or None,
                    **({'classes': dict(model.class_figures) or None} if classes else {}),
                    'agreement': model.agreement and model.agreement.as_dict(),
                    'latency_ms': model.latency.as_dict(),
                    'batch': model.latency.batch,
                }
                for model in self.models
            },
        }


@dataclass
class _ModelRun:
    """One model in a comparison, and its measurements so far."""

    name: str
    pipeline: Pipeline
    measure: ImageMeasure
    is_comparable: bool
    seconds: list[float] = field(default_factory=list)
    agreements: list[float] = field(default_factory=list)

    def results(self, frames: Sequence[Frame]) -> list[TaskResult]:
        """Run the model on frames in its own batches."""
        found: list[TaskResult] = []
        for batch in split_into_batches(frames, self.pipeline.batch):
            if not self.seconds:  # the first run also allocates memory, so it must not be timed
                detect_batch(self.pipeline, batch, Thresholds())
            started = time.perf_counter()
            found += detect_batch(self.pipeline, batch, Thresholds())
            self.seconds.append((time.perf_counter() - started) / len(batch))
        return found

    def accuracy(self, *, has_labels: bool) -> ImageModelAccuracy:
        return ImageModelAccuracy(
            self.name,
            self.measure.figures() if has_labels else {},
            self.measure.class_figures() if has_labels else {},
            ImageAgreement.of_images(self.agreements) if self.agreements else None,
            Latency.of_seconds(self.seconds, self.pipeline.batch),
        )


def compare_image_models(
    models: Mapping[str, Pipeline],
    images: Sequence[LabelledImage],
    class_map: Mapping[str, str | None],
    progress: ImageProgress,
    on_image: ImageResults | None = None,
) -> ImageTaskReport:
    """Run models on the same images, measure each with the labels, and compare it with the first.

    All models run on an image before the next image, because maps of many images would fill the
    memory.

    Args:
        models: maps the name of a model to its pipeline, with no frames in flight. The tasks
            describe the whole image. The first model is the reference.
        images: at least one image; all have labels, or none.
        class_map: see ``folder_labels``.
        progress: called with the numbers of finished images and of all images; an exception of
            this function ends the run.
        on_image: called with each image, its pixels, its label and the results of all models.

    Raises:
        ConfigError: the tasks differ, or a label does not fit its image or the model.
        ImageError: an image or label cannot be read.
        OutputError: the model's outputs for an image are invalid.
    """
    (first, reference), *_ = models.items()
    task = reference.spec.task
    for name, pipeline in models.items():
        if pipeline.spec.task.name != task.name:
            raise ConfigError(
                f'{name} and {first}',
                f'the tasks {pipeline.spec.task} and {task}',
                expected='models of one task',
                fix='measure each model separately',
            )
    names = reference.spec.class_names
    measure = IMAGE_MEASURES[task.name]
    runs = [
        _ModelRun(
            name,
            pipeline,
            measure(pipeline.spec.class_names, class_map),
            pipeline.spec.class_names == names,
        )
        for name, pipeline in models.items()
    ]
    done = 0
    progress(0, len(images))
    batch = max(pipeline.batch for pipeline in models.values())
    for chunk in split_into_batches(read_ahead([(one.path, None) for one in images]), batch):
        _measure_images([(images[index], bgr) for index, bgr in chunk], runs, on_image)
        done += len(chunk)
        progress(done, len(images))
    has_labels = images[0].label is not None
    accuracies = tuple(run.accuracy(has_labels=has_labels) for run in runs)
    return ImageTaskReport(task.name, accuracies, len(images))


def _measure_images(
    chunk: Sequence[tuple[LabelledImage, npt.NDArray[np.uint8]]],
    runs: Sequence[_ModelRun],
    on_image: ImageResults | None,
) -> None:
    """Run all models on some images, and add the results to the measures."""
    frames = [frame_from_bgr(bgr) for _, bgr in chunk]
    labels = [
        image.read_label((frame.width, frame.height))
        for (image, _), frame in zip(chunk, frames, strict=True)
    ]
    found: dict[str, list[TaskResult]] = {}
    for run in runs:
        found[run.name] = run.results(frames)
        for result, label, (image, _) in zip(found[run.name], labels, chunk, strict=True):
            if label is None:
                continue
            try:
                run.measure.add(result, label)
            except ConfigError as error:
                subject = f'{error.subject} of {image.path}'
                raise ConfigError(
                    subject, error.found, expected=error.expected, fix=error.fix
                ) from error
        if run is not runs[0] and run.is_comparable:
            run.agreements += map(image_agreement, found[runs[0].name], found[run.name])
    if on_image is not None:
        for index, ((image, bgr), label) in enumerate(zip(chunk, labels, strict=True)):
            on_image(image, bgr, label, {name: each[index] for name, each in found.items()})
