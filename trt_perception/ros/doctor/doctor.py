"""Checks machine, shell, model and cameras, and says what to do about what is wrong.

Works without a GPU, without cameras and without ROS: what is missing is what it reports.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trt_perception.checks.finding import Finding, as_json, guarded, texts
from trt_perception.checks.machine import check_machine
from trt_perception.checks.model import check_model, is_onnx
from trt_perception.checks.shell import DEFAULT_SEGMENT_BYTES, check_shell, read_profile
from trt_perception.checks.software import InstalledGpu, check_gpu, check_packages, import_modules
from trt_perception.checks.trial import run_once
from trt_perception.errors import ConfigError
from trt_perception.parameters.camera import meant_parameter
from trt_perception.process.option_parser import OptionParser
from trt_perception.ros.runtime.arguments import matching, number_between

__all__ = ['main']

_GRAPH = 'trt_perception.ros.doctor.ros_graph'
_PARAMETERS = 'trt_perception.ros.doctor.parameters'

_CORRECT = 'correct the parameters above, then run doctor again'
_EXAMPLES = """examples:
  doctor                                            this machine and shell, and all cameras
  doctor yolo.engine                                and whether this engine can run here
  doctor yolo.onnx --image-topic /front/image_raw   and this camera
  doctor --params-file my.yaml                      and what a node with these parameters would do
  doctor --params-file my.yaml --image-topic '/{camera}/image_raw'   and each camera it names
  doctor yolo.onnx --param model.decoder:=yolox_raw --param 'model.class_names:=[cat, dog]'
  doctor --json > doctor.json                       for a bug report

green: as it should be; yellow: works, but not for everything or not as well; red: does not work.
Run it in the shell that starts the detector, with its virtual environment.

exit codes: 0 nothing is red, 1 something is red, 2 wrong usage, 130 interrupted
"""


def main(args: list[str] | None = None) -> int:
    """Run all checks, print what they found, and return the exit code."""
    parser = _parser()
    options = parser.parse_args(sys.argv[1:] if args is None else args)
    if parser.meant(options.model):
        parser.refuse([options.model])
    if options.image_topic and not options.seconds:
        parser.error('--image-topic needs --seconds above 0: with 0 no topic is listened to')
    findings: list[Finding] = []
    code = 130
    try:
        color = sys.stdout.isatty() and not os.environ.get('NO_COLOR')
        for text in texts(_collected(run_checks(options), findings), color=color):
            if not options.json:
                print(text, flush=True)
        code = int(any(finding.level == 'red' for finding in findings))
    except KeyboardInterrupt:
        print('doctor: interrupted; some checks are missing', file=sys.stderr)
    if options.json:
        print(as_json(findings, interrupted=code == 130))
    return code


def _collected(findings: Iterable[Finding], into: list[Finding]) -> Iterator[Finding]:
    for finding in findings:
        into.append(finding)
        yield finding


def run_checks(options: argparse.Namespace) -> Iterator[Finding]:
    """Run all checks in their order; none keeps another from running."""
    yield from guarded('ROS 2 in this shell', 'shell', lambda: check_shell(os.environ))
    segment_bytes = DEFAULT_SEGMENT_BYTES
    with contextlib.suppress(OSError, ValueError):  # reported by check_shell
        segment_bytes = read_profile(os.environ).segment_bytes
    yield from guarded('machine', 'machine', lambda: check_machine(segment_bytes))
    modules = import_modules()
    values: dict[str, Any] = {}
    readable = True
    if options.param or options.params_file:
        found = list(guarded('parameters', 'parameters', lambda: _parameters(options, values)))
        readable = all(finding.level != 'red' for finding in found)
        yield from found
    if options.model:
        values['engine_path'] = options.model
    if options.device is not None:
        values['device_ids'] = [options.device]
    model = values.get('engine_path', '')
    onnx = is_onnx(model)
    yield from guarded(
        'Python and packages', 'packages', lambda: check_packages(modules, onnx_wanted=onnx)
    )
    gpus: list[InstalledGpu] = []
    yield from guarded(
        'GPU',
        'GPU',
        lambda: check_gpu(
            modules,
            engine_wanted=bool(model) and not onnx,
            device_ids=values.get('device_ids', [0]),
            found=gpus,
        ),
    )
    if not readable:
        unread = 'not checked: its parameters cannot be read'
        yield Finding('model', 'model', 'yellow', unread, _CORRECT)
    elif model or options.param or options.params_file:
        yield from guarded(
            'model',
            'model',
            lambda: check_model(model, modules, gpus, trial=lambda: run_once(values)),
        )
    if options.seconds:
        known = values if readable else None
        yield from guarded('cameras', 'graph', lambda: _graph(options, known, segment_bytes))


def _parameters(options: argparse.Namespace, values: dict[str, Any]) -> Iterator[Finding]:
    """Let ROS read the parameters, in a process of its own: it may be what is broken.

    Args:
        options: name the files and values.
        values: filled with the parameters that are not the defaults.
    """
    arguments = [word for path in options.params_file for word in ('--params-file', path)]
    arguments += [word for given in options.param for word in ('-p', given)]
    report = _answer_of(_PARAMETERS, [options.node, *arguments], 60)
    values.update(report['values'])
    for mistake in report['mistakes']:
        fix = 'correct it: the node would not start, with exit code 2'
        yield Finding('parameters', 'parameters', 'red', mistake, fix)
    for sentence in report['unused']:
        fix = 'name the section as the message says, or give --node the name that the node has'
        yield Finding('parameters', 'parameters', 'yellow', sentence, fix)
    if not report['mistakes']:
        names = ', '.join(values) or 'all have their defaults'
        yield Finding('parameters', 'parameters', 'green', f'{options.node}: {names}')


def _graph(
    options: argparse.Namespace, values: Mapping[str, Any] | None, segment_bytes: int
) -> Iterable[Finding]:
    """Ask the graph in a process of its own: a middleware that is not there ends it.

    Args:
        options: of the command line.
        values: the node's parameters by name; None where they cannot be read.
        segment_bytes: of this shell's shared memory.
    """
    from trt_perception.parameters.camera import NodeConfig

    configs = NodeConfig.from_values(values or {})
    cameras = configs.node.cameras
    # Without a GPU nothing decodes JPEG there: auto is raw.
    auto = 'raw' if is_onnx(configs.node.engine_path) else 'auto'
    transports = {name: configs.camera(name).image_transport for name in ('', *cameras)}
    transports = {name: auto if way == 'auto' else way for name, way in transports.items()}
    topics: dict[str, str] | None = None
    try:
        if values is None and '{camera}' in (options.image_topic or ''):
            found = 'not looked for: the parameters, which name the cameras, cannot be read'
            yield Finding('cameras', 'image topic', 'yellow', found, _CORRECT)
        else:
            topics = _image_topics(options, cameras)
    except ConfigError as error:
        fix = "give --image-topic as in '/{camera}/image_raw'"
        if not cameras:
            fix = "say which cameras there are: -p 'cameras:=[front, rear]', or by --params-file"
        yield Finding('cameras', 'image topic', 'red', error.statement, fix)
    if topics is None:  # whichever transport it is, nobody knows whether it is taken
        topics, transports = {}, {'': 'auto'}
    request = {
        'image_topics': topics,
        'node_name': options.node,
        'seconds': options.seconds,
        'segment_bytes': segment_bytes,
        'topics_given': bool(options.image_topic),
        'transports': transports,
        'reliable': [
            name
            for name in cameras or ('',)
            if configs.camera(name).image_qos_reliability == 'reliable'
        ],
        'off': [name for name in cameras or ('',) if not configs.camera(name).enabled],
    }
    for entry in _answer_of(_GRAPH, [json.dumps(request)], options.seconds + 60):
        yield Finding(**entry)


def _image_topics(options: argparse.Namespace, cameras: Sequence[str]) -> dict[str, str]:
    """Return the topic of each camera of the node, by its name; '' where it has one without.

    Raises:
        ConfigError: ``--image-topic`` does not fit the cameras.
    """
    from trt_perception.parameters.launch_arguments import image_remappings

    given = dict(image_remappings(options.image_topic or '', cameras))
    if not cameras:
        return {'': given['image']} if given else {}
    namespace = options.node.rpartition('/')[0]
    own = {name: f'{name}/image' for name in cameras}
    return {name: given.get(topic, f'{namespace}/{topic}') for name, topic in own.items()}


def _answer_of(module: str, arguments: list[str], timeout_s: float) -> Any:
    """Run a module in a process of its own; return what it prints as JSON in its last line.

    Raises:
        RuntimeError: it failed; with the last line of what it said of that.
    """
    ended = subprocess.run(
        [sys.executable, '-m', module, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    if ended.returncode:
        reason = ended.stderr.strip().splitlines() or [f'exit code {ended.returncode}']
        raise RuntimeError(f'not without ROS 2: {reason[-1]}')
    return json.loads(ended.stdout.splitlines()[-1])


def _parser() -> OptionParser:
    what = 'Check machine, shell, model and cameras, and say what to do.'
    parser = OptionParser('doctor', what, _EXAMPLES, parameter=meant_parameter, before='-p')
    parser.add_argument('model', nargs='?', default='', help='engine or ONNX file to check')
    name = r'[A-Za-z_][A-Za-z0-9_]*'
    part = r'([A-Za-z_]|\{camera\})([A-Za-z0-9_]|\{camera\})*'
    parser.add_argument(
        '--image-topic',
        # As ROS 2 has it, without substitutions: rclpy, which knows, may be what is missing.
        type=matching(
            rf'(~?/)?{part}(/{part})*',
            'a topic as /front/image_raw: names of letters, digits and underscores, none '
            'beginning with a digit, with / between them',
        ),
        metavar='TOPIC',
        help='topic that the detector is to read; where parameters name several cameras, with '
        '{camera} for the name of each',
    )
    parser.add_argument(
        '--seconds',
        type=number_between(0.0, 600.0),
        default=3.0,
        help='how long to listen to cameras once they are found, which takes up to 4 s more '
        '(default 3); 0 does not ask the graph, and goes without --image-topic',
    )
    parser.add_argument(
        '--device',
        type=number_between(0, 63),
        metavar='N',
        help='CUDA device (default: device_ids, 0)',
    )
    parser.add_argument(
        '-p',
        '--param',
        action='append',
        default=[],
        type=matching('(?s).+?:=.*', 'NAME:=VALUE, as in model.decoder:=dense'),
        metavar='NAME:=VALUE',
        help="a parameter that the node will be given; the model argument is its 'engine_path'",
    )
    parser.add_argument(
        '--params-file',
        action='append',
        default=[],
        metavar='FILE',
        help='a parameter file that it will be given',
    )
    parser.add_argument(
        '--node',
        type=matching(f'(/{name})+', 'a full name, as /front/detector'),
        default='/detector',
        metavar='NAME',
        help='full name of the node that the parameter file is for (default /detector)',
    )
    parser.add_argument('--json', action='store_true', help='print JSON')
    return parser
