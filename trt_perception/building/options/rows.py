"""The options of build_engine as rows: for --help, for messages, for the docs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from trt_perception.building.options.build_options import BuildOptions

__all__ = ['OPTIONS', 'Option', 'expected']


@dataclass(frozen=True)
class Option:
    """One row of the table.

    Attributes:
        name: in YAML; on the command line ``--name`` with dashes.
        field: name of the field in BuildOptions.
        group: heading under which it stands in --help.
        kind: ``bool``, ``int``, ``float``, ``text``, ``path``.
        default: the value where none is given; None where it must be given or has a meaning that
            the description says.
        description: one or two sentences for people.
        is_list: several values may be given.
        count: how many a list must have, 0 for any number.
        unit: of the value, may be empty.
        metavar: placeholder in --help.
        limits: smallest and largest value, None where there are none.
        choices: the values that are allowed, empty where any is.
        words: values of a path that are not paths.
        removed: by value that an earlier release took, what to do instead.
        affects: ``engine``, as most do: the manifest records it, and it is part of the store's
            key. ``report``: the same engine is reported on differently, so that only the key has
            it. ``nothing`` of what is built, as places and logs: neither has it.
    """

    name: str
    field: str
    group: str
    kind: str
    default: Any
    description: str
    is_list: bool = False
    count: int = 0
    unit: str = ''
    metavar: str = ''
    limits: tuple[float, float] | None = None
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    removed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    affects: Literal['engine', 'report', 'nothing'] = 'engine'

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return '--' + self.name.replace('_', '-')


_KINDS: Final[dict[Any, Any]] = {bool: 'bool', int: 'int', float: 'float', Path: 'path'}
_METAVARS: Final = {'int': 'N', 'float': 'X', 'path': 'FILE'}


def _kind(annotation: Any) -> tuple[Any, bool]:
    """Return the type of one value, and whether several may be given."""
    if get_origin(annotation) is tuple:
        return get_args(annotation)[0], True
    if type(None) in get_args(annotation):
        return _kind(next(kind for kind in get_args(annotation) if kind is not type(None)))
    if get_origin(annotation) is Annotated:
        return _kind(get_args(annotation)[0])
    return annotation, False


def _rows() -> tuple[Option, ...]:
    rows = []
    for name, info in BuildOptions.model_fields.items():
        extra = info.json_schema_extra
        facts: dict[str, Any] = dict(extra) if isinstance(extra, dict) else {}
        value, is_list = _kind(info.annotation)
        if name == 'input_size':  # one word on the command line, WxH
            value, is_list = str, False
        if name == 'batch':  # one word can be several
            value = str
        if get_origin(value) is Literal:
            facts['choices'] = get_args(value)
        kind = 'path' if facts.pop('is_path', False) else _KINDS.get(value, 'text')
        rows.append(
            Option(
                name=info.alias or name,
                field=name,
                kind=kind,
                is_list=is_list,
                default=None if info.is_required() else info.default,
                description=info.description or '',
                **{'metavar': _METAVARS.get(kind, ''), **facts},
            )
        )
    return tuple(rows)


#: The table, in the order of BuildOptions.
OPTIONS: Final = _rows()


def expected(row: Option) -> str:
    """Return what an option takes, in words."""
    if row.choices:
        return 'one of ' + ', '.join(row.choices)
    names = {
        'bool': 'true or false',
        'int': 'a whole number',
        'float': 'a number',
        'text': 'text',
        'path': 'the name of a file or folder',
    }
    text = names[row.kind]
    if row.limits:
        text += f' from {row.limits[0]:.12g} to {row.limits[1]:.12g}'
    text += f' {row.unit}' if row.unit else ''
    if row.is_list:
        return f'a list{f" of {row.count}" if row.count else ""}, each {text}'
    return text
