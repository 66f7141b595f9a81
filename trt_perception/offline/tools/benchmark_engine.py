# SPDX-License-Identifier: Apache-2.0
"""Measures the speed of engines and ONNX models: network, single steps and whole pipeline."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import Any, Final

from trt_perception.errors import ConfigError
from trt_perception.files.atomic_files import write_json
from trt_perception.files.plain_text import escape_controls, join_first_items
from trt_perception.images.detections import Detections
from trt_perception.images.frame import MAX_SIDE, PIXEL_FORMATS, Frame
from trt_perception.images.results.kernel_maps import KernelMaps
from trt_perception.model.files.model_file import ModelFile, read_model_file
from trt_perception.model.input_layout import MAX_BATCH
from trt_perception.model.pipeline_options import ONNX_PROVIDERS
from trt_perception.model.tasks.task import TaskResult, detections_of
from trt_perception.offline.benchmarking.benchmark_page import benchmark_page
from trt_perception.offline.benchmarking.control import (
    BenchmarkProgress,
    MeasurementControl,
    stop_on_interrupt,
)
from trt_perception.offline.benchmarking.frames import load_frames
from trt_perception.offline.benchmarking.gpu_steps import MAP_TOPICS
from trt_perception.offline.benchmarking.model import measure_model
from trt_perception.offline.benchmarking.model_report import BenchmarkOptions, ModelReport
from trt_perception.offline.benchmarking.plot import plot_reports
from trt_perception.offline.benchmarking.report import (
    comparison_text,
    describe_machine,
    model_text,
)
from trt_perception.offline.evaluation.image_tasks.agreement import ImageAgreement, image_agreement
from trt_perception.offline.evaluation.metrics.agreement import Agreement, compare_detections
from trt_perception.offline.evaluation.report.plot_files import check_plot
from trt_perception.offline.tools.parts.arguments import (
    add_file_option,
    check_output_file,
    check_output_folder,
    integer_at_least,
    parse_path,
)
from trt_perception.offline.tools.parts.command_line import ResultSaver, print_message, run_tool
from trt_perception.offline.tools.parts.model_arguments import (
    add_model_arguments,
    check_object_options,
    given_object_options,
    suggest_tool_assignment,
    values_from_options,
)
from trt_perception.pipelines.open_pipeline import open_offline_pipeline
from trt_perception.process.foreign_names import foreign_names
from trt_perception.process.option_parser import OptionParser
from trt_perception.transport.advice import keep_freed_memory

_OPTIONS_BY_PARAMETER: Final = {'pipeline_depth': '--depth', 'onnx_provider': '--provider'}
# Eight images usually exceed the processor's caches, and consecutive frames differ.
_MIN_FRAMES: Final = 8
# Maximum time of a measurement if neither --frames nor --seconds is given.
_DEFAULT_SECONDS: Final = 10.0
_HELP_END: Final = """\
examples:
  benchmark_engine yolo.engine
  benchmark_engine fp32.engine fp16.engine --json result.json --report report
  benchmark_engine model.onnx --image photo.jpg --seconds 30
  benchmark_engine yolo.engine --encoding nv12 --size 1280x720 --depth 1,3
  benchmark_engine yolo.engine --encoding all --steps-only
  benchmark_engine yolo.engine --batch 1,4,8 --max-latency-ms 20
  benchmark_engine yolo.onnx yolo.engine --provider cpu,cuda,tensorrt

Columns. Times are in milliseconds; p50, p95, p99 and p99.9 are percentiles.
  step:
    mean               time per run of many consecutive runs
    p50 alone          time of one run while nothing else runs; also p99 alone
  encoding:
    MB                 size of a frame
    upload             time to copy a frame to the GPU
    letterbox kernel   time of the GPU kernel that converts and resizes a frame
  pipeline:
    latency p50        time from a batch of frames to its results and maps, one batch at a time;
                       also p95, p99 and p99.9
    frames/s           throughput at full load: the next frame is always waiting
    enqueue            median time of the calling thread to start a batch, at full load
    collect            median time of the calling thread to get results and maps, including waits,
                       at full load
    CPU                CPU time of all threads per frame, at full load
    GPU MiB            GPU memory of the pipeline
    load s             seconds to open the model
    frames             number of frames for latency, and for full load if different
  frames/s (p50, p99 of a batch, ms):
    depth N            with N batches in flight: frames/s, and latency at full load
  engine (model for ONNX files and served models):
    frames/s x engine  frames/s times the engine's time: 1 if the engine never waits
    p50 - engine, ms   latency p50 without the engine's time
    p99 / p50          latency p99 divided by latency p50
  comparison (several models or providers):
    setting            setting with the most frames/s
    F1                 agreement of the detections with those of the first row; also mean IoU and
                       the largest score difference. Of models for the whole image: the share of
                       equal classes, or 1 minus the relative difference of depth

Steps and pipeline make the class or depth map of each image, as for a subscriber.

A measurement ends after --frames or --seconds, whichever comes first. Ctrl-C stops after the
frames in flight. The tool then prints and saves the figures so far, marked as partial. A second
Ctrl-C exits at once.

exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

# Models with providers, frames, one frame of each encoding to compare, and options.
_Job = tuple[list[tuple[ModelFile, str]], list[Frame], list[Frame], BenchmarkOptions]


@dataclass(frozen=True)
class BenchmarkReport:
    """All results of one run.

    Attributes:
        date: start of the run, ISO 8601, UTC.
        images: size and encoding of each frame.
        models: one entry for each model, in the order of the command line.
        agreement: agreement of each further model with the first. None if one of the two was not
            measured in a pipeline, or their tasks differ.
        partial: whether the user interrupted the run. Later measurements are missing then, and
            the interrupted measurement has fewer frames.
    """

    date: str
    machine: dict[str, Any]
    options: BenchmarkOptions
    images: tuple[str, ...]
    models: tuple[ModelReport, ...]
    agreement: tuple[Agreement | ImageAgreement | None, ...]
    partial: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return run_tool(_parser(), arguments, _prepare, _run, 'interrupted; nothing was saved')


def _prepare(options: argparse.Namespace) -> _Job:
    """Read all files and options before the measurements, so that mistakes show at once.

    Raises:
        TrtPerceptionError: a model, image or option cannot be used.
    """
    for path in (options.json, options.plot):
        check_output_file(path)
    check_output_folder(options.report)
    if options.plot:
        check_plot(options.plot)
    seconds = options.seconds
    if options.frames is None and seconds is None:
        seconds = _DEFAULT_SECONDS
    parameters = values_from_options(options, '')
    benchmark_options = BenchmarkOptions(
        () if options.steps_only else options.depth,
        options.frames or BenchmarkOptions.count,
        options.warmup,
        seconds,
        parameters.pipeline_options(),
        replace(parameters.thresholds(()), wanted_topics=MAP_TOPICS),
        options.batch,
        options.max_latency_ms,
    )
    for name, option in _OPTIONS_BY_PARAMETER.items():
        if any(given.startswith(name) for given in options.param):
            raise ConfigError(f'--param {name}', 'cannot be set by --param', fix=f'use {option}')
    files = [read_model_file(path, accepts_server=True) for path in options.models]
    models = [
        (model, provider)
        for model in files
        for provider in (options.provider if model.is_onnx else ('auto',))
    ]
    for depth in benchmark_options.depths:
        parameters.with_values({'pipeline_depth': depth})  # raises if the depth is out of range
    first, *others = options.encoding
    # Each slot in flight holds different frames, and each batch has the same frames every time.
    largest_batch = max(benchmark_options.batches)
    batch_count = max(*benchmark_options.depths, 1, -(-_MIN_FRAMES // largest_batch))
    frames = load_frames(options.image, options.size, first, largest_batch * batch_count)
    encoding_frames = [
        load_frames(options.image, options.size, name, 1)[0]
        for name in (options.encoding if others else ())
    ]
    if given_object_options(parameters):
        # Open each model to check that the options for objects have an effect on its task. Other
        # providers than the CPU may need minutes.
        opened = benchmark_options.with_provider('cpu').pipeline
        for model in files:
            with contextlib.closing(open_offline_pipeline(model, opened)) as pipeline:
                check_object_options(parameters, pipeline.spec.task)
    return models, frames, encoding_frames, benchmark_options


def _run(job: _Job, options: argparse.Namespace) -> int:
    """Measure, print the tables, save the requested files, and return the exit code."""
    keep_freed_memory()
    report = _measure(job)
    saver = ResultSaver('benchmark_engine')
    if report.models and options.json:
        saver.save(options.json, write_json, _json_content(report, options), 2)
    if report.models and options.report:
        content = _json_content(report, options)
        page = benchmark_page(content, report.models, report.agreement)
        saver.save(options.report, page.write)
    if report.models and options.plot:
        saver.save(options.plot, plot_reports, report.models)
    if report.partial:
        outcome = 'the figures are partial' if report.models else 'nothing was measured'
        print_message('benchmark_engine', f'interrupted; {outcome}')
        return 130
    return int(saver.failed)


def _json_content(report: BenchmarkReport, options: argparse.Namespace) -> dict[str, Any]:
    agreement = [one and one.as_dict() for one in report.agreement]
    content = {'command': options.command, **asdict(report), 'agreement': agreement}
    measured = content['options']
    for name in ('pipeline', 'thresholds'):
        del measured[name]
    measured['parameters'] = asdict(values_from_options(options, ''))
    return content


def _measure(job: _Job) -> BenchmarkReport:
    """Measure all models on the same frames, and print the tables of each model."""
    models, frames, encodings, options = job
    date = datetime.now(timezone.utc).isoformat(timespec='seconds')
    reports: list[ModelReport] = []
    agreement: list[Agreement | ImageAgreement | None] = []
    reference: Sequence[TaskResult] = ()
    images = tuple(f'{f.width}x{f.height} {f.format.name}' for f in frames)
    print(f'frames: {len(frames)}, {join_first_items(dict.fromkeys(images))}')
    for sentence in options.ignored([model for model, _ in models], encodings):
        print_message('benchmark_engine', sentence)
    depth_counts = [len(options.depths[:1] if m.is_onnx else options.depths) for m, _ in models]
    steps = sum(1 + count * len(options.batches) for count in depth_counts)
    with BenchmarkProgress(steps) as progress:
        control = MeasurementControl(options.count, options.warmup, options.seconds, progress)
        with stop_on_interrupt(control):
            for model, provider in models:
                if control.stopped:
                    break
                measured = measure_model(
                    model, frames, options.with_provider(provider), control, encodings
                )
                if measured is None:
                    break
                if reports:
                    agreement.append(_compare(reference, measured[1]))
                else:
                    reference = measured[1]
                reports.append(measured[0])
                progress.clear()
                text = model_text(measured[0], options.max_latency_ms)
                print(escape_controls(text, None), flush=True)
    if len(reports) > 1 and options.depths:
        print(escape_controls(comparison_text(reports, agreement), None))
    on_gpu = any(report.used_gpu for report in reports)
    return BenchmarkReport(
        date=date,
        machine=describe_machine(options.pipeline.device_id if on_gpu else None),
        options=options,
        images=images,
        models=tuple(reports),
        agreement=tuple(agreement) if options.depths else (),
        partial=control.stopped,
    )


def _compare(
    reference: Sequence[TaskResult], others: Sequence[TaskResult]
) -> Agreement | ImageAgreement | None:
    """Return the agreement of two models; None if a result is missing, or of another type."""
    if not reference or not others or _kind(reference[0]) != _kind(others[0]):
        return None
    if isinstance(reference[0], Detections):
        count = min(len(reference), len(others))
        found, other_found = detections_of(reference[:count]), detections_of(others[:count])
        return compare_detections(found, other_found, ())
    return ImageAgreement.of_images(list(map(image_agreement, reference, others)))


def _kind(result: TaskResult) -> tuple[type, Collection[str]]:
    """Return the type of a result, and the names of its maps if kernels made them."""
    return type(result), result.maps.keys() if isinstance(result, KernelMaps) else ()


def _parser() -> argparse.ArgumentParser:
    parser = OptionParser(
        'benchmark_engine',
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
        '--image',
        default='',
        metavar='FILE',
        help="image file, folder or video (default: the demo's photographs of digits)",
    )
    add(
        '--size',
        type=_parse_size,
        metavar='WxH',
        help='resize frames to this size in pixels (default: size of --image, else 1920x1080)',
    )
    add(
        '--encoding',
        type=parse_encodings,
        default=('bgr8',),
        metavar='NAME,…',
        help='encoding of the frames (default: bgr8). With several names or "all", upload and '
        'letterbox kernel are timed for each encoding, all other steps for the first. '
        f'Encodings: {", ".join(PIXEL_FORMATS)}',
    )
    _add_measurement_options(parser)
    add_file_option(parser, '--json', 'write all figures and the description of the machine')
    add_file_option(parser, '--plot', 'draw the figures (.png, .svg, .pdf; needs matplotlib)')
    add('--report', type=parse_path, metavar='DIR', help='write a page for a browser: index.html')
    add('--steps-only', action='store_true', help='measure single steps only')
    add_model_arguments(parser)
    return parser


def _add_measurement_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for length, batch and depth of the measurements."""
    add = parser.add_argument
    defaults = BenchmarkOptions()
    add(
        '--depth',
        type=_parse_integers,
        default=defaults.depths,
        metavar='N,N…',
        help='batches in flight, one measurement each (default: 1,2,3,4; ONNX files: always 1)',
    )
    add(
        '--batch',
        type=_parse_batches,
        default=defaults.batches,
        metavar='N,N…',
        help='frames per batch, one measurement for each batch size and depth (default: 1)',
    )
    add(
        '--max-latency-ms',
        type=_parse_milliseconds,
        metavar='MS',
        help='report the fastest batch and depth whose p99 latency at full load is at most MS',
    )
    add(
        '--frames',
        type=integer_at_least(1),
        metavar='N',
        help='frames per measurement (default: as many as fit into 10 s, at most 1000)',
    )
    add(
        '--seconds',
        type=_parse_seconds,
        metavar='S',
        help='maximum seconds per measurement (default: 10; with --frames: no limit)',
    )
    add(
        '--warmup',
        type=integer_at_least(0),
        default=defaults.warmup,
        metavar='N',
        help='frames before each measurement that are not counted (default: 100)',
    )
    add(
        '--provider',
        type=_parse_providers,
        default=('auto',),
        metavar='NAME,…',
        help='execution providers of ONNX Runtime, one run of each ONNX file for each provider '
        f'(default: auto). Providers: {", ".join(ONNX_PROVIDERS)}',
    )


def parse_encodings(text: str) -> tuple[str, ...]:
    """Return names of different encodings. ``all`` means all encodings, bgr8 first."""
    if text == 'all':
        text = ','.join(['bgr8', *PIXEL_FORMATS])
    unique: dict[str, str] = {}
    for name in text.split(','):
        if name not in PIXEL_FORMATS:
            raise argparse.ArgumentTypeError(
                f'invalid choice: {name!r} (choose from all, {", ".join(PIXEL_FORMATS)})'
            )
        unique.setdefault(PIXEL_FORMATS[name].name, name)
    return tuple(unique.values())


def _parse_providers(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(',')))
    for name in names:
        if name not in ONNX_PROVIDERS:
            raise argparse.ArgumentTypeError(
                f'invalid choice: {name!r} (choose from {", ".join(ONNX_PROVIDERS)})'
            )
    return names


def _parse_seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= 86400:
            return float(text)
    raise argparse.ArgumentTypeError(f'expected seconds, above 0 and at most 86400 (got {text!r})')


def _parse_milliseconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= 1e6:
            return float(text)
    raise argparse.ArgumentTypeError(
        f'expected milliseconds, above 0 and at most 1000000 (got {text!r})'
    )


def _parse_batches(text: str) -> tuple[int, ...]:
    sizes = _parse_integers(text)
    if not all(1 <= size <= MAX_BATCH for size in sizes):
        raise argparse.ArgumentTypeError(
            f'expected numbers from 1 to {MAX_BATCH}, as in 1,4,8 (got {text!r})'
        )
    return tuple(dict.fromkeys(sizes))


def _parse_size(text: str) -> tuple[int, int]:
    """Return width and height of ``WIDTHxHEIGHT``."""
    sides = [int(side) for side in text.lower().split('x') if side.isdecimal()]
    is_pair = text.lower().count('x') == 1 and len(sides) == 2
    if not (is_pair and all(1 <= side <= MAX_SIDE for side in sides)):
        raise argparse.ArgumentTypeError(
            f'expected WIDTHxHEIGHT, each from 1 to {MAX_SIDE}, as in 1920x1080 (got {text!r})'
        )
    return sides[0], sides[1]


def _parse_integers(text: str) -> tuple[int, ...]:
    parts = text.split(',')
    if not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f'expected numbers, as in 1,2,3 (got {text!r})')
    return tuple(int(part) for part in parts)


if __name__ == '__main__':
    sys.exit(main())
