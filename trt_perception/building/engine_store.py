"""A folder of finished engines: an unchanged build is taken from it.

An entry is a folder named by its key, with the engine, its manifest, the report, and their hashes.
Guarantees: an entry is there whole or not at all; one whose hashes do not fit is not used.
Non-guarantee: as with any engine, whoever may write into the folder decides what code runs; so a
folder that others may write into is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trt_perception.building.engine.release import TensorRt
from trt_perception.building.options.build_options import OPTIONS, BuildOptions
from trt_perception.errors import ConfigError, WriteError
from trt_perception.files.atomic_files import write_atomically
from trt_perception.files.json_section import parse_json
from trt_perception.files.regular_files import read_regular

__all__ = ['BUILDER_REVISION', 'EngineStore', 'StoredEngine', 'store_key']

#: Part of every key: raise it when the same options make another engine than before.
BUILDER_REVISION: Final = 2
_LOG: Final = logging.getLogger(__name__)
_ENTRY: Final = 'entry.json'
_FILE_NAMES: Final = {
    'engine': 'model.engine',
    'manifest': 'manifest.json',
    'report': 'report.json',
}
_MAX_BYTES: Final = {'engine': 16 * 1024**3, 'manifest': 4 * 1024**2, 'report': 16 * 1024**2}
_DAY_S: Final = 24 * 3600


@dataclass(frozen=True)
class StoredEngine:
    """An engine from the store.

    Attributes:
        engine: the plan's bytes.
        manifest: as it was written then; it names the files of that build.
        report: of that build, JSON.
    """

    engine: bytes
    manifest: bytes
    report: bytes


def store_key(
    onnx_sha256: str, options: BuildOptions, tensorrt: TensorRt, contents: Mapping[str, str]
) -> str:
    """Return what a build depends on, as 64 hex digits.

    Args:
        onnx_sha256: of the model with its external weights.
        options: those that change the engine or its manifest count.
        tensorrt: that would build.
        contents: SHA-256 of whatever else is read, by a name: images, labels, class names,
            plugins.
    """
    values = options.as_dict()
    counted = (row.name for row in OPTIONS if row.affects != 'nothing')
    relevant = {name: values[name] for name in counted if name != 'onnx'}
    gpu = tensorrt.gpu
    facts = {
        'revision': BUILDER_REVISION,
        'onnx': [options.onnx.name, onnx_sha256],
        'options': relevant,
        'tensorrt': [tensorrt.flavour, tensorrt.version],
        'gpu': None if gpu is None else [gpu.name, gpu.compute_capability, gpu.cuda],
        'tf32_override': os.environ.get('NVIDIA_TF32_OVERRIDE'),
        'contents': dict(sorted(contents.items())),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class EngineStore:
    """The store in one folder.

    Args:
        folder: made where it is not there.

    Raises:
        ConfigError: it cannot be made, or others may write into it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o755)
            status = folder.stat()
        except OSError as error:
            raise ConfigError(f'--store {folder}', error.strerror or str(error)) from error
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & stat.S_IWOTH:
            raise ConfigError(
                f'--store {folder}',
                f'owner {status.st_uid}, {stat.filemode(status.st_mode)}',
                expected=(
                    'a folder of root or of this user that not everybody may write, because '
                    'engines from it run as code'
                ),
                fix=f'chmod o-w {folder}, or use another folder',
            )

    def find(self, key: str) -> StoredEngine | None:
        """Return an entry that is whole; None, with a warning for a damaged one, otherwise."""
        folder = self._folder / key
        if not folder.exists():
            return None
        try:
            hashes = _read_entry(folder)['sha256']
            contents = {name: _read_file(folder, name) for name in _FILE_NAMES}
            for name, content in contents.items():
                if hashlib.sha256(content).hexdigest() != hashes[name]:
                    raise ValueError(f'{_FILE_NAMES[name]} is not the file that was stored')
            os.utime(folder / _ENTRY)  # last used
        except (OSError, ValueError, KeyError, TypeError) as error:
            _LOG.warning('the stored engine %s is damaged and is made again: %s', folder, error)
            return None
        return StoredEngine(**contents)

    def put(self, key: str, stored: StoredEngine) -> None:
        """Keep an engine; one that is there already is replaced.

        Raises:
            ConfigError: it cannot be written; nothing is left behind.
        """
        contents = {name: getattr(stored, name) for name in _FILE_NAMES}
        hashes = {n: hashlib.sha256(content).hexdigest() for n, content in contents.items()}
        temporary: Path | None = None
        try:
            temporary = Path(tempfile.mkdtemp(dir=self._folder, prefix='.'))
            temporary.chmod(0o755)
            files = {temporary / _FILE_NAMES[name]: content for name, content in contents.items()}
            write_atomically(
                {**files, temporary / _ENTRY: json.dumps({'sha256': hashes}).encode()}
            )
            old = self._folder / key
            if old.exists():
                shutil.rmtree(old)
            # Whoever was faster has made the same.
            with contextlib.suppress(FileExistsError):
                temporary.rename(old)
        except WriteError as error:
            raise ConfigError(f'--store {self._folder}', error.found) from error
        except OSError as error:
            raise ConfigError(
                f'--store {self._folder}', f'cannot be written: {error.strerror or error}'
            ) from error
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)

    def prune(self, days: int) -> None:
        """Remove what was not used for so many days."""
        oldest = time.time() - days * _DAY_S
        for folder in self._folder.iterdir():
            if len(folder.name) == 64 and _last_used_s(folder) < oldest:
                shutil.rmtree(folder, ignore_errors=True)


def _last_used_s(folder: Path) -> float:
    """Return when an entry was made or taken last, seconds since 1970; 0 where it is damaged."""
    try:
        return (folder / _ENTRY).stat().st_mtime
    except OSError:
        return 0.0


def _read_entry(folder: Path) -> dict[str, Any]:
    entry = parse_json(read_regular(folder / _ENTRY, 1024 * 1024))
    if not isinstance(entry, dict):
        raise TypeError(f'{_ENTRY} is not an object')
    return entry


def _read_file(folder: Path, name: str) -> bytes:
    return read_regular(folder / _FILE_NAMES[name], _MAX_BYTES[name])
