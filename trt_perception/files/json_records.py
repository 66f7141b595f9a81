# SPDX-License-Identifier: Apache-2.0
"""Read and write frozen dataclasses as JSON objects, according to the types of their fields.

The type alone is enough for str, int, float, bool, another such dataclass, an optional value of
these types, and a tuple of dataclasses. For other types, ``Annotated`` lists a reader after the
type, and then a writer if the JSON value has another form.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints

from trt_perception.files.json_section import JsonSection

#: Takes the value of a key out of a section. Raises ManifestError if it is missing or wrong.
FieldReader = Callable[[JsonSection, str], Any]
Record = TypeVar('Record')
#: Metadata of a dataclass field that is not written if it has its default. A file that lacks the
#: key is then written again without it.
OMIT_DEFAULT: Final = {'omit_default': True}

_NO_DEFAULT: Final = object()
_READERS_BY_TYPE: Final[Mapping[Any, FieldReader]] = {
    str: JsonSection.text,
    int: JsonSection.integer,
    float: JsonSection.number,
    bool: JsonSection.boolean,
}


def _field_types(kind: Any) -> Mapping[str, Any]:
    """Map each field of a dataclass to its type, without ``ClassVar`` attributes."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


# get_type_hints evaluates the text of each annotation, which is slow.
_cached_field_types: Final[Callable[[Any], Mapping[str, Any]]] = functools.cache(_field_types)


def read_record(kind: type[Record], section: JsonSection) -> Record:
    """Read all fields of a dataclass, and refuse unknown keys.

    Raises:
        ManifestError: a key is missing, unknown or of the wrong type, or a value is out of range.
    """
    record = read_record_leaving_other_keys(kind, section)
    section.finish()
    return record


def read_record_leaving_other_keys(kind: type[Record], section: JsonSection) -> Record:
    """Read all fields of a dataclass. Other keys of the section stay unread.

    Raises:
        ManifestError: a key is missing or of the wrong type, or a value is out of range.
    """
    return kind(
        **{
            name: _reader_of_type(hint)(section, name)
            for name, hint in _cached_field_types(kind).items()
        }
    )


def _reader_of_type(hint: Any) -> FieldReader:
    if hint in _READERS_BY_TYPE:
        return _READERS_BY_TYPE[hint]
    if get_origin(hint) is Annotated:
        reader: FieldReader = hint.__metadata__[0]
        return reader
    if get_origin(hint) is tuple:
        kind = get_args(hint)[0]
        return lambda section, key: tuple(
            read_record(kind, item) for item in section.sections(key)
        )
    if type(None) in get_args(hint):
        return optional_reader(_reader_of_type(get_args(hint)[0]))
    return lambda section, key: read_record(hint, section.section(key))


def to_json(value: Any) -> Any:
    """Return a value as JSON content. ``read_record`` reads an equal dataclass from it."""
    if dataclasses.is_dataclass(value):
        hints = _cached_field_types(type(value))
        omitted = _cached_omitted_defaults(type(value))
        return {
            name: _writer_of_type(hint)(item)
            for name, hint in hints.items()
            if (item := getattr(value, name)) != omitted.get(name, _NO_DEFAULT)
        }
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    return [to_json(item) for item in value] if isinstance(value, tuple) else value


def _omitted_defaults(kind: Any) -> Mapping[str, Any]:
    """Map the fields with ``OMIT_DEFAULT`` to their defaults."""
    return {
        field.name: field.default
        for field in dataclasses.fields(kind)
        if field.metadata.get('omit_default')
    }


_cached_omitted_defaults: Final[Callable[[Any], Mapping[str, Any]]] = functools.cache(
    _omitted_defaults
)


def _writer_of_type(hint: Any) -> Callable[[Any], Any]:
    named: tuple[Any, ...] = getattr(hint, '__metadata__', ())
    return named[1] if len(named) > 1 else to_json


def choice_reader(*choices: str) -> FieldReader:
    """Return a reader that accepts only these texts."""
    return lambda section, key: section.text(key, choices)


def integer_reader(lowest: int, highest: int = 2**53) -> FieldReader:
    """Return a reader of whole numbers from lowest to highest."""
    return lambda section, key: section.integer(key, lowest, highest)


def list_reader(fits: Callable[[Any], bool], expected: str) -> FieldReader:
    """Return a reader of lists as tuples. ``fits`` tells whether an item is valid."""

    def read(section: JsonSection, key: str) -> tuple[Any, ...]:
        values = section.items(key)
        if not all(map(fits, values)):
            raise section.wrong_value_error(key, values, expected)
        return tuple(values)

    return read


def mapping_reader(read: FieldReader) -> FieldReader:
    """Return a reader of objects with arbitrary keys as dicts. ``read`` reads each value."""

    def read_all(section: JsonSection, key: str) -> dict[str, Any]:
        inner = section.section(key)
        return {name: read(inner, name) for name in inner.unread_keys()}

    return read_all


def optional_reader(read: FieldReader, missing: Any = None) -> FieldReader:
    """Return a reader that returns ``missing`` if the key is missing or null."""
    return lambda section, key: read(section, key) if section.has(key) else missing
