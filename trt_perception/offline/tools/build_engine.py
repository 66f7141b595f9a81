# SPDX-License-Identifier: Apache-2.0
"""Builds a TensorRT engine from an ONNX model: precision, INT8 calibration, accuracy, manifest."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import logging
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tqdm import tqdm

from trt_perception.errors import ConfigError, EngineError, MissingFileError, TrtPerceptionError
from trt_perception.files.atomic_files import write_atomically
from trt_perception.files.plain_text import escape_controls
from trt_perception.offline.tools.parts.arguments import check_output_folder
from trt_perception.offline.tools.parts.command_line import ResultSaver, print_message
from trt_perception.process.foreign_names import foreign_names
from trt_perception.process.interruption import Interruption, ending_signals
from trt_perception.process.option_parser import OptionParser

_HELP_END: Final = """\
examples:
  build_engine yolo.onnx
  build_engine yolo.onnx --precision int8 \\
      --calibration-images images/ --validate held_out/ --annotations held_out.json \\
      --max-accuracy-drop 0.01
  build_engine dynamic.onnx \\
      --shapes 1x3x320x320:1x3x640x640:1x3x1280x1280
  build_engine yolo.onnx --runtime tensorrt_rtx \\
      --compute-capabilities 8.6 8.9 --json report.json --report report
  build_engine --config build.yaml --workspace-mib 4096

The tool writes yolo.engine and its manifest yolo.engine.json next to the ONNX file. It replaces an
existing engine only when the new engine is complete. Build on the machine that runs the engine:
a TensorRT engine fits one release and one kind of GPU. TensorRT-RTX also builds without a GPU.
If the engine cannot be loaded after the build, its manifest says "unverified". Run
inspect_engine --update-manifest on the target then.

build.yaml (--config) may contain every option. Replace - by _ in the name, as in keep_fp32. Paths
in build.yaml are relative to its folder and must stay inside. The command line has priority.

Tested: building with TensorRT-RTX 1.7 without a GPU; building and running with TensorRT-RTX 1.4
on a GPU.
Not tested: TensorRT 10.x and 11.x (only the names of their API were compared), DLA, 2:4 sparsity,
version and hardware compatibility, plugins, INT8 and FP8 on a GPU.

exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments_given = sys.argv[1:] if arguments is None else list(arguments)
    stop = Interruption(130, message='\nstopping; press Ctrl-C again to exit at once\n')
    previous_handlers = {number: signal.signal(number, stop) for number in ending_signals()}
    try:
        return _run(arguments_given)
    except (ConfigError, MissingFileError) as error:
        _print_message(error)
        return 2
    except (TrtPerceptionError, OSError) as error:
        _print_message(error)
        return 1
    except KeyboardInterrupt:
        _print_message('interrupted; no engine was written')
        return 130
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


_print_message = functools.partial(print_message, 'build_engine')


def _check_packages() -> None:
    """Check that onnx is installed. Imports after this check need onnx, even for --help."""
    if importlib.util.find_spec('onnx') is None:
        raise EngineError(
            'building engines',
            'needs the package onnx, which is not installed',
            fix='install the packages of the extra "build" into the environment of this shell: '
            'python3 -m pip install onnx onnxslim onnxruntime ml_dtypes pycocotools',
        )


def _run(arguments_given: Sequence[str]) -> int:
    _check_packages()
    from trt_perception.offline.building.build_page import build_page
    from trt_perception.offline.building.options.sources import given_options, load_options
    from trt_perception.offline.building.output_files import check_report_path
    from trt_perception.offline.building.report import BuildReport

    parsed = _parser().parse_args(arguments_given)
    report = BuildReport()
    json_file = page_folder = None
    try:
        options = load_options(parsed.config, given_options(parsed))
        check_report_path(options)
        check_output_folder(options.report)
        json_file, page_folder = options.json, options.report
        report.configuration['command'] = shlex.join(['build_engine', *arguments_given])
        _build_with_progress(options, report)
    except BaseException as error:
        if report.status == 'running':
            report.fail(error)
        if not isinstance(error, KeyboardInterrupt):
            for text in report.warnings:
                _print_message(f'warning: {text}')
            raise
        engine = 'the engine was written' if report.output_engine else 'no engine was written'
        _print_message(
            f'interrupted; {engine}'
            + (f'; {json_file} lists the finished steps' * bool(json_file))
        )
        return 130
    finally:
        saver = ResultSaver('build_engine')
        if json_file is not None:
            saver.save(json_file, lambda path: write_atomically({path: report.json_text()}))
        if page_folder is not None:
            saver.save(page_folder, lambda folder: build_page(report.as_dict()).write(folder))
    return int(saver.failed)


def _build_with_progress(options: Any, report: Any) -> None:
    """Build, print a row for each finished step, and show a progress bar for the current step."""
    from trt_perception.offline.building.report import BuildLog, format_step
    from trt_perception.offline.building.steps.build import build

    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.ERROR, format='%(message)s'
    )
    tqdm.monitor_interval = 0  # 0 disables tqdm's monitor thread
    with tqdm(
        disable=None, leave=False, bar_format='{desc} {bar} {percentage:3.0f}% {elapsed}'
    ) as bar:

        def progress(step: str, done: int, total: int) -> None:
            bar.set_description_str(step, refresh=False)
            bar.total, bar.n = total or 1, done
            bar.refresh()

        def print_step(step: Any) -> None:
            bar.clear()
            print(escape_controls(format_step(step)), flush=True)

        build(options, BuildLog(report, progress, print_step))
    report.status = 'done'
    print(f'\n{escape_controls(report.text(), None)}')


def _parser() -> argparse.ArgumentParser:
    from trt_perception.offline.building.options.sources import add_arguments

    parser = OptionParser('build_engine', __doc__, _HELP_END, other_name=foreign_names)
    parser.allow_abbrev = False
    parser.add_model('ONNX model to build from', 'onnx', nargs='?', default=argparse.SUPPRESS)
    parser.add_argument('--config', type=Path, metavar='YAML', help='read options from this file')
    add_arguments(parser)
    return parser


if __name__ == '__main__':
    sys.exit(main())
