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
        minimum: smallest value; None without a limit, then ``maximum`` is None, too.
        maximum: largest value.
        choices: the allowed values; empty allows any value.
        live: whether the parameter may change while the node is active.
        start_only: whether the parameter keeps the value of the node's start. Such a parameter
            names files or servers, which others on the ROS graph must not choose.
        per_camera: whether a camera may override the value, as ``camera.<name>.<parameter>``.
        is_yes_no: whether an integer parameter accepts yes and no for 1 and 0.
        find_mistake: function that returns why a value of the right type is invalid, or None if
            the value is valid; None if the parameter has no such rule.
    """

    name: str
    field: str
    kind: str
    default: Any
    description: str
    unit: str = ''
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    live: bool = False
    start_only: bool = False
    per_camera: bool = False
    is_yes_no: bool = False
    find_mistake: Callable[[Any], Mistake | None] | None = None

    @property
    def allowed(self) -> str:
        """The allowed values and the unit in brackets; empty without limits and unit."""
        if self.choices:
            return f'({", ".join(json.dumps(choice) for choice in self.choices)})'
        if self.minimum is None or self.maximum is None:
            return f'({self.unit})' if self.unit else ''
        unit = f' {self.unit}' if self.unit else ''
        return f'({self.minimum:g} to {self.maximum:g}{unit})'


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


def parameter_value(parameter: Parameter, value: Any) -> Any:
    """Return a value in the type of its parameter.

    A double also accepts an integer, and a fraction as text, such as ``1/255``. A bool also
    accepts ``yes``, ``no``, ``true`` and ``false`` as text. A choice ``nan`` also accepts NaN,
    because rcl reads an unquoted nan as a number.

    Raises:
        ConfigError: the value has another type, or too many items.
    """
    if isinstance(value, float) and str(value) in parameter.choices:
        return str(value)
    kind = parameter.kind.removesuffix('[]')
    is_list = parameter.kind.endswith('[]')
    several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    if several and len(value) > MAX_CLASSES:
        raise _wrong_value_error(parameter, str(len(value)), f'at most {MAX_CLASSES} values')
    items = [_converted(parameter, item) for item in value] if several and is_list else [value]
    if not several and not is_list:
        items = [_converted(parameter, value)]
    if several != is_list or not set(map(type, items)) <= _SCALAR_TYPES[kind]:
        article = 'an' if kind == 'integer' else 'a'
        shape = f'a list of {kind} values' if is_list else f'{article} {kind}'
        # YAML reads unquoted 0 and yes as a number and a bool.
        unquoted = kind == 'string' and set(map(type, items)) & {bool, int, float}
        fix = 'put text in quotes' if unquoted and several == is_list else ''
        if kind == 'string' and not is_list:
            try:
                check_value(parameter, short_repr(value))
            except ConfigError as error:  # quotes would not help
                shape, fix = f'{shape}: {error.expected}', ''
        raise _wrong_value_error(
            parameter, short_repr(list(value) if several else value), shape, fix
        )
    if kind == 'double':
        try:
            items = [float(item) for item in items]
        except OverflowError as error:
            raise _wrong_value_error(parameter, short_repr(value), 'a finite double') from error
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


def check_value(parameter: Parameter, value: Any) -> None:
    """Check a value of the right type against its row.

    Raises:
        ConfigError: the value is out of range, not among the choices, or breaks the row's rule.
    """
    if parameter.choices and value not in parameter.choices:
        choices = ', '.join(repr(choice) for choice in parameter.choices)
        raise _wrong_value_error(parameter, short_repr(value), f'one of {choices}')
    if isinstance(value, str) and len(value) > MAX_PATH_LENGTH:
        raise _wrong_value_error(
            parameter, str(len(value)), f'at most {MAX_PATH_LENGTH} characters'
        )
    lowest, highest = parameter.minimum, parameter.maximum
    # The comparison also refuses NaN.
    if lowest is not None and highest is not None and not lowest <= value <= highest:
        raise _wrong_value_error(
            parameter, short_repr(value), f'a number from {lowest:g} to {highest:g}'
        )
    if parameter.find_mistake is not None and (mistake := parameter.find_mistake(value)):
        raise _wrong_value_error(parameter, mistake['found'], mistake['expected'])


def _wrong_value_error(
    parameter: Parameter, found: str, expected: str, fix: str = ''
) -> ConfigError:
    return ConfigError(f"parameter '{parameter.name}'", found, expected=expected, fix=fix)
