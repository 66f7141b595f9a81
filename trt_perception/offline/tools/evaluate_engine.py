# SPDX-License-Identifier: Apache-2.0
"""Measures the accuracy of engines and ONNX models, and compares each model with the first."""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from trt_perception.errors import ConfigError, TrtPerceptionError
from trt_perception.files.atomic_files import make_folder, write_json
from trt_perception.files.plain_text import escape_controls, join_first_items, short_repr
from trt_perception.images.bag_images import bag_losses
from trt_perception.images.bag_options import add_bag_options, read_bag_options
from trt_perception.images.image_source import find_images
from trt_perception.model.files.model_file import ModelFile, read_model_file
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.tasks.detect import DETECT
from trt_perception.offline.evaluation.coco.classes import ClassMap, read_class_map
from trt_perception.offline.evaluation.compare import (
    AccuracyReport,
    ModelAccuracy,
    accuracy_report,
    evaluate_model,
)
from trt_perception.offline.evaluation.dataset import Dataset
from trt_perception.offline.evaluation.metrics.keypoints import OKS_SIGMA
from trt_perception.offline.evaluation.metrics.measure import Measure
from trt_perception.offline.evaluation.metrics.task_measures import common_measure
from trt_perception.offline.evaluation.offline_detection import open_for_evaluation
from trt_perception.offline.evaluation.report.accuracy_page import accuracy_page
from trt_perception.offline.evaluation.report.plot_files import check_plot
from trt_perception.offline.evaluation.report.plots import plot_accuracy
from trt_perception.offline.evaluation.report.verdicts import (
    Verdict,
    read_verdicts,
    verdicts_dict,
)
from trt_perception.offline.evaluation.report.worst_images import write_worst_images
from trt_perception.offline.tools.parts.arguments import (
    add_file_option,
    check_output_file,
    check_output_folder,
    integer_at_least,
    parse_path,
)
from trt_perception.offline.tools.parts.command_line import (
    ResultSaver,
    print_message,
    progress_bar,
    run_tool,
)
from trt_perception.offline.tools.parts.evaluation_text import print_excess_losses, report_text
from trt_perception.offline.tools.parts.image_task_evaluation import (
    evaluate_image_models,
    label_images,
)
from trt_perception.offline.tools.parts.model_arguments import (
    add_model_arguments,
    paths_by_name,
    share_input_size,
    suggest_tool_assignment,
    values_from_options,
)
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.open_pipeline import open_offline_pipeline
from trt_perception.pipelines.pipeline import Pipeline
from trt_perception.process.foreign_names import foreign_names
from trt_perception.process.option_parser import OptionParser

_HELP_END: Final = """\
examples:
  evaluate_engine yolo.engine --images val2017 --annotations instances_val2017.json
  evaluate_engine fp32.engine int8.engine --images val --annotations val.json \\
      --json accuracy.json --plot accuracy.png --worst mistakes
  evaluate_engine fp32.engine int8.engine --images val --annotations val.json \\
      --report report --max-accuracy-drop 0.01
  evaluate_engine model.onnx --images val --annotations val.json --allow-subset
  evaluate_engine fp32.engine fp16.engine --images photos
  evaluate_engine fp32.engine int8.engine --images drive --topic /front/image_raw --every 10

annotations:
  Classes and categories are matched by name, images by file_name. Masks, keypoints and oriented
  boxes need "segmentation", "keypoints" or "oriented_bbox". Without --annotations, the tool only
  compares each model with the first.

figures:
  mAP: computed by pycocotools as COCO defines it: IoU 0.50 to 0.95, the 100 best detections of
    each category per image, scores above 0.001.
  precision, recall, mistakes, agreement: of detections with a score above --confidence.
  F1: agreement with the first model, the reference. It is the share of both models' detections
    that form pairs of one class with an IoU of at least 0.5. "max score diff" is the largest
    difference of scores within a pair.
  latency: time of one image from preprocessing to boxes; for a batch, its time divided by its
    size. The host decodes boxes with a score above 0.001 for mAP, so use benchmark_engine to
    measure the latency of the node.

tasks:
  segment, pose, obb: two tables. The first one compares masks by the IoU of their pixels,
    keypoints by OKS (--oks-sigma), or oriented boxes by the IoU of the rotated rectangles. The
    second one has the upright boxes.
  classify: top1 and top5. --images has a folder for each class, with the name of the class;
    --class-map maps class names to other folders.
  semantic: mIoU over all pixels of all images, and the share of correct pixels. --annotations is a
    folder of PNG files with a class id in each pixel (8 bits); 255 is not measured.
  depth: AbsRel, and delta1, the share of pixels with a ratio below 1.25. --annotations is a
    folder of PNG files in millimetres (16 bits); 0 is not measured. Relative depth is first
    aligned: for each image, least squares fit its scale and shift to the inverse depth.
  For semantic and depth, the label of an image has the same path, with the suffix .png. Without
  labels, the last three tasks compare the best classes, or the relative difference of depth, with
  the first model. These tasks do not have the options --allow-subset, --boxes-only, --oks-sigma,
  --plot, --results and --worst.

--report writes a page for a browser: figures, curves, confusion matrix, and pictures of mistakes
at each threshold. It has at most 3 MB unless --report-images gives the number of pictures.

exit codes: 0 done, 1 failed or a loss above --max-accuracy-drop, 2 wrong usage, 130 interrupted.
"""


@dataclass(frozen=True)
class _Job:
    """Models, settings and data set of one run, after their checks."""

    models: dict[str, ModelFile]
    parameters: dict[str, ParameterValues]
    dataset: Dataset
    class_map: dict[str, str | None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return run_tool(_parser(), arguments, _prepare, _run)


def _prepare(options: argparse.Namespace) -> _Job:
    """Read and check all files before the models run, so that mistakes show at once.

    Raises:
        TrtPerceptionError: a file or option cannot be used, or does not fit the others.
    """
    for path in (options.json, options.plot):
        check_output_file(path)
    if options.plot:
        check_plot(options.plot)
    for folder in (options.worst, options.results, options.report):
        check_output_folder(folder)
    _check_comparison_options(options)
    class_map = read_class_map(options.class_map) if options.class_map else {}
    selection = read_bag_options(options, [options.images])
    images = find_images(options.images, subfolders=True, selection=selection)
    for loss in bag_losses(options.images):
        print_message('evaluate_engine', loss)
    names = paths_by_name(options.models)
    models = {name: read_model_file(path, accepts_server=True) for name, path in names.items()}
    parameters = {name: values_from_options(options, path) for name, path in names.items()}
    # Only models that describe the whole image have a folder of labels.
    coco = None if options.annotations and options.annotations.is_dir() else options.annotations
    job = _Job(models, parameters, Dataset.read(images), class_map)
    try:
        dataset = Dataset.read(images, coco, allow_missing=options.allow_missing)
    except TrtPerceptionError:
        # An error about the labels of the task explains more than an error about COCO.
        label_images(images, [_read_spec(job, name) for name in models], class_map, options)
        raise
    if missing := dataset.missing_file_names:
        found = f'skipped {len(missing)} annotated images without a file'
        print_message('evaluate_engine', f'{found}: {join_first_items(missing)}')
    return replace(job, dataset=dataset)


def _check_comparison_options(options: argparse.Namespace) -> None:
    """Check options that need another option or a second model."""
    if options.report_images is not None and options.report is None:
        raise ConfigError('--report-images', 'needs --report', fix='give both options, or neither')
    if options.max_accuracy_drop is not None and len(options.models) == 1:
        raise ConfigError(
            '--max-accuracy-drop',
            'needs a second model to compare with',
            fix='give the reference first, then the models to compare with it',
        )


def _check_object_options(options: argparse.Namespace) -> None:
    """Check the options for models that find objects, if there is no annotation file."""
    if options.annotations is not None:
        expected = 'a COCO JSON file'
        raise ConfigError(f'--annotations {options.annotations}', 'a folder', expected=expected)
    if len(options.models) == 1:
        raise ConfigError(
            'MODEL',
            'one model without --annotations has nothing to compare its detections with',
            fix='give --annotations (COCO JSON), or a second model',
        )
    _check_has_annotations(options, 'plot', 'worst', 'results', 'allow_subset', 'class_map')


def _check_has_annotations(options: argparse.Namespace, *names: str) -> None:
    for name in names:
        if options.annotations is None and getattr(options, name):
            raise ConfigError(
                f'--{name.replace("_", "-")}',
                'needs --annotations',
                fix='give both options, or neither',
            )


def _run(job: _Job, options: argparse.Namespace) -> int:
    # All models are opened before the first one runs, so that mistakes show at once.
    specs = {name: _read_spec(job, name) for name in job.models}
    paths = [image.path for image in job.dataset.images]
    try:
        labelled = label_images(paths, list(specs.values()), job.class_map, options)
        _check_has_annotations(options, 'allow_missing')
        if labelled is None and job.dataset.annotations is None:
            _check_object_options(options)
    except ConfigError as error:
        print_message('evaluate_engine', error)
        return 2
    if labelled is None:
        return _run_objects(job, options, specs)
    share_input_size(job.parameters, specs)
    openers = {name: functools.partial(_open_pipeline, job, name) for name in job.models}
    return evaluate_image_models(openers, labelled, job.class_map, _facts(job, options), options)


def _read_spec(job: _Job, name: str) -> ModelSpec:
    """Return the description of a model, and print how its values were found."""
    with contextlib.closing(_open_pipeline(job, name)) as pipeline:
        for sentence in pipeline.spec.evidence:
            print(escape_controls(f'{name}: {sentence}'), file=sys.stderr)
        return pipeline.spec


def _facts(job: _Job, options: argparse.Namespace) -> dict[str, Any]:
    """Return command, date and model hashes, for the file of --json."""
    return {
        'command': options.command,
        'date': datetime.now(timezone.utc).isoformat(timespec='seconds'),
        'sha256': {name: model.sha256 for name, model in job.models.items()},
    }


def _run_objects(job: _Job, options: argparse.Namespace, specs: Mapping[str, ModelSpec]) -> int:
    """Measure models that find objects."""
    maps, measure = _match_classes(job, options, specs)
    counted = {id_ for classes in maps.values() if classes for id_ in classes.categories}
    job = replace(job, dataset=job.dataset.with_shapes(measure, counted))
    report = _evaluate(job, maps)
    print(escape_controls(report_text(report, all_classes=options.all_classes), None), flush=True)
    return _save(report, job, options)


def _evaluate(job: _Job, maps: Mapping[str, ClassMap | None]) -> AccuracyReport:
    """Run one model after the other, with a progress bar on a terminal."""
    results: list[ModelAccuracy] = []
    for name, classes in maps.items():
        with (
            progress_bar(desc=name, unit='img') as progress,
            contextlib.closing(_open_pipeline(job, name)) as pipeline,
        ):
            thresholds = job.parameters[name].thresholds(pipeline.spec.class_names)
            results.append(
                evaluate_model(
                    name,
                    pipeline,
                    job.dataset,
                    classes,
                    progress=progress,
                    thresholds=thresholds,
                )
            )
    thresholds = next(iter(job.parameters.values())).thresholds(())
    return accuracy_report(results, job.dataset, thresholds)


def _open_pipeline(job: _Job, name: str) -> Pipeline:
    # Without annotations there is no mAP, which would need scores below the node's threshold.
    open_model = open_for_evaluation if job.dataset.annotations else open_offline_pipeline
    return open_model(job.models[name], job.parameters[name].pipeline_options())


def _match_classes(
    job: _Job, options: argparse.Namespace, specs: Mapping[str, ModelSpec]
) -> tuple[dict[str, ClassMap | None], Measure]:
    """Match each model's classes with the annotated categories, and print the skipped names.

    Returns:
        A mapping from each model name to its matched classes, and the measure that all models have
        in common.
    """
    class_names = {name: spec.class_names for name, spec in specs.items()}
    tasks = {name: DETECT if options.boxes_only else spec.task for name, spec in specs.items()}
    known = {one for names in class_names.values() for one in names}
    maps = {}
    for name, own in class_names.items():
        # Models may have different class names. Leave out entries for classes of other models.
        others = known - set(own)
        entries = {key: value for key, value in job.class_map.items() if key not in others}
        classes = job.dataset.class_map(
            own, entries, allow_subset=options.allow_subset, model=name
        )
        for what, names in (
            ('classes not measured', classes.ignored_classes if classes else ()),
            ('categories not measured', classes.ignored_categories if classes else ()),
        ):
            if names:
                print(
                    escape_controls(f'{name}: {what}: {", ".join(names)}', None), file=sys.stderr
                )
        maps[name] = classes
    return maps, common_measure(tasks, options.oks_sigma)


def _save(report: AccuracyReport, job: _Job, options: argparse.Namespace) -> int:
    """Write the requested files, print their paths, and return the exit code."""
    saver = ResultSaver('evaluate_engine')
    verdicts = read_verdicts(report, options.max_accuracy_drop)
    if options.json:
        content = {
            **_facts(job, options),
            'missing_images': list(job.dataset.missing_file_names),
            **report.as_dict(),
            **verdicts_dict(verdicts),
        }
        saver.save(options.json, write_json, content, 2)
    if options.report:
        saver.save(options.report, _save_page, report, job, verdicts, options)
    if options.plot:
        saver.save(options.plot, plot_accuracy, {m.name: m.metrics for m in report.models})
    for model in report.models:
        name = model.name.replace('/', '_')
        if options.results:
            saver.save(options.results / f'{name}.results.json', _save_rows, model.rows)
        if options.worst:
            folder = options.worst / name
            saver.save(folder, _save_worst_images, model, job.dataset, options.worst_count)
    return int(saver.failed or print_excess_losses(verdicts))


def _save_page(
    folder: Path,
    report: AccuracyReport,
    job: _Job,
    verdicts: Mapping[str, Verdict],
    options: argparse.Namespace,
) -> str:
    with progress_bar(desc='report', unit='img') as progress:
        facts, count = _facts(job, options), options.report_images
        page = accuracy_page(report, job.dataset, verdicts, facts, count, progress)
    return page.write(folder)


def _save_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    make_folder(path.parent)
    write_json(path, rows)


def _save_worst_images(folder: Path, model: ModelAccuracy, dataset: Dataset, count: int) -> str:
    assert dataset.annotations is not None
    written = write_worst_images(
        folder,
        [
            (image, mistakes, found, dataset.ground_truth(image))
            for image, mistakes, found in zip(
                dataset.images, model.image_matches, model.detections, strict=True
            )
        ],
        model.class_names,
        dataset.annotations.categories,
        count,
    )
    if written:
        return f'saved {len(written) - 1} images with mistakes; overview in {written[0]}'
    return f'{model.name}: no image has a mistake'


def _parser() -> argparse.ArgumentParser:
    parser = OptionParser(
        'evaluate_engine',
        __doc__,
        _HELP_END,
        assignment=suggest_tool_assignment,
        before='--param',
        other_name=foreign_names,
    )
    text = 'engine or ONNX file; each further model is compared with the first'
    parser.add_model(text, 'models', nargs='+')
    add = parser.add_argument
    add(
        '--images',
        type=parse_path,
        required=True,
        metavar='DIR',
        help='folder of images, including subfolders; a glob pattern; or a bag of ROS 2',
    )
    add_bag_options(parser)
    add(
        '--annotations',
        type=parse_path,
        metavar='PATH',
        help='annotated objects in the images, as COCO JSON; or a folder of label images',
    )
    classes = 'JSON object that maps class names to category names, or to null to skip a class'
    add_file_option(parser, '--class-map', classes)
    add(
        '--allow-subset',
        action='store_true',
        help='measure only categories and classes that model and annotations have in common',
    )
    add(
        '--boxes-only',
        action='store_true',
        help='measure only upright boxes, even if the models have other shapes',
    )
    add(
        '--oks-sigma',
        type=float,
        nargs='+',
        default=[],
        metavar='X',
        help='sigma of OKS, the precision of annotations: one value, or one for each keypoint '
        f"(default: COCO's values for 17 keypoints, else {OKS_SIGMA})",
    )
    add('--allow-missing', action='store_true', help='skip annotated images that have no file')
    _add_output_options(parser)
    add_model_arguments(parser)
    return parser


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for files, folders and tables of results."""
    add = parser.add_argument
    add_file_option(parser, '--json', 'write all figures')
    plotted = 'draw precision over recall (.png, .svg, .pdf; needs matplotlib)'
    add_file_option(parser, '--plot', plotted)
    add(
        '--worst',
        type=parse_path,
        metavar='DIR',
        help='draw the images with most mistakes; replaces the images of an earlier run',
    )
    add(
        '--worst-count',
        type=integer_at_least(1),
        default=12,
        metavar='N',
        help='maximum number of images of --worst (default: 12)',
    )
    add('--results', type=parse_path, metavar='DIR', help='write detections as COCO results')
    add('--report', type=parse_path, metavar='DIR', help='write a page for a browser: index.html')
    add(
        '--report-images',
        type=integer_at_least(1),
        metavar='N',
        help='maximum number of pictures in --report (default: as many as fit into 3 MB)',
    )
    add(
        '--max-accuracy-drop',
        type=_parse_share,
        metavar='X',
        help='exit with 1 if a model loses more than X against the first: of mAP50, top1, mIoU or '
        'delta1; without labels, of their agreement',
    )
    add('--all-classes', action='store_true', help='show all categories instead of the 20 worst')


def _parse_share(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) <= 1:
            return float(text)
    raise argparse.ArgumentTypeError(f'expected a number from 0 to 1 (got {short_repr(text)})')


if __name__ == '__main__':
    sys.exit(main())
