# SPDX-License-Identifier: Apache-2.0
"""The rows of the option table: texts for --help, messages and docs, and readers of values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

from trt_perception.files.json_records import FieldReader
from trt_perception.files.json_section import JsonSection


@dataclass(frozen=True)
class Option:
    """One row of the table.

    Attributes:
        name: name in YAML and of the field. On the command line, it is ``--name`` with dashes.
        kind: ``bool``, ``int``, ``float``, ``text`` or ``path``.
        default: value of an option that is not given; None if the option is required or if the
            description explains the default.
        required: whether the option must be given.
        is_list: whether the option may have several values.
        unit: unit of the value; may be empty.
        limits: smallest and largest value; None without limits.
        choices: allowed values; empty if all values are allowed.
        words: values of a path option that are not paths.
        refused: maps a value that is not among the choices to advice for the user.
        affects: ``engine``: the manifest records the option, and the store's key includes it.
            ``report``: only the store's key includes the option. ``nothing``: neither, as for
            paths and logs.
        reader: reads values that are not a number, a choice or a boolean; None otherwise.
    """

    name: str
    group: str
    kind: str
    default: Any
    description: str
    required: bool = False
    is_list: bool = False
    unit: str = ''
    metavar: str = ''
    limits: tuple[float, float] | None = None
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    affects: Literal['engine', 'report', 'nothing'] = 'engine'
    reader: FieldReader | None = None

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return '--' + self.name.replace('_', '-')

    def read(self, section: JsonSection) -> Any:
        """Return the value from a section. Raises the section's error if the value is invalid."""
        if self.reader is not None:
            return self.reader(section, self.name)
        if self.choices:
            return self._read_choice(section)
        return self._read_number(section) if self.limits else section.boolean(self.name)

    def _read_choice(self, section: JsonSection) -> str:
        expected = 'one of ' + ', '.join(self.choices)
        value: str = section.take(self.name, expected, (str,))
        if value not in self.choices:
            fix = self.refused.get(value, '')
            raise section.wrong_value_error(self.name, value, expected, fix)
        return value

    def _read_number(self, section: JsonSection) -> float:
        assert self.limits is not None
        low, high = self.limits
        name = 'a whole number' if self.kind == 'int' else 'a number'
        expected = f'{name} from {low:.12g} to {high:.12g} {self.unit}'.strip()
        kinds = (int,) if self.kind == 'int' else (int, float)
        value: float = section.take(self.name, expected, kinds)
        if not low <= value <= high:  # also refuses NaN
            raise section.wrong_value_error(self.name, value, expected)
        return value if self.kind == 'int' else float(value)


_KIND_NAMES: Final[dict[Any, str]] = {bool: 'bool', int: 'int', float: 'float', Path: 'path'}
_METAVARS: Final = {'int': 'N', 'float': 'X', 'path': 'FILE'}


def option(group: str, description: str, *, default: Any = None, **facts: Any) -> Any:
    """Return a dataclass field that defines an option.

    Args:
        default: default of the field; ``dataclasses.MISSING`` if the option is required.
    """
    metadata = {'group': group, 'description': description, **facts}
    return dataclasses.field(default=default, metadata=metadata)


def collect_options(options: type) -> tuple[Option, ...]:
    """Return the options of a dataclass, in the order of its fields."""
    hints = get_type_hints(options, include_extras=True)
    described = [field for field in dataclasses.fields(options) if field.metadata]
    return tuple(_option_of_field(field, hints[field.name]) for field in described)


def _option_of_field(field: dataclasses.Field[Any], hint: Any) -> Option:
    if type(None) in get_args(hint):
        hint = get_args(hint)[0]
    reader = None
    if get_origin(hint) is Annotated:
        hint, reader = get_args(hint)
    is_list = get_origin(hint) is tuple
    value = get_args(hint)[0] if is_list else hint
    facts: dict[str, Any] = {
        'kind': _KIND_NAMES.get(value, 'text'),
        'is_list': is_list,
        'choices': get_args(value) if get_origin(value) is Literal else (),
        **field.metadata,
    }
    required = field.default is dataclasses.MISSING
    return Option(
        name=field.name,
        default=None if required else field.default,
        required=required,
        reader=reader,
        **{'metavar': _METAVARS.get(facts['kind'], ''), **facts},
    )
