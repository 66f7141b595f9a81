"""One row of the parameter table: what a parameter is, and what its values may be."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import MAX_CLASSES, MAX_PATH_LENGTH, Fault, short_repr

__all__ = ['Parameter', 'check_value', 'parameter_field', 'parameter_value']


@dataclass(frozen=True)
class Parameter:
    """One row of the table.

    Attributes:
        name: ROS name, with dots.
        field: name of the field in DetectorConfig.
        kind: ``bool``, ``integer``, ``double``, ``string`` and their arrays ``integer[]``,
            ``double[]``, ``string[]``.
        default: the value where the user gives none.
        description: one sentence for people.
        unit: of the value, may be empty.
        minimum: smallest value, None where there is no limit; then ``maximum`` is None, too.
        maximum: largest value.
        choices: the values that are allowed, empty where any is.
        live: it may change while the node is active.
        per_camera: each camera may have a value of its own, as ``camera.<name>.<parameter>``.
        fault: what else is wrong with a value of the right type, None where nothing is.
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
    per_camera: bool = False
    fault: Callable[[Any], Fault | None] | None = None

    @property
    def allowed(self) -> str:
        """The allowed values and the unit in brackets, empty where any value is."""
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
        description: one sentence for people.
        facts: further attributes of Parameter; its name, where it is not that of the field.
    """
    return dataclasses.field(default=default, metadata={'description': description, **facts})


_SCALARS: Final[dict[str, set[type]]] = {
    'string': {str},
    'integer': {int},
    'double': {float, int},
    'bool': {bool},
}


def parameter_value(parameter: Parameter, value: Any) -> Any:
    """Return the value in the parameter's own type; a whole number is fine for a double.

    Raises:
        ConfigError: the value is of another type.
    """
    kind = parameter.kind.removesuffix('[]')
    is_list = parameter.kind.endswith('[]')
    several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    if several and len(value) > MAX_CLASSES:
        raise _wrong(parameter, str(len(value)), f'at most {MAX_CLASSES} values')
    items = list(value) if several and is_list else [value]
    if several != is_list or not set(map(type, items)) <= _SCALARS[kind]:
        article = 'an' if kind == 'integer' else 'a'
        shape = f'a list of {kind} values' if is_list else f'{article} {kind}'
        # YAML reads 0 and yes as something else than text.
        unquoted = kind == 'string' and set(map(type, items)) & {bool, int, float}
        fix = 'put text in quotes' if unquoted and several == is_list else ''
        raise _wrong(parameter, short_repr(list(value) if several else value), shape, fix)
    if kind == 'double':
        try:
            items = [float(item) for item in items]
        except OverflowError as error:
            raise _wrong(parameter, short_repr(value), 'a finite double') from error
    return tuple(items) if is_list else items[0]


def check_value(parameter: Parameter, value: Any) -> None:
    """Hold a value of the right type to its row.

    Raises:
        ConfigError: it is outside its range, none of its choices, or breaks the row's own rule.
    """
    if parameter.choices and value not in parameter.choices:
        choices = ', '.join(repr(choice) for choice in parameter.choices)
        raise _wrong(parameter, short_repr(value), f'one of {choices}')
    if isinstance(value, str) and len(value) > MAX_PATH_LENGTH:
        raise _wrong(parameter, str(len(value)), f'at most {MAX_PATH_LENGTH} characters')
    lowest, highest = parameter.minimum, parameter.maximum
    # The comparison also refuses NaN.
    if lowest is not None and highest is not None and not lowest <= value <= highest:
        raise _wrong(parameter, short_repr(value), f'a number from {lowest:g} to {highest:g}')
    if parameter.fault is not None and (fault := parameter.fault(value)):
        raise _wrong(parameter, fault['found'], fault['expected'])


def _wrong(parameter: Parameter, found: str, expected: str, fix: str = '') -> ConfigError:
    return ConfigError(f"parameter '{parameter.name}'", found, expected=expected, fix=fix)
