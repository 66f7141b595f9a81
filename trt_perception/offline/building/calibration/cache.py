# SPDX-License-Identifier: Apache-2.0
"""Stores the ranges of each calibration, and reuses them if all inputs are the same.

Each calibration has one file, whose name is a hash of all inputs. Guarantees: a file is complete
or missing. Ranges are reused only for the same model, images, image decoders, preprocessing,
method and version of this tool. Limitation: the files are not signed, so users with write access
to the folder can change ranges.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import onnx

from trt_perception.errors import WriteError
from trt_perception.files.atomic_files import write_atomically
from trt_perception.files.json_section import parse_json
from trt_perception.files.regular_files import read_regular
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.offline.building.calibration.images import ImageSet
from trt_perception.offline.building.package_versions import IMAGE_PACKAGES, package_versions

_MAX_BYTES: Final = 16 * 1024 * 1024
_MAX_RANGE: Final = float(np.finfo(np.float32).max)


def calibration_identity(
    model: onnx.ModelProto, images: ImageSet, preprocessing: Preprocessing
) -> str:
    """Return a text that identifies model, images with their decoders, and preprocessing."""
    decoders = package_versions(IMAGE_PACKAGES)
    digest = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
    return f'{digest} {images.sha256} {decoders} {preprocessing}'


def cache_path(folder: Path | None, suffix: str, *parts: object) -> Path | None:
    """Return the path of the ranges for these inputs (``parts``); None if ``folder`` is None."""
    if folder is None:
        return None
    return folder / f'{hashlib.sha256(repr(parts).encode()).hexdigest()}.{suffix}'


def read_ranges(path: Path | None, tensors: Sequence[str]) -> tuple[dict[str, float] | None, str]:
    """Return cached ranges by tensor name, and a sentence for the report.

    The ranges are None if the cache is off, or if the file is missing or damaged.

    Args:
        path: path of the file; None if the cache is off.
    """
    if path is None:
        return None, 'off'
    try:
        content = parse_json(read_regular(path, _MAX_BYTES))
        return {name: _checked_range(content[name]) for name in tensors}, f'reused: {path}'
    except FileNotFoundError:
        return None, f'not reused: {path} does not exist yet'
    except OSError as error:
        return None, f'not reused: {path} cannot be read: {error.strerror}'
    except (ValueError, KeyError, TypeError) as error:
        reason = f'{type(error).__name__}: {error}'
        return None, f'not reused: {path} is damaged ({reason}) and is replaced'


def write_ranges(path: Path | None, ranges: Mapping[str, float]) -> str:
    """Write ranges. Return a failure to append to the text of ``read_ranges``; else empty."""
    return '' if path is None else write_cache_file(path, json.dumps(ranges, indent=1).encode())


def write_cache_file(path: Path, content: bytes) -> str:
    """Write a file of ranges, and its folder if necessary. Return the failure, or an empty text.

    A cache that cannot be written only costs time, so the failure is not an exception.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically({path: content})
    except (WriteError, OSError) as error:
        return f'; not saved: {error}'
    return ''


def _checked_range(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f'a range must be a number, got {value!r}')
    # Check first: float() raises OverflowError for huge integers, and float32 becomes infinite.
    if not 0 <= value <= _MAX_RANGE:
        raise ValueError(f'a range must be from 0 to {_MAX_RANGE:.2e}, got {value!r:.20}')
    return float(value)
