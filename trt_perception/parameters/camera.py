# SPDX-License-Identifier: Apache-2.0
"""Camera parameters, ``camera.<name>.<parameter>``, which override parameters of the node.

A camera parameter that was never set has the value of the node's parameter.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import closest_words, join_first_items, short_repr
from trt_perception.model.files.triton_address import is_triton_address, parse_triton_address
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.parameters.row import Parameter, read_value
from trt_perception.parameters.rules import MAX_CAMERAS
from trt_perception.parameters.spelling import assignment_text, parameter_named, yaml_value
from trt_perception.parameters.values import (
    PARAMETERS,
    ParameterValues,
    closest_parameters,
    manifest_only_fix,
)
from trt_perception.process.foreign_names import ForeignNames, foreign_names

#: Returns what the user pastes to set the parameter of a given name.
LineOf: TypeAlias = Callable[[str], str]
#: Rows of the parameters that each camera may override.
CAMERA_PARAMETERS: Final = tuple(row for row in PARAMETERS if row.per_camera)
_ROWS: Final = {row.name: row for row in PARAMETERS}
_PREFIX: Final = 'camera.'
# Fixes for arguments of detect.launch.py that are not parameters of the node.
_LAUNCH_ARGUMENT_FIXES: Final = {
    'image_topic': 'remap the topic with -r image:=/its/topic (several cameras: '
    '-r front/image:=/its/topic), or start detect.launch.py image_topic:=/its/topic',
}


def camera_rows(cameras: Sequence[str]) -> dict[str, Parameter]:
    """Return the rows of all camera parameters, by their full names."""
    return {row.name: row for camera in cameras for row in _camera_rows(camera)}


def is_camera_parameter(name: str) -> bool:
    """Return whether a parameter's name begins with ``camera.``."""
    return name.startswith(_PREFIX)


def camera_of_parameter(name: str) -> str:
    """Return the camera's name in the full name of a camera parameter."""
    return name.removeprefix(_PREFIX).partition('.')[0]


def suggest_parameter(word: str) -> str:
    """Return the node's parameter with this or a similar name; empty if there is none.

    A name of another package counts if its value can stay. The word may also be an option, such as
    ``class-names``, without its dashes.
    Names of the node's topics and services give no parameter: they are not similar enough.
    """
    names = [*_ROWS, 'use_sim_time']
    if word in names or is_camera_parameter(word):
        return word
    name = parameter_named(word.replace('-', '_'))
    if name in _ROWS:
        return name
    if foreign := foreign_names(word):
        return foreign.ours if foreign.ours in _ROWS and not foreign.note else ''
    return next(iter(closest_parameters(word, names)), '')


def foreign_parameter(word: str) -> ForeignNames | None:
    """Return the row of another package's name for a parameter of the node; else None.

    Names for topics give None, because ROS accepts NAME:=TOPIC as a remapping.
    """
    foreign = foreign_names(word)
    return foreign if foreign and foreign.ours in _ROWS else None


def suggest_assignment(word: str, values: Sequence[str]) -> str:
    """Return ``NAME:=VALUE`` for the parameter that ``suggest_parameter`` finds; empty if none."""
    name = suggest_parameter(word)
    return assignment_text(name, values) if name else ''


def unknown_parameter(name: str, cameras: Sequence[str], line: LineOf) -> ConfigError:
    """Return the error for a parameter that does not exist, with the line to paste.

    Args:
        line: returns what the user pastes to set the parameter of a given name.
    """
    subject = f'parameter {short_repr(name)}'
    if not is_camera_parameter(name):
        of_cameras = camera_rows(cameras)
        meant = _PREFIX + name.removeprefix('cameras.')
        if meant not in of_cameras:
            meant = parameter_named(name)  # such as model.task for task
        known = [*_ROWS, *of_cameras]
        foreign = None if meant in known else foreign_names(name)
        close = [meant] if meant in known else closest_parameters(name, known)
        near = f'did you mean {line(close[0])}' if close else 'see the list in docs/parameters.md'
        fix = (
            manifest_only_fix(name)
            or _LAUNCH_ARGUMENT_FIXES.get(foreign.ours if foreign else name)
            or (foreign.fix(line) if foreign else near)
        )
        return ConfigError(subject, 'not known', fix=fix)
    camera, _, end = name.removeprefix(_PREFIX).partition('.')
    own = [row.name for row in CAMERA_PARAMETERS]
    foreign = foreign_names(end)
    meant = foreign.ours if foreign and not foreign.note else parameter_named(end)
    ends = [meant] if meant in own else [] if foreign else closest_parameters(end, own)
    if camera in cameras:
        found, fix = 'not known', f'the parameters of a camera are {", ".join(own)}'
        close = [camera]
        if meant in _ROWS and meant not in own:
            ends = []
            fix = f"'{meant}' applies to the whole node; {fix}"
    else:
        found = f'there is no camera {short_repr(camera)}'
        fix = f'the cameras are {join_first_items(cameras, MAX_CAMERAS)} (parameter cameras)'
        fix = fix if cameras else 'add it to the parameter cameras'
        close = closest_words(camera, cameras)
    if close and ends:
        fix = f'{fix}; did you mean {line(f"{_PREFIX}{close[0]}.{ends[0]}")}'
    return ConfigError(subject, found, fix=fix)


@dataclass(frozen=True)
class CameraPlan:
    """The way in which a node receives the images of one camera.

    Attributes:
        name: name of the camera; empty if the node has only one camera.
        topic: topic of the raw images; empty if unknown.
        transport: value of the parameter ``image_transport``.
        reliability: value of the parameter ``image_qos.reliability``.
        enabled: value of the parameter ``enabled``.
    """

    name: str = ''
    topic: str = ''
    transport: str = 'raw'
    reliability: str = 'auto'
    enabled: bool = True


@dataclass(frozen=True)
class NodeParameters:
    """The parameters of a node, and the resulting parameters of each camera.

    Attributes:
        camera_values: values of camera parameters that were set, by full name, as `read_value`
            returned them.
        start_server: host and port of the Triton server in the engine_path with which the node
            started; '' without one. None outside a node.

    Raises:
        ConfigError: a camera value belongs to no camera.
    """

    node: ParameterValues = field(default_factory=ParameterValues)
    camera_values: Mapping[str, Any] = field(default_factory=dict)
    start_server: str | None = None
    _cameras: dict[str, ParameterValues] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fields: dict[str, dict[str, Any]] = {name: {} for name in self.node.cameras}
        rows = camera_rows(self.node.cameras) if self.camera_values else {}
        for name, value in self.camera_values.items():
            if name not in rows:
                raise unknown_parameter(name, self.node.cameras, _argument_with(value))
            fields[name.split('.')[1]][rows[name].field] = value
        cameras = {}
        for name, changes in fields.items():
            with _errors_of_camera(name):  # values of node and camera may contradict each other
                cameras[name] = dataclasses.replace(self.node, **changes) if changes else self.node
        object.__setattr__(self, '_cameras', {'': self.node, **cameras})

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> NodeParameters:
        """Build the parameters from values by ROS name. Other parameters keep their defaults.

        Raises:
            ConfigError: a name is unknown, a value has the wrong type or is outside its range.
        """
        node_values, given = _split_by_scope(values)
        node = ParameterValues.from_values(node_values)
        rows = camera_rows(node.cameras)
        camera_values = {}
        for name, value in given.items():
            if name not in rows:
                raise unknown_parameter(name, node.cameras, _argument_with(value))
            camera_values[name] = read_value(rows[name], value)
        return cls(node, camera_values)

    def camera(self, name: str) -> ParameterValues:
        """Return the parameters of a camera. The name '' gives the node's parameters.

        Raises:
            KeyError: the node has no camera of this name.
        """
        return self._cameras[name]

    def plans(self) -> list[CameraPlan]:
        """Return the plan of each camera, without topics."""
        cameras = [(name, self._cameras[name]) for name in self.node.cameras or ('',)]
        return [
            CameraPlan(name, '', each.image_transport, each.image_qos_reliability, each.enabled)
            for name, each in cameras
        ]

    def raw_camera_count(self) -> int:
        """Return the number of cameras that may send raw images."""
        return sum(plan.transport != 'compressed' for plan in self.plans())

    def camera_overrides_of(self, name: str) -> list[str]:
        """Return the full names of the camera parameters that override a parameter of the node."""
        names = [f'{_PREFIX}{camera}.{name}' for camera in self.node.cameras]
        return [each for each in names if each in self.camera_values]

    def pipeline_options(self) -> PipelineOptions:
        """Return the options of a pipeline that can process images of every camera."""
        cameras = [self._cameras[name] for name in self.node.cameras or ('',)]
        jpeg = any(camera.pipeline_options().jpeg_on_gpu for camera in cameras)
        options = self.node.pipeline_options()
        triton = dataclasses.replace(options.triton, start_server=self.start_server)
        return dataclasses.replace(options, jpeg_on_gpu=jpeg, triton=triton)

    def check_server(self) -> None:
        """Check that the node may use the server in `engine_path`. Files are not checked.

        Raises:
            ConfigError: the address is malformed, or the start of the node did not name the
                server.
        """
        if is_triton_address(self.node.engine_path):
            server = parse_triton_address(self.node.engine_path).server
            self.pipeline_options().triton.check_server(server)

    def check(self, check: Callable[[ParameterValues], object]) -> None:
        """Check the node's parameters, and the parameters of each camera that has others.

        Args:
            check: raises ConfigError to refuse values.

        Raises:
            ConfigError: values were refused; the message names the camera.
        """
        for name, parameters in self._cameras.items():
            if name and parameters is self.node:
                continue
            with _errors_of_camera(name):
                check(parameters)

    def rows(self) -> dict[str, Parameter]:
        """Map the name of each current parameter of the node to its row."""
        return {**_ROWS, **camera_rows(self.node.cameras)}

    def values(self) -> dict[str, Any]:
        """Map the name of each parameter to its current value."""
        values = {name: getattr(self.node, row.field) for name, row in _ROWS.items()}
        for camera in self.node.cameras:
            parameters = self._cameras[camera]
            values.update(
                {row.name: getattr(parameters, row.field) for row in _camera_rows(camera)}
            )
        return values

    def fixed_values(self) -> dict[str, Any]:
        """Map each parameter that must not change while the node is configured to its value."""
        rows = self.rows()
        return {name: value for name, value in self.values().items() if not rows[name].live}

    def with_changes(self, values: Mapping[str, Any], given: Mapping[str, Any]) -> NodeParameters:
        """Return parameters with changed values.

        A removed camera loses its camera values. A new camera gets its values in `given`.

        Args:
            values: new values by parameter name, as `read_value` returned them.
            given: maps the full name of a camera parameter to its start value, also for absent
                cameras.

        Raises:
            ConfigError: a camera parameter does not exist.
        """
        node_values, changed_values = _split_by_scope(values)
        node = self.node
        if node_values:
            fields = {_ROWS[name].field: value for name, value in node_values.items()}
            node = dataclasses.replace(node, **fields)
        come = camera_rows([name for name in node.cameras if name not in self.node.cameras])
        rows = camera_rows(node.cameras)
        camera_values = {name: value for name, value in self.camera_values.items() if name in rows}
        camera_values.update({name: value for name, value in given.items() if name in come})
        return dataclasses.replace(
            self, node=node, camera_values={**camera_values, **changed_values}
        )


@contextlib.contextmanager
def _errors_of_camera(name: str) -> Iterator[None]:
    """Add the name of a camera to errors. The name '' adds nothing."""
    try:
        yield
    except ConfigError as error:
        if not name:
            raise
        subject = f"camera '{name}': {error.subject}"
        raise ConfigError(subject, error.found, expected=error.expected, fix=error.fix) from error


def _split_by_scope(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split values into values of the node and values of cameras."""
    node_values = {name: value for name, value in values.items() if not is_camera_parameter(name)}
    return node_values, {
        name: value for name, value in values.items() if is_camera_parameter(name)
    }


def _argument_with(value: Any) -> LineOf:
    return lambda name: f'-p {shlex.quote(f"{name}:={yaml_value(value)}")}'


@functools.lru_cache(maxsize=MAX_CAMERAS)
def _camera_rows(camera: str) -> tuple[Parameter, ...]:
    """Return the rows of one camera, in the order of CAMERA_PARAMETERS."""
    return tuple(
        dataclasses.replace(
            row,
            name=f'{_PREFIX}{camera}.{row.name}',
            description=f'{row.description} For camera {camera}; by default, as {row.name}.',
        )
        for row in CAMERA_PARAMETERS
    )
