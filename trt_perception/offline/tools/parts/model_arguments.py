# SPDX-License-Identifier: Apache-2.0
"""Arguments of tools that run a model: thresholds, device, parameters of the model."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import short_repr
from trt_perception.files.yaml_text import read_yaml
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.tasks.task import PARAMETERS_OF_TRACKER, Task
from trt_perception.offline.tools.parts.arguments import integer_at_least
from trt_perception.parameters.camera import (
    is_camera_parameter,
    suggest_assignment,
    suggest_parameter,
)
from trt_perception.parameters.spelling import split_assignment
from trt_perception.parameters.triton import OFFLINE_TIMEOUT_MS
from trt_perception.parameters.values import NODE_ONLY_PARAMETERS, PARAMETERS, ParameterValues
from trt_perception.process.foreign_names import OURS_OUTSIDE_THE_TABLE, foreign_names

_SET_BY_OPTIONS: Final = {
    'engine_path': 'give the model as an argument of the tool',
    'confidence_threshold': 'use --confidence',
    'iou_threshold': 'use --iou',
    'max_detections': 'use --max-detections',
    'device_ids': 'use --device',
    'nvtx': 'use --nvtx',
}
# Parameters that --param refuses: other options set them, or only a node uses them.
_PARAMETERS_SET_ELSEWHERE: Final = {
    **_SET_BY_OPTIONS,
    'tracker.type': 'use detect_images --track: other tools do not track objects',
    **dict.fromkeys(NODE_ONLY_PARAMETERS, 'leave it out: only a node uses this parameter'),
    'class_filter': 'use detect_images --classes: other tools do not filter classes',
}

# Parameters of a node that also apply to the cameras of a bag.
_PARAMETERS_OF_BAGS: Final = frozenset(
    {'cameras', 'classification.top_k', 'enabled', 'image_transport', 'map_size'}
)
#: The same for detect_bag, which makes the results of a node.
BAG_PARAMETERS_SET_ELSEWHERE: Final = {
    **_SET_BY_OPTIONS,
    'tracker.type': 'use --track',
    'class_filter': 'use --classes',
    **dict.fromkeys(
        NODE_ONLY_PARAMETERS - _PARAMETERS_OF_BAGS,
        'leave it out: it has no effect on the images of a bag',
    ),
}

#: Options that apply to objects only, with their parameters.
_OBJECT_OPTIONS: Final = {
    '--classes': 'class_filter',
    '--confidence': 'confidence_threshold',
    '--iou': 'iou_threshold',
    '--max-detections': 'max_detections',
    '--track': 'tracker_type',
}


def suggest_tool_assignment(word: str, values: Sequence[str]) -> str:
    """Return the value of ``--param`` that a mistyped option probably means; may be empty."""
    return (
        ''
        if suggest_parameter(word) in _PARAMETERS_SET_ELSEWHERE
        else suggest_assignment(word, values)
    )


def add_model_arguments(
    parser: argparse.ArgumentParser, *, has_several_devices: bool = False
) -> None:
    """Add the arguments that ``values_from_options`` reads.

    Args:
        has_several_devices: whether ``--device`` takes several numbers, for several processes.
    """
    group = parser.add_argument_group('model options, with the defaults of the node')
    add = group.add_argument
    defaults = ParameterValues()
    add(
        '--confidence',
        type=float,
        default=defaults.confidence_threshold,
        metavar='X',
        help=f'report detections with a higher score (default: {defaults.confidence_threshold})',
    )
    add(
        '--iou',
        type=float,
        default=defaults.iou_threshold,
        metavar='X',
        help=f'IoU threshold of NMS (default: {defaults.iou_threshold})',
    )
    add(
        '--max-detections',
        type=integer_at_least(1),
        default=defaults.max_detections,
        metavar='N',
        help=f'maximum detections per image, best first (default: {defaults.max_detections})',
    )
    add(
        '--device',
        type=integer_at_least(0),
        default=0,
        metavar='N',
        nargs='+' if has_several_devices else None,
        help='CUDA devices, which the processes share (default: 0)'
        if has_several_devices
        else 'CUDA device (default: 0)',
    )
    add(
        '--nvtx',
        action='store_true',
        help='mark NVTX ranges for NVIDIA Nsight Systems; needs the Python package nvtx',
    )
    add_parameter_option(group)


def add_parameter_option(parser: argparse._ActionsContainer) -> None:
    """Add the option whose values ``read_parameters`` reads."""
    parser.add_argument(
        '-p',
        '--param',
        action='append',
        default=[],
        metavar='NAME=VALUE',
        help='set a parameter of the node (docs/parameters.md), for example for a model without '
        'a manifest: model.decoder=dense or model.class_names="[cat, dog]"; can be repeated',
    )


def values_from_options(options: argparse.Namespace, model: str) -> ParameterValues:
    """Return the parameters of a node that runs the model with these options.

    Args:
        options: options that ``add_model_arguments`` added.
        model: path of the model; empty if the caller opens the model.

    Raises:
        ConfigError: a value is out of range, or a parameter does not exist.
    """
    values: dict[str, Any] = {
        'engine_path': model,
        'confidence_threshold': options.confidence,
        'iou_threshold': options.iou,
        'max_detections': options.max_detections,
        'device_ids': [options.device],
        'nvtx': options.nvtx,
        'triton.timeout_ms': OFFLINE_TIMEOUT_MS,
    }
    given = read_parameters(options.param)
    if getattr(options, 'track', False):  # only detect_images has this option
        values['tracker.type'] = 'bytetrack'
    elif unused := sorted(set(PARAMETERS_OF_TRACKER) & given.keys()):
        raise ConfigError(
            f'--param {unused[0]}',
            'has no effect without a tracker',
            fix='use detect_images --track, or leave this parameter out',
        )
    return ParameterValues.from_values(values | given)


def given_object_options(parameters: ParameterValues) -> list[str]:
    """Return the options for objects that differ from their defaults."""
    defaults = ParameterValues()
    return [
        option
        for option, name in _OBJECT_OPTIONS.items()
        if getattr(parameters, name) != getattr(defaults, name)
    ]


def check_object_options(parameters: ParameterValues, task: Task) -> None:
    """Refuse options for objects if a model has another task.

    Raises:
        ConfigError: an option for objects differs from its default.
    """
    given = given_object_options(parameters)
    if given and not task.finds_objects:
        found = f'has no effect on a model with task {task.name}'
        raise ConfigError(given[0], found, fix='leave this option out')


def paths_by_name(paths: Sequence[str]) -> dict[str, str]:
    """Map the name of each model to its path.

    The name is the file name if it is unique, else the path.

    Raises:
        ConfigError: a path occurs twice.
    """
    bare = [Path(path).name for path in paths]
    names = {
        path if bare.count(name) > 1 else name: path
        for name, path in zip(bare, paths, strict=True)
    }
    if len(names) < len(paths):
        raise ConfigError(
            'MODEL',
            f'one model appears twice in {", ".join(paths)}',
            fix='give each model once',
        )
    return names


def read_parameters(
    words: Sequence[str],
    set_elsewhere: Mapping[str, str] = _PARAMETERS_SET_ELSEWHERE,
    *,
    accepts_cameras: bool = False,
) -> dict[str, Any]:
    """Return the values of ``--param``, by parameter name.

    Args:
        set_elsewhere: what to do instead for each parameter that is refused.
        accepts_cameras: whether to accept parameters of cameras. The caller checks their names.

    Raises:
        ConfigError: a parameter does not exist, or another option sets it.
    """
    known = {parameter.name: parameter for parameter in PARAMETERS}
    values: dict[str, Any] = {}
    for given in words:
        assignment = split_assignment(given)
        if assignment is None:
            raise ConfigError('--param', given, expected='NAME=VALUE, as in model.decoder=dense')
        name, text = assignment
        if name not in known and not (accepts_cameras and is_camera_parameter(name)):
            raise ConfigError(
                '--param',
                short_repr(name),
                expected='a parameter of docs/parameters.md',
                fix=_unknown_parameter_fix(name, text, set_elsewhere),
            )
        if name in values:
            raise ConfigError(f'--param {given}', f'{name} is given twice', fix='give it once')
        if name in set_elsewhere:
            raise ConfigError(
                f'--param {given}', 'cannot be set by --param', fix=set_elsewhere[name]
            )
        values[name] = read_yaml(text, f'--param {short_repr(given)}')[0] if text else ''
    return values


def _unknown_parameter_fix(name: str, text: str, set_elsewhere: Mapping[str, str]) -> str:
    """Return what to type instead of ``--param NAME=TEXT``; '' if nothing is similar."""
    foreign = foreign_names(name)
    meant = suggest_tool_assignment(name, [text] if text else [])
    similar = foreign.ours if foreign else suggest_parameter(name)
    if similar in set_elsewhere:
        return set_elsewhere[similar]
    if foreign and foreign.ours in OURS_OUTSIDE_THE_TABLE:
        return 'leave it out: only a node uses it'
    if foreign and not meant:
        return foreign.fix(str)
    return f'did you mean --param {shlex.quote(meant.replace(":=", "=", 1))}?' if meant else ''


def share_input_size(
    parameters: dict[str, ParameterValues], specs: Mapping[str, ModelSpec]
) -> None:
    """Give models that derive their size from images the size of the first other model.

    Args:
        parameters: settings of each model, by name; changed in place.
    """
    fixed = [spec.preprocessing.input_size for spec in specs.values() if not spec.derives_size]
    for name, spec in specs.items():
        if fixed and spec.derives_size:
            parameters[name] = replace(parameters[name], model_input_size=fixed[0])
