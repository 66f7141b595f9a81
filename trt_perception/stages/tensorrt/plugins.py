# SPDX-License-Identifier: Apache-2.0
"""Register TensorRT's own plugins and load plugin libraries, before an engine needs them.

TensorRT has one plugin registry per Python module and process. The registry refuses a library
whose plugins are registered already. Each library is therefore loaded once and never removed.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
import threading
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from trt_perception.errors import EngineError
from trt_perception.files.checked_files import open_checked, read_exactly
from trt_perception.files.plain_text import escape_controls
from trt_perception.model.build_record import FileIdentity
from trt_perception.stages.tensorrt.log import TensorRtLog

_MAX_LIBRARY_BYTES: Final = 2 * 1024**3
#: The dynamic linker replaces these texts with the folder of the library.
_ORIGIN_VARIABLES: Final = (b'$ORIGIN', b'${ORIGIN}')
_MAX_KEPT_ERRORS: Final = 8
#: For each TensorRT module, the open files of the loaded libraries by their SHA-256. The dynamic
#: linker remembers a library by its path, /proc/self/fd/N. If a file were closed, the next
#: library could get the same N, and would not be loaded.
_LOADED_FILES: Final[weakref.WeakKeyDictionary[Any, dict[str, BinaryIO]]] = (
    weakref.WeakKeyDictionary()
)
#: Files of refused libraries that the dynamic linker cannot unload, by their SHA-256. They stay
#: open for the same reason.
_FILES_STILL_IN_LINKER: Final[dict[str, BinaryIO]] = {}
_LOCK: Final = threading.Lock()


@dataclass(frozen=True)
class _Library:
    """An open plugin library, after its checks.

    Attributes:
        resolved: path of the open file.
        needs_folder: whether the library finds other libraries in its own folder.
    """

    path: Path
    file: BinaryIO
    resolved: Path
    identity: FileIdentity
    needs_folder: bool


def check_plugin_files(libraries: Sequence[str | Path]) -> None:
    """Check plugin libraries without loading them.

    Raises:
        EngineError: see ``load_plugins``.
    """
    for library in libraries:
        _open_library(Path(library)).file.close()


def load_plugins(
    trt: Any,
    trt_log: TensorRtLog,
    libraries: Sequence[str | Path],
    engine: str = '',
    needed: Sequence[FileIdentity] = (),
) -> tuple[FileIdentity, ...]:
    """Register TensorRT's own plugins, and load plugin libraries that are not loaded yet.

    Args:
        engine: name of the engine that will be loaded, for messages.
        needed: the libraries that this engine was built with.

    Returns:
        The identities of the libraries, in the same order.

    Raises:
        EngineError: a library is missing, truncated or writable for everybody, or belongs to
            another user; a needed library is neither given nor already loaded; or TensorRT
            refuses a library, with its reason in the message. Before the last case, no library is
            loaded.
    """
    opened: list[_Library] = []
    with _LOCK:
        loaded = _LOADED_FILES.setdefault(trt, {})
        try:
            # `extend` adds one library at a time, so `finally` closes them if a later one fails.
            opened.extend(_open_library(Path(path)) for path in libraries)
            identities = tuple(library.identity for library in opened)
            _check_needed_libraries(needed, identities, loaded, engine)
            register_own = getattr(trt, 'init_libnvinfer_plugins', None)
            if register_own is not None:
                register_own(trt_log.logger, '')
            for library in opened:
                if library.identity.sha256 not in loaded:
                    _load_library(trt, library)
                    loaded[library.identity.sha256] = library.file
        finally:
            kept = [*loaded.values(), *_FILES_STILL_IN_LINKER.values()]
            for library in opened:
                if library.file not in kept:
                    library.file.close()
    return identities


def _check_needed_libraries(
    needed: Sequence[FileIdentity],
    given: Sequence[FileIdentity],
    loaded: Collection[str],
    engine: str,
) -> None:
    known = {*loaded, *(library.sha256 for library in given)}
    others = {library.file: library.sha256 for library in given}
    for library in needed:
        if library.sha256 not in known:
            other = others.get(library.file)
            raise EngineError(
                engine,
                'none' if other is None else f'a library with SHA-256 {other[:16]}…',
                expected=f'the plugin library {library.file} of its build, with SHA-256 '
                f'{library.sha256[:16]}…',
                fix='give the path of this library in plugin_libraries (docs/plugins.md)',
            )


def _open_library(path: Path) -> _Library:
    """Open a library and check it like an engine, because both are code."""
    subject = f'plugin library {path}'
    file, content, resolved = read_plugin(path, subject)
    if path.suffix == '.py' or _is_truncated(content):
        file.close()
        if path.suffix == '.py':
            found, fix = 'a Python module, which only build_engine imports', 'see docs/plugins.md'
            raise EngineError(subject, found, expected='a shared library', fix=fix)
        raise EngineError(subject, 'is truncated', fix='copy it again')
    identity = FileIdentity(path.name, hashlib.sha256(content).hexdigest(), len(content))
    needs_folder = any(origin in content for origin in _ORIGIN_VARIABLES)
    return _Library(path, file, resolved, identity, needs_folder)


def read_plugin(path: Path, subject: str) -> tuple[BinaryIO, bytes, Path]:
    """Check and read a plugin file. Return the open file, its content and its resolved path.

    Raises:
        EngineError: the file is missing or writable for everybody, or belongs to another user.
    """
    try:
        file, size, resolved = open_checked(path.expanduser(), _MAX_LIBRARY_BYTES)
    except EngineError as error:
        raise type(error)(subject, error.found, expected=error.expected, fix=error.fix) from error
    except RuntimeError as error:  # ~ cannot be replaced, because no home folder is known
        raise EngineError(subject, str(error)) from error
    try:
        return file, read_exactly(file, size, path), resolved
    except BaseException:
        file.close()
        raise


def _load_library(trt: Any, library: _Library) -> None:
    # Load the library through its open file, because this file was checked. A library that looks
    # for other libraries in its own folder needs its real path instead.
    digest = library.identity.sha256
    file = _FILES_STILL_IN_LINKER.get(digest, library.file)
    opened = f'/proc/self/fd/{file.fileno()}'
    if reason := _register_library(trt, str(library.resolved) if library.needs_folder else opened):
        if _is_in_linker(opened):
            _FILES_STILL_IN_LINKER[digest] = file
        reason = reason.replace(opened, str(library.resolved))
        found = f'cannot be loaded; TensorRT reported: {reason}'
        raise EngineError(f'plugin library {library.path}', found)


def _is_in_linker(path: str) -> bool:
    """Return whether a library that was loaded by this path is still in the dynamic linker."""
    try:
        ctypes.CDLL(path, os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


def _is_truncated(content: bytes) -> bool:
    """Return whether an ELF file ends before its last segment.

    The dynamic linker does not check this, and the process would end with SIGBUS.
    """
    if not content.startswith(b'\x7fELF'):
        return False
    try:
        (table,) = struct.unpack_from('<32xQ', content)
        entry_size, count = struct.unpack_from('<54xHH', content)
        segments = [
            struct.unpack_from('<8xQ16xQ', content, table + entry_size * index)
            for index in range(count)
        ]
    except (struct.error, OverflowError):
        return True
    return any(start + size > len(content) for start, size in segments)


def _register_library(trt: Any, path: str) -> str:
    """Register the plugins of a library. Return TensorRT's errors; '' without errors.

    TensorRT reports these errors to an error recorder instead of the logger.
    """

    class Recorder(trt.IErrorRecorder):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IErrorRecorder.__init__(self)
            self.errors: list[tuple[Any, str]] = []

        def report_error(self, code: Any, description: str) -> bool:
            if len(self.errors) < _MAX_KEPT_ERRORS:
                self.errors.append((code, escape_controls(description)))
            return True

        def num_errors(self) -> int:
            return len(self.errors)

        def get_error_code(self, index: int) -> Any:
            return self.errors[index][0]

        def get_error_desc(self, index: int) -> str:
            return self.errors[index][1]

        def has_overflowed(self) -> bool:
            return len(self.errors) == _MAX_KEPT_ERRORS

        def clear(self) -> bool:
            self.errors.clear()
            return True

    registry = trt.get_plugin_registry()
    recorder, previous = Recorder(), registry.error_recorder
    registry.error_recorder = recorder
    try:
        handle = registry.load_library(path)
    finally:
        registry.error_recorder = previous
    if handle is not None:
        return ''
    return ' | '.join(text for _, text in recorder.errors) or 'no reason was reported'
