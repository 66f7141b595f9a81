"""The spellings of a parameter that programs accept besides its name."""

from __future__ import annotations

from typing import Final

from trt_perception.parameters.config import PARAMETERS

__all__ = ['parameter_named', 'split_assignment']

_NAMES: Final = {
    spelling: row.name
    for row in PARAMETERS
    for spelling in (row.name.removeprefix('model.'), row.field, row.name)
}


def parameter_named(word: str) -> str:
    """Return the name of a parameter: ``model.class_names``.

    Args:
        word: the name, also with ``_`` for ``.`` or without ``model.``. Other words are returned
            unchanged.
    """
    return _NAMES.get(word, word)


def split_assignment(word: str) -> tuple[str, str] | None:
    """Return name and value of ``NAME=VALUE`` or ``NAME:=VALUE``; None for other words."""
    name, equals, value = word.partition('=')
    name = name.removesuffix(':')
    return (parameter_named(name), value) if name and equals else None
