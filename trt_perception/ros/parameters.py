# SPDX-License-Identifier: Apache-2.0
"""Declares the parameter table of trt_perception.parameters.values as ROS parameters."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.node import Node
from rclpy.parameter import Parameter as RosParameter

from trt_perception.errors import ConfigError, ValuesError
from trt_perception.files.plain_text import join_first_items, short_repr
from trt_perception.model.files.triton_address import triton_server
from trt_perception.parameters.camera import (
    NodeParameters,
    camera_of_parameter,
    camera_rows,
    is_camera_parameter,
    unknown_parameter,
)
from trt_perception.parameters.row import Parameter, read_value
from trt_perception.parameters.spelling import yaml_value
from trt_perception.parameters.values import ParameterValues
from trt_perception.process.tool_command import is_typed, ros2_command
from trt_perception.ros.keypoint_parameters import KEYPOINT_PARAMETERS

# Start values of these parameters are ignored here: rclpy declares or reads the first two, and the
# others describe the model. A file of `ros2 param dump` contains them.
_OTHER_PARAMETERS = ('use_sim_time', 'start_type_description_service', *KEYPOINT_PARAMETERS)
_CAMERA_LISTS = ('cameras', 'cameras_of_other_nodes')
_QOS_PREFIX = 'qos_overrides.'
_RCLPY_QOS_PREFIXES = tuple(
    f'{_QOS_PREFIX}{topic}.' for topic in ('/clock', '/parameter_events', '/rosout')
)
_MAX_HINT_LENGTH = 200
# Added to errors about bool values, because the original word is lost.
_BOOL_WORDS_NOTE = 'ROS reads on, off, yes, no, y and n without quotes as true or false, too'


class DeclaredParameters:
    """Declares all parameters, and keeps the values of the node and its cameras.

    A camera parameter (``camera.front.enabled``) has the node's value until it is set at the
    start or later. A change of the parameter ``cameras`` declares and undeclares the parameters
    of the cameras that come and go.

    Args:
        is_configured: returns whether the node has a model, so that only live parameters may
            change. Parameters that are fixed at the start never change.
        check: called before a change is accepted, with the node's parameters, and with the
            parameters of each camera that has others; raises ConfigError to refuse the change.
        apply: called after each change, also of a camera parameter, with the old and the new
            parameters of the node.

    Attributes:
        node_parameters: the current values of the node and of each camera.

    Raises:
        ConfigError: start values are unknown, of the wrong type or out of range; one line for
            each.
    """

    def __init__(
        self,
        node: Node,
        *,
        is_configured: Callable[[], bool] = lambda: False,
        check: Callable[[ParameterValues], None] = lambda _: None,
        apply: Callable[[ParameterValues, ParameterValues], None] = lambda _before, _now: None,
    ) -> None:
        self._node = node
        self._is_configured = is_configured
        self._check = check
        self._apply = apply
        self.node_parameters = self._accepted = _read_start_values(node)
        self._start_values = dict(self.node_parameters.camera_values)
        # The parameters that are declared in ROS, and their values there.
        self._declared: dict[str, Parameter] = {}
        self._ros_values: dict[str, Any] = {}
        self._is_updating = False
        self._update_declarations()
        node.add_on_set_parameters_callback(self._on_set)
        node.add_post_set_parameters_callback(self._post_set)

    @property
    def parameters(self) -> ParameterValues:
        """The current values of the node."""
        return self.node_parameters.node

    def camera_parameters(self, name: str) -> ParameterValues:
        """Return the current values of a camera. The name '' gives the values of the node.

        Raises:
            KeyError: the node has no camera of this name.
        """
        return self.node_parameters.camera(name)

    def reset_camera_values(self) -> list[str]:
        """Reset camera parameters to their start values. Return the names of changed parameters.

        A camera parameter without a start value gets the node's value again.
        """
        rows = camera_rows(self.parameters.cameras)
        own = {name: value for name, value in self._start_values.items() if name in rows}
        before = self.node_parameters
        if own == before.camera_values:
            return []
        self._accepted = dataclasses.replace(before, camera_values=own)
        self._apply_accepted()
        then, now = before.values(), self.node_parameters.values()
        return [name for name in before.camera_values if then[name] != now[name]]

    def read_changes(self, changes: list[RosParameter]) -> list[RosParameter]:
        """Return changes in the types of their parameters, before rclpy checks the types.

        Each change of a parameter must pass through this method once. Rules that depend on other
        parameters are not checked.

        Raises:
            ConfigError: a parameter is unknown, or its value is invalid.
        """
        return [self._read_change(change) for change in changes]

    def _read_change(self, change: RosParameter) -> RosParameter:
        node = self._node.get_fully_qualified_name()
        subject = f"parameter '{change.name}'"
        row = self._declared.get(change.name)
        if row is not None and change.type_ == RosParameter.Type.NOT_SET:
            command = ros2_command('param', 'set', node, change.name, _yaml_text(row.default))
            found = 'cannot be deleted, the node needs a value'
            raise ConfigError(subject, found, fix=f'for its default: {command}')
        if row is None and self._node.has_parameter(change.name):
            # A parameter of rclpy or of the model. rclpy's refusal would not name it.
            kind = self._node.get_parameter(change.name).type_
            if change.type_ != kind:
                raise ConfigError(subject, repr(change.value), expected=kind.name.lower())
            return change

        def typed(name: str, text: str) -> str:
            return ros2_command('param', 'set', node, name, text)

        value = _read_value(change.name, change.value, row, self.parameters.cameras, typed)
        return ros_parameter(self._declared[change.name], value)

    def overriding_cameras(self, changes: list[RosParameter]) -> str:
        """Return a sentence about camera parameters that override these changes; '' if none do."""
        names = [
            name
            for change in changes
            for name in self.node_parameters.camera_overrides_of(change.name)
        ]
        return f'cameras keep their own values: {join_first_items(names)}' if names else ''

    def _on_set(self, changes: list[RosParameter]) -> SetParametersResult:
        """Check the rules that depend on other parameters and on the state of the node."""
        if self._is_updating:
            return SetParametersResult(successful=True)
        values = {
            change.name: _table_value(change)
            for change in changes
            if change.name in self._declared
        }
        try:
            node_parameters = self.node_parameters.with_changes(values, self._start_values)
            self._check_fixed(node_parameters)
            node_parameters.check(self._check)
        except ConfigError as error:
            return SetParametersResult(successful=False, reason=str(error))
        self._accepted = node_parameters
        return SetParametersResult(successful=True)

    def _check_fixed(self, node_parameters: NodeParameters) -> None:
        """Refuse changes that the state of the node does not allow. Equal values are allowed."""
        now, wanted = self.node_parameters.values(), node_parameters.values()
        node = self._node.get_fully_qualified_name()
        for name, row in self._declared.items():
            if row.live or wanted.get(name, now[name]) == now[name]:
                continue
            if row.start_only:
                raise ConfigError(
                    f"parameter '{name}'",
                    'cannot change after the start of the node',
                    fix='set it in a parameter file or as an argument, and start the node again',
                )
            if self._is_configured():
                command = ros2_command('lifecycle', 'set', node, 'deactivate')
                raise ConfigError(
                    f"parameter '{name}'",
                    'cannot change while the node is configured',
                    fix=f'run {command}, then cleanup',
                )
        if node_parameters.node.engine_path != self.parameters.engine_path:
            node_parameters.check_server()

    def _post_set(self, changes: list[RosParameter]) -> None:
        if self._is_updating:
            return
        values = self._accepted.values()
        for change in changes:
            if change.name in self._declared:
                self._ros_values[change.name] = values[change.name]
        self._apply_accepted()

    def _apply_accepted(self) -> None:
        """Make the accepted values the current ones, and report the change."""
        before, self.node_parameters = self.node_parameters, self._accepted
        self._update_declarations()
        self._apply(before.node, self.node_parameters.node)

    def _update_declarations(self) -> None:
        """Declare new parameters, undeclare old ones, and set the current values in ROS.

        ROS would not answer a request for a declared parameter without a value. The executor
        answers no request during this call, so that no client sees this state.
        """
        rows, values = self.node_parameters.rows(), self.node_parameters.values()
        self._is_updating = True
        try:
            for name in self._declared.keys() - rows.keys():
                self._node.undeclare_parameter(name)
                self._ros_values.pop(name)
            # Declare by type and set the value later: rclpy would declare [] as a byte array.
            for name, row in rows.items():
                if name not in self._declared:
                    self._node.declare_parameter(
                        name, ros_type(row), descriptor(row), ignore_override=True
                    )
            self._declared = rows
            changed = [name for name in rows if self._ros_values.get(name) != values[name]]
            if changed:
                own = [ros_parameter(rows[name], values[name]) for name in changed]
                # Call the base class, because the detector's own method would refuse this change.
                result = Node.set_parameters_atomically(self._node, own)
                assert result.successful, result
        finally:
            self._is_updating = False
        self._ros_values = values


def _read_start_values(node: Node) -> NodeParameters:
    """Return the values of command line and parameter files.

    Raises:
        ValuesError: values are invalid; the error lists all mistakes.
    """
    # rclpy has no public way to read overrides of undeclared parameters.
    given = {
        name: override.value
        for name, override in node._parameter_overrides.items()
        if name not in _OTHER_PARAMETERS and not name.startswith(_RCLPY_QOS_PREFIXES)
    }
    rows = NodeParameters().rows()
    values: dict[str, Any] = {}
    mistakes: dict[str, str] = {}
    # The names of the cameras are read first, because they decide which other parameters exist.
    for name in sorted(given, key=lambda name: name not in _CAMERA_LISTS):
        cameras, others = (values.get(list_name, ()) for list_name in _CAMERA_LISTS)
        if is_camera_parameter(name):
            if mistakes.keys() & _CAMERA_LISTS:
                continue  # the invalid list of names is the mistake to report
            camera = camera_of_parameter(name)
            if camera in others and camera not in cameras:
                continue  # another node reads the values of this camera
        line = _start_line(name)
        try:
            values[name] = _read_value(name, given[name], rows.get(name), cameras, line)
        except ConfigError as error:
            mistakes[name] = str(error)
            continue
        if name == 'cameras':
            rows.update(camera_rows(values[name]))
    if mistakes:
        raise ValuesError(list(mistakes.values()))
    node_parameters = NodeParameters().with_changes(values, {})
    return dataclasses.replace(
        node_parameters, start_server=triton_server(node_parameters.node.engine_path)
    )


def _start_line(given: str) -> Callable[[str, str], str]:
    """Return what formats a name and a value like the user's line that sets ``given``."""
    if is_typed(given):
        return lambda name, text: f'-p {shlex.quote(f"{name}:={text}")}'
    return '{}: {}'.format  # in a parameter file


def _read_value(
    name: str,
    value: Any,
    row: Parameter | None,
    cameras: Sequence[str],
    line: Callable[[str, str], str],
) -> Any:
    """Return a value from ROS in the type of its row.

    Args:
        value: the value; None for an empty list in YAML, which has no type.
        row: row of the parameter; None if the name is unknown.
        line: returns what the user pastes to set a parameter, from its name and its value in YAML.

    Raises:
        ConfigError: the name is unknown, or the value is invalid.
    """
    if row is None and name.startswith(_QOS_PREFIX):
        fix = 'set image_qos.reliability and image_qos.depth'
        raise ConfigError(f'parameter {short_repr(name)}', 'not known', fix=fix)
    if row is None:
        raise unknown_parameter(name, cameras, lambda meant: line(meant, yaml_value(value)))
    try:
        return read_value(row, () if value is None and row.kind.endswith('[]') else value)
    except ConfigError as error:
        text = _suggested_text(row, value)
        if not text:
            raise
        note = _BOOL_WORDS_NOTE if _has_bool(value) else ''
        fix = '; '.join(filter(None, (error.fix, note, f'for text: {line(name, text)}')))
        raise ConfigError(error.subject, error.found, expected=error.expected, fix=fix) from error


def _has_bool(value: Any) -> bool:
    items = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return any(isinstance(item, bool) for item in items)


def _suggested_text(parameter: Parameter, value: Any) -> str:
    """Return the probably intended text of a non-text value, as YAML; '' if there is none.

    A shell removes quotes, so that text like 12 or true arrives as a number or bool.
    """
    if parameter.kind not in ('string', 'string[]') or value is None:
        return ''
    is_list = parameter.kind == 'string[]'
    if isinstance(value, Sequence) and not is_list:
        return ''
    if isinstance(value, str):
        # `ros2 param set` sends one name, or a mix of names and numbers, as one text.
        items = [word.strip(' \'"') for word in value.strip(' []').split(',')]
    else:
        items = list(value) if isinstance(value, Sequence) else [value]
    try:
        words = [item if isinstance(item, str) else json.dumps(item) for item in items]
        meant = words if is_list else words[0]
        read_value(parameter, meant)
    except (ConfigError, TypeError):  # JSON has no bytes
        return ''
    text = _yaml_text(meant)
    return text if len(text) <= _MAX_HINT_LENGTH else ''


def _yaml_text(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def _table_value(change: RosParameter) -> Any:
    """Return the value of a change that ``read_changes`` has read, in the type of its row."""
    return tuple(change.value) if isinstance(change.value, list) else change.value


def ros_type(parameter: Parameter) -> RosParameter.Type:
    """Return the ROS type of a row."""
    return RosParameter.Type[parameter.kind.replace('[]', '_array').upper()]


def ros_parameter(parameter: Parameter, value: Any) -> RosParameter:
    """Return a ROS parameter with the name and type of a row."""
    plain = list(value) if isinstance(value, tuple) else value
    return RosParameter(parameter.name, ros_type(parameter), plain)


def descriptor(parameter: Parameter) -> ParameterDescriptor:
    """Return description, limits and constraints of a row, as ROS shows them."""
    unit = f' Unit: {parameter.unit}.' if parameter.unit else ''
    constraints = []
    if parameter.choices:
        constraints.append('one of ' + ', '.join(repr(choice) for choice in parameter.choices))
    if parameter.start_only:
        # Not `read_only` of ROS, which would refuse the declaration's later first value, too.
        constraints.append('fixed after the start of the node')
    else:
        constraints.append(
            'may change while active' if parameter.live else 'fixed while configured'
        )
    described = ParameterDescriptor(
        description=parameter.description + unit, additional_constraints='; '.join(constraints)
    )
    if parameter.limits:
        low, high = parameter.limits
        if parameter.kind == 'integer':
            steps = IntegerRange(from_value=int(low), to_value=int(high), step=1)
            described.integer_range = [steps]
        else:
            span = FloatingPointRange(from_value=float(low), to_value=float(high))
            described.floating_point_range = [span]
    return described
