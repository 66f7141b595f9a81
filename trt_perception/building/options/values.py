"""Values of options as people write them: shapes, profiles, sizes, paths, compute capabilities.

Each function takes what the command line (text) or YAML (text, numbers, lists) gives, returns the
value, and raises ValueError with what was expected and what was found.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trt_perception.files.plain_text import shown
from trt_perception.images.frame import MAX_SIDE
from trt_perception.stages.batch_sizes import MAX_BATCH

__all__ = [
    'ShapeProfile',
    'check_path',
    'compute_capability',
    'listed',
    'parse_batches',
    'parse_capabilities',
    'parse_path',
    'parse_paths',
    'parse_profile',
    'parse_profiles',
    'parse_shape',
    'parse_size',
]

_MAX_PART_BYTES: Final = 255


@dataclass(frozen=True)
class ShapeProfile:
    """The shapes of the image input in one optimisation profile.

    Attributes:
        min: smallest shape, (N, C, H, W).
        opt: the shape that the engine is made fastest for.
        max: largest shape.
    """

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]

    def __str__(self) -> str:
        """Return it as it is written on the command line."""
        shapes = dict.fromkeys((self.min, self.opt, self.max))
        sides = (self.opt,) if len(shapes) == 1 else (self.min, self.opt, self.max)
        return ':'.join('x'.join(map(str, shape)) for shape in sides)


def parse_shape(value: object) -> tuple[int, ...]:
    """Return (N, C, H, W) from 1x3x480x640 or from a list of four numbers."""
    return _sides(value, 4, 'a shape NxCxHxW', '1x3x480x640')


def parse_size(value: object) -> tuple[int, ...]:
    """Return (width, height) in pixels from 640x480 or from a list of two numbers."""
    return _sides(value, 2, 'width and height', '640x480')


def _sides(value: object, count: int, what: str, example: str) -> tuple[int, ...]:
    sides = value
    if isinstance(value, str):
        parts = value.lower().split('x')
        # Python refuses to read thousands of digits.
        short = all(part.isdecimal() and len(part) <= len(str(MAX_SIDE)) for part in parts)
        sides = [int(part) for part in parts] if short else ()
    if (
        not isinstance(sides, list | tuple)
        or len(sides) != count
        or not all(type(side) is int and 1 <= side <= MAX_SIDE for side in sides)
    ):
        raise ValueError(
            f'expected {what}, each side from 1 to {MAX_SIDE}, as in {example} (got '
            f'{shown(value)})'
        )
    return tuple(sides)


def parse_profile(value: object) -> ShapeProfile:
    """Return a profile from one shape, min:opt:max, or a mapping with these keys."""
    if isinstance(value, ShapeProfile):
        return value
    if isinstance(value, Mapping):
        if set(value) != {'min', 'opt', 'max'}:
            raise ValueError(f'a profile must have min, opt and max (got {shown(list(value))})')
        shapes = [parse_shape(value[key]) for key in ('min', 'opt', 'max')]
    else:
        parts = value.split(':') if isinstance(value, str) else [value]
        if len(parts) not in (1, 3):
            raise ValueError(f'a profile must be one shape, or min:opt:max (got {shown(value)})')
        shapes = [parse_shape(part) for part in parts]
    low, best, high = shapes * 3 if len(shapes) == 1 else shapes
    if not all(a <= b <= c for a, b, c in zip(low, best, high, strict=True)):
        raise ValueError(f'each side of a profile must be min <= opt <= max (got {shown(value)})')
    return ShapeProfile(low, best, high)


def listed(value: object) -> object:
    """Let one value stand for a list of one, and a list for a tuple."""
    if isinstance(value, str | int | float | Mapping | Path | ShapeProfile):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def parse_profiles(value: object) -> object:
    """Return a tuple of profiles from one or from a list."""
    # A list of numbers is one shape, not four profiles.
    if isinstance(value, list) and value and all(isinstance(side, int) for side in value):
        return (parse_profile(value),)
    items = listed(value)
    if not isinstance(items, tuple):
        raise ValueError(f'expected shapes as in 1x3x480x640 (got {shown(value)})')
    return tuple(parse_profile(item) for item in items)


def parse_batches(value: object) -> tuple[int, ...]:
    """Return different batch sizes, the smallest first, from 4, from 1,4,8 or from a list."""
    items = listed(value)
    sizes: list[Any] = []
    for item in items if isinstance(items, tuple) else ():
        for part in item.split(',') if isinstance(item, str) else (item,):
            text = part.strip() if isinstance(part, str) else ''
            # Python refuses to read thousands of digits.
            is_size = text.isdecimal() and len(text) <= len(str(MAX_BATCH))
            sizes.append(int(text) if is_size else part)
    if not sizes or not all(type(size) is int and 1 <= size <= MAX_BATCH for size in sizes):
        raise ValueError(
            f'expected whole numbers from 1 to {MAX_BATCH}, as in 1,4,8 (got {shown(value)})'
        )
    return tuple(sorted(set(sizes)))


def parse_path(value: object) -> object:
    """Return a path with ~ resolved; what is not a text stays for the type check to refuse."""
    if not isinstance(value, str):
        return value
    check_path(value)
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def check_path(value: str) -> str:
    """Return the name of a file or folder, or a pattern of them, that Linux can have."""
    if value == '':
        raise ValueError('expected the name of a file or folder (got an empty one)')
    longest = max(len(part.encode(errors='surrogateescape')) for part in value.split('/'))
    if longest > _MAX_PART_BYTES:
        raise ValueError(
            f'each part of the name of a file must have at most {_MAX_PART_BYTES} bytes (got '
            f'{longest})'
        )
    return value


def parse_paths(value: object) -> object:
    """Return a tuple of paths from one or from a list."""
    items = listed(value)
    return tuple(parse_path(item) for item in items) if isinstance(items, tuple) else items


def compute_capability(value: object) -> str:
    """Return a compute capability as text: ``8.6`` from 8.6, '8.6', '86', 'sm_86' or '12.0'.

    Raises:
        ValueError: it is none.
    """
    text = str(value).lower().removeprefix('sm_').removeprefix('sm')
    match = re.fullmatch(r'(\d{1,2})\.(\d)|(\d{1,2})(\d)', text)
    if isinstance(value, bool) or match is None:
        raise ValueError(f'a compute capability looks like 8.6 or sm_86 (got {shown(value)})')
    return f'{match[1] or match[3]}.{match[2] or match[4]}'


def parse_capabilities(value: object) -> object:
    """Return different compute capabilities from one or from a list."""
    items = listed(value)
    if not isinstance(items, tuple):
        return items
    found = tuple(compute_capability(item) for item in items)
    return tuple(dict.fromkeys(found))
