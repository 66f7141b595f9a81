# SPDX-License-Identifier: Apache-2.0
"""One row of the parameter table, with its type, limits and description."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import (
    MAX_CLASSES,
    MAX_PATH_LENGTH,
    Mistake,
    fraction_as_number,
    read_yes_no,
    short_repr,
)


@dataclass(frozen=True)
class Parameter:
    """One row of the table.

    Attributes:
        name: ROS name, with dots.
        field: name of the field in ParameterValues.
        kind: ``bool``, ``integer``, ``double``, ``string`` and their arrays ``integer[]``,
            ``double[]``, ``string[]``.
        default: the value without user input.
        description: one sentence for users.
        unit: unit of the value; may be empty.
        limits: smallest and largest value; None without limits.
        choices: the allowed values; empty allows any value.
        live: whether the parameter may change while the node is active.
        start_only: whether the parameter keeps the value of the node's start. Such a parameter
            names files or servers, which others on the ROS graph must not choose.
        per_camera: whether a camera may override the value, as ``camera.<name>.<parameter>``.
        is_yes_no: whether an integer parameter accepts yes and no for 1 and 0.
        rule: function that returns why a value of the right type is invalid, or None if the value
            is valid; None if the parameter has no such rule.
    """

    name: str
    field: str
    kind: str
    default: Any
    description: str
    unit: str = ''
    limits: tuple[float, float] | None = None
    choices: tuple[str, ...] = ()
    live: bool = False
    start_only: bool = False
    per_camera: bool = False
    is_yes_no: bool = False
    rule: Callable[[Any], Mistake | None] | None = None

    @property
    def allowed(self) -> str:
        """The allowed values and the unit in brackets; empty without limits and unit."""
        if self.choices:
            return f'({", ".join(json.dumps(choice) for choice in self.choices)})'
        if self.limits is None:
            return f'({self.unit})' if self.unit else ''
        low, high = self.limits
        unit = f' {self.unit}' if self.unit else ''
        return f'({low:g} to {high:g}{unit})'


def parameter_field(default: Any, description: str, **facts: Any) -> Any:
    """Return a dataclass field that is a row of the table.

    Args:
        default: the value without user input.
        description: one sentence for users.
        facts: further attributes of Parameter; `name` only if the parameter's name differs from
            the field's name.
    """
    return dataclasses.field(default=default, metadata={'description': description, **facts})


_KINDS: Final = {
    'str': 'string',
    'int': 'integer',
    'float': 'double',
    'bool': 'bool',
    'tuple[str, ...]': 'string[]',
    'tuple[int, ...]': 'integer[]',
    'tuple[float, ...]': 'double[]',
}


def table_rows(fields: Iterable[dataclasses.Field[Any]]) -> tuple[Parameter, ...]:
    """Return the rows of the fields that `parameter_field` returned, in their order."""
    rows = []
    for field in fields:
        facts = dict(field.metadata)
        name = facts.pop('name', field.name)
        rows.append(Parameter(name, field.name, _KINDS[str(field.type)], field.default, **facts))
    return tuple(rows)


_SCALAR_TYPES: Final[dict[str, set[type]]] = {
    'string': {str},
    'integer': {int},
    'double': {float, int},
    'bool': {bool},
}


def read_value(parameter: Parameter, value: Any) -> Any:
    """Return a value in the type of its parameter, if the parameter allows the value.

    A double also accepts an integer, and a fraction as text, such as ``1/255``. A bool also
    accepts ``yes``, ``no``, ``true`` and ``false`` as text. A choice ``nan`` also accepts NaN,
    because rcl reads an unquoted nan as a number.

    Raises:
        ConfigError: the value has another type or too many items, is out of range, is not among
            the choices, or breaks the row's rule.
    """
    typed = _typed_value(parameter, value)
    if mistake := value_mistake(parameter, typed):
        raise _wrong_value_error(parameter, mistake)
    return typed


def _typed_value(parameter: Parameter, value: Any) -> Any:
    """Return a value in the type of its parameter."""
    if isinstance(value, float) and str(value) in parameter.choices:
        return str(value)
    kind = parameter.kind.removesuffix('[]')
    is_list = parameter.kind.endswith('[]')
    several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    if several and len(value) > MAX_CLASSES:
        expected = f'at most {MAX_CLASSES} values'
        raise _wrong_value_error(parameter, Mistake(found=str(len(value)), expected=expected))
    items = [_converted(parameter, item) for item in value] if several and is_list else [value]
    if not several and not is_list:
        items = [_converted(parameter, value)]
    if several != is_list or not set(map(type, items)) <= _SCALAR_TYPES[kind]:
        article = 'an' if kind == 'integer' else 'a'
        shape = f'a list of {kind} values' if is_list else f'{article} {kind}'
        # YAML reads unquoted 0 and yes as a number and a bool.
        unquoted = kind == 'string' and set(map(type, items)) & {bool, int, float}
        fix = 'put text in quotes' if unquoted and several == is_list else ''
        is_text = kind == 'string' and not is_list
        if is_text and (mistake := value_mistake(parameter, short_repr(value))):
            shape, fix = f'{shape}: {mistake["expected"]}', ''  # quotes would not help
        found = short_repr(list(value) if several else value)
        raise _wrong_value_error(parameter, Mistake(found=found, expected=shape), fix)
    if kind == 'double':
        try:
            items = [float(item) for item in items]
        except OverflowError as error:
            mistake = Mistake(found=short_repr(value), expected='a finite double')
            raise _wrong_value_error(parameter, mistake) from error
    return tuple(items) if is_list else items[0]


def _converted(parameter: Parameter, item: Any) -> Any:
    """Return a single value, with fractions and yes or no in the type of the parameter."""
    kind = parameter.kind.removesuffix('[]')
    if kind == 'double':
        return fraction_as_number(item)
    if kind == 'bool' or parameter.is_yes_no:
        answer = read_yes_no(item) if isinstance(item, str) else item
        if isinstance(answer, bool):
            return int(answer) if parameter.is_yes_no else answer
    return item


def value_mistake(parameter: Parameter, value: Any) -> Mistake | None:
    """Return why a value of the right type is invalid, or None if it is valid."""
    if parameter.choices and value not in parameter.choices:
        choices = ', '.join(repr(choice) for choice in parameter.choices)
        return Mistake(found=short_repr(value), expected=f'one of {choices}')
    if isinstance(value, str) and len(value) > MAX_PATH_LENGTH:
        return Mistake(found=str(len(value)), expected=f'at most {MAX_PATH_LENGTH} characters')
    # The comparison also refuses NaN.
    if parameter.limits and not parameter.limits[0] <= value <= parameter.limits[1]:
        low, high = parameter.limits
        return Mistake(found=short_repr(value), expected=f'a number from {low:g} to {high:g}')
    return parameter.rule(value) if parameter.rule is not None else None


def _wrong_value_error(parameter: Parameter, mistake: Mistake, fix: str = '') -> ConfigError:
    return ConfigError(f"parameter '{parameter.name}'", fix=fix, **mistake)
