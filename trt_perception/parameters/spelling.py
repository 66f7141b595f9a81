# SPDX-License-Identifier: Apache-2.0
"""The spellings of a parameter that programs accept, and the spelling that messages print."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from trt_perception.files.plain_text import split_list
from trt_perception.parameters.values import PARAMETERS

_NAMES_BY_SPELLING: Final = {
    spelling: row.name
    for row in PARAMETERS
    for spelling in (row.name.removeprefix('model.'), row.field, row.name)
}
_MAX_VALUE_LENGTH: Final = 200
_KINDS_BY_NAME: Final = {row.name: row.kind for row in PARAMETERS}
# Matches text that YAML 1.1 and rcl may read as another type than text, or as a part of YAML.
_NEEDS_QUOTES: Final = re.compile(
    r'(?![A-Za-z/][\w/. -]*\Z)|(y|n|yes|no|on|off|true|false|null|nan|inf|infinity)\Z',
    re.IGNORECASE,
)


def parameter_named(word: str) -> str:
    """Return the name of a parameter: ``model.class_names``.

    Args:
        word: the name, also with ``_`` for ``.`` or without ``model.``. Other words are returned
            unchanged.
    """
    return _NAMES_BY_SPELLING.get(word, word)


def split_assignment(word: str) -> tuple[str, str] | None:
    """Return name and value of ``NAME=VALUE`` or ``NAME:=VALUE``; None for other words."""
    name, equals, value = word.partition('=')
    name = name.removesuffix(':')
    return (parameter_named(name), value) if name and equals else None


def assignment_text(name: str, values: Sequence[str]) -> str:
    """Return ``NAME:=VALUE``, as ROS and ``--param`` read it.

    Args:
        values: words of the value as typed; if empty, the user must replace ``VALUE``.
    """
    kind = _KINDS_BY_NAME.get(re.sub(r'\Acamera\.[^.]*\.', '', name), '')
    items = [' '.join(values)] if values else ['VALUE']
    if values and kind.endswith('[]'):
        items = [item for item in split_list(','.join(values)) if item]
    if kind.startswith('string'):
        items = [_quote_if_needed(item) for item in items]
    return f'{name}:=[{", ".join(items)}]' if kind.endswith('[]') else f'{name}:={items[0]}'


def yaml_value(value: Any) -> str:
    """Return a parameter's value as YAML on one line. For a long value, the user gets ``VALUE``.

    Args:
        value: bool, number, text, or a sequence of them. Other values give ``VALUE``, too.
    """
    items = [value] if isinstance(value, str) or not isinstance(value, Sequence) else [*value]
    if not all(isinstance(item, bool | int | float | str) for item in items):
        return 'VALUE'
    words = [
        _quote_if_needed(item) if isinstance(item, str) else json.dumps(item) for item in items
    ]
    text = words[0] if items == [value] else f'[{", ".join(words)}]'
    return text if len(text) <= _MAX_VALUE_LENGTH else 'VALUE'


def _quote_if_needed(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if _NEEDS_QUOTES.match(text) else text
