# SPDX-License-Identifier: Apache-2.0
"""The arguments of the launch files, which have the names of the node's parameters.

This module does not import launch. An argument overrides the parameter file, whatever node names
the file's sections have. An argument without a value is not passed to the node.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from trt_perception.errors import ConfigError, ValuesError
from trt_perception.files.plain_text import (
    fraction_as_number,
    join_first_items,
    read_yes_no,
    short_repr,
    split_list,
)
from trt_perception.files.yaml_text import read_yaml
from trt_perception.parameters.camera import CAMERA_PARAMETERS, is_camera_parameter
from trt_perception.parameters.row import Parameter, read_value
from trt_perception.parameters.rules import MAX_CAMERAS
from trt_perception.parameters.sections import check_parameter_file
from trt_perception.parameters.values import (
    PARAMETERS,
    ParameterValues,
    closest_parameters,
    manifest_only_fix,
)
from trt_perception.process.foreign_names import foreign_names
from trt_perception.transport.advice import CAMERA_PROFILE, NODE_PROFILE

#: Name of a node that serves all cameras.
NODE_NAME: Final = 'detector'
_LOG_LEVELS: Final = ('debug', 'info', 'warn', 'error', 'fatal')
# Every rclpy node has this parameter.
_SIM_TIME_PARAMETER: Final = Parameter(
    'use_sim_time', '', 'bool', False, 'Take the time from /clock, as with a simulator or a bag.'
)
_PARAMETERS_BY_ARGUMENT: Final = {
    parameter.name: parameter for parameter in (*PARAMETERS, _SIM_TIME_PARAMETER)
}
# Names that launch and launch_ros read themselves. They are not mistyped arguments.
_LAUNCH_CONFIGURATIONS: Final = (
    'launch-prefix',
    'launch-prefix-filter',
    'sigterm_timeout',
    'sigkill_timeout',
    'emulate_tty',
    'ros_namespace',
    'ros_remaps',
    'global_params',
)


def _read_names(text: str) -> list[str]:
    """Return the items of ``front,rear`` or of a YAML list, where quoted items may have commas."""
    if not text.lstrip().startswith('[') or not re.search('["\']', text):
        return split_list(text)
    return [str(item) for item in read_yaml(text, 'list')[0]]


def _read_number(text: str) -> float:
    return float(fraction_as_number(text.strip()))


def _read_yes_no(text: str) -> bool:
    answer = read_yes_no(text)
    if answer is None:
        raise ValueError(text)
    return answer


_READERS: Final[dict[str, tuple[Callable[[str], Any], str]]] = {
    'bool': (_read_yes_no, 'true or false'),
    'integer': (int, 'a whole number'),
    'double': (_read_number, 'a number'),
    'string': (str, 'text'),
    'string[]': (_read_names, 'names separated by commas'),
    'integer[]': (
        lambda text: [int(word) for word in split_list(text)],
        'whole numbers separated by commas',
    ),
    'double[]': (
        lambda text: [_read_number(word) for word in split_list(text)],
        'numbers separated by commas',
    ),
}
# Placeholder for the camera's name in image_topic.
_CAMERA_PLACEHOLDER: Final = '{camera}'
# The topic names that rcl accepts in a remapping.
_TOPIC_NAME: Final = re.compile(r'(?!.*__)(~?/)?[A-Za-z_]\w*(/[A-Za-z_]\w*)*', re.ASCII)


def launch_arguments(share: Path) -> dict[str, tuple[str, str]]:
    """Map the name of each argument of detect.launch.py to its default and description."""
    levels = ', '.join(_LOG_LEVELS)
    arguments = {
        'engine_path': ('', ''),  # first, because every user needs it
        'image_topic': (
            '',
            'Image topic of the camera. If there are several cameras, write '
            f"{_CAMERA_PLACEHOLDER} in place of the camera's name, as in "
            f'/{_CAMERA_PLACEHOLDER}/image_raw. '
            f'Default: image, or {_CAMERA_PLACEHOLDER}/image for cameras with names.',
        ),
        'params_file': (str(share / 'config' / 'detect.yaml'), 'Parameter file.'),
        'namespace': ('', 'Namespace of the node and its topics.'),
        'nodes': (
            '1',
            'Number of nodes that share the cameras. 1: one node, detector. '
            'More: detector_0, detector_1 and so on.',
        ),
        'rviz': (
            'false',
            'true: start RViz, too, with config/detect.rviz and the topics of the first camera. '
            'Ignored if another launch file includes this file.',
        ),
        'log_level': ('info', f'One of {levels}.'),
        'transport_profile': (
            str(share / NODE_PROFILE),
            'Fast DDS profile of the node, unless the environment names one. Cameras need '
            f'{CAMERA_PROFILE}.',
        ),
    }
    for name, parameter in _PARAMETERS_BY_ARGUMENT.items():
        allowed = f' {parameter.allowed}' if parameter.allowed else ''
        arguments[name] = (
            '',
            f'{parameter.description}{allowed} Default: from params_file, else '
            f'{_text_of_value(parameter.default)}.',
        )
    # A launched node should run without further commands.
    arguments['autostart'] = (
        'true',
        'Configure and activate at once. false: wait for ros2 lifecycle set.',
    )
    return arguments


def parameter_values(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters that were given, each in its type.

    Args:
        values: texts of the launch arguments; an empty text means that no value was given.

    Raises:
        ValuesError: values have the wrong type or are out of range; one line for each.
    """
    given: dict[str, Any] = {}
    mistakes = []
    level = values.get('log_level', 'info')
    if level.lower() not in _LOG_LEVELS:
        mistakes.append(
            f'log_level must be one of {", ".join(_LOG_LEVELS)} (got {short_repr(level)})'
        )
    for name, text in values.items():
        if name not in _PARAMETERS_BY_ARGUMENT or not text:
            continue
        try:
            given[name] = _value_from_text(_PARAMETERS_BY_ARGUMENT[name], text)
        except ConfigError as error:
            mistakes.append(str(error))
    if mistakes:
        raise ValuesError(mistakes)
    return given


def existing_file(name: str, text: str) -> Path:
    """Return the expanded path of a file that a launch argument names.

    Launch itself would ignore a missing file.

    Raises:
        ConfigError: the path names no file.
    """
    path = Path(text).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        raise ConfigError(name, short_repr(text), expected='a file, not a folder')
    fix = (
        '' if path.is_absolute() else f'a relative path starts in the current folder, {Path.cwd()}'
    )
    raise ConfigError(name, short_repr(text), expected='an existing file', fix=fix)


def checked_parameter_file(params_file: str, transport_profile: str) -> Path:
    """Return the path of the parameter file, and check both files that launch arguments name.

    Args:
        params_file: the argument of this name.
        transport_profile: the argument of this name. ros2 launch refuses an empty value, so
            ``none`` is the alternative.

    Raises:
        ConfigError: a file is missing, or as `check_parameter_file`.
    """
    path = existing_file('params_file', params_file)
    check_parameter_file(path, f'params_file {path}')
    if transport_profile not in ('', 'none'):
        existing_file('transport_profile', transport_profile)
    return path


def wants_rviz(text: str) -> bool:
    """Return the value of the launch argument ``rviz``.

    Raises:
        ConfigError: the text is neither true nor false.
    """
    answer = read_yes_no(text)
    if answer is None:
        raise ConfigError('rviz', short_repr(text), expected='true or false')
    return answer


def image_remappings(topic: str, cameras: Sequence[str]) -> list[tuple[str, str]]:
    """Return the remappings of the image topics, as pairs of the node's name and the topic.

    Args:
        topic: the launch argument ``image_topic``; empty if it was not given.
        cameras: names of the node's cameras; empty if the node has one camera without a name.

    Raises:
        ConfigError: as `check_topic`.
    """
    if not topic:
        return []
    check_topic('image_topic', topic, cameras, ' or in params_file')
    if not cameras:
        return [('image', topic)]
    return [(f'{name}/image', topic.replace(_CAMERA_PLACEHOLDER, name)) for name in cameras]


def check_topic(argument: str, topic: str, cameras: Sequence[str], place: str = '') -> None:
    """Check a launch argument that names a topic of each camera.

    Args:
        argument: name of the argument.
        topic: its value, not empty.
        cameras: names of the cameras; empty if there is one camera without a name.
        place: where names of cameras may also be, for the error.

    Raises:
        ConfigError: the topic has no ``{camera}`` but there are several cameras, or it has
            ``{camera}`` but the camera has no name, or it is not a topic name.
    """
    braces = [
        part for part in re.findall(r'\{[^{}]*\}|[{}]', topic) if part != _CAMERA_PLACEHOLDER
    ]
    if braces:
        expected = f'no braces except {_CAMERA_PLACEHOLDER}'
        raise ConfigError(argument, short_repr(topic), expected=expected)
    if not _TOPIC_NAME.fullmatch(topic.replace(_CAMERA_PLACEHOLDER, 'camera')):
        expected = (
            'a topic name such as /front/image_raw: parts of letters, digits and single '
            'underscores, separated by single slashes; a part must not start with a digit'
        )
        raise ConfigError(argument, short_repr(topic), expected=expected)
    if len(cameras) > 1 and _CAMERA_PLACEHOLDER not in topic:
        expected = (
            f'one topic for each of {", ".join(cameras)}, such as /{_CAMERA_PLACEHOLDER}/image_raw'
        )
        raise ConfigError(argument, short_repr(topic), expected=expected)
    if not cameras and _CAMERA_PLACEHOLDER in topic:
        fix = f'name the cameras with cameras:=front,rear{place}'
        raise ConfigError(argument, f'{short_repr(topic)} without names of cameras', fix=fix)


@dataclass(frozen=True)
class NodeShare:
    """One of the nodes that the launch file starts.

    Attributes:
        name: name of the node, without namespace.
        cameras: names of the node's cameras; empty if the node has one camera without a name.
        parameters: values that override the parameter file, each in its type.
    """

    name: str
    cameras: tuple[str, ...]
    parameters: Mapping[str, Any]


def node_count(text: str) -> int:
    """Return the value of the launch argument ``nodes``.

    Raises:
        ConfigError: the text is not a number from 1 to the largest number of cameras.
    """
    # Three digits suffice to find that a number is too large.
    count = int(text[:3]) if text.isascii() and text.isdecimal() else 0
    if not 0 < count <= MAX_CAMERAS:
        expected = f'a number from 1 to {MAX_CAMERAS}'
        raise ConfigError('nodes', short_repr(text), expected=expected)
    return count


def node_names(count: int) -> list[str]:
    """Return the names of the nodes, without namespace."""
    return [f'{NODE_NAME}_{index}' for index in range(count)] if count > 1 else [NODE_NAME]


def share_cameras(names: Sequence[str], count: int) -> list[tuple[str, ...]]:
    """Divide cameras into contiguous shares, whose sizes differ by at most one.

    Args:
        names: names of the cameras; empty if there is one camera without a name.
        count: number of shares.

    Raises:
        ConfigError: there are fewer cameras than shares, or several shares of a camera without
            a name.
    """
    if count == 1:
        return [tuple(names)]
    if not names:
        fix = 'name the cameras with cameras:=front,rear or in params_file, or leave nodes out'
        raise ConfigError('nodes', f'{count} nodes without names of cameras', fix=fix)
    if count > len(names):
        expected = f'at most {len(names)}, one for each of {join_first_items(names)}'
        raise ConfigError('nodes', str(count), expected=expected, fix='use fewer nodes')
    bounds = [len(names) * index // count for index in range(count + 1)]
    return [tuple(names[first:end]) for first, end in itertools.pairwise(bounds)]


def share_devices(device_ids: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Return the CUDA devices of each node. Nodes share devices if there are too few.

    Args:
        device_ids: indices of the CUDA devices, at least one.
        count: number of nodes.
    """
    if len(device_ids) < count:
        return [(device_ids[index % len(device_ids)],) for index in range(count)]
    return [tuple(device_ids[index::count]) for index in range(count)]


def node_shares(
    parameters: Mapping[str, Any],
    count: int,
    cameras: Sequence[str] = (),
    device_ids: Sequence[int | str] = (),
) -> list[NodeShare]:
    """Return the nodes to start, each with its share of cameras and devices.

    Args:
        parameters: values of the launch arguments, each in its type.
        count: number of nodes.
        cameras: names of all cameras, from arguments or parameter file.
        device_ids: CUDA devices of all nodes, texts where they are no numbers; empty for the
            default.

    Raises:
        ConfigError: the cameras cannot be shared by so many nodes, or cameras or devices are
            invalid. A single node itself reports invalid ones.
    """
    shares = share_cameras(cameras, count)
    if count == 1:
        return [NodeShare(NODE_NAME, shares[0], dict(parameters))]
    # No node would see a name that is twice in the list, or that all nodes have too many cameras.
    all_ids = list(device_ids or ParameterValues.device_ids)
    checked = ParameterValues.from_values({'cameras': list(cameras), 'device_ids': all_ids})
    devices = share_devices(checked.device_ids, count)
    return [
        NodeShare(
            name,
            own,
            {
                'nodes_on_this_machine': count,
                **parameters,
                'cameras': list(own),
                'cameras_of_other_nodes': [camera for camera in cameras if camera not in own],
                'device_ids': list(ids),
            },
        )
        for name, own, ids in zip(node_names(count), shares, devices, strict=True)
    ]


def demo_cameras(text: str) -> tuple[str, ...]:
    """Return the names of the demo's cameras.

    Args:
        text: names separated by commas, or the number of cameras.

    Raises:
        ConfigError: a name is invalid, or there are too many cameras.
    """
    names = [word for word in split_list(text) if word]
    if len(names) == 1 and names[0].isdecimal():
        # Four digits suffice to find that a number is too large.
        count = int(names[0][:4])
        if not 0 < count <= MAX_CAMERAS:
            expected = f'a number from 1 to {MAX_CAMERAS}, or names'
            raise ConfigError('cameras', short_repr(names[0]), expected=expected)
        names = [f'camera_{number}' for number in range(1, count + 1)]
    return ParameterValues.from_values({'cameras': names}).cameras


def parameter_file_text(values: Mapping[str, Any]) -> str:
    """Return the text of a parameter file that overrides all files before it.

    rcl merges sections with the same name, and a section name that first appears later overrides
    earlier ones. No user's file has the name ``/**/**``, so this section overrides all others.
    """
    return yaml.dump({'/**/**': {'ros__parameters': dict(values)}}, Dumper=_Dumper)


def unknown_arguments(
    typed: Iterable[str], declared: Collection[str], *, includes_others: bool = False
) -> tuple[list[str], list[str]]:
    """Return sentences about typed arguments that do not exist.

    Args:
        typed: ``name:=value`` as in ``context.argv`` of launch, or only names.
        includes_others: whether names may be arguments of another launch file.

    Returns:
        Sentences about names that are surely mistakes, because they resemble an argument, are
        parameters or have a meaning in other packages; and sentences about all other names.
    """
    near: list[str] = []
    far: list[str] = []
    for name, word in {word.partition(':=')[0]: word for word in typed}.items():
        if name in declared or name in _LAUNCH_CONFIGURATIONS:
            continue
        if is_camera_parameter(name):
            names = ', '.join(row.name for row in CAMERA_PARAMETERS)
            near.append(
                f"'{name}' is no argument; camera parameters are {names}: write them into a copy "
                'of config/cameras.yaml, and pass this file as params_file:=/path/to/my.yaml'
            )
            continue
        given = word.removeprefix(name)

        def line(known: str, given: str = given) -> str:
            return shlex.quote(known + given)

        foreign = foreign_names(name)
        close = _similar_names(name, declared)
        if fix := manifest_only_fix(name) or (foreign.fix(line) if foreign else ''):
            # Another launch file may use such a name for an own purpose, such as device.
            is_other = includes_others and foreign is not None and not foreign.ours
            (far if is_other else near).append(f"there is no argument '{name}': {fix}")
        elif close:
            meant = ' or '.join(map(line, close))
            near.append(f"there is no argument '{name}': did you mean {meant}?")
        else:
            far.append(f"there is no argument '{name}': it changes nothing; see --show-args")
    return near, far


def _similar_names(name: str, declared: Collection[str]) -> list[str]:
    """Return the argument names that a user probably meant, best first."""
    word = name.lower()
    ends = [known for known in declared if known.rpartition('.')[2] == word]
    return ends or closest_parameters(word, declared)


def _value_from_text(parameter: Parameter, text: str) -> Any:
    reader, expected = _READERS[parameter.kind]
    try:
        answer = read_yes_no(text) if parameter.is_yes_no else None
        value = reader(text) if answer is None else int(answer)
    except ValueError as error:
        raise ConfigError(parameter.name, short_repr(text), expected=expected) from error
    read_value(parameter, value)  # raises if the value is invalid
    return value


def _text_of_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ','.join(map(str, value)) or 'empty'
    return 'empty' if value == '' else str(value)


class _Dumper(yaml.SafeDumper):
    """Quotes all text, because rcl reads 1e5 as a number but PyYAML writes it without quotes."""


def _quoted(_: yaml.SafeDumper, text: str) -> yaml.Node:
    return yaml.ScalarNode('tag:yaml.org,2002:str', text, style='"')


_Dumper.add_representer(str, _quoted)
