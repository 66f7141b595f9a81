# SPDX-License-Identifier: Apache-2.0
"""Stores finished engines in a folder, so that an unchanged build is not repeated.

An entry is a folder with the engine, its manifest, the report and their hashes; its name is the
key. Guarantees: an entry is complete or missing. An entry with wrong hashes is not used.
Limitation: engines run as code, so every user who can write into the folder can run code here.
The store therefore refuses a folder with another owner, or one that is world-writable.
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

from trt_perception import __version__
from trt_perception.errors import ConfigError, WriteError
from trt_perception.files.atomic_files import write_atomically
from trt_perception.files.json_section import parse_json
from trt_perception.files.regular_files import read_regular
from trt_perception.offline.building.engine.release import TensorRt
from trt_perception.offline.building.options.build_options import OPTIONS, BuildOptions
from trt_perception.offline.building.package_versions import BUILD_PACKAGES, package_versions

#: Part of every key, like the version of this package. Increase this number when a code change
#: between two versions gives another engine for the same inputs.
BUILDER_REVISION: Final = 3
_LOG: Final = logging.getLogger(__name__)
_ENTRY_FILE: Final = 'entry.json'
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
        engine: bytes of the plan.
        manifest: manifest of the stored build, JSON. It names the files of that build.
    """

    engine: bytes
    manifest: bytes
    report: bytes


def store_key(
    onnx_sha256: str, options: BuildOptions, tensorrt: TensorRt, contents: Mapping[str, str]
) -> str:
    """Return the hash of all inputs of a build, as 64 hexadecimal digits.

    Args:
        onnx_sha256: SHA-256 of the model with its external weights.
        options: all options. Options that affect neither engine nor report are ignored.
        contents: SHA-256 of each other input (images, labels, class names, plugins), by any
            unique name.
    """
    values = options.as_dict()
    counted = (row.name for row in OPTIONS if row.affects != 'nothing')
    relevant = {name: values[name] for name in counted if name != 'onnx'}
    gpu = tensorrt.gpu
    facts = {
        'revision': [__version__, BUILDER_REVISION],
        'packages': package_versions(BUILD_PACKAGES),
        'onnx': [options.onnx.name, onnx_sha256],
        'options': relevant,
        'tensorrt': [tensorrt.flavour, tensorrt.version],
        'gpu': None if gpu is None else [gpu.name, gpu.compute_capability, gpu.cuda],
        'tf32_override': os.environ.get('NVIDIA_TF32_OVERRIDE'),
        'contents': dict(sorted(contents.items())),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class EngineStore:
    """A store of engines in one folder.

    Args:
        folder: the folder, which is created if it is missing.

    Raises:
        ConfigError: the folder cannot be created, has another owner, or is world-writable.
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
                    'a folder of root or this user that is not world-writable, because engines '
                    'run as code'
                ),
                fix=f'chmod o-w {folder}, or use another folder',
            )

    def find(self, key: str) -> StoredEngine | None:
        """Return an entry, or None if it is missing or damaged. Damage is logged."""
        folder = self._folder / key
        if not folder.exists():
            return None
        try:
            hashes = _read_entry(folder)['sha256']
            contents = {
                name: read_regular(folder / file_name, _MAX_BYTES[name])
                for name, file_name in _FILE_NAMES.items()
            }
            for name, content in contents.items():
                if hashlib.sha256(content).hexdigest() != hashes[name]:
                    raise ValueError(f'{_FILE_NAMES[name]} is not the file that was stored')
            os.utime(folder / _ENTRY_FILE)  # record this use, so that prune keeps the entry
        except (OSError, ValueError, KeyError, TypeError) as error:
            _LOG.warning(
                'The stored engine %s is damaged, so the engine is built again: %s', folder, error
            )
            return None
        return StoredEngine(**contents)

    def put(self, key: str, stored: StoredEngine) -> None:
        """Store an engine. An existing entry is replaced.

        Raises:
            ConfigError: the entry cannot be written. No partial entry remains.
        """
        contents = {name: getattr(stored, name) for name in _FILE_NAMES}
        hashes = {n: hashlib.sha256(content).hexdigest() for n, content in contents.items()}
        temporary: Path | None = None
        try:
            temporary = Path(tempfile.mkdtemp(dir=self._folder, prefix='.'))
            temporary.chmod(0o755)
            files = {temporary / _FILE_NAMES[name]: content for name, content in contents.items()}
            write_atomically(
                {**files, temporary / _ENTRY_FILE: json.dumps({'sha256': hashes}).encode()}
            )
            old = self._folder / key
            if old.exists():
                shutil.rmtree(old)
            # Another build may have stored the same key in the meantime. Its entry is equal.
            with contextlib.suppress(FileExistsError):
                temporary.rename(old)
        except WriteError as error:
            subject = f'--store {self._folder}'
            raise ConfigError(subject, error.found, fix=error.fix) from error
        except OSError as error:
            raise ConfigError(
                f'--store {self._folder}', f'cannot be written: {error.strerror or error}'
            ) from error
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)

    def prune(self, days: int) -> None:
        """Remove entries that were not used for this number of days."""
        oldest = time.time() - days * _DAY_S
        for folder in self._folder.iterdir():
            if len(folder.name) == 64 and _last_used_s(folder) < oldest:
                shutil.rmtree(folder, ignore_errors=True)


def _last_used_s(folder: Path) -> float:
    """Return the last use of an entry in seconds since 1970, or 0 if the entry is damaged."""
    try:
        return (folder / _ENTRY_FILE).stat().st_mtime
    except OSError:
        return 0.0


def _read_entry(folder: Path) -> dict[str, Any]:
    entry = parse_json(read_regular(folder / _ENTRY_FILE, 1024 * 1024))
    if not isinstance(entry, dict):
        raise TypeError(f'{_ENTRY_FILE} is not an object')
    return entry
