# SPDX-License-Identifier: Apache-2.0
"""Declares the table of trt_perception.parameters.boxes_3d as ROS parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from rcl_interfaces.msg import SetParametersResult
from rclpy.node import Node
from rclpy.parameter import Parameter as RosParameter

from trt_perception.errors import ConfigError, ValuesError
from trt_perception.files.plain_text import closest_words, short_repr
from trt_perception.parameters.boxes_3d import BOX_PARAMETERS, BoxParameters
from trt_perception.parameters.row import read_value
from trt_perception.ros.parameters import descriptor, ros_parameter

_ROWS: Final = {row.name: row for row in BOX_PARAMETERS}
# rclpy declares or reads these.
_OTHER_PARAMETERS: Final = ('use_sim_time', 'start_type_description_service')
_SLIP_CUTOFF: Final = 0.8


def suggest_box_parameter(word: str) -> str:
    """Return the parameter that a user mistyped as this word; empty if there is none."""
    return next(iter(closest_words(word, _ROWS, cutoff=_SLIP_CUTOFF)), '')


class NodeBoxParameters:
    """Declares all parameters of a node, and keeps their values.

    Args:
        is_configured: returns whether only live parameters may change.
        apply: called after each change.

    Attributes:
        values: the current values.

    Raises:
        ValuesError: start values are unknown, of the wrong type or out of range; one line for
            each.
    """

    def __init__(
        self, node: Node, is_configured: Callable[[], bool], apply: Callable[[], None]
    ) -> None:
        self._node = node
        self._is_configured = is_configured
        self._apply = apply
        self.values = self._accepted = _read_start_values(node)
        for name, row in _ROWS.items():
            value = getattr(self.values, row.field)
            node.declare_parameter(name, value, descriptor(row), ignore_override=True)
        node.add_on_set_parameters_callback(self._on_set)
        node.add_post_set_parameters_callback(self._post_set)

    def read_changes(self, changes: list[RosParameter]) -> list[RosParameter]:
        """Return changes in the types of their parameters, before rclpy checks the types.

        Each change of a parameter must pass through this method once.

        Raises:
            ConfigError: a parameter is unknown, or its value has the wrong type or is out of
                range.
        """
        return [self._read_change(change) for change in changes]

    def _read_change(self, change: RosParameter) -> RosParameter:
        if not self._node.has_parameter(change.name):
            raise _unknown_parameter(change.name)
        row = _ROWS.get(change.name)
        return change if row is None else ros_parameter(row, read_value(row, change.value))

    def _on_set(self, changes: list[RosParameter]) -> SetParametersResult:
        """Check the rules that depend on the state of the node."""
        fields = {
            _ROWS[change.name].field: change.value for change in changes if change.name in _ROWS
        }
        changed = dataclasses.replace(self.values, **fields)
        try:
            for name, row in _ROWS.items():
                if getattr(changed, row.field) == getattr(self.values, row.field) or row.live:
                    continue
                if row.start_only or self._is_configured():
                    when = 'after the start' if row.start_only else 'while the node is configured'
                    raise ConfigError(f"parameter '{name}'", f'cannot change {when}')
        except ConfigError as error:
            return SetParametersResult(successful=False, reason=str(error))
        self._accepted = changed
        return SetParametersResult(successful=True)

    def _post_set(self, changes: list[RosParameter]) -> None:  # noqa: ARG002
        self.values = self._accepted
        self._apply()


def _unknown_parameter(name: str) -> ConfigError:
    near = suggest_box_parameter(name)
    fix = f'did you mean {near}?' if near else 'see the list in docs/boxes_3d.md'
    return ConfigError(f'parameter {short_repr(name)}', 'not known', fix=fix)


def _read_start_values(node: Node) -> BoxParameters:
    mistakes, values = [], {}
    # rclpy has no public way to read overrides of undeclared parameters.
    for name, override in node._parameter_overrides.items():
        if name in _OTHER_PARAMETERS or name.startswith('qos_overrides.'):
            continue
        try:
            if name not in _ROWS:
                raise _unknown_parameter(name)
            values[name] = read_value(_ROWS[name], override.value)
        except ConfigError as error:
            mistakes.append(str(error))
    if mistakes:
        raise ValuesError(mistakes)
    return BoxParameters().with_changes(values)
