# SPDX-License-Identifier: Apache-2.0
"""Readers of option values: shapes, profiles, sizes, paths and compute capabilities.

A reader takes the value of one option from a section. The command line gives text; YAML gives
text, numbers or lists. A reader returns the value, or raises the section's error with the expected
and the actual value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from trt_perception.files.json_section import JsonSection
from trt_perception.files.plain_text import Mistake, names_mistake
from trt_perception.images.frame import MAX_SIDE
from trt_perception.model.files.model_file import ENGINE_SUFFIXES
from trt_perception.model.input_layout import MAX_BATCH
from trt_perception.model.preprocessing import number_mistake

_MAX_PATH_PART_BYTES: Final = 255
_ANY_TYPE: Final = (object,)
_PATH_DESCRIPTION: Final = 'the name of a file or folder'


@dataclass(frozen=True)
class ShapeProfile:
    """The shapes of the image input in one optimisation profile.

    Attributes:
        min: smallest shape, (N, C, H, W).
    """

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]

    def __str__(self) -> str:
        """Return the profile as it is written on the command line."""
        shapes = dict.fromkeys((self.min, self.opt, self.max))
        sides = (self.opt,) if len(shapes) == 1 else (self.min, self.opt, self.max)
        return ':'.join('x'.join(map(str, shape)) for shape in sides)


def _as_tuple(value: object) -> tuple[Any, ...]:
    """Return the items of a list, or a single value as a tuple with one item."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _parse_sides(value: object, count: int) -> tuple[int, ...] | None:
    """Return the sides of a text such as 1x3x480x640, or of a list; None if they are invalid."""
    sides = value
    if isinstance(value, str):
        parts = value.lower().split('x')
        # Python refuses to read thousands of digits.
        short = all(part.isdecimal() and len(part) <= len(str(MAX_SIDE)) for part in parts)
        sides = [int(part) for part in parts] if short else ()
    if not isinstance(sides, list | tuple) or len(sides) != count:
        return None
    allowed = all(type(side) is int and 1 <= side <= MAX_SIDE for side in sides)
    return tuple(sides) if allowed else None


def _read_size(section: JsonSection, key: str) -> tuple[int, ...]:
    """Read (width, height) in pixels from 640x480 or from a list of two numbers."""
    value = section.take(key, '', _ANY_TYPE)
    sides = _parse_sides(value, 2)
    if sides is None:
        expected = f'width and height, each side from 1 to {MAX_SIDE}, as in 640x480'
        raise section.wrong_value_error(key, value, expected)
    return sides


def _read_profiles(section: JsonSection, key: str) -> tuple[ShapeProfile, ...]:
    """Read profiles from one value or from a list."""
    value = section.take(key, '', _ANY_TYPE)
    # A list of numbers is one shape, not four profiles.
    if isinstance(value, list) and value and all(isinstance(side, int) for side in value):
        return (_parse_profile(section, key, value),)
    return tuple(_parse_profile(section, key, item) for item in _as_tuple(value))


def _parse_profile(section: JsonSection, key: str, value: object) -> ShapeProfile:
    """Return a profile from one shape, from min:opt:max, or from a mapping with these keys."""
    if isinstance(value, Mapping):
        if set(value) != {'min', 'opt', 'max'}:
            raise section.wrong_value_error(key, list(value), 'a profile with min, opt and max')
        parts = [value[side] for side in ('min', 'opt', 'max')]
    else:
        parts = value.split(':') if isinstance(value, str) else [value]
        if len(parts) not in (1, 3):
            raise section.wrong_value_error(key, value, 'a profile: one shape, or min:opt:max')
    shapes = []
    for part in parts:
        shape = _parse_sides(part, 4)
        if shape is None:
            expected = f'a shape NxCxHxW, each side from 1 to {MAX_SIDE}, as in 1x3x480x640'
            raise section.wrong_value_error(key, part, expected)
        shapes.append(shape)
    low, best, high = shapes * 3 if len(shapes) == 1 else shapes
    if not all(a <= b <= c for a, b, c in zip(low, best, high, strict=True)):
        raise section.wrong_value_error(key, value, 'min <= opt <= max for each side of a profile')
    return ShapeProfile(low, best, high)


def _read_batches(section: JsonSection, key: str) -> tuple[int, ...]:
    """Read batch sizes from a number, a text such as 1,4,8, or a list. Drop repeats and sort."""
    value = section.take(key, '', _ANY_TYPE)
    sizes: list[Any] = []
    for item in _as_tuple(value):
        for part in item.split(',') if isinstance(item, str) else (item,):
            text = part.strip() if isinstance(part, str) else ''
            # Python refuses to read thousands of digits.
            is_size = text.isdecimal() and len(text) <= len(str(MAX_BATCH))
            sizes.append(int(text) if is_size else part)
    if not sizes or not all(type(size) is int and 1 <= size <= MAX_BATCH for size in sizes):
        raise section.wrong_value_error(
            key, value, f'whole numbers from 1 to {MAX_BATCH}, as in 1,4,8'
        )
    return tuple(sorted(set(sizes)))


def _read_texts(section: JsonSection, key: str) -> tuple[str, ...]:
    """Read texts from one value or from a list."""
    values = _as_tuple(section.take(key, '', _ANY_TYPE))
    for value in values:
        if not isinstance(value, str):
            raise section.wrong_value_error(key, value, 'a list of texts')
    return values


def _read_names(section: JsonSection, key: str) -> tuple[str, ...]:
    return section.check_value(key, _read_texts(section, key), names_mistake)


def _read_triple(section: JsonSection, key: str) -> tuple[float, ...]:
    """Read three numbers."""
    values = _as_tuple(section.take(key, '', _ANY_TYPE))
    expected = 'a list of three numbers'
    if len(values) != 3:
        raise section.error_at(key, f'{len(values)} values', expected)
    numbers = tuple(section.finite(value, key) for value in values)
    return section.check_value(key, numbers, lambda found: number_mistake(key, found))


def _read_path_text(section: JsonSection, key: str) -> str:
    """Read a path or a glob pattern that is valid on Linux."""
    return _check_path_text(section, key, section.take(key, '', _ANY_TYPE), _PATH_DESCRIPTION)


def _read_path(section: JsonSection, key: str) -> Path:
    """Read a path, and replace ~ with the home folder."""
    return _expand_home(section, key, _read_path_text(section, key))


def _read_paths(section: JsonSection, key: str) -> tuple[Path, ...]:
    """Read paths from one value or from a list."""
    values = _as_tuple(section.take(key, '', _ANY_TYPE))
    names = [
        _check_path_text(section, key, value, f'a list, each entry {_PATH_DESCRIPTION}')
        for value in values
    ]
    return tuple(_expand_home(section, key, name) for name in names)


def _check_path_text(section: JsonSection, key: str, value: object, expected: str) -> str:
    if not isinstance(value, str):
        raise section.wrong_value_error(key, value, expected)
    return section.check_value(key, value, _path_mistake)


def _path_mistake(name: str) -> Mistake | None:
    if not name:
        return Mistake(found='an empty text', expected=_PATH_DESCRIPTION)
    longest = max(len(part.encode(errors='surrogateescape')) for part in name.split('/'))
    if longest > _MAX_PATH_PART_BYTES:
        expected = f'at most {_MAX_PATH_PART_BYTES} bytes in each part of a path'
        return Mistake(found=str(longest), expected=expected)
    return None


def _expand_home(section: JsonSection, key: str, name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise section.error_at(key, str(error)) from error


def _read_onnx_path(section: JsonSection, key: str) -> Path:
    path = _read_path(section, key)
    if path.suffix != '.onnx':
        raise section.wrong_value_error(key, path.name, 'an ONNX model, whose name ends in .onnx')
    return path


def _read_engine_path(section: JsonSection, key: str) -> Path:
    path = _read_path(section, key)
    if path.suffix not in ENGINE_SUFFIXES:
        expected = f'a name that ends in one of {", ".join(ENGINE_SUFFIXES)}'
        raise section.wrong_value_error(key, path.name, expected)
    return path


def normalise_compute_capability(value: object) -> str | None:
    """Return a compute capability as text, or None if the value is invalid.

    The values 8.6, '8.6', '86' and 'sm_86' all give ``8.6``.
    """
    text = str(value).lower().removeprefix('sm_').removeprefix('sm')
    match = re.fullmatch(r'(\d{1,2})\.(\d)|(\d{1,2})(\d)', text)
    if isinstance(value, bool) or match is None:
        return None
    return f'{match[1] or match[3]}.{match[2] or match[4]}'


def _read_capabilities(section: JsonSection, key: str) -> tuple[str, ...]:
    """Read compute capabilities from one value or from a list, without repeats."""
    found: dict[str, None] = {}
    for value in _as_tuple(section.take(key, '', _ANY_TYPE)):
        capability = normalise_compute_capability(value)
        if capability is None:
            raise section.wrong_value_error(key, value, 'a compute capability, as in 8.6 or sm_86')
        found[capability] = None
    return tuple(found)


FilePath = Annotated[Path, _read_path]
OnnxPath = Annotated[Path, _read_onnx_path]
EnginePath = Annotated[Path, _read_engine_path]
FilePaths = Annotated[tuple[Path, ...], _read_paths]
PathText = Annotated[str, _read_path_text]
Texts = Annotated[tuple[str, ...], _read_texts]
Names = Annotated[tuple[str, ...], _read_names]
Triple = Annotated[tuple[float, float, float], _read_triple]
Size = Annotated[tuple[int, int], _read_size]
Batches = Annotated[tuple[int, ...], _read_batches]
Profiles = Annotated[tuple[ShapeProfile, ...], _read_profiles]
Capabilities = Annotated[tuple[str, ...], _read_capabilities]
