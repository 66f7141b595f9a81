# SPDX-License-Identifier: Apache-2.0
"""Shows a model's file and manifest, and on a GPU tensors, memory and layers of an engine."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trt_perception.errors import ConfigError, CudaError, EngineError, TrtPerceptionError
from trt_perception.files.atomic_files import write_atomically, write_json
from trt_perception.files.plain_text import escape_controls
from trt_perception.files.regular_files import real_path
from trt_perception.gpu import Device
from trt_perception.model.files.model_file import ModelFile, read_model_file
from trt_perception.model.manifest import manifest_path, serialise_manifest
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.offline.building.engine.verify import measure_latency
from trt_perception.offline.building.inspection.inspection_report import (
    EngineReport,
    format_comparison,
    format_engine_report,
    read_engine_report,
)
from trt_perception.offline.building.inspection.inspector import inspect_engine, time_layers
from trt_perception.offline.building.inspection.layers import (
    check_precision,
    compare_precision,
    layer_precisions,
)
from trt_perception.offline.tools.parts.arguments import (
    add_file_option,
    check_output_file,
    integer_at_least,
    parse_path,
)
from trt_perception.offline.tools.parts.command_line import (
    ResultSaver,
    print_message,
    progress_bar,
    run_tool,
)
from trt_perception.offline.tools.parts.model_arguments import (
    add_parameter_option,
    read_parameters,
)
from trt_perception.offline.tools.write_manifest import recognised_manifest
from trt_perception.parameters.values import ParameterValues
from trt_perception.process.foreign_names import foreign_names
from trt_perception.process.option_parser import OptionParser

_HELP_END: Final = """\
examples:
  inspect_engine yolo.engine
  inspect_engine yolo.engine --times 50 --layers 20
  inspect_engine yolo_fp16.engine yolo_int8.engine --times 50
  inspect_engine yolo.engine --json yolo.json --no-gpu
  inspect_engine yolo.engine --update-manifest
  inspect_engine yolo.onnx

For an ONNX file without a manifest, the tool shows what the node recognises.
Without a GPU, the tool shows only file and manifest. The type of a layer is the narrowest type
that the layer reads. FP32 and TF32 look the same. --times measures each layer, and then the whole
engine as a CUDA graph. The layers take longer in sum, because TensorRT also measures waits and
gaps.

The part "fusion" counts the nodes of the ONNX file: named by a layer, folded (no layer needs
them), or with a lost name (a layer computes them without naming them, or their result was known).
A node with a plus sign was added by build_engine.
Tested with TensorRT-RTX 1.4; not tested with TensorRT 10.x and 11.x.

exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return run_tool(_parser(), arguments, _prepare, _run)


def _prepare(options: argparse.Namespace) -> tuple[list[EngineReport], PipelineOptions]:
    """Check the options, and read the model files and their manifests."""
    for option in ('update_manifest', 'times'):
        if options.no_gpu and getattr(options, option):
            name = f'--{option.replace("_", "-")}'
            raise ConfigError(name, 'must load the engine', fix='leave out --no-gpu')
    if str(options.json) != '-':
        check_output_file(options.json)
    model = read_model_file(options.model)
    for option in ('update_manifest', 'times', 'plugins'):
        if model.is_onnx and getattr(options, option):
            name = f'--{option.replace("_", "-")}'
            raise ConfigError(name, f'{model.path} is an ONNX model', fix=f'leave out {name}')
    if options.param and not _must_recognise(model):
        found = f'the files of {model.path} describe the model'
        raise ConfigError('--param', found, fix='leave out --param')
    models = [model, *map(read_model_file, [options.other] if options.other else [])]
    if options.other:
        if options.update_manifest:
            raise ConfigError('--update-manifest', 'accepts one engine', fix='leave out OTHER')
        for each in models:
            if each.is_onnx:
                raise ConfigError(str(each.path), 'an ONNX model', expected='two engines')
    parameters = ParameterValues.from_values(read_parameters(options.param))
    return [read_engine_report(each) for each in models], parameters.pipeline_options()


def _must_recognise(model: ModelFile) -> bool:
    """Return whether no manifest describes the ONNX file."""
    return model.is_onnx and model.manifest is None


def _run(job: tuple[list[EngineReport], PipelineOptions], options: argparse.Namespace) -> int:
    reports, pipeline_options = job
    if len(reports) > 1:
        return _compare(reports, options)
    [report] = reports
    if _must_recognise(report.model):
        recognised = recognised_manifest(report.model, pipeline_options)
        report = dataclasses.replace(report, recognised=recognised)
    if not report.model.is_onnx:
        report = _inspect_loaded_engine(report, options)
    failed = options.update_manifest and not _try_update_manifest(report)
    text = format_engine_report(report, layers=options.layers)
    return int(_show(text, report.as_dict(), options.json) or failed)


def _compare(reports: Sequence[EngineReport], options: argparse.Namespace) -> int:
    first, second = (_inspect_loaded_engine(report, options) for report in reports)
    text = format_comparison(first, second, layers=options.layers)
    return int(_show(text, {'first': first.as_dict(), 'second': second.as_dict()}, options.json))


def _show(text: str, content: Mapping[str, Any], json_file: Path | None) -> bool:
    """Print the text or the JSON content, and save the content. Return whether this failed."""
    if str(json_file) == '-':
        print(json.dumps(content, indent=2))
        return False
    print(escape_controls(text, None), flush=True)
    saver = ResultSaver('inspect_engine')
    if json_file is not None:
        saver.save(json_file, write_json, content, 2)
    return saver.failed


def _try_update_manifest(report: EngineReport) -> bool:
    """Update the manifest and print the result. Return False after an error, which is printed."""
    try:
        counts = update_manifest(report)
    except TrtPerceptionError as error:
        print_message('inspect_engine', error)
        return False
    written = ', '.join(f'{count} {kind}' for kind, count in counts.items())
    print(
        escape_controls(f'updated {_manifest_file(report.model.path)}: {written}'), file=sys.stderr
    )
    return True


def update_manifest(report: EngineReport) -> dict[str, int]:
    """Write the precision of the built layers into the manifest, and return the counts by type.

    Raises:
        EngineError: the engine was not loaded or does not list types, the manifest has no build
            section, or most layers lost the requested precision.
        ConfigError: the manifest cannot be written.
    """
    path, manifest = report.model.path, report.model.manifest
    if manifest is None or manifest.build is None:
        raise EngineError(
            str(path),
            'has no manifest with build information; --update-manifest needs a manifest that '
            'build_engine wrote',
        )
    if report.engine_info is None:
        raise EngineError(
            str(path),
            f'--update-manifest must load the engine, which failed: {report.why_not_loaded}',
        )
    counts = layer_precisions(report.engine_info.layers)
    if not counts:
        raise EngineError(
            str(path),
            f'does not list the types of its layers (verbosity {report.engine_info.verbosity})',
            fix='build the engine with --profiling-verbosity detailed',
        )
    precision = dataclasses.replace(manifest.build.precision, as_built=counts)
    build = dataclasses.replace(manifest.build, precision=precision)
    # Write before the check, because the manifest must be true even if the check fails.
    updated = dataclasses.replace(manifest, build=build)
    write_atomically({_manifest_file(path): serialise_manifest(updated)})
    check_precision(compare_precision(report.engine_info.layers, precision.asked), str(path))
    return counts


def _manifest_file(engine: Path) -> Path:
    """Return the path of the manifest: next to the engine, or next to the target of its link."""
    path = manifest_path(engine)
    return path if path.exists() else manifest_path(real_path(engine))


def _inspect_loaded_engine(report: EngineReport, options: argparse.Namespace) -> EngineReport:
    """Add properties of the loaded engine to the report, or why it was not loaded."""
    if options.no_gpu:
        return dataclasses.replace(report, why_not_loaded='--no-gpu')
    try:
        device = Device(0)
    except CudaError as error:
        if options.times or options.update_manifest:
            raise
        return dataclasses.replace(report, why_not_loaded=str(error))
    device.use()
    engine_info = inspect_engine(report.model, device, options.plugins)
    if not options.times:
        return dataclasses.replace(report, engine_info=engine_info)
    with progress_bar(total=options.times, desc='runs') as progress:
        times = time_layers(report.model, device, runs=options.times, progress=progress)
    engine_ms = measure_latency(report.model, device).p50
    return dataclasses.replace(report, engine_info=engine_info, times=times, engine_ms=engine_ms)


def _parser() -> argparse.ArgumentParser:
    parser = OptionParser('inspect_engine', __doc__, _HELP_END, other_name=foreign_names)
    parser.add_model('engine or ONNX file', type=parse_path)
    add = parser.add_argument
    add(
        'other',
        nargs='?',
        type=parse_path,
        metavar='OTHER',
        help='second engine: print only what differs from the first one',
    )
    add(
        '--times',
        type=integer_at_least(0),
        default=0,
        metavar='N',
        help='measure the mean time of each layer over N runs (default: 0, off; needs a GPU)',
    )
    add(
        '--layers',
        type=integer_at_least(0),
        default=30,
        metavar='N',
        help='maximum rows in the table of layers (default: 30)',
    )
    add(
        '--plugins',
        type=parse_path,
        nargs='+',
        default=[],
        metavar='FILE',
        help='plugin libraries that the engine needs',
    )
    add_file_option(parser, '--json', 'write the whole report as JSON; - prints it')
    add_parameter_option(parser)
    add('--no-gpu', action='store_true', help='do not load the engine')
    add(
        '--update-manifest',
        action='store_true',
        help='write the precision of the built layers into the manifest (needs a GPU)',
    )
    return parser


if __name__ == '__main__':
    sys.exit(main())
