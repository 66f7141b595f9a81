# SPDX-License-Identifier: Apache-2.0
"""Writes a model into the model repository of a Triton server."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import escape_controls, short_repr
from trt_perception.model.files.model_file import ModelFile, read_model_file
from trt_perception.model.files.plan_header import read_plan_header
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.offline.building.triton.model_repository import (
    ServerOptions,
    check_output_paths,
    check_servable,
    largest_batch,
    write_served_model,
)
from trt_perception.offline.tools.parts.arguments import (
    check_output_folder,
    integer_at_least,
    parse_path,
)
from trt_perception.offline.tools.parts.command_line import run_tool
from trt_perception.offline.tools.write_manifest import (
    add_description_options,
    given_description_option,
    read_description_options,
    recognised_manifest,
)
from trt_perception.process.foreign_names import foreign_names
from trt_perception.process.option_parser import OptionParser

_NAME: Final = re.compile(r'[A-Za-z0-9_][A-Za-z0-9._-]{0,254}')

#: Limits of the numbers in a configuration, and of a version in the address of a model.
_MAX_NUMBER: Final = 2**31 - 1
_MAX_VERSION: Final = 10**18 - 1

_HELP_END: Final = """\
examples:
  export_triton yolo.onnx --repository models
  export_triton yolo.onnx --repository models --input uint8 --max-batch 16 --queue-delay-ms 2
  export_triton yolo.engine --repository models --cuda-graphs --gpus 0 1 --instances 2
  export_triton yolo.onnx --repository models --name forklifts --task detect --class-names car

The node runs the model with engine_path:=triton://HOST:8001/NAME, without further parameters.
The server must have the release of TensorRT that built an engine.
Not run by us: Triton's backends for TensorRT and ONNX Runtime. A server checked configurations
with its Python backend.

exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return run_tool(_parser(), arguments, _prepare, _run)


def _parser() -> argparse.ArgumentParser:
    parser = OptionParser('export_triton', __doc__, _HELP_END, other_name=foreign_names)
    parser.add_model('engine or ONNX file', type=parse_path)
    add = parser.add_argument
    add(
        '--repository',
        type=parse_path,
        required=True,
        metavar='DIR',
        help='model repository of the server; a missing folder is made',
    )
    add('--name', default='', help="name of the model (default: the file's name)")
    add(
        '--model-version',
        type=integer_at_least(1, _MAX_VERSION),
        default=1,
        metavar='N',
        help='number of the version folder (default: 1)',
    )
    add('--overwrite', action='store_true', help='replace an earlier export of this name')
    add(
        '--input',
        choices=('unchanged', 'uint8'),
        default='unchanged',
        help='uint8: put scale, mean and standard deviation into the graph of an ONNX file, so '
        'that requests have a quarter of the bytes (default: unchanged)',
    )
    _add_server_options(parser.add_argument_group('options of the server'))
    group = parser.add_argument_group('description of a model without a manifest')
    add_description_options(group)
    return parser


def _add_server_options(group: argparse._ArgumentGroup) -> None:
    add, defaults = group.add_argument, ServerOptions()
    add(
        '--max-batch',
        type=integer_at_least(1, _MAX_NUMBER),
        metavar='N',
        help='largest batch of a model with an open batch (default: what the engine allows; 8 for '
        'an ONNX file)',
    )
    add(
        '--queue-delay-ms',
        type=integer_at_least(0, _MAX_NUMBER),
        default=defaults.queue_delay_ms,
        metavar='N',
        help='longest wait of a request for others, to make a larger batch '
        f'(default: {defaults.queue_delay_ms})',
    )
    add(
        '--queue-timeout-ms',
        type=integer_at_least(0, _MAX_NUMBER),
        default=defaults.queue_timeout_ms,
        metavar='N',
        help='refuse a request that waited longer in the queue; 0: never '
        f'(default: {defaults.queue_timeout_ms}). For many robots: docs/triton.md',
    )
    add(
        '--instances',
        type=integer_at_least(1, _MAX_NUMBER),
        default=defaults.instances,
        metavar='N',
        help=f'copies of the model on each GPU (default: {defaults.instances})',
    )
    add(
        '--gpus',
        type=integer_at_least(0, _MAX_NUMBER),
        nargs='+',
        default=[],
        metavar='N',
        help='GPUs that run the model (default: all; without a GPU, the CPU)',
    )
    add('--cuda-graphs', action='store_true', help='replay CUDA graphs; only for engines')
    add('--no-warm-up', action='store_true', help='be ready before the model has run once')


def _prepare(options: argparse.Namespace) -> tuple[ModelFile, PipelineOptions, Path]:
    """Check the options and read the model."""
    folder = options.repository / _model_name(options)
    check_output_folder(options.repository)
    check_output_folder(folder if options.repository.exists() else None)
    if os.path.lexists(folder) and not options.overwrite:
        fix = 'choose another --name, or replace it with --overwrite'
        raise ConfigError(str(folder), 'exists', fix=fix)
    model = read_model_file(options.model)
    check_servable(model)
    check_output_paths(model, folder, options.model_version)
    if options.cuda_graphs and model.is_onnx:
        raise ConfigError(
            '--cuda-graphs', f'{model.path} is an ONNX model', fix='leave out --cuda-graphs'
        )
    if options.input == 'uint8' and not model.is_onnx:
        fix = 'export its ONNX file, or build the engine from a model with a uint8 input'
        raise ConfigError('--input uint8', f'{model.path} is an engine', fix=fix)
    if model.manifest is not None and (given := given_description_option(options)):
        found = f'the manifest of {model.path} describes the model'
        raise ConfigError(given, found, fix=f'leave out {given}, or change the manifest')
    return model, read_description_options(options), folder


def _model_name(options: argparse.Namespace) -> str:
    """Return the name of the model on the server. Raises ConfigError for an invalid name."""
    name = options.name or re.sub(r'[^A-Za-z0-9._-]', '_', options.model.stem)
    if not _NAME.fullmatch(name):
        expected = (
            'at most 255 letters, digits, dots, dashes and underscores; no dot or dash first'
        )
        raise ConfigError('--name', short_repr(name), expected=expected)
    return name


def _run(job: tuple[ModelFile, PipelineOptions, Path], options: argparse.Namespace) -> int:
    model, pipeline_options, folder = job
    manifest = model.manifest or recognised_manifest(model, pipeline_options)
    server_options = ServerOptions(
        max_batch=options.max_batch,
        queue_delay_ms=options.queue_delay_ms,
        queue_timeout_ms=options.queue_timeout_ms,
        instances=options.instances,
        gpus=tuple(options.gpus),
        cuda_graphs=options.cuda_graphs,
        warm_up=not options.no_warm_up,
    )
    written = write_served_model(
        model,
        manifest,
        folder,
        options.model_version,
        server_options,
        uint8=options.input == 'uint8',
    )
    batch = largest_batch(model, manifest, options.max_batch)
    batches = f'batches of up to {batch}' if batch else 'each request is one batch'
    lines = [
        f'saved {folder}: {written.task.summary(written.class_names)}; {batches}',
        f'run it with engine_path:=triton://HOST:8001/{folder.name}',
    ]
    if not model.is_onnx:
        version = read_plan_header(model.content, str(model.path)).version
        lines.append(f'the server needs TensorRT {".".join(map(str, version))}')
    print(escape_controls('\n'.join(lines)))
    return 0


if __name__ == '__main__':
    sys.exit(main())
