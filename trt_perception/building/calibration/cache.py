"""Keep the ranges of a calibration, and use them again only where everything is as it was.

One file for each calibration, named after all that its ranges depend on. Guarantees: it is there
whole or not at all; ranges are used only if model, images, preprocessing, method and this tool's
version are the same. Non-guarantee: the file is not signed; a folder that others may write to can
hold others' ranges.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import onnx

from trt_perception.building.calibration.images import ImageSet
from trt_perception.errors import WriteError
from trt_perception.files.atomic_files import write_atomically
from trt_perception.files.json_section import parse_json
from trt_perception.files.regular_files import read_regular
from trt_perception.model.preprocessing import Preprocessing

__all__ = ['cache_path', 'calibration_identity', 'read_ranges', 'write_cache_file', 'write_ranges']

_MAX_BYTES: Final = 16 * 1024 * 1024
_MAX_RANGE: Final = float(np.finfo(np.float32).max)


def calibration_identity(
    model: onnx.ModelProto, images: ImageSet, preprocessing: Preprocessing
) -> str:
    """Return text that is another one for another model, other images or other preprocessing."""
    digest = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
    return f'{digest} {images.sha256} {preprocessing}'


def cache_path(folder: Path | None, suffix: str, *parts: object) -> Path | None:
    """Return where in a folder ranges stand that depend on these parts; None without a folder."""
    if folder is None:
        return None
    return folder / f'{hashlib.sha256(repr(parts).encode()).hexdigest()}.{suffix}'


def read_ranges(path: Path | None, tensors: Sequence[str]) -> tuple[dict[str, float] | None, str]:
    """Return cached ranges by tensor, None where none can be used; and a sentence that says why.

    Args:
        path: of the file, None for no cache.
        tensors: whose ranges are wanted.
    """
    if path is None:
        return None, 'off'
    try:
        content = parse_json(read_regular(path, _MAX_BYTES))
        return {name: _checked_range(content[name]) for name in tensors}, f'reused: {path}'
    except FileNotFoundError:
        return None, f'computed: no cache {path}'
    except OSError as error:
        return None, f'computed: the cache {path} cannot be read: {error.strerror}'
    except (ValueError, KeyError, TypeError) as error:
        reason = f'{type(error).__name__}: {error}'
        return None, f'computed: the cache {path} is damaged ({reason}) and is written anew'


def write_ranges(path: Path | None, ranges: Mapping[str, float]) -> str:
    """Keep ranges; return '' or what to add to the sentence of read_ranges."""
    return '' if path is None else write_cache_file(path, json.dumps(ranges, indent=1).encode())


def write_cache_file(path: Path, content: bytes) -> str:
    """Write a file of ranges, and its folder where that is missing; return '' or why it is not.

    A cache that cannot be written costs time, so it is no error.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically({path: content})
    except (WriteError, OSError) as error:
        return f'; not kept: {error}'
    return ''


def _checked_range(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f'a range must be a number, got {value!r}')
    # A huge integer is not a float, and a huge float not a float32.
    if not 0 <= value <= _MAX_RANGE:
        raise ValueError(f'a range must be from 0 to {_MAX_RANGE:.2e}, got {value!r:.20}')
    return float(value)
