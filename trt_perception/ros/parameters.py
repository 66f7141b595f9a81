"""The node's parameters: the table of trt_perception.config as ROS sees it."""

from __future__ import annotations

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

_ROS_TYPES = {
    'bool': RosParameter.Type.BOOL,
    'integer': RosParameter.Type.INTEGER,
    'double': RosParameter.Type.DOUBLE,
    'string': RosParameter.Type.STRING,
    'integer[]': RosParameter.Type.INTEGER_ARRAY,
    'double[]': RosParameter.Type.DOUBLE_ARRAY,
    'string[]': RosParameter.Type.STRING_ARRAY,
}
_ROWS = {parameter.name: parameter for parameter in PARAMETERS}
# Names that rclpy declares or reads by itself.
_OF_RCLPY = ('use_sim_time', 'start_type_description_service', 'qos_overrides.')
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
        configured: Callable[[], bool],
        check: Callable[[DetectorConfig], None],
        apply: Callable[[DetectorConfig, DetectorConfig], None],
    ) -> None:
        self._node = node
        self._configured = configured
        self._check = check
        self._apply = apply
        self.config = self._accepted = DetectorConfig.from_values(_overrides(node))
        for parameter in PARAMETERS:
            # Declared by type and set afterwards: from a value, rclpy takes an empty list for
            # bytes.
            node.declare_parameter(
                parameter.name,
                _ROS_TYPES[parameter.kind],
                _descriptor(parameter),
                ignore_override=True,
            )
        results = node.set_parameters(
            [
                _ros_parameter(parameter, getattr(self.config, parameter.field))
                for parameter in PARAMETERS
            ]
        )
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
            if row is not None or not self._node.has_parameter(change.name):
                try:
                    _checked(change.name, change.value)
                except ConfigError as error:
                    text = _meant_as_text(row, change.value)
                    meant = f'; for text: {command} {change.name} {shlex.quote(text)}'
                    return f'{error}{meant if text else ""}'
        return ''

    def _with(self, changes: list[RosParameter]) -> DetectorConfig:
        values = {
            parameter.name: getattr(self.config, parameter.field) for parameter in PARAMETERS
        }
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
        for parameter in PARAMETERS:
            if not parameter.live and getattr(config, parameter.field) != getattr(
                self.config, parameter.field
            ):
                node = self._node.get_fully_qualified_name()
                raise ConfigError(
                    f"parameter '{parameter.name}'",
                    'cannot change while the node is configured',
                    fix=f'run ros2 lifecycle set {node} deactivate, then cleanup',
                )

    def _post_set(self, _changes: list[RosParameter]) -> None:
        before, self.config = self.config, self._accepted
        self._apply(before, self.config)


def _overrides(node: Node) -> dict[str, Any]:
    """Return what the command line and parameter files say.

    Collect every mistake before giving up.
    """
    # rclpy offers no public way to see overrides that nobody declared.
    overrides: dict[str, RosParameter] = node._parameter_overrides
    values: dict[str, Any] = {}
    mistakes = []
    for name, override in overrides.items():
        if name.startswith(_OF_RCLPY):
            continue
        try:
            values[name] = _checked(name, override.value)
        except ConfigError as error:
            text = _meant_as_text(_ROWS.get(name), override.value)
            mistakes.append(f'{error}; for text: {text}' if text else str(error))
    if mistakes:
        raise ValuesError(mistakes)
    return values


def _checked(name: str, value: Any) -> Any:
    """Return a value in its parameter's type, after checking all that can be said of it alone."""
    if name not in _ROWS:
        close = nearest(name, _ROWS)
        fix = f"did you mean '{close[0]}'?" if close else 'see the list in docs/parameters.md'
        raise ConfigError(f'parameter {shown(name)}', 'not known', fix=fix)
    plain = _plain(_ROWS[name], value)
    DetectorConfig.from_values({name: plain})
    return plain


def _meant_as_text(parameter: Parameter | None, value: Any) -> str:
    """Return the text, in YAML, that a value of another type was meant as; '' where none was.

    A shell takes quotes away, and what then looks like a number or true arrives as one.
    """
    if parameter is None or parameter.kind not in ('string', 'string[]') or value is None:
        return ''
    is_list = parameter.kind == 'string[]'
    several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    if is_list and isinstance(value, str):
        # One name, or names and numbers mixed, which `ros2 param set` sends as one text.
        words = [word.strip(' \'"') for word in value.strip(' []').split(',')]
    elif isinstance(value, str) or (several and not is_list):
        return ''
    else:
        items = list(value) if several else [value]
        if all(isinstance(item, str) for item in items) or isinstance(items[0], bytes):
            return ''
        words = [str(item).lower() if isinstance(item, bool) else str(item) for item in items]
    meant = words if is_list else words[0]
    try:
        DetectorConfig.from_values({parameter.name: meant})
    except ConfigError:
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
    own = []
    for change in changes:
        parameter = _ROWS.get(change.name)
        try:
            own.append(
                change
                if parameter is None
                else _ros_parameter(parameter, _plain(parameter, change.value))
            )
        except ConfigError:
            own.append(change)  # rclpy or _on_set refuses it with its reason
    return own


def _ros_parameter(parameter: Parameter, value: Any) -> RosParameter:
    return RosParameter(
        parameter.name,
        _ROS_TYPES[parameter.kind],
        list(value) if isinstance(value, tuple) else value,
    )


def _descriptor(parameter: Parameter) -> ParameterDescriptor:
    unit = f' Unit: {parameter.unit}.' if parameter.unit else ''
    constraints = []
    if parameter.choices:
        constraints.append('one of ' + ', '.join(repr(choice) for choice in parameter.choices))
    constraints.append('may change while active' if parameter.live else 'fixed while configured')
    descriptor = ParameterDescriptor(
        description=parameter.description + unit, additional_constraints='; '.join(constraints)
    )
    if parameter.minimum is not None and parameter.maximum is not None:
        if parameter.kind == 'integer':
            descriptor.integer_range = [
                IntegerRange(
                    from_value=int(parameter.minimum), to_value=int(parameter.maximum), step=1
                )
            ]
        else:
            descriptor.floating_point_range = [
                FloatingPointRange(
                    from_value=float(parameter.minimum),
                    to_value=float(parameter.maximum),
                    step=0.0,
                )
            ]
    return descriptor
