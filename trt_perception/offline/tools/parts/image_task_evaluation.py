# SPDX-License-Identifier: Apache-2.0
"""The part of evaluate_engine for models that describe the whole image."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trt_perception.errors import ConfigError
from trt_perception.files.atomic_files import write_json
from trt_perception.files.plain_text import escape_controls
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.tasks.classify import Classify
from trt_perception.offline.evaluation.image_tasks.compare import compare_image_models
from trt_perception.offline.evaluation.image_tasks.labels import LabelledImage, find_labels
from trt_perception.offline.evaluation.report.image_task_page import (
    MAX_RESULT_IMAGES,
    image_task_page,
)
from trt_perception.offline.evaluation.report.verdicts import read_verdicts, verdicts_dict
from trt_perception.offline.evaluation.report.worst_results import WorstResults
from trt_perception.offline.tools.parts.command_line import ResultSaver, progress_bar
from trt_perception.offline.tools.parts.evaluation_text import (
    image_report_text,
    print_excess_losses,
)
from trt_perception.offline.tools.parts.model_arguments import (
    check_object_options,
    values_from_options,
)
from trt_perception.pipelines.pipeline import Pipeline

_OBJECT_OPTIONS: Final = (
    'allow_subset',
    'boxes_only',
    'oks_sigma',
    'plot',
    'results',
    'worst',
)


def label_images(
    images: Sequence[Path],
    specs: Sequence[ModelSpec],
    class_map: Mapping[str, str | None],
    options: argparse.Namespace,
) -> list[LabelledImage] | None:
    """Find the labels of the images, and check the options for the task.

    Args:
        class_map: see ``folder_labels``.

    Returns:
        The images with labels, or all images without labels. None if all models find objects.

    Raises:
        ConfigError: an option has no effect on the task, labels are missing, or there are neither
            labels nor a second model.
    """
    spec = next((one for one in specs if not one.task.finds_objects), None)
    if spec is None:
        return None
    check_object_options(values_from_options(options, ''), spec.task)
    is_classifier = isinstance(spec.task, Classify)
    for name in (*_OBJECT_OPTIONS, 'allow_missing' if is_classifier else 'class_map'):
        if getattr(options, name):
            raise ConfigError(
                f'--{name.replace("_", "-")}',
                f'has no effect on models with task {spec.task.name}',
                fix='leave this option out',
            )
    labelled = find_labels(
        images,
        options.images,
        options.annotations,
        spec.task,
        spec.class_names,
        class_map,
        allow_missing=options.allow_missing,
        needs_class_folders=len(options.models) == 1,
    )
    if labelled[0].label is None and len(options.models) == 1:
        labels = '--images with a folder for each class' if is_classifier else '--annotations'
        raise ConfigError(
            'MODEL',
            'one model without labels has nothing to compare its results with',
            fix=f'give labels ({labels}), or a second model',
        )
    return labelled


def evaluate_image_models(
    open_models: Mapping[str, Callable[[], Pipeline]],
    images: Sequence[LabelledImage],
    class_map: Mapping[str, str | None],
    facts: Mapping[str, Any],
    options: argparse.Namespace,
) -> int:
    """Compare models, print the figures, write the file of --json, and return the exit code.

    Args:
        open_models: maps the name of each model to a function that opens its pipeline.
        images: the result of ``label_images``.
        class_map: see ``folder_labels``.

    Raises:
        TrtPerceptionError: see ``compare_image_models``.
    """
    with contextlib.ExitStack() as stack, progress_bar(unit='img') as progress:
        pipelines = {
            name: stack.enter_context(contextlib.closing(open_model()))
            for name, open_model in open_models.items()
        }
        names = {name: pipeline.spec.class_names for name, pipeline in pipelines.items()}
        results = WorstResults(options.report_images or MAX_RESULT_IMAGES, names, class_map)
        on_image = results.add if options.report else None
        report = compare_image_models(pipelines, images, class_map, progress, on_image)
    text = image_report_text(report, all_classes=options.all_classes)
    print(escape_controls(text, None), flush=True)
    saver = ResultSaver('evaluate_engine')
    verdicts = read_verdicts(report, options.max_accuracy_drop)
    if options.json:
        content = {**facts, **report.as_dict(), **verdicts_dict(verdicts)}
        saver.save(options.json, write_json, content, 2)
    if options.report:
        page = image_task_page(report, results, verdicts, facts, options.report_images)
        saver.save(options.report, page.write)
    return int(saver.failed or print_excess_losses(verdicts))
