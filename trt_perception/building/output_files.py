"""The files that a build writes: checked before hours of work, written whole at its end."""

from __future__ import annotations

import os
from pathlib import Path

from trt_perception.atomic_files import write_together
from trt_perception.building.options import BuildOptions
from trt_perception.errors import ConfigError
from trt_perception.errors import TrtPerceptionError
from trt_perception.json_section import read_json
from trt_perception.manifest import Manifest
from trt_perception.manifest import manifest_path
from trt_perception.manifest_writer import manifest_text

__all__ = ['check_outputs', 'check_report', 'write_engine']

_PLANS = (b'ftrt', b'vtrt')


def check_report(options: BuildOptions) -> None:
    """Look whether the report can be written.

    Raises:
        ConfigError: its folder is missing or not writable, or it would overwrite another file of
            this build.
    """
    report = options.json_file
    if report is None:
        return
    _check_place(report, options)
    engine = options.engine_path()
    if report.resolve() in (engine.resolve(), manifest_path(engine).resolve()):
        raise ConfigError(f'{report}: is where the engine or its manifest goes; name another file')


def _check_place(path: Path, options: BuildOptions) -> None:
    if not path.parent.is_dir():
        raise ConfigError(f'{path}: cannot be written: {path.parent} is no folder; make it')
    if path.is_dir():
        raise ConfigError(f'{path}: cannot be written: it is a folder; name a file')
    # Refuses what permissions say and, for root too, a file system that is read-only.
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(
            f'{path}: cannot be written: no permission to write in {path.parent}; choose another '
            'place with --output'
        )
    if path.resolve() in (options.onnx.resolve(), manifest_path(options.onnx).resolve()):
        raise ConfigError(f'{path}: is what the engine is built from; name another file')


def check_outputs(options: BuildOptions) -> str:
    """Look whether the engine, its manifest and the report can be written.

    Returns:
        ``replaces`` where an engine stands there already, else empty.

    Raises:
        ConfigError: a folder is missing or not writable, or something else than an engine or a
            manifest would be overwritten.
    """
    check_report(options)
    engine = options.engine_path()
    manifest = manifest_path(engine)
    for path in (engine, manifest):
        _check_place(path, options)
    if os.path.lexists(manifest) and not _is_manifest(manifest):
        raise ConfigError(
            f'{manifest}: stands where the manifest goes and is none; move it, or choose another '
            '--output'
        )
    if not os.path.lexists(engine):
        return ''
    if not _starts_like_a_plan(engine):
        raise ConfigError(
            f'{engine}: exists and is no TensorRT engine, so it is not overwritten; move it, or '
            'choose another --output'
        )
    return 'replaces'


def _starts_like_a_plan(path: Path) -> bool:
    try:
        with path.open('rb') as file:
            return file.read(4) in _PLANS
    except OSError:
        return False


def _is_manifest(path: Path) -> bool:
    try:
        return 'schema' in read_json(path.read_bytes(), path.name).names()
    except (OSError, TrtPerceptionError):
        return False


def write_engine(path: Path, content: bytes, manifest: Manifest) -> None:
    """Write engine and manifest, both or none.

    The manifest first: an engine alone would run with what can be guessed of it, a manifest alone
    does nothing, and an old engine beside a new manifest is refused.

    Raises:
        WriteError: they cannot be written.
    """
    write_together({manifest_path(path): manifest_text(manifest), path: content})
