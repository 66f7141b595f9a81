# SPDX-License-Identifier: Apache-2.0
"""A strict reader of JSON objects: missing, mistyped and unknown keys are errors.

Manifests, COCO annotations and build options use this reader. A subclass of ``JsonSection`` sets
another class of errors, or other words for keys and values.

Guarantee: no key of an object is silently ignored, if the caller ends with ``finish()``.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

from trt_perception.errors import ManifestError, TrtPerceptionError
from trt_perception.files.plain_text import Mistake, join_first_items

Value = TypeVar('Value')


def parse_json(text: bytes | str) -> Any:
    """Return the value of a JSON text, more strictly than Python's ``json`` module.

    Raises:
        RepeatedKeyError: an object repeats a key.
        ValueError: the text is not JSON, contains NaN, Infinity or a number with thousands of
            digits, or nests too deep. The message says which, without parts of the text.
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=_object_without_repeated_keys,
            parse_constant=_raise_not_a_number,
        )
    except UnicodeDecodeError as error:
        raise ValueError(f'it is not text: byte {error.start} cannot be decoded') from error
    except json.JSONDecodeError as error:
        raise ValueError(f'{error.msg} in line {error.lineno}, column {error.colno}') from error
    except (RepeatedKeyError, _NotANumberError):
        raise
    except ValueError as error:  # Python limits the digits of whole numbers
        raise ValueError('a number has thousands of digits') from error
    except RecursionError as error:
        raise ValueError('lists or objects are nested too deep') from error


def is_nested_deeper(content: object, most: int) -> bool:
    """Return whether lists and objects nest more than ``most`` levels deep."""
    level = [content]
    for _ in range(most + 1):
        inner: list[object] = []
        for value in level:
            if isinstance(value, list):
                inner += value
            elif isinstance(value, dict):
                inner += value.values()
        level = inner
    return bool(level)


class RepeatedKeyError(ValueError):
    """Raised when an object repeats a key. The message has no part of the text."""

    def __init__(self, key: str) -> None:
        super().__init__('a key is repeated in one object')
        self.key = key


class _NotANumberError(ValueError):
    pass


def _raise_not_a_number(name: str) -> None:
    raise _NotANumberError(f'{name} is not a number in JSON')


def _object_without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key, count in Counter(keys).items() if count > 1)
        raise RepeatedKeyError(twice)
    return content


def read_json(text: bytes, origin: str) -> JsonSection:
    """Return a section with the object of a JSON file.

    Args:
        text: the file's bytes.

    Raises:
        ManifestError: the file is not a JSON object, or ``parse_json`` refuses it. The error has
            no part of the text, because the file may be no manifest.
    """
    try:
        content = parse_json(text)
    except ValueError as error:
        raise ManifestError(origin, f'not readable as JSON: {error}') from error
    if not isinstance(content, dict):
        raise ManifestError(origin, 'another JSON value', expected='a JSON object')
    return JsonSection(content, origin)


class JsonSection:
    """A JSON object that is read key by key. At the end, unread keys are errors.

    All methods that take a value raise ``error`` if the value is missing or invalid.

    Attributes:
        error: class of all errors that the section raises.
        location: the file and the place in it, for messages.
    """

    error: ClassVar[type[TrtPerceptionError]] = ManifestError

    def __init__(self, content: object, location: str) -> None:
        if not isinstance(content, dict):
            raise self.error(location, self.format_value(content), expected='a JSON object')
        self._unread: dict[str, Any] = dict(content)
        self.location = location

    def take(self, key: str, expected: str, kinds: tuple[type, ...]) -> Any:
        """Return the value of a key, and mark the key as read. Refuse a value of other types."""
        if key not in self._unread:
            raise self.error(self.location, f'{key!r} is missing', fix=f'add {expected}')
        value = self._unread.pop(key)
        # In Python, bool is a subclass of int; in JSON, true is not a number.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.wrong_value_error(key, value, expected)
        return value

    def integer(self, key: str, lowest: int = 0, highest: int = 2**53) -> int:
        """Return a whole number from lowest to highest."""
        value: int = self.take(key, 'a whole number', (int,))
        if not lowest <= value <= highest:
            raise self.wrong_value_error(key, value, f'a number from {lowest} to {highest}')
        return value

    def number(self, key: str) -> float:
        """Return a finite number."""
        return self.finite(self.take(key, 'a number', (int, float)), key)

    def finite(self, value: object, key: str) -> float:
        """Return a value as a finite number. ``key`` names the value in the error."""
        try:
            if not isinstance(value, bool) and isinstance(value, int | float):
                number = float(value)
                if math.isfinite(number):
                    return number
        except OverflowError:  # JSON allows whole numbers beyond the range of float
            pass
        raise self.wrong_value_error(key, value, 'finite numbers')

    def boolean(self, key: str) -> bool:
        """Return true or false."""
        value: bool = self.take(key, 'true or false', (bool,))
        return value

    def text(self, key: str, choices: Sequence[str] = ()) -> str:
        """Return a string, which must be a choice if ``choices`` is not empty."""
        value: str = self.take(key, 'a string', (str,))
        if choices and value not in choices:
            raise self.wrong_value_error(key, value, f'one of {", ".join(choices)}')
        return value

    def items(self, key: str) -> list[Any]:
        """Return a list with unchecked entries."""
        value: list[Any] = self.take(key, 'a list', (list,))
        return value

    def has(self, key: str) -> bool:
        """Return whether a key exists and is not null. A null counts as read."""
        if self._unread.get(key) is None:
            self._unread.pop(key, None)
        return key in self._unread

    def section(self, key: str) -> JsonSection:
        """Return an object."""
        return type(self)(self.take(key, 'a JSON object', (dict,)), f'{self.location}: {key}')

    def sections(self, key: str) -> list[JsonSection]:
        """Return a list of objects."""
        return [
            type(self)(item, f'{self.location}: {key}[{index}]')
            for index, item in enumerate(self.items(key))
        ]

    def unread_texts(self, except_key: str) -> Iterator[str]:
        """Yield all keys and texts of the unread content, except in the value of one key."""
        left: list[object] = [
            {key: self._unread[key] for key in self._unread if key != except_key}
        ]
        while left:
            value = left.pop()
            if isinstance(value, str):
                yield value
            elif isinstance(value, list):
                left += value
            elif isinstance(value, dict):
                yield from value
                left += value.values()

    def unread_keys(self) -> list[str]:
        """Return the unread keys."""
        return list(self._unread)

    def finish(self) -> None:
        """Raise an error that lists the unread keys, if any."""
        if self._unread:
            names = join_first_items([short_json(key) for key in self._unread])
            raise self.error(self.location, f'unknown key {names}', fix='see docs/manifest.md')

    def wrong_value_error(
        self, key: str, value: object, expected: str, fix: str = ''
    ) -> TrtPerceptionError:
        """Return the error for an invalid value. Its message says which values are valid."""
        return self.error_at(key, self.format_value(value), expected, fix)

    def error_at(
        self, key: str, found: str, expected: str = '', fix: str = ''
    ) -> TrtPerceptionError:
        """Return an error about the value at a key, for the caller to raise."""
        return self.error(self.subject(key), found, expected=expected, fix=fix)

    def check_value(
        self, key: str, value: Value, check: Callable[[Value], Mistake | None]
    ) -> Value:
        """Return the value. If the check returns a mistake, raise an error that names the key."""
        if mistake := check(value):
            raise self.error_at(key, **mistake)
        return value

    def subject(self, key: str) -> str:
        """Return the subject of an error about a key."""
        return f'{self.location}: {key!r}'

    def format_value(self, value: object) -> str:
        """Return a value as text for an error."""
        return short_json(value)


def short_json(value: object) -> str:
    """Return a value as JSON, short enough for a message."""
    try:
        text = json.dumps(value)
    except RecursionError:  # the value nests as deep as the parser allows
        return f'a {type(value).__name__}, nested too deep'
    return text if len(text) <= 60 else text[:57] + '…'
