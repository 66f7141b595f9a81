"""The node's parameters: the table of trt_perception.config as ROS sees it."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from rcl_interfaces.msg import FloatingPointRange
from rcl_interfaces.msg import IntegerRange
from rcl_interfaces.msg import ParameterDescriptor
from rcl_interfaces.msg import SetParametersResult
from rclpy.node import Node
from rclpy.parameter import Parameter as RosParameter

from trt_perception.config import PARAMETERS
from trt_perception.config import DetectorConfig
from trt_perception.config import Parameter
from trt_perception.config import parameter_value
from trt_perception.errors import ConfigError
from trt_perception.errors import ValuesError
from trt_perception.plain_text import nearest
from trt_perception.plain_text import shown

__all__ = ['NodeParameters']

_ROWS = {parameter.name: parameter for parameter in PARAMETERS}
# Names that rclpy declares or reads by itself.
_OF_RCLPY = ('use_sim_time', 'start_type_description_service')
_QOS = 'qos_overrides.'
_QOS_OF_RCLPY = tuple(f'{_QOS}{topic}.' for topic in ('/clock', '/parameter_events', '/rosout'))
_LONGEST_HINT = 200


class NodeParameters:
    """Declares all parameters and keeps the configuration that they make.

    Args:
        node: declares on it.
        configured: whether the node holds a model, so that only live parameters may change.
        check: called with a configuration before it is accepted; raises ConfigError to refuse it.
        apply: called with the configuration before, and the one that was accepted.

    Raises:
        ConfigError: an override is unknown, of the wrong type or out of range; one line for each.
    """

    def __init__(
        self,
        node: Node,
        *,
        configured: Callable[[], bool] = lambda: False,
        check: Callable[[DetectorConfig], None] = lambda _: None,
        apply: Callable[[DetectorConfig, DetectorConfig], None] = lambda _before, _now: None,
    ) -> None:
        self._node = node
        self._configured = configured
        self._check = check
        self._apply = apply
        self.config = self._accepted = _configured_at_start(node)
        # Declared by type and set afterwards: from a value, rclpy takes an empty list for bytes.
        for row in PARAMETERS:
            node.declare_parameter(row.name, _type(row), _descriptor(row), ignore_override=True)
        values = [_ros_parameter(row, getattr(self.config, row.field)) for row in PARAMETERS]
        results = node.set_parameters(values)
        assert all(result.successful for result in results), results
        node.add_pre_set_parameters_callback(_in_own_types)
        node.add_on_set_parameters_callback(self._on_set)
        node.add_post_set_parameters_callback(self._post_set)

    def refusal(self, changes: list[RosParameter]) -> str:
        """Return what is wrong with changes by themselves, '' where nothing is."""
        command = f'ros2 param set {self._node.get_fully_qualified_name()}'
        for change in changes:
            row = _ROWS.get(change.name)
            if row is not None and change.type_ == RosParameter.Type.NOT_SET:
                default = shlex.quote(_yaml(row.default))
                return (
                    f"parameter '{change.name}' cannot be deleted, the node needs a value; for "
                    f'its default: {command} {change.name} {default}'
                )
            if row is None and self._node.has_parameter(change.name):
                continue  # one of rclpy's
            if fault := _fault(change.name, change.value, f'{command} {change.name} '):
                return fault
        return ''

    def _with(self, changes: list[RosParameter]) -> DetectorConfig:
        values = {row.name: getattr(self.config, row.field) for row in PARAMETERS}
        values.update({change.name: change.value for change in changes if change.name in _ROWS})
        return DetectorConfig.from_values(values)

    def _on_set(self, changes: list[RosParameter]) -> SetParametersResult:
        try:
            config = self._with(changes)
            if self._configured():
                self._refuse_fixed(config)
            self._check(config)
        except ConfigError as error:
            return SetParametersResult(successful=False, reason=str(error))
        self._accepted = config
        return SetParametersResult(successful=True)

    def _refuse_fixed(self, config: DetectorConfig) -> None:
        for row in PARAMETERS:
            changed = getattr(config, row.field) != getattr(self.config, row.field)
            if changed and not row.live:
                node = self._node.get_fully_qualified_name()
                raise ConfigError(
                    f"parameter '{row.name}'",
                    'cannot change while the node is configured',
                    fix=f'run ros2 lifecycle set {node} deactivate, then cleanup',
                )

    def _post_set(self, _changes: list[RosParameter]) -> None:
        before, self.config = self.config, self._accepted
        self._apply(before, self.config)


def _configured_at_start(node: Node) -> DetectorConfig:
    """Return what the command line and parameter files say, after collecting every mistake."""
    values: dict[str, Any] = {}
    mistakes = []
    # rclpy offers no public way to see overrides that nobody declared.
    for name, override in node._parameter_overrides.items():
        if name in _OF_RCLPY or name.startswith(_QOS_OF_RCLPY):
            continue
        if fault := _fault(name, override.value):
            mistakes.append(fault)
        else:
            values[name] = _plain(_ROWS[name], override.value)
    if mistakes:
        raise ValuesError(mistakes)
    return DetectorConfig.from_values(values)


def _fault(name: str, value: Any, command: str = '') -> str:
    """Return what is wrong with a value by itself, '' where nothing is.

    Args:
        name: of the parameter.
        value: of any type.
        command: what to type in a shell before a value; empty: say the value as a file has it.
    """
    try:
        if name not in _ROWS:
            close = nearest(name, _ROWS)
            fix = f"did you mean '{close[0]}'?" if close else 'see the list in docs/parameters.md'
            if name.startswith(_QOS):
                fix = 'set image_qos.reliability and image_qos.depth'
            raise ConfigError(f'parameter {shown(name)}', 'not known', fix=fix)
        DetectorConfig.from_values({name: _plain(_ROWS[name], value)})
    except ConfigError as error:
        text = _meant_as_text(_ROWS.get(name), value)
        typed = command + shlex.quote(text) if command else text
        return f'{error}; for text: {typed}' if text else str(error)
    return ''


def _meant_as_text(parameter: Parameter | None, value: Any) -> str:
    """Return the text, in YAML, that a value of another type was meant as; '' where none was.

    A shell takes quotes away, and what then looks like a number or true arrives as one.
    """
    if parameter is None or parameter.kind not in ('string', 'string[]') or value is None:
        return ''
    is_list = parameter.kind == 'string[]'
    if isinstance(value, Sequence) and not is_list:
        return ''
    if isinstance(value, str):
        # One name, or names and numbers mixed, which `ros2 param set` sends as one text.
        items = [word.strip(' \'"') for word in value.strip(' []').split(',')]
    else:
        items = list(value) if isinstance(value, Sequence) else [value]
    try:
        words = [item if isinstance(item, str) else json.dumps(item) for item in items]
        meant = words if is_list else words[0]
        DetectorConfig.from_values({parameter.name: meant})
    except (ConfigError, TypeError):  # bytes are no text
        return ''
    text = _yaml(meant)
    return text if len(text) <= _LONGEST_HINT else ''


def _yaml(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def _plain(parameter: Parameter, value: Any) -> Any:
    """Return an override in the table's type.

    An empty YAML list has no type of its own and may arrive as nothing.
    """
    if value is None and parameter.kind.endswith('[]'):
        return ()
    return parameter_value(parameter, value)


def _in_own_types(changes: list[RosParameter]) -> list[RosParameter]:
    """Turn whole numbers into doubles and empty lists into their kind, before rclpy looks."""
    own = list(changes)
    for i, change in enumerate(changes):
        row = _ROWS.get(change.name)
        with contextlib.suppress(ConfigError):  # rclpy or _on_set refuses it with its reason
            if row is not None:
                own[i] = _ros_parameter(row, _plain(row, change.value))
    return own


def _type(parameter: Parameter) -> RosParameter.Type:
    return RosParameter.Type[parameter.kind.replace('[]', '_array').upper()]


def _ros_parameter(parameter: Parameter, value: Any) -> RosParameter:
    plain = list(value) if isinstance(value, tuple) else value
    return RosParameter(parameter.name, _type(parameter), plain)


def _descriptor(parameter: Parameter) -> ParameterDescriptor:
    unit = f' Unit: {parameter.unit}.' if parameter.unit else ''
    constraints = []
    if parameter.choices:
        constraints.append('one of ' + ', '.join(repr(choice) for choice in parameter.choices))
    constraints.append('may change while active' if parameter.live else 'fixed while configured')
    descriptor = ParameterDescriptor(
        description=parameter.description + unit, additional_constraints='; '.join(constraints)
    )
    low, high = parameter.minimum, parameter.maximum
    if low is not None and high is not None:
        if parameter.kind == 'integer':
            limits = IntegerRange(from_value=int(low), to_value=int(high), step=1)
            descriptor.integer_range = [limits]
        else:
            span = FloatingPointRange(from_value=float(low), to_value=float(high))
            descriptor.floating_point_range = [span]
    return descriptor
