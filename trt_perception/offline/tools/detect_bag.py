# SPDX-License-Identifier: Apache-2.0
"""Runs a model on the images of bags without ROS, and writes bags of the node's messages."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import math
import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trt_perception.bags.open_bag import storage_suffix
from trt_perception.errors import ConfigError, WriteError
from trt_perception.files.plain_text import escape_controls, short_repr
from trt_perception.files.regular_files import real_path
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.files.triton_address import is_server
from trt_perception.offline.bags.bag_page import bag_page
from trt_perception.offline.bags.index_page import index_page
from trt_perception.offline.bags.ledger import check_folders
from trt_perception.offline.bags.plan import OutputOptions
from trt_perception.offline.bags.preparation import Request, prepare
from trt_perception.offline.bags.ray_workers import load_ray
from trt_perception.offline.bags.ray_workers import run_parts as run_parts_with_ray
from trt_perception.offline.bags.work import BagRun, PartsRunner, Work
from trt_perception.offline.bags.work_text import dry_run_text, interruption_text, result_text
from trt_perception.offline.bags.workers import run_parts
from trt_perception.offline.report_page.page import PAGE_NAME
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
from trt_perception.parameters.camera import is_camera_parameter
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
With several bags, each one has a folder of its name below the output folder. Bags with equal names
also have the folders above them in their names: monday/front becomes monday_front.

The model sees each image of each camera. Without --camera, every topic of colour images is a
camera: /front/image_raw is the camera front. The results have the topics and values of the node:
/front/detections, /front/label_info and so on. Each message has the log time of its image.

A bag is processed in parts. Each part becomes a file of the new bag. After an interruption, the
same command goes on at the first missing part. Equal bags, models, parameters and versions give
equal files, also with --workers and --ray.

--report writes a page for a browser: objects over time, tracks, what could not be read, and
pictures of images that deserve a look. With several bags, each one has a folder below DIR, and
DIR has a page that lists them. The page of a bag has at most 3 MB unless --report-images gives the
number of pictures. A bag that is complete gets a page without running the model again.

exit codes: 0 done, 1 failed or results are missing, 2 wrong usage, 130 interrupted.
"""
_NODE: Final = '/detector'
#: Parameters in a file that belong to rclpy.
_OF_RCLPY: Final = ('use_sim_time', 'qos_overrides', 'start_type_description_service')
_MAX_STAMP_S: Final = 1e10
_MIN_PART_S: Final = 0.1
_MAX_PART_S: Final = 86400

_say = functools.partial(print_message, 'detect_bag')


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return run_tool(_parser(), arguments, _prepare, _run)


def _prepare(options: argparse.Namespace) -> Work:
    _check_ray(options)
    model = read_model_file(options.model, accepts_server=True)
    output_options = _output_options(options)
    values = _parameter_values(options)
    outputs = _output_folders(options.bags, options.output)
    _check_report(options, outputs)
    request = Request(
        model=model,
        model_path=options.model,
        outputs=outputs,
        options=output_options,
        values=values,
        cameras=_given_cameras(options.camera),
        start_s=options.start,
        end_s=options.end,
        with_masks=options.masks,
        processes=options.workers,
        overwrites=options.overwrite,
    )
    with progress_bar(desc='opening', unit='bag') as progress:
        work = prepare(request, progress, _say)
    if not options.dry_run:
        check_folders(work.refusals)
    return work


def _run(work: Work, options: argparse.Namespace) -> int:
    """Process all bags, print a table, and return the exit code."""
    for remark in work.remarks:
        _say(remark)
    if options.dry_run:
        print(escape_controls(dry_run_text(work), None), flush=True)
        return 1 if work.failures or work.refusals else 0
    try:
        with progress_bar(
            desc='detecting', unit='img', total=work.image_count, initial=work.seen_images
        ) as progress:
            work.process(_runner(work, options), progress)
    except (KeyboardInterrupt, WriteError):
        _say(interruption_text(work))
        raise
    print(escape_controls(result_text(work), None), flush=True)
    saver = ResultSaver('detect_bag')
    if options.report is not None:
        pages = [
            run.plan.bag
            for run in work.runs
            if saver.save(_report_folder(options, run.plan.output), _save_page, run, options)
        ]
        if len(options.bags) > 1:
            saver.save(options.report, _save_index_page, work, pages, options)
    return 0 if work.has_all_results and not saver.failed else 1


def _runner(work: Work, options: argparse.Namespace) -> PartsRunner:
    """Return the function that runs parts: in processes of this machine, or with Ray."""
    job, workers = work.job, options.workers
    if options.ray:
        return lambda parts: run_parts_with_ray(parts, job, workers, options.ray_address)
    return lambda parts: run_parts(parts, job, workers, job.parameters.node.device_ids)


def _save_page(folder: Path, run: BagRun, options: argparse.Namespace) -> str:
    if not run.ledger.files:
        raise ConfigError(str(run.plan.output), 'has no results for a report page')
    with progress_bar(desc='report', unit='img') as progress:
        images = itertools.count(1)
        total = run.ledger.total.images
        page = bag_page(
            run.plan,
            run.ledger,
            _page_command(options, run.plan.bag),
            options.report_images,
            lambda: progress(next(images), total),
        )
    return page.write(folder)


def _save_index_page(
    folder: Path, work: Work, pages: Sequence[str], options: argparse.Namespace
) -> str:
    return index_page(work, pages, _page_command(options, options.bags[0])).write(folder)


def _page_command(options: argparse.Namespace, bag: str) -> str:
    """Return the command line without the other bags, because it is at the top of each page."""
    before, bags, after = _split_command(options.command, tuple(options.bags))
    return shlex.join([*before, bag, '...', *after]) if len(bags) > 1 else str(options.command)


@functools.cache  # splitting a command with thousands of bags takes 0.1 s
def _split_command(
    command: str, bags: tuple[str, ...]
) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    """Return the words before the bags, the bags, and the words after the bags."""
    words = shlex.split(command)
    paths = [str(Path(os.path.expanduser(word))) for word in words]
    count = len(bags)
    for first, path in enumerate(paths):
        if path == bags[0] and paths[first : first + count] == list(bags):
            return words[:first], words[first : first + count], words[first + count :]
    return words, (), ()


# Checks of the options.


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
        ConfigError: a bag is given twice, two bags need one name, or a bag would replace an input.
    """
    names = _output_names(bags) if len(bags) > 1 else {bags[0]: ''}
    folders: dict[str, Path] = {}
    # Sets, because comparing each output with each bag takes minutes for a thousand bags.
    read = {path for bag in bags for path in _read_paths(Path(bag))}
    above = {parent for path in read for parent in path.parents}
    for bag, name in names.items():
        folder = output / name
        written = real_path(folder)
        if written in above or not read.isdisjoint((written, *written.parents)):
            found = f'{folder} is a bag that is read, is inside it, or has files of it'
            raise ConfigError('--output', found, fix='choose another folder')
        folders[bag] = folder
    return folders


def _output_names(bags: Sequence[str]) -> dict[str, str]:
    """Return a different name for each bag, the same in any order of the bags.

    A name is the last part of the path. Bags with equal names get as many folders in front of
    their names as needed.

    Raises:
        ConfigError: a bag is given twice, or two names stay equal.
    """
    by_path: dict[Path, str] = {}
    for bag in bags:
        path = real_path(Path(bag))
        if path in by_path:
            also = '' if by_path[path] == bag else f', also as {by_path[path]}'
            raise ConfigError(bag, f'is given twice{also}', fix='give each bag once')
        by_path[path] = bag
    parts = _name_parts(bags)
    used = dict.fromkeys(bags, 1)
    while True:
        names = {bag: '_'.join(parts[bag][-used[bag] :]) for bag in bags}
        counts = Counter(names.values())
        equal = [bag for bag in bags if counts[names[bag]] > 1]
        if not equal:
            return names
        longer = [bag for bag in equal if used[bag] < len(parts[bag])]
        if not longer:
            raise ConfigError(
                equal[-1],
                f'another bag also needs the name {names[equal[-1]]}',
                fix='process them with two commands, each with its own --output',
            )
        for bag in longer:
            used[bag] += 1


def _name_parts(bags: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the folders above each bag, and its name: of a file without its suffix.

    If another bag in the same folder has this name, the suffix of a file belongs to its name:
    ``drive.mcap`` becomes ``drive_mcap``.
    """
    parts: dict[str, tuple[str, ...]] = {}
    for bag in bags:
        path = Path(bag)
        # The name of a link to a file is that of the link.
        whole = real_path(path.parent) / path.stem if path.is_file() else real_path(path)
        parts[bag] = whole.parts[1:] or ('',)
    counts = Counter(parts.values())
    for bag, words in parts.items():
        if counts[words] > 1 and Path(bag).is_file():
            parts[bag] = *words[:-1], Path(bag).name.replace('.', '_')
    return parts


def _check_report(options: argparse.Namespace, outputs: Mapping[str, Path]) -> None:
    """Check the options of the report page.

    Raises:
        ConfigError: the folder cannot be written, would be inside a bag, or would contain a
            folder with the name of a page.
    """
    if options.report is None:
        if options.report_images is not None:
            raise ConfigError(
                '--report-images', 'needs --report', fix='give both options, or neither'
            )
        return
    check_output_folder(options.report)
    for bag, output in outputs.items():
        if len(outputs) > 1 and output.name == PAGE_NAME:
            found = f'the bag {bag} needs a folder with the name of the page that lists the bags'
            raise ConfigError('--report', found, fix='rename the bag')
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
        help='only list cameras, topics, parts, images and existing results; of several bags, one '
        'row each',
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
