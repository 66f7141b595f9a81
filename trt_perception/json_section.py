"""A strict reader of JSON objects: what is missing, mistyped or unknown is an error.

Guarantee: nothing in a file is ever ignored, as long as the caller ends with ``finish()``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from trt_perception.errors import ManifestError

__all__ = ['JsonSection', 'found', 'read_json']


def read_json(text: bytes, origin: str) -> JsonSection:
    """Read a JSON file's bytes, one object, as a section.

    Args:
        text: the file's bytes.
        origin: its name, for messages.

    Raises:
        ManifestError: it is no JSON object, or a key stands twice in one object.
    """
    try:
        content = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f'{origin}: not readable as JSON: {error}') from error
    return JsonSection(content, origin)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse what Python's reader would settle by silently keeping the last."""
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise ValueError(f'key {found(key)} stands twice in one object')
        content[key] = value
    return content


class JsonSection:
    """A JSON object that is read key by key; whatever nobody asked for is an error."""

    def __init__(self, content: object, where: str) -> None:
        if not isinstance(content, dict):
            raise ManifestError(f'{where}: expected a JSON object (got {found(content)})')
        self._left: dict[str, Any] = dict(content)
        self.where = where

    def take(self, key: str, expected: str, kinds: tuple[type, ...]) -> Any:
        """Return a key's value and strike it off; ManifestError if it is missing or mistyped."""
        if key not in self._left:
            raise ManifestError(f'{self.where}: {key!r} is missing; expected {expected}')
        value = self._left.pop(key)
        # bool is an int in Python, in JSON it is not.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ManifestError(f'{self.where}: {key!r} must be {expected} (got {found(value)})')
        return value

    def integer(self, key: str, lowest: int = 0, highest: int = 2**53) -> int:
        """Return a whole number from lowest to highest."""
        value: int = self.take(key, 'a whole number', (int,))
        if not lowest <= value <= highest:
            raise ManifestError(
                f'{self.where}: {key!r} must be from {lowest} to {highest} (got {value})'
            )
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
        raise ManifestError(f'{self.where}: {key!r} must hold finite numbers (got {found(value)})')

    def boolean(self, key: str) -> bool:
        """Return true or false."""
        value: bool = self.take(key, 'true or false', (bool,))
        return value

    def text(self, key: str, choices: Sequence[str] = ()) -> str:
        """Return a string, one of the choices where there are any."""
        value: str = self.take(key, 'a string', (str,))
        if choices and value not in choices:
            raise ManifestError(
                f'{self.where}: {key!r} must be one of {", ".join(choices)} (got {found(value)})'
            )
        return value

    def items(self, key: str) -> list[Any]:
        """Return a list whose entries nobody has looked at."""
        value: list[Any] = self.take(key, 'a list', (list,))
        return value

    def section(self, key: str, *, optional: bool) -> JsonSection | None:
        """Return an object; None where it is optional and missing or null."""
        if optional and self._left.get(key) is None:
            self._left.pop(key, None)
            return None
        return JsonSection(self.take(key, 'a JSON object', (dict,)), f'{self.where}: {key}')

    def required_section(self, key: str) -> JsonSection:
        """Return an object that must be there."""
        section = self.section(key, optional=False)
        assert section is not None
        return section

    def sections(self, key: str) -> list[JsonSection]:
        """Return a list of objects."""
        return [
            JsonSection(item, f'{self.where}: {key}[{index}]')
            for index, item in enumerate(self.items(key))
        ]

    def names(self) -> list[str]:
        """Return the keys that nobody has asked for yet."""
        return list(self._left)

    def finish(self) -> None:
        """Refuse what nobody asked for."""
        if self._left:
            names = ', '.join(found(key) for key in list(self._left)[:5])
            raise ManifestError(f'{self.where}: unknown key {names}; see docs/manifest.md')


def found(value: object) -> str:
    """Return a value as JSON, short enough for a message."""
    try:
        text = json.dumps(value)
    except RecursionError:  # read just within the limit
        return f'a {type(value).__name__}, nested too deep'
    return text if len(text) <= 60 else text[:57] + '…'
