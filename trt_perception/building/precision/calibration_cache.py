"""Keep the ranges of a calibration, and use them again only where everything is as it was.

One JSON file for each model and method. Guarantees: it is there whole or not at all; ranges are
used only if model, images, preprocessing, method and this tool's version are the same; otherwise
the reason is said and they are computed. Non-guarantee: the file is not signed; a folder that
others may write to can hold others' ranges.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from typing import Final

import numpy as np
import onnx

from trt_perception.building.precision.calibration_images import ImageSet
from trt_perception.building.precision.calibration_ranges import PERCENTILE
from trt_perception.files.json_section import parse_json
from trt_perception.files.regular_files import read_regular
from trt_perception.model.preprocessing import Preprocessing

__all__ = ['CacheKey', 'read_ranges', 'write_atomically', 'write_ranges']

#: Counts the changes of calibration_ranges after which the same images give other ranges.
VERSION: Final = 1
_MOST_BYTES: Final = 16 * 1024 * 1024
_MOST_RANGE: Final = float(np.finfo(np.float32).max)
_WHAT: Final = {
    'model': 'another model',
    'images': 'other images',
    'preprocessing': 'other preprocessing',
    'method': 'another method',
    'version': 'another version of this tool',
}


@dataclass(frozen=True)
class CacheKey:
    """All that ranges depend on; hashes are SHA-256 in hexadecimal."""

    model: str
    images: str
    preprocessing: str
    method: str
    version: str

    @classmethod
    def of(
        cls, model: onnx.ModelProto, images: ImageSet, preprocessing: Preprocessing, method: str
    ) -> CacheKey:
        """Return the key of one calibration."""
        settings = json.dumps(asdict(preprocessing), sort_keys=True).encode()
        return cls(
            model=hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest(),
            images=images.sha256,
            preprocessing=hashlib.sha256(settings).hexdigest(),
            method=f'{method} {PERCENTILE}' if method == 'percentile' else method,
            version=str(VERSION),
        )

    def file(self, folder: Path) -> Path:
        """Return where in a folder the ranges of this model and method stand."""
        return folder / f'{self.model[:16]}-{self.method.split()[0]}.json'


def read_ranges(
    folder: Path | None, key: CacheKey, tensors: Sequence[str]
) -> tuple[dict[str, float] | None, str]:
    """Return cached ranges by tensor, None where none can be used; and a sentence that says why.

    Args:
        folder: of the cache, None for none.
        key: of this calibration.
        tensors: whose ranges are wanted.
    """
    if folder is None:
        return None, 'off'
    path = key.file(folder)
    try:
        text = read_regular(path, _MOST_BYTES)
    except FileNotFoundError:
        return None, f'computed: no cache {path}'
    except OSError as error:
        return None, f'computed: the cache {path} cannot be read: {error.strerror}'
    try:
        content = parse_json(text)
        other = _difference(content['key'], key)
        ranges = {str(name): _range(value) for name, value in content['ranges'].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f'{type(error).__name__}: {error}'
        return None, f'computed: the cache {path} is damaged ({reason}) and is written anew'
    if other:
        return None, f'computed: the cache {path} was made from {other}'
    missing = [name for name in tensors if name not in ranges]
    if missing:
        return None, f'computed: the cache {path} lacks {len(missing)} of {len(tensors)} tensors'
    return {name: ranges[name] for name in tensors}, f'reused: {path}'


def write_ranges(folder: Path | None, key: CacheKey, ranges: Mapping[str, float]) -> str:
    """Keep ranges; return '' or what to add to the sentence of read_ranges.

    A cache that cannot be written costs time, so it is no error.
    """
    if folder is None:
        return ''
    path = key.file(folder)
    text = json.dumps({'key': asdict(key), 'ranges': dict(ranges)}, indent=1)
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        return f'; not kept, because {path} cannot be written: {error.strerror}'
    return ''


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, and its folder where that is missing.

    Raises:
        OSError: it cannot be written; nothing is left of the attempt.
    """
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix='.', suffix='.part', delete=False
        ) as file:
            part = Path(file.name)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        if part is not None:
            part.unlink(missing_ok=True)
        raise


def _difference(found: Mapping[str, Any], key: CacheKey) -> str:
    wanted = asdict(key)
    if set(found) != set(wanted):
        return _WHAT['version']
    return ', '.join(_WHAT[name] for name in wanted if found[name] != wanted[name])


def _range(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f'a range must be a number, got {value!r}')
    # A huge integer is no float, and a huge float no float32.
    if not 0 <= value <= _MOST_RANGE:
        raise ValueError(f'a range must be from 0 to {_MOST_RANGE:.2e}, got {value!r:.20}')
    return float(value)
