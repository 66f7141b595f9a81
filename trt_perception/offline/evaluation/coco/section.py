# SPDX-License-Identifier: Apache-2.0
"""Reads COCO files key by key, and describes their errors.

Format: https://cocodataset.org/#format-data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

from trt_perception.errors import ConfigError, TrtPerceptionError
from trt_perception.files.json_section import JsonSection, RepeatedKeyError, parse_json, short_json
from trt_perception.files.plain_text import short_repr
from trt_perception.files.regular_files import read_user_file

# The largest annotation file of COCO has 470 MB. Reading needs several times as much memory.
MAX_BYTES: Final = 1024**3
MAX_ID: Final = 2**53
#: Limit of coordinates. It is beyond any image, and its square is still finite.
MAX_COORDINATE: Final = 1e9


class CocoSection(JsonSection):
    """A JSON object of a COCO file. Unknown keys are ignored, because many tools add their own."""

    error: ClassVar[type[TrtPerceptionError]] = ConfigError

    def subject(self, key: str) -> str:
        """Return the name of a key for error messages."""
        return f'{self.location}: "{key}"'

    def format_value(self, value: object) -> str:
        """Return the text that stands for a value in error messages."""
        return short_repr(value)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or the default if the key is missing."""
        return self._unread.get(key, default)

    def read_id(self, key: str) -> int:
        """Return the integer id at a key."""
        return self.integer(key, -MAX_ID, MAX_ID)

    def entries(self, key: str, most: int = MAX_ID) -> Iterator[CocoSection]:
        """Yield the objects of the list at a key, at most ``most`` objects."""
        entries = self.get(key)
        if not isinstance(entries, list):
            found = 'none' if entries is None else f'a {type(entries).__name__}'
            expected = 'a list; COCO annotations have the lists "images", "annotations" and '
            raise self.error_at(key, found, expected + '"categories"')
        if len(entries) > most:
            raise self.error_at(key, str(len(entries)), f'at most {most} entries')
        for index, entry in enumerate(entries):
            yield CocoSection(entry, f'{self.location}: {key}[{index}]')


def read_coco(path: Path) -> CocoSection:
    """Read a COCO file.

    Raises:
        ConfigError: the file cannot be opened, is not a regular file, is too large, or is not a
            JSON object.
    """
    content = read_json(path)
    if isinstance(content, list):
        found = 'a list, which is the format of detections'
        raise ConfigError(str(path), found, expected='COCO annotations, a JSON object')
    return CocoSection(content, str(path))


def read_json(path: Path, limit: int = MAX_BYTES) -> Any:
    """Read a JSON file of limited size.

    Args:
        limit: maximum size in bytes.

    Raises:
        ConfigError: the file cannot be opened, is not a regular file, is too large, or is not
            JSON.
    """
    try:
        return parse_json(read_user_file(path, limit))
    except RepeatedKeyError as error:
        found = f'key {short_json(error.key)} is repeated in one object'
        raise ConfigError(str(path), found) from error
    except ValueError as error:
        raise ConfigError(str(path), f'is not JSON: {error}') from error


def is_finite(value: object) -> bool:
    """Return whether a JSON value is a number that fits a float."""
    try:
        return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    except OverflowError:  # integers in JSON may be arbitrarily large
        return False
