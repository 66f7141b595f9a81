# SPDX-License-Identifier: Apache-2.0
"""Command line that writes the manifest of a model without building an engine."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from trt_perception.errors import ConfigError
from trt_perception.files.atomic_files import write_atomically
from trt_perception.files.plain_text import escape_controls, names_mistake
from trt_perception.model.files.model_file import ModelFile, read_model_file
from trt_perception.model.manifest import (
    Manifest,
    manifest_path,
    parse_manifest,
    serialise_manifest,
)
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.tasks.pose import Pose
from trt_perception.model.tasks.table import TASKS
from trt_perception.offline.building.options.sources import names_file_text, read_names_file
from trt_perception.offline.tools.parts.arguments import (
    add_file_option,
    check_output_file,
    integer_at_least,
    parse_path,
)
from trt_perception.offline.tools.parts.command_line import run_tool
from trt_perception.offline.tools.parts.model_arguments import (
    add_parameter_option,
    read_parameters,
)
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.open_pipeline import open_offline_pipeline
from trt_perception.pipelines.warm_up import warm_up
from trt_perception.process.foreign_names import foreign_names
from trt_perception.process.option_parser import OptionParser

_HELP_END: Final = """\
examples:
  write_manifest yolo.engine --task segment --class-names-file names.txt
  write_manifest pose.onnx --task pose --class-names car \\
    --keypoint-names front_left front_right rear_left rear_right
  write_manifest yolo.onnx --class-names cat dog --param model.scale=1.0

The tool runs the model once, and writes MODEL.json next to the model. Values that are not given
come from the model. An engine needs its GPU.

exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return run_tool(_parser(), arguments, _prepare, _run)


def _parser() -> argparse.ArgumentParser:
    parser = OptionParser(
        'write_manifest',
        'Writes the manifest of a model, without building an engine.',
        _HELP_END,
        other_name=foreign_names,
    )
    parser.add_model('engine or ONNX file', type=parse_path)
    add_description_options(parser)
    return parser


def add_description_options(parser: argparse._ActionsContainer) -> None:
    """Add the options that ``read_description_options`` reads."""
    add = parser.add_argument
    add(
        '--task',
        choices=tuple(TASKS),
        help='what the model outputs, such as detect for boxes',
    )
    names = parser.add_mutually_exclusive_group()
    text = "names of the classes in the network's order"
    names.add_argument('--class-names', nargs='+', default=[], metavar='NAME', help=text)
    add_file_option(names, '--class-names-file', 'text file with one class name on each line')
    text = 'names of the keypoints of an object, in the order of the outputs; for --task pose'
    add('--keypoint-names', nargs='+', default=[], metavar='NAME', help=text)
    add(
        '--device',
        type=integer_at_least(0),
        default=0,
        metavar='N',
        help='CUDA device for an engine (default: 0)',
    )
    add_parameter_option(parser)


def given_description_option(options: argparse.Namespace) -> str:
    """Return an option that describes the model and was given; empty if none was."""
    names = ('task', 'class_names', 'class_names_file', 'keypoint_names', 'param')
    return next((f'--{name.replace("_", "-")}' for name in names if getattr(options, name)), '')


def _prepare(options: argparse.Namespace) -> tuple[ModelFile, PipelineOptions]:
    """Check the options and read the model."""
    target = manifest_path(options.model)
    if target.exists():
        raise ConfigError(str(target), 'exists', fix='remove it to write a new manifest')
    check_output_file(target)
    pipeline_options = read_description_options(options)
    return read_model_file(str(options.model)), pipeline_options


def read_description_options(options: argparse.Namespace) -> PipelineOptions:
    """Return options for a pipeline of ``options.model``, which the options describe.

    Raises:
        ConfigError: the options are malformed, contradict each other, or name a missing file.
    """
    names = list(options.class_names)
    if options.class_names_file:
        names = list(read_names_file(options.class_names_file))
    given = {
        'engine_path': str(options.model),
        'device_ids': [options.device],
        **({'model.task': options.task} if options.task else {}),
        **({'model.class_names': names} if names else {}),
    }
    further = read_parameters(options.param)
    if twice := sorted(given.keys() & further.keys()):
        flag = '--' + twice[0].removeprefix('model.').replace('_', '-')
        raise ConfigError(f'--param {twice[0]}', f'is also given as {flag}', fix='give only one')
    parameters = ParameterValues.from_values({**given, **further})
    pipeline_options = parameters.pipeline_options()
    keypoints = tuple(options.keypoint_names)
    if keypoints and parameters.model_task != Pose.name:
        raise ConfigError('--keypoint-names', 'given', expected='only with --task pose')
    if keypoints and (mistake := names_mistake(keypoints)):
        raise ConfigError('--keypoint-names', **mistake)
    overrides = replace(
        pipeline_options.overrides,
        keypoint_names=keypoints,
        class_names_source=names_file_text(options.class_names_file),
    )
    return replace(pipeline_options, overrides=overrides)


def _run(job: tuple[ModelFile, PipelineOptions], _: argparse.Namespace) -> int:
    model, options = job
    spec = _run_once(model, options)
    content = serialise_manifest(_manifest(model, spec))
    target = manifest_path(model.path)
    parse_manifest(content, target.name)  # run the checks that the next start of a node runs
    write_atomically({target: content})
    facts = f'{spec.task.summary(spec.class_names)}, {spec.decoder}'
    lines = [f'saved {target}: {facts}; {spec.preprocessing.summary()}', *spec.evidence]
    print(escape_controls('\n'.join(lines)))
    return 0


def recognised_manifest(model: ModelFile, options: PipelineOptions) -> Manifest:
    """Run a model once, and return the manifest that describes how the node reads it.

    Raises:
        TrtPerceptionError: the node cannot run the model.
    """
    return _manifest(model, _run_once(model, options))


def _run_once(model: ModelFile, options: PipelineOptions) -> ModelSpec:
    with contextlib.closing(open_offline_pipeline(model, options)) as pipeline:
        warm_up(pipeline)
        return pipeline.spec


def _manifest(model: ModelFile, spec: ModelSpec) -> Manifest:
    assert spec.model is not None
    inputs, outputs = spec.model.inputs, spec.model.outputs
    if model.is_onnx:
        return spec.manifest(inputs, outputs, onnx=model.identity)
    return spec.manifest(inputs, outputs, engine=model.identity)


if __name__ == '__main__':
    sys.exit(main())
