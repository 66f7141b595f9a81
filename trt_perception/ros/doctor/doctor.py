# SPDX-License-Identifier: Apache-2.0
"""Checks machine, shell, model and cameras, and prints a fix for each problem.

doctor runs without a GPU, cameras or ROS, and reports the missing parts.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from trt_perception.checks.finding import Finding, findings_as_json, format_findings, run_check
from trt_perception.checks.machine import machine_findings
from trt_perception.checks.model import is_engine, is_onnx, model_findings
from trt_perception.checks.onnx_providers import onnx_provider_findings
from trt_perception.checks.shell import DEFAULT_SEGMENT_BYTES, read_profile, shell_findings
from trt_perception.checks.software import (
    InstalledGpu,
    ModuleImport,
    gpu_findings,
    import_modules,
    package_findings,
)
from trt_perception.checks.trial import run_model_once
from trt_perception.errors import ConfigError
from trt_perception.parameters.bond import bond_with_autostart
from trt_perception.parameters.camera import CameraPlan, NodeParameters, suggest_assignment
from trt_perception.parameters.spelling import split_assignment
from trt_perception.parameters.values import PARAMETERS
from trt_perception.process.foreign_names import foreign_names
from trt_perception.process.option_parser import OptionParser
from trt_perception.ros.runtime.arguments import number_between, text_matching

_LOG: Final = logging.getLogger(__name__)
_GRAPH_MODULE = 'trt_perception.ros.doctor.ros_graph'
_PARAMETERS_MODULE = 'trt_perception.ros.doctor.parameters'

_CORRECT_PARAMETERS = 'correct the parameters above, then run doctor again'
_HELP_END = """examples:
  doctor                                            check machine, shell and all cameras
  doctor yolo.engine                                also check whether this engine can run here
  doctor yolo.onnx --image-topic /front/image_raw   also check this model and this camera
  doctor --params-file my.yaml                      check a node with these parameters
  doctor --params-file my.yaml --image-topic '/{camera}/image_raw'   check each camera in the file
  doctor yolo.onnx --param model.decoder:=yolox_raw --param 'model.class_names:=[cat, dog]'
  doctor --json > doctor.json                       write a report for an issue

green: no problem; yellow: works, but not in every case or not at full speed; red: does not work.
Run doctor in the shell that starts the detector, with the same virtual environment.

exit codes: 0 nothing is red, 1 something is red, 2 wrong usage, 130 interrupted
"""


def main(args: list[str] | None = None) -> int:
    """Run all checks and print the findings. Return the exit code."""
    parser = _parser()
    options = parser.parse_args(sys.argv[1:] if args is None else args)
    if parser.suggestion(options.model):
        parser.refuse([options.model])
    if options.image_topic and not options.seconds:
        parser.error(
            '--image-topic needs --seconds above 0, because 0 disables all checks of topics'
        )
    findings: list[Finding] = []
    code = 130
    try:
        color = sys.stdout.isatty() and not os.environ.get('NO_COLOR')
        for text in format_findings(_collect(run_checks(options), findings), color=color):
            if not options.json:
                print(text, flush=True)
        code = int(any(finding.level == 'red' for finding in findings))
    except KeyboardInterrupt:
        print('doctor: interrupted; some checks are missing', file=sys.stderr)
    if options.json:
        print(findings_as_json(findings, interrupted=code == 130))
    return code


def _collect(findings: Iterable[Finding], into: list[Finding]) -> Iterator[Finding]:
    for finding in findings:
        into.append(finding)
        yield finding


@dataclass
class _Inputs:
    """The inputs of the checks. A check may add inputs for later checks.

    Attributes:
        values: maps the name of each node parameter that differs from its default to its value;
            None if the parameters cannot be read.
    """

    options: argparse.Namespace
    values: dict[str, Any] | None = None
    gpus: list[InstalledGpu] = field(default_factory=list)

    @property
    def has_parameters(self) -> bool:
        """Whether parameters were given on the command line."""
        return bool(self.options.param or self.options.params_file)

    @property
    def node_values(self) -> dict[str, Any]:
        """The readable parameters, overridden by the command line."""
        values = dict(self.values or {})
        if self.options.model:
            values['engine_path'] = self.options.model
        if self.options.device is not None:
            values['device_ids'] = [self.options.device]
        return values

    @property
    def device_ids(self) -> list[int]:
        """Indices of the CUDA devices of the node."""
        return list(self.node_values.get('device_ids', [0]))

    @property
    def model(self) -> str:
        """Path of the model; empty if none was given."""
        return str(self.node_values.get('engine_path', ''))

    @functools.cached_property
    def modules(self) -> dict[str, ModuleImport]:
        """Result of importing each module."""
        return import_modules()

    @property
    def has_ros(self) -> bool:
        """Whether ROS 2 is sourced or installed."""
        return 'ROS_DISTRO' in os.environ or not self.modules['rclpy'].missing

    @functools.cached_property
    def segment_bytes(self) -> int:
        """Bytes of shared memory that a process of this shell allocates."""
        with contextlib.suppress(OSError, ValueError):  # shell_findings reports these errors
            return read_profile(os.environ).segment_bytes
        return DEFAULT_SEGMENT_BYTES

    @functools.cached_property
    def raw_cameras(self) -> int:
        """Number of cameras that may send raw images."""
        with contextlib.suppress(ConfigError):  # reported by the check of the parameters
            return NodeParameters.from_values(self.node_values).raw_camera_count()
        return 0


def run_checks(options: argparse.Namespace) -> Iterator[Finding]:
    """Run all checks in the order of _CHECKS. A check that fails does not stop the others."""
    inputs = _Inputs(options)
    for area, name, check in _CHECKS:
        yield from run_check(area, name, functools.partial(check, inputs))


def _shell_findings(inputs: _Inputs) -> Iterable[Finding]:
    return shell_findings(os.environ, has_ros=inputs.has_ros)


def _machine_findings(inputs: _Inputs) -> Iterable[Finding]:
    return machine_findings(inputs.segment_bytes, raw_cameras=inputs.raw_cameras)


def _parameter_findings(inputs: _Inputs) -> Iterator[Finding]:
    """Read the parameters with ROS in a separate process, because ROS may be broken."""
    options = inputs.options
    if not inputs.has_parameters:
        inputs.values = {}
        return
    arguments = [word for path in options.params_file for word in ('--params-file', path)]
    arguments += [word for given in options.param for word in ('-p', given)]
    report = _run_module(_PARAMETERS_MODULE, [options.node, *arguments], 60)
    for mistake in report['mistakes']:
        fix = 'correct the parameter, because the node would exit with code 2'
        yield Finding('parameters', 'parameters', 'red', mistake, fix)
    for sentence in report['unused']:
        fix = "rename the section as described, or pass the node's full name with --node"
        yield Finding('parameters', 'parameters', 'yellow', sentence, fix)
    if not report['mistakes']:
        inputs.values = report['values']
        names = ', '.join(report['values']) or 'all have their defaults'
        yield Finding('parameters', 'parameters', 'green', f'{options.node}: {names}')
        yield from _start_value_findings(inputs.node_values)


def _start_value_findings(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Report values that are fixed at the start, and values that need other values."""
    fixed = [row.name for row in PARAMETERS if row.start_only and row.name in values]
    if fixed:
        found = f'{", ".join(fixed)}: only a new start of the node can change them'
        yield Finding('parameters', 'fixed at the start', 'green', found)
    if values.get('triton.headers') and not values.get('triton.tls'):
        found = 'the connection sends the headers of triton.headers without encryption'
        fix = 'set triton.tls, or use only a network that you trust'
        yield Finding('parameters', 'triton.headers', 'yellow', found, fix)
    if values.get('bond.enabled') and values.get('autostart'):
        error = bond_with_autostart()
        yield Finding('parameters', 'bond.enabled', 'red', error.found, error.fix)


def _package_findings(inputs: _Inputs) -> Iterable[Finding]:
    return package_findings(
        inputs.modules,
        needs_onnx=is_onnx(inputs.model),
        needs_bond=inputs.node_values.get('bond.enabled', False),
        has_ros=inputs.has_ros,
    )


def _onnx_provider_findings(inputs: _Inputs) -> Iterable[Finding]:
    if not inputs.modules['onnxruntime'].version:  # reported by package_findings
        return []
    return onnx_provider_findings(inputs.device_ids[0])


def _gpu_findings(inputs: _Inputs) -> Iterable[Finding]:
    return gpu_findings(
        inputs.modules,
        needs_engine=is_engine(inputs.model),
        device_ids=inputs.device_ids,
        found=inputs.gpus,
    )


def _model_findings(inputs: _Inputs) -> Iterable[Finding]:
    if inputs.values is None:
        found = 'not checked, because the parameters cannot be read'
        return [Finding('model', 'model', 'yellow', found, _CORRECT_PARAMETERS)]
    if not (inputs.model or inputs.has_parameters):
        return []
    trial = functools.partial(trial_run, inputs.node_values)
    return model_findings(inputs.model, inputs.modules, inputs.gpus, trial=trial)


def trial_run(values: Mapping[str, Any]) -> str:
    """Run a model once, as the node would. Return a description.

    Parameters that have no effect with the model cause warnings in the log.

    Args:
        values: maps the names of the node's parameters to their values.

    Raises:
        TrtPerceptionError: the model cannot be used; the message gives the reason.
    """
    node_parameters = NodeParameters.from_values(values)
    node = node_parameters.node
    options = replace(node_parameters.pipeline_options(), max_batch=max(1, len(node.cameras)))

    def check(spec: Any) -> None:
        node_parameters.check(
            lambda parameters: parameters.thresholds(spec.class_names, spec.task)
        )
        fix = {'fix': 'leave it out, unless other models need it'}
        for name in ('', *node.cameras):
            parameters, before = node_parameters.camera(name), node if name else None
            for sentence in parameters.unused_parameter_warnings(spec.task, spec.decoder, before):
                _LOG.warning('%s%s', f"camera '{name}': " if name else '', sentence, extra=fix)

    return run_model_once(node.engine_path, options, node.device_ids, check)


def _camera_findings(inputs: _Inputs) -> Iterator[Finding]:
    """Check the ROS graph in a separate process, because a missing middleware ends the process."""
    options = inputs.options
    if not (options.seconds and inputs.has_ros):
        return
    is_readable = inputs.values is not None
    node_parameters = NodeParameters.from_values(inputs.node_values if is_readable else {})
    cameras = node_parameters.node.cameras
    plans = None
    try:
        if not is_readable and '{camera}' in (options.image_topic or ''):
            found = (
                'not checked, because the parameters with the names of the cameras cannot be read'
            )
            yield Finding('cameras', 'image topic', 'yellow', found, _CORRECT_PARAMETERS)
        else:
            plans = _camera_plans(options, node_parameters)
    except ConfigError as error:
        fix = "write the topic as in --image-topic '/{camera}/image_raw'"
        if not cameras:
            fix = "name the cameras with -p 'cameras:=[front, rear]' or in a --params-file"
        yield Finding('cameras', 'image topic', 'red', error.statement, fix)
    request = {
        # If the cameras are unknown, check one camera that may use any transport.
        'plans': [asdict(plan) for plan in plans or [CameraPlan(transport='auto')]],
        'node_name': options.node,
        'seconds': options.seconds,
        'segment_bytes': inputs.segment_bytes,
        'topics_given': bool(options.image_topic),
    }
    for entry in _run_module(_GRAPH_MODULE, [json.dumps(request)], options.seconds + 60):
        yield Finding(**entry)


#: Area and name of each check, and the check itself.
_CHECKS: Final[tuple[tuple[str, str, Callable[[_Inputs], Iterable[Finding]]], ...]] = (
    ('ROS 2 in this shell', 'shell', _shell_findings),
    ('machine', 'machine', _machine_findings),
    ('parameters', 'parameters', _parameter_findings),
    ('Python and packages', 'packages', _package_findings),
    ('Python and packages', 'ONNX Runtime providers', _onnx_provider_findings),
    ('GPU', 'GPU', _gpu_findings),
    ('model', 'model', _model_findings),
    ('cameras', 'graph', _camera_findings),
)


def _camera_plans(
    options: argparse.Namespace, node_parameters: NodeParameters
) -> list[CameraPlan]:
    """Return the plan of each camera of the node, with its topic if one is known.

    Raises:
        ConfigError: ``--image-topic`` does not fit the cameras.
    """
    from trt_perception.parameters.launch_arguments import image_remappings  # needs PyYAML

    cameras = node_parameters.node.cameras
    given = dict(image_remappings(options.image_topic or '', cameras))
    if cameras:
        namespace = options.node.rpartition('/')[0]
        own = {name: f'{name}/image' for name in cameras}
        topics = {name: given.get(topic, f'{namespace}/{topic}') for name, topic in own.items()}
    else:
        topics = {'': given.get('image', '')}
    # An ONNX model runs on the CPU, which decodes no JPEG: auto means raw.
    auto = 'raw' if is_onnx(node_parameters.node.engine_path) else 'auto'
    return [
        replace(
            plan,
            topic=topics[plan.name],
            transport=auto if plan.transport == 'auto' else plan.transport,
        )
        for plan in node_parameters.plans()
    ]


def _run_module(module: str, arguments: list[str], timeout_s: float) -> Any:
    """Run a module in a separate process. Return the JSON value of its last line of output.

    Raises:
        RuntimeError: the process failed; with the last line of its error output.
    """
    ended = subprocess.run(
        [sys.executable, '-m', module, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    if ended.returncode:
        reason = ended.stderr.strip().splitlines() or [f'exit code {ended.returncode}']
        raise RuntimeError(f'this check needs ROS 2: {reason[-1]}')
    return json.loads(ended.stdout.splitlines()[-1])


def _parse_parameter(text: str) -> str:
    """Return a parameter as ``NAME:=VALUE``, the form that ROS reads. Accepts other spellings."""
    given = split_assignment(text)
    if given is None:
        raise argparse.ArgumentTypeError(
            f'expected NAME:=VALUE, as in model.decoder:=dense (got {text!r})'
        )
    return ':='.join(given)


def _parser() -> OptionParser:
    what = 'Checks machine, shell, model and cameras, and says what to do.'
    parser = OptionParser(
        'doctor',
        what,
        _HELP_END,
        assignment=suggest_assignment,
        before='-p',
        other_name=foreign_names,
    )
    parser.add_model('engine or ONNX file to check', nargs='?', default='')
    name = r'[A-Za-z_][A-Za-z0-9_]*'
    part = r'([A-Za-z_]|\{camera\})([A-Za-z0-9_]|\{camera\})*'
    parser.add_argument(
        '--image-topic',
        # The rules of ROS 2 without substitutions. rclpy has them, but may be missing.
        type=text_matching(
            rf'(~?/)?{part}(/{part})*',
            'a topic such as /front/image_raw: names of letters, digits and underscores that do '
            'not begin with a digit, separated by /',
        ),
        metavar='TOPIC',
        help='image topic of the detector; for several cameras, {camera} stands for the name of '
        'each camera',
    )
    parser.add_argument(
        '--seconds',
        type=number_between(0.0, 600.0),
        default=3.0,
        help='seconds to listen to the cameras, after up to 4 s to find them (default: 3); 0 '
        'skips the checks of topics, and excludes --image-topic',
    )
    parser.add_argument(
        '--device',
        type=number_between(0, 63),
        metavar='N',
        help='CUDA device (default: the parameter device_ids, else 0)',
    )
    parser.add_argument(
        '-p',
        '--param',
        action='append',
        default=[],
        type=_parse_parameter,
        metavar='NAME:=VALUE',
        help="a parameter of the node; the argument model sets its 'engine_path'",
    )
    parser.add_argument(
        '--params-file',
        action='append',
        default=[],
        metavar='FILE',
        help='a parameter file of the node',
    )
    parser.add_argument(
        '--node',
        type=text_matching(f'(/{name})+', 'a full name, such as /front/detector'),
        default='/detector',
        metavar='NAME',
        help='full name of the node that the parameter file is for (default: /detector)',
    )
    parser.add_argument('--json', action='store_true', help='print JSON')
    return parser
