"""A strict reader of objects from files: what is missing, mistyped or unknown is an error.

Manifests, COCO annotations and build options are read by it. A kind of file with errors of another
class, or with other words for a key, has a subclass of ``JsonSection``.

Guarantee: nothing in a file is ever ignored, as long as the caller ends with ``finish()``.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

from trt_perception.errors import ManifestError, TrtPerceptionError
from trt_perception.files.plain_text import Fault, join_first

__all__ = ['JsonSection', 'is_nested_deeper', 'parse_json', 'read_json', 'short_json']

Value = TypeVar('Value')


def parse_json(text: bytes | str) -> Any:
    """Return what JSON says; what Python's reader would settle silently is an error.

    Raises:
        ValueError: it is no JSON, or a key stands twice in one object, or a number is none, has
            thousands of digits, or lists are nested too deep. The message says which, in words.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError as error:
        raise ValueError(f'it is not text: byte {error.start} cannot be decoded') from error
    except json.JSONDecodeError as error:
        raise ValueError(f'{error.msg} in line {error.lineno}, column {error.colno}') from error
    except _JsonFaultError:
        raise
    except ValueError as error:  # Python's limit on the digits of a whole number
        raise ValueError('a number has thousands of digits') from error
    except RecursionError as error:
        raise ValueError('lists or objects are nested too deep') from error


def is_nested_deeper(content: object, most: int) -> bool:
    """Tell whether lists and objects stand within each other at more levels than that."""
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


class _JsonFaultError(ValueError):
    pass


def _refuse_constant(name: str) -> None:
    raise _JsonFaultError(f'{name} is not a number in JSON')


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key, count in Counter(keys).items() if count > 1)
        raise _JsonFaultError(f'key {short_json(twice)} stands twice in one object')
    return content


def read_json(text: bytes, origin: str) -> JsonSection:
    """Read a JSON file's bytes, one object, as a section.

    Args:
        text: the file's bytes.
        origin: its name, for messages.

    Raises:
        ManifestError: it is no JSON object, or parse_json refuses it.
    """
    try:
        content = parse_json(text)
    except ValueError as error:
        raise ManifestError(origin, f'not readable as JSON: {error}') from error
    return JsonSection(content, origin)


class JsonSection:
    """A JSON object that is read key by key; whatever nobody asked for is an error.

    Attributes:
        error: the class of all errors.
        location: the file and the place in it, for messages.
    """

    error: ClassVar[type[TrtPerceptionError]] = ManifestError

    def __init__(self, content: object, location: str) -> None:
        if not isinstance(content, dict):
            raise self.error(location, self.format_value(content), expected='a JSON object')
        self._unread: dict[str, Any] = dict(content)
        self.location = location

    def take(self, key: str, expected: str, kinds: tuple[type, ...]) -> Any:
        """Return a key's value and strike it off; an error if it is missing or mistyped."""
        if key not in self._unread:
            raise self.error(self.location, f'{key!r} is missing', fix=f'add {expected}')
        value = self._unread.pop(key)
        # bool is an int in Python, in JSON it is not.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.refusal(key, value, expected)
        return value

    def integer(self, key: str, lowest: int = 0, highest: int = 2**53) -> int:
        """Return a whole number from lowest to highest."""
        value: int = self.take(key, 'a whole number', (int,))
        if not lowest <= value <= highest:
            raise self.refusal(key, value, f'a number from {lowest} to {highest}')
        return value

    def number(self, key: str) -> float:
        """Return a finite number."""
        return self.finite(self.take(key, 'a number', (int, float)), key)

    def finite(self, value: object, key: str) -> float:
        """Return a value, found below this key, as a finite number."""
        try:
            if not isinstance(value, bool) and isinstance(value, int | float):
                number = float(value)
                if math.isfinite(number):
                    return number
        except OverflowError:  # JSON's whole numbers have no limit
            pass
        raise self.refusal(key, value, 'finite numbers')

    def boolean(self, key: str) -> bool:
        """Return true or false."""
        value: bool = self.take(key, 'true or false', (bool,))
        return value

    def text(self, key: str, choices: Sequence[str] = ()) -> str:
        """Return a string, one of the choices where there are any."""
        value: str = self.take(key, 'a string', (str,))
        if choices and value not in choices:
            raise self.refusal(key, value, f'one of {", ".join(choices)}')
        return value

    def items(self, key: str) -> list[Any]:
        """Return a list whose entries nobody has looked at."""
        value: list[Any] = self.take(key, 'a list', (list,))
        return value

    def has(self, key: str) -> bool:
        """Tell whether a key is there and not null; a null is struck off."""
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
        """Yield all keys and texts within what nobody has asked for yet, but for one key's."""
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
        """Return the keys that nobody has asked for yet."""
        return list(self._unread)

    def finish(self) -> None:
        """Refuse what nobody asked for."""
        if self._unread:
            names = join_first([short_json(key) for key in self._unread])
            raise self.error(self.location, f'unknown key {names}', fix='see docs/manifest.md')

    def refusal(self, key: str, value: object, expected: str, fix: str = '') -> TrtPerceptionError:
        """Return the error that says what is expected at a key instead of this value."""
        return self.error(self.subject(key), self.format_value(value), expected=expected, fix=fix)

    def check_value(self, key: str, value: Value, check: Callable[[Value], Fault | None]) -> Value:
        """Return a value found at this key, unless the check finds a fault."""
        if fault := check(value):
            raise self.error(self.subject(key), **fault)
        return value

    def subject(self, key: str) -> str:
        """Return how errors name a key."""
        return f'{self.location}: {key!r}'

    def format_value(self, value: object) -> str:
        """Return how errors show a value."""
        return short_json(value)


def short_json(value: object) -> str:
    """Return a value as JSON, short enough for a message."""
    try:
        text = json.dumps(value)
    except RecursionError:  # read just within the limit
        return f'a {type(value).__name__}, nested too deep'
    return text if len(text) <= 60 else text[:57] + '…'
