# SPDX-License-Identifier: Apache-2.0
"""Runs a model on the images of bags without ROS, and writes bags of the node's messages."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import itertools
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from tqdm import tqdm

from trt_perception.bags.file_bag import FileBag
from trt_perception.bags.open_bag import open_bag, storage_suffix
from trt_perception.errors import ConfigError, TrtPerceptionError
from trt_perception.files.atomic_files import make_folder
from trt_perception.files.plain_text import (
    counted,
    escape_controls,
    format_table,
    join_first_items,
    short_repr,
)
from trt_perception.files.regular_files import real_path
from trt_perception.images.results.image_limits import MAX_RESULT_PIXELS
from trt_perception.model.files.model_file import ModelFile, is_onnx, read_model_file
from trt_perception.model.files.triton_address import is_server
from trt_perception.offline.bags.bag_page import bag_page
from trt_perception.offline.bags.cameras import FoundCameras, find_cameras
from trt_perception.offline.bags.joining import BagJoin, check_free_topics
from trt_perception.offline.bags.ledger import (
    Ledger,
    check_folders,
    check_runtime,
    read_ledger,
    remove_parts,
    remove_results,
)
from trt_perception.offline.bags.part import Job, ModelFacts, Part
from trt_perception.offline.bags.plan import (
    BagPlan,
    OutputOptions,
    parameter_facts,
    plan_bag,
    time_span,
)
from trt_perception.offline.bags.ray_workers import load_ray
from trt_perception.offline.bags.ray_workers import run_parts as run_parts_with_ray
from trt_perception.offline.bags.records import PartReport
from trt_perception.offline.bags.workers import (
    Event,
    Failed,
    Finished,
    Opened,
    Progress,
    run_parts,
)
from trt_perception.offline.tools.parts.arguments import (
    check_output_folder,
    integer_at_least,
    parse_path,
    positive_number,
)
from trt_perception.offline.tools.parts.command_line import (
    ResultSaver,
    print_message,
    progress_bar,
    run_tool,
)
from trt_perception.offline.tools.parts.model_arguments import (
    BAG_PARAMETERS_SET_ELSEWHERE,
    add_model_arguments,
    read_parameters,
    suggest_tool_assignment,
)
from trt_perception.parameters.camera import NodeParameters, is_camera_parameter
from trt_perception.parameters.sections import values_of_file
from trt_perception.parameters.triton import OFFLINE_TIMEOUT_MS
from trt_perception.parameters.values import ParameterValues
from trt_perception.process.foreign_names import foreign_names
from trt_perception.process.option_parser import OptionParser

_HELP_END: Final = """\
examples:
  detect_bag yolo.engine drive --output drive_found
  detect_bag yolo.onnx drive.mcap --output found --camera front=/front/image_raw --track
  detect_bag yolo.engine monday tuesday --output found --params-file cameras.yaml --copy
  detect_bag yolo.engine drive --output found --workers 4 --device 0 1 2 3
  detect_bag yolo.engine drive --output found --track --report report
  detect_bag yolo.engine bags/* --output found --workers 16 --ray-address gpu1:6379

A bag is a folder of rosbag2, or a single .mcap or .db3 file. Each new bag is a folder of rosbag2.
With several bags, each one has a folder below the output folder.

The model sees each image of each camera. Without --camera, every topic of colour images is a
camera: /front/image_raw is the camera front. The results have the topics and values of the node:
/front/detections, /front/label_info and so on. Each message has the log time of its image.

A bag is processed in parts. Each part becomes a file of the new bag. After an interruption, the
same command goes on at the first missing part. Equal bags, models, parameters and versions give
equal files, also with --workers and --ray.

--report writes a page for a browser: objects over time, tracks, what could not be read, and
pictures of images that deserve a look. With several bags, each one has a folder below DIR. The
page has at most 3 MB unless --report-images gives the number of pictures. A bag that is complete
gets a page without running the model again.

exit codes: 0 done, 1 failed or results are missing, 2 wrong usage, 130 interrupted.
"""
_NODE: Final = '/detector'
#: Parameters in a file that belong to rclpy.
_OF_RCLPY: Final = ('use_sim_time', 'qos_overrides', 'start_type_description_service')
_MAX_STAMP_S: Final = 1e10
_MIN_PART_S: Final = 0.1
_MAX_PART_S: Final = 86400
#: Bags that a sentence about several bags names.
_MOST_NAMED: Final = 3


class _BagFacts(NamedTuple):
    """What must be known about a bag to plan the work.

    Attributes:
        span: first log time to process, and the end, which is not included, in ns.
        bag_span: first and last log time of the bag, in ns.
        counts: number of messages by topic; empty if unknown.
    """

    found: FoundCameras
    span: tuple[int, int]
    bag_span: tuple[int, int]
    counts: dict[str, int]


@dataclass
class _BagRun:
    """The state of one bag.

    Attributes:
        join: writes the new bag; None before the model was opened, and after an error.
        images: number of images that this run has processed.
        tracks: number of tracks.
        failure: a sentence on why the bag could not be completed; empty if it was.
        refusal: why the results in the output folder cannot be continued; None if they can.
    """

    plan: BagPlan
    ledger: Ledger
    refusal: ConfigError | None = None
    join: BagJoin | None = None
    images: int = 0
    tracks: int = 0
    failure: str = ''

    def missing_parts(self, *, from_start: bool) -> list[Part]:
        """Return the parts whose raw results are missing.

        Args:
            from_start: whether also parts that were written need raw results, for a tracker.
        """
        if self.ledger.is_complete:
            return []
        done = 0 if from_start else len(self.ledger.reports)
        return [part for part in list(self.plan.parts())[done:] if not part.target.exists()]


@dataclass
class _Prepared:
    """What a command will do.

    Attributes:
        failures: a sentence for each bag that cannot be processed, by its path.
        remarks: sentences for the user, each with the bags to which it applies.
    """

    job: Job
    runs: list[_BagRun]
    failures: dict[str, str] = field(default_factory=dict)
    remarks: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return run_tool(_parser(), arguments, _prepare, _run)


# Preparation.


def _prepare(options: argparse.Namespace) -> _Prepared:
    _check_ray(options)
    model = read_model_file(options.model, accepts_server=True)
    output = _output_options(options)
    values = _parameter_values(options)
    outputs = _output_folders(options.bags, options.output)
    _check_report(options, outputs)
    given = _given_cameras(options.camera)
    found: dict[str, _BagFacts] = {}
    failures: dict[str, str] = {}
    is_silent = None if len(options.bags) > 1 else True  # None: unless it is a terminal
    for bag in tqdm(options.bags, 'opening', unit='bag', disable=is_silent, leave=False):
        try:
            found[bag] = _look_into(
                bag, options, given, values, prefers_compressed=_is_engine(model)
            )
        except TrtPerceptionError as error:  # noqa: PERF203
            if len(options.bags) == 1:
                raise
            failures[bag] = str(error)  # names the bag
    if not found:
        raise ConfigError('bags', '; '.join(failures.values()))
    cameras = [camera for facts in found.values() for camera in facts.found.cameras]
    names = {camera.name for camera in cameras}
    parameters = NodeParameters.from_values({**values, 'cameras': sorted(names - {''})})
    has_compressed = any(camera.is_compressed for camera in cameras)
    job = Job(options.model, parameters, options.masks, has_compressed, processes=options.workers)
    prepared = _Prepared(job, [], failures)
    for bag, facts in found.items():
        every = facts.found.cameras
        on = tuple(each for each in every if parameters.camera(each.name).enabled)
        off = [each.name for each in every if each not in on]
        remarks = [
            *facts.found.remarks,
            *(f'camera {name} is left out: enabled is false' for name in off),
            *(f'camera {each.name or repr("")}: {each.topic}' for each in on),
        ]
        for remark in remarks:
            prepared.remarks[remark].append(bag)
        if not on:
            failures[bag] = f'{bag}: all cameras are switched off (parameter enabled)'
            continue
        plan = plan_bag(
            bag,
            outputs[bag],
            replace(facts.found, cameras=on),
            facts.span,
            facts.bag_span,
            facts.counts,
            output,
            {
                'model': _model_identity(model, options.model),
                'masks': options.masks,
                'parameters': parameter_facts(parameters, on),
            },
        )
        run = _BagRun(plan, Ledger(plan.inputs))
        if not options.overwrite:
            try:
                run.ledger = read_ledger(plan) or run.ledger
            except ConfigError as error:
                run.refusal = error
        prepared.runs.append(run)
    if not prepared.runs:
        raise ConfigError('bags', '; '.join(failures.values()))
    if not options.dry_run:
        check_folders([run.refusal for run in prepared.runs if run.refusal is not None])
    return prepared


def _check_ray(options: argparse.Namespace) -> None:
    """Check the options for Ray.

    Raises:
        ConfigError: devices are given, or Ray is not installed.
    """
    options.ray = options.ray or options.ray_address is not None
    if not options.ray:
        return
    if options.device is not None:
        raise ConfigError('--device', 'Ray gives each worker its GPU', fix='leave it out')
    load_ray()


def _model_identity(model: ModelFile, path: str) -> list[str]:
    """Return hashes of a model and its description; the address of a model on a server."""
    if model.address is not None:
        return [path]
    described = repr((model.manifest, model.config, sorted(model.metadata.items())))
    return [model.sha256, hashlib.sha256(described.encode()).hexdigest()]


def _output_options(options: argparse.Namespace) -> OutputOptions:
    """Return how new bags are written.

    Raises:
        ConfigError: the storage has no compression.
    """
    is_mcap = options.storage == 'mcap'
    if not is_mcap and options.compression not in (None, 'none'):
        raise ConfigError(
            f'--compression {options.compression}',
            f'has no effect with --storage {options.storage}',
            fix='leave it out',
        )
    usual = OutputOptions().compression if is_mcap else 'none'
    return OutputOptions(
        options.storage,
        options.compression or usual,
        options.copy,
        round(options.part_s * 1e9),
    )


def _is_engine(model: ModelFile) -> bool:
    return model.address is None and not is_onnx(model.path)


def _parameter_values(options: argparse.Namespace) -> dict[str, Any]:
    """Return the values of the node's parameters by name: of the file, then of the options.

    Raises:
        ConfigError: the file cannot be read, or a parameter is unknown.
    """
    values: dict[str, Any] = {'triton.timeout_ms': OFFLINE_TIMEOUT_MS}
    if options.params_file is not None:
        of_file = values_of_file(options.params_file, _NODE)
        values |= {
            name: value
            for name, value in of_file.items()
            if name.partition('.')[0] not in _OF_RCLPY
        }
    of_options = {
        'confidence_threshold': options.confidence,
        'iou_threshold': options.iou,
        'max_detections': options.max_detections,
        'device_ids': options.device,
        'class_filter': options.classes or None,
        'tracker.type': 'bytetrack' if options.track else None,
        'nvtx': options.nvtx or None,
    }
    values |= {name: value for name, value in of_options.items() if value is not None}
    values |= read_parameters(options.param, BAG_PARAMETERS_SET_ELSEWHERE, accepts_cameras=True)
    # Check all values except those of cameras, whose names are not known yet.
    own = {name: value for name, value in values.items() if not is_camera_parameter(name)}
    ParameterValues.from_values(own)
    return {**values, 'engine_path': options.model}


def _given_cameras(words: Sequence[str]) -> dict[str, str]:
    """Return the topics of ``--camera`` by name of the camera.

    Raises:
        ConfigError: a name or topic is missing or occurs twice.
    """
    cameras: dict[str, str] = {}
    for word in words:
        name, equals, topic = word.partition('=')
        if not equals or not topic.startswith('/'):
            raise ConfigError(
                '--camera', word, expected='NAME=TOPIC, as in front=/front/image_raw'
            )
        if name in cameras or topic in cameras.values():
            raise ConfigError('--camera', f'{word}: this name or topic occurs twice')
        cameras[name] = topic
    return cameras


def _output_folders(bags: Sequence[str], output: Path) -> dict[str, Path]:
    """Return the folder of each new bag.

    Raises:
        ConfigError: two bags have one name, or a bag would replace an input.
    """
    folders: dict[str, Path] = {}
    read = [path for bag in bags for path in _read_paths(Path(bag))]
    for bag in bags:
        path = Path(bag)
        name = path.stem if path.is_file() else real_path(path).name
        folder = output / name if len(bags) > 1 else output
        if folder in folders.values():
            raise ConfigError(
                bag, f'another bag has the name {name}', fix='process them with two commands'
            )
        written = real_path(folder)
        for each in read:
            if each == written or each in written.parents or written in each.parents:
                found = f'{folder} is a bag that is read, is inside it, or has files of it'
                raise ConfigError('--output', found, fix='choose another folder')
        folders[bag] = folder
    return folders


def _check_report(options: argparse.Namespace, outputs: Mapping[str, Path]) -> None:
    """Check the options of the report page.

    Raises:
        ConfigError: the folder cannot be written, or would be inside a bag.
    """
    if options.report is None:
        if options.report_images is not None:
            raise ConfigError(
                '--report-images', 'needs --report', fix='give both options, or neither'
            )
        return
    check_output_folder(options.report)
    for bag, output in outputs.items():
        folder = real_path(_report_folder(options, output))
        for path in (output, Path(bag)):
            if real_path(path) in (folder, *folder.parents):
                raise ConfigError(
                    '--report', f'{folder} is inside the bag {path}', fix='choose another folder'
                )


def _report_folder(options: argparse.Namespace, output: Path) -> Path:
    """Return the folder for the page of a new bag. Several bags have names, and so have pages."""
    folder: Path = options.report
    return folder / output.name if len(options.bags) > 1 else folder


def _read_paths(bag: Path) -> list[Path]:
    """Return a bag and its files without links."""
    paths = [bag]
    with contextlib.suppress(OSError):  # a file, or nothing: `open_bag` raises the error
        paths += [path for path in bag.iterdir() if storage_suffix(path)]
    return [real_path(path) for path in paths]


def _look_into(
    path: str,
    options: argparse.Namespace,
    given: Mapping[str, str],
    values: Mapping[str, Any],
    *,
    prefers_compressed: bool,
) -> _BagFacts:
    """Return what must be known about a bag to plan the work."""
    with contextlib.closing(open_bag(path)) as bag:
        transports = {
            name.removeprefix('camera.').removesuffix('.image_transport'): str(value)
            for name, value in values.items()
            if is_camera_parameter(name) and name.endswith('.image_transport')
        }
        cameras = find_cameras(
            bag,
            path,
            given,
            [] if given else list(values.get('cameras', ())),
            {'': str(values.get('image_transport', 'raw')), **transports},
            prefers_compressed=prefers_compressed,
        )
        _check_has_messages(bag, path)
        span = time_span(bag.start_ns, bag.end_ns, options.start, options.end)
        return _BagFacts(cameras, span, (bag.start_ns, bag.end_ns), dict(bag.message_counts))


def _check_has_messages(bag: FileBag, path: str) -> None:
    if bag.end_ns < bag.start_ns or not bag.topics:
        raise ConfigError(path, 'has no messages that can be read')


# The run.


def _run(prepared: _Prepared, options: argparse.Namespace) -> int:
    """Process all bags, print a table, and return the exit code."""
    for remark, bags in prepared.remarks.items():
        print_message('detect_bag', f'{join_first_items(bags, _MOST_NAMED)}: {remark}')
    if options.dry_run:
        print(escape_controls(_dry_run_text(prepared, options), None), flush=True)
        is_refused = any(run.refusal is not None for run in prepared.runs)
        return 1 if prepared.failures or is_refused else 0
    for run in prepared.runs:
        make_folder(run.plan.output)
        if options.overwrite:
            with _locked(run.plan.output):
                remove_results(run.plan.output)
        elif run.ledger.is_complete:
            # The process may have been killed before it removed them.
            remove_parts(run.plan.output)
    try:
        with _progress_bar(prepared) as bar:
            runs = _BagRuns(prepared, bar)
            runs.process(_runner(prepared.job, options))
    except KeyboardInterrupt:
        print_message('detect_bag', _interruption_text(prepared, options))
        raise
    print(escape_controls(_table(prepared, options, runs.seconds), None), flush=True)
    is_complete = not prepared.failures and all(
        not run.failure and run.ledger.total.is_complete for run in prepared.runs
    )
    saver = ResultSaver('detect_bag')
    if options.report is not None:
        for run in prepared.runs:
            folder = _report_folder(options, run.plan.output)
            saver.save(folder, _save_page, run, options)
    return 0 if is_complete and not saver.failed else 1


def _save_page(folder: Path, run: _BagRun, options: argparse.Namespace) -> str:
    if not run.ledger.files:
        raise ConfigError(str(run.plan.output), 'has no results for a report page')
    with progress_bar(desc='report', unit='img') as progress:
        images = itertools.count(1)
        total = run.ledger.total.images
        page = bag_page(
            run.plan,
            run.ledger,
            options.command,
            options.report_images,
            lambda: progress(next(images), total),
        )
    return page.write(folder)


_Runner: TypeAlias = Callable[[Sequence[Part]], Generator[Event, None, None]]


def _runner(job: Job, options: argparse.Namespace) -> _Runner:
    """Return the function that runs parts: in processes of this machine, or with Ray."""
    if options.ray:
        return lambda parts: run_parts_with_ray(parts, job, options.workers, options.ray_address)
    return lambda parts: run_parts(parts, job, options.workers, job.parameters.node.device_ids)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock on a folder that writers of bags hold.

    Raises:
        ConfigError: another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        found = 'another detect_bag writes there'
        raise ConfigError(str(folder), found, fix='wait until it has ended') from error
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _progress_bar(prepared: _Prepared) -> Iterator[tqdm[NoReturn]]:
    totals = [_expected_images(run.plan) for run in prepared.runs]
    total = None if None in totals else sum(total or 0 for total in totals)
    done = sum(_seen(run.ledger.total) for run in prepared.runs)
    with tqdm(total=total, initial=done, unit='img', disable=None, leave=False) as bar:
        yield bar


def _seen(report: PartReport) -> int:
    """Return the number of images that were read, or could not be read."""
    return report.images + sum(report.unread.values())


def _expected_images(plan: BagPlan) -> int | None:
    """Return the number of images, an estimate for a part of a bag; None if it is unknown."""
    if plan.image_count is None:
        return None
    return round(plan.image_count * plan.share)


@dataclass
class _BagRuns:
    """Runs the parts of all bags, and joins each part as soon as it is the next one.

    Attributes:
        facts: what is known about the model; None before it was opened.
        seconds: time since the model was opened.
    """

    prepared: _Prepared
    bar: tqdm[NoReturn]
    facts: ModelFacts | None = None
    seconds: float = 0.0
    _opened_s: float = 0.0

    def __post_init__(self) -> None:
        self._by_bag = {run.plan.bag: run for run in self.prepared.runs}

    def process(self, run_parts: _Runner) -> None:
        """Process all bags. Bags with an error are left incomplete, and the others go on.

        Raises:
            TrtPerceptionError: the model cannot be used, or a file cannot be written.
        """
        job = self.prepared.job
        # Parameters without a tracker need raw results of missing parts only.
        tracks = any(
            job.parameters.camera(camera.name).tracker_type != 'none'
            for run in self.prepared.runs
            for camera in run.plan.cameras
        )
        missing = {
            run.plan.bag: run.missing_parts(from_start=tracks) for run in self.prepared.runs
        }
        parts = [part for own in missing.values() for part in own]
        try:
            # All raw results may exist already.
            for run in self.prepared.runs:
                if not missing[run.plan.bag] and run.ledger.facts is not None:
                    self._open_join(run, run.ledger.facts)
            with contextlib.closing(run_parts(parts)) as events:
                for event in events:
                    if isinstance(event, Opened):
                        self._use_facts(event.facts)
                    elif isinstance(event, Progress):
                        self._by_bag[event.part.bag].images += event.images
                        self.bar.update(event.images)
                    elif isinstance(event, Finished):
                        self._on_finished(event.part)
                    elif isinstance(event, Failed):
                        self._on_failed(self._by_bag[event.part.bag], event.sentence)
        finally:
            self.seconds = time.monotonic() - self._opened_s
            for run in self.prepared.runs:
                if run.join is not None:
                    run.tracks = run.join.track_count
                    run.join.close()

    def _on_finished(self, part: Part) -> None:
        run = self._by_bag[part.bag]
        self._join(run)
        if run.join is not None and not run.join.has_result(part):
            folder = part.target.parent
            self._on_failed(
                run, f'{part}: its result is missing: its worker has another folder {folder}'
            )

    def _on_failed(self, run: _BagRun, sentence: str) -> None:
        # All parts of a bag that cannot be opened have the same sentence.
        if sentence != run.failure:
            self._report(sentence)
        run.failure = run.failure or sentence

    def _use_facts(self, facts: ModelFacts) -> None:
        if self.facts is not None:
            return
        self.facts, self._opened_s = facts, time.monotonic()
        for sentence in facts.evidence:
            self._report(sentence)
        self._check_runtimes(facts)
        if facts.needs_calibration:
            self._report_missing_calibrations()
        for run in self.prepared.runs:
            if run.join is None and not run.ledger.is_complete:
                self._open_join(run, facts)

    def _check_runtimes(self, facts: ModelFacts) -> None:
        errors = []
        for run in self.prepared.runs:
            try:
                check_runtime(run.ledger, facts, run.plan.output)
            except ConfigError as error:  # noqa: PERF203
                errors.append(error)
        check_folders(errors)

    def _open_join(self, run: _BagRun, facts: ModelFacts) -> None:
        if run.ledger.is_complete:
            return
        if run.plan.options.copies_input:
            check_free_topics(run.plan, facts)
        run.join = BagJoin(run.plan, self.prepared.job.parameters, run.ledger, facts)
        for remark in run.join.remarks:
            self._report(f'{run.plan.bag}: {remark}')
        self._join(run)

    def _join(self, run: _BagRun) -> None:
        if run.join is None:
            return
        for report in run.join.join_ready():
            for reason, sentence in report.examples.items():
                count = counted(report.unread[reason], 'image')
                self._report(f'{run.plan.bag}: {count} without a result ({reason}): {sentence}')
            if report.skipped:
                count = counted(report.skipped, 'mask or map', 'masks or maps')
                self._report(
                    f'{run.plan.bag}: {count} missing: larger than {MAX_RESULT_PIXELS} pixels, or '
                    'no GPU memory; set map_size for maps'
                )
            for loss in report.losses:
                self._report(f'{run.plan.bag}: {loss}')

    def _report_missing_calibrations(self) -> None:
        bags = defaultdict[str, list[str]](list)
        for run in self.prepared.runs:
            for camera in () if run.ledger.is_complete else run.plan.cameras:
                parameters = self.prepared.job.parameters.camera(camera.name)
                if not camera.info_topic and not parameters.model_focal_length:
                    bags[camera.topic].append(run.plan.bag)
        for topic, names in bags.items():
            self._report(
                f'{join_first_items(names, _MOST_NAMED)}: {topic} has no camera_info, so the '
                'model does not know the focal length: set model.focal_length'
            )

    def _report(self, sentence: str) -> None:
        tqdm.write(escape_controls(f'detect_bag: {sentence}'), file=sys.stderr)


def _table(prepared: _Prepared, options: argparse.Namespace, seconds: float) -> str:
    """Return the text at the end: a row for each bag, a total, and the failures.

    Args:
        seconds: time in which this run processed its images.
    """
    rows = [('bag', 'images', 'unread', 'lost ranges', 'result')]
    for run in sorted(prepared.runs, key=lambda run: not run.ledger.is_complete):
        parts = f'{len(run.ledger.reports)} of {run.plan.part_count} parts'
        result = str(run.plan.output) if run.ledger.is_complete else f'incomplete: {parts}'
        rows.append((run.plan.bag, *_counts([run]), result))
    rows += [(bag, '', '', '', 'failed') for bag in prepared.failures]
    images = sum(run.images for run in prepared.runs)
    rate = f'{images / seconds:.1f} img/s' if images and seconds else ''
    rows.append((_completeness(prepared), *_counts(prepared.runs), rate))
    lines = [format_table(rows), *prepared.failures.values()]
    lines += [
        f'{run.failure}; {_same_command(options)} tries the missing parts again'
        for run in prepared.runs
        if run.failure
    ]
    return '\n'.join(lines)


def _counts(runs: Sequence[_BagRun]) -> tuple[str, str, str]:
    """Return the numbers of images, of images without a result, and of lost ranges."""
    totals = [run.ledger.total for run in runs]
    return (
        str(sum(total.images for total in totals)),
        str(sum(sum(total.unread.values()) for total in totals)),
        str(sum(len(total.losses) for total in totals)),
    )


def _completeness(prepared: _Prepared) -> str:
    complete = sum(run.ledger.is_complete for run in prepared.runs)
    count = len(prepared.runs) + len(prepared.failures)
    return f'{complete} of {counted(count, "bag")} complete'


def _interruption_text(prepared: _Prepared, options: argparse.Namespace) -> str:
    written = sum(len(run.ledger.reports) for run in prepared.runs)
    parts = counted(sum(run.plan.part_count for run in prepared.runs), 'part')
    done = f'{_completeness(prepared)}, {written} of {parts} written'
    return f'{done}; {_same_command(options)} goes on with the missing parts'


def _same_command(options: argparse.Namespace) -> str:
    """Name the command that keeps the results of this one."""
    return 'the same command' + (' without --overwrite' if options.overwrite else '')


def _dry_run_text(prepared: _Prepared, options: argparse.Namespace) -> str:
    lines = []
    for run in prepared.runs:
        plan = run.plan
        images = _expected_images(plan)
        about = 'about ' if plan.share < 1 else ''
        said = (
            'an unknown number of images'
            if images is None
            else f'{about}{counted(images, "image")}'
        )
        length = (plan.end_ns - plan.start_ns) / 1e9
        lines.append(
            f'{plan.bag}: {said} of {counted(len(plan.cameras), "camera")} in {length:.1f} s, '
            f'{counted(plan.part_count, "part")} of up to {plan.options.part_ns / 1e9:g} s'
        )
        rows = [('  camera', 'topic', 'images', 'camera_info')]
        for camera in plan.cameras:
            count = str(plan.counts.get(camera.topic, 'unknown'))
            info = camera.info_topic or 'none'
            rows.append((f'  {camera.name or repr("")}', camera.topic, count, info))
        lines.append(format_table(rows))
        written, raw = len(run.ledger.reports), len(_raw_files(plan))
        state = 'complete' if run.ledger.is_complete else f'{written} of {plan.part_count} parts'
        if options.overwrite and plan.output.exists():
            state = 'will be replaced'
        elif run.refusal is not None:
            state = run.refusal.found
        elif not run.ledger.is_complete and raw:
            state += f' written, {counted(raw, "part")} detected'
        lines.append(f'  output {plan.output}: {state}')
    totals = [_expected_images(run.plan) for run in prepared.runs]
    known = sum(images or 0 for images in totals)
    unknown = ' and an unknown number of others' if None in totals else ''
    parts = counted(sum(run.plan.part_count for run in prepared.runs), 'part')
    lines.append(f'{_completeness(prepared)}: {counted(known, "image")}{unknown} in {parts}')
    lines += prepared.failures.values()
    return '\n'.join(lines)


def _raw_files(plan: BagPlan) -> list[Path]:
    return [part.target for part in plan.parts() if part.target.exists()]


def _parser() -> argparse.ArgumentParser:
    parser = OptionParser(
        'detect_bag',
        __doc__,
        _HELP_END,
        assignment=suggest_tool_assignment,
        before='--param',
        other_name=foreign_names,
    )
    parser.add_model('engine or ONNX file')
    add = parser.add_argument
    add(
        'bags',
        nargs='+',
        type=_bag_path,
        metavar='BAG',
        help='folders of rosbag2, .mcap or .db3 files',
    )
    add('--output', type=parse_path, required=True, metavar='DIR', help='folder for the new bag')
    add('--overwrite', action='store_true', help='replace the results of an earlier run')
    add(
        '--dry-run',
        action='store_true',
        help='only list cameras, topics, parts, images and existing results',
    )
    add(
        '--camera',
        action='append',
        default=[],
        metavar='NAME=TOPIC',
        help='use the images of this topic as those of the camera NAME; can be repeated '
        '(default: each topic of colour images is a camera)',
    )
    add(
        '--params-file',
        type=parse_path,
        metavar='FILE',
        help='YAML file with parameters of the node, also of single cameras (config/cameras.yaml)',
    )
    add(
        '--start',
        type=_seconds,
        metavar='S',
        help='first log time: seconds from the start of the bag, or since the epoch',
    )
    add(
        '--end',
        type=_seconds,
        metavar='S',
        help='end of the log times, in seconds as for --start; this time is not included',
    )
    add('--classes', nargs='+', default=[], metavar='NAME', help='report only these classes')
    add('--track', action='store_true', help='give objects ids that stay the same over time')
    add('--masks', action='store_true', help='also write the masks of objects, which are large')
    add('--copy', action='store_true', help='also write all messages of the input bag')
    defaults = OutputOptions()
    add(
        '--storage',
        choices=('mcap', 'sqlite3'),
        default=defaults.storage,
        help=f'format of the new files (default: {defaults.storage})',
    )
    add(
        '--compression',
        choices=('zstd', 'lz4', 'none'),
        help=f'compression of MCAP files (default: {defaults.compression})',
    )
    add(
        '--part-s',
        type=_part_seconds,
        default=defaults.part_ns / 1e9,
        metavar='S',
        help=f'length of a part and of each new file (default: {defaults.part_ns / 1e9:g} s)',
    )
    add('--report', type=parse_path, metavar='DIR', help='write a page for a browser: index.html')
    add(
        '--report-images',
        type=integer_at_least(1),
        metavar='N',
        help='maximum number of pictures in --report (default: 60, and as many as fit into 3 MB)',
    )
    add(
        '--workers',
        type=integer_at_least(1, 256),
        default=1,
        metavar='N',
        help='processes that run the model, each with its own copy (default: 1)',
    )
    add('--ray', action='store_true', help='let Ray run the workers, each with a GPU of its own')
    add(
        '--ray-address',
        type=_address,
        metavar='HOST:PORT',
        help='the same on all machines of a cluster, which this machine belongs to',
    )
    add_model_arguments(parser, has_several_devices=True)
    # A value in a parameter file applies unless the option is given.
    parser.set_defaults(confidence=None, iou=None, max_detections=None, device=None)
    return parser


def _bag_path(text: str) -> str:
    return str(parse_path(text))


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < _MAX_STAMP_S:
        raise argparse.ArgumentTypeError(f'expected seconds, at least 0 (got {short_repr(text)})')
    return number


def _address(text: str) -> str:
    if not is_server(text):
        found = short_repr(text)
        raise argparse.ArgumentTypeError(f'expected HOST:PORT, as in gpu1:6379 (got {found})')
    return text


def _part_seconds(text: str) -> float:
    number = positive_number(text)
    if not _MIN_PART_S <= number <= _MAX_PART_S:
        raise argparse.ArgumentTypeError(
            f'expected seconds from {_MIN_PART_S} to {_MAX_PART_S} (got {short_repr(text)})'
        )
    return number


if __name__ == '__main__':
    sys.exit(main())
