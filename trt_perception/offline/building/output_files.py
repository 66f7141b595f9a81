# SPDX-License-Identifier: Apache-2.0
"""Checks the output paths of a build before hours of work, and writes the files at its end."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from trt_perception.errors import ConfigError, TrtPerceptionError
from trt_perception.files.atomic_files import write_atomically
from trt_perception.files.checked_files import read_checked
from trt_perception.files.json_section import read_json
from trt_perception.files.regular_files import open_regular, real_path
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.manifest import MANIFEST_MAX_BYTES, manifest_path, serialise_manifest
from trt_perception.offline.building.options.build_options import BuildOptions
from trt_perception.offline.building.report import BuildLog

_PLAN_SIGNATURES = (b'ftrt', b'vtrt')


def check_report_path(options: BuildOptions) -> None:
    """Check that the report can be written.

    Raises:
        ConfigError: the folder is missing or not writable, or the report would overwrite another
            file of this build.
    """
    report = options.json
    if report is None:
        return
    _check_path(report, options, '--json')
    models = [options.engine_path(), *filter(None, (options.qdq_onnx,))]
    if real_path(report) in [real_path(p) for m in models for p in (m, manifest_path(m))]:
        raise ConfigError(
            str(report),
            'is also the path of a model or a manifest of this build',
            fix='name another file',
        )


def _check_path(path: Path, options: BuildOptions, option: str) -> None:
    if path.is_dir():
        raise ConfigError(str(path), 'cannot be written: it is a folder', fix='name a file')
    try:
        # Create a file as a test, because permissions mislead for root and in file systems such
        # as /proc.
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ConfigError(
            str(path),
            f'cannot be written: no file can be created in {path.parent} '
            f'({error.strerror or error})',
            fix=f'choose another place with {option}',
        ) from error
    if real_path(path) in map(real_path, (options.onnx, manifest_path(options.onnx))):
        raise ConfigError(str(path), 'is an input of this build', fix='name another file')


def check_output_paths(options: BuildOptions) -> str:
    """Check that the engine, its manifest and the report can be written.

    Returns:
        ``replaces`` if the engine exists already, otherwise an empty text.

    Raises:
        ConfigError: a folder is missing or not writable, or a file that no build wrote would be
            overwritten.
    """
    check_report_path(options)
    engine = options.engine_path()
    _check_model_target(engine, options, '--output', _is_plan, 'a TensorRT engine')
    if options.qdq_onnx is not None:
        _check_model_target(
            options.qdq_onnx, options, '--qdq-onnx', _has_qdq_nodes, 'a model with Q/DQ nodes'
        )
    return 'replaces' if os.path.lexists(engine) else ''


def _check_model_target(
    path: Path, options: BuildOptions, option: str, is_ours: Callable[[Path], bool], kind: str
) -> None:
    ours = ((path, is_ours, kind), (manifest_path(path), _is_manifest, 'a manifest'))
    for each, is_as_expected, expected in ours:
        _check_path(each, options, option)
        if os.path.lexists(each) and not is_as_expected(each):
            raise ConfigError(
                str(each),
                f'exists and is not {expected}, so it is not overwritten',
                fix=f'move it, or choose another place with {option}',
            )


def _is_plan(path: Path) -> bool:
    try:
        with open_regular(path)[0] as file:
            return file.read(4) in _PLAN_SIGNATURES
    except OSError:
        return False


def _has_qdq_nodes(path: Path) -> bool:
    try:
        return b'QuantizeLinear' in read_checked(path)[0]
    except TrtPerceptionError:
        return False


def _is_manifest(path: Path) -> bool:
    try:
        return (
            'schema'
            in read_json(read_checked(path, MANIFEST_MAX_BYTES)[0], path.name).unread_keys()
        )
    except TrtPerceptionError:
        return False


def write_outputs(
    engine: ModelFile, quantised: ModelFile | None, replaces: str, log: BuildLog
) -> None:
    """Write the engine, the model with Q/DQ nodes if there is one, and their manifests.

    Each manifest is written before its model. Without a manifest, the node would run the engine
    with guessed settings. A manifest without a model has no effect, and the node refuses an old
    engine next to a new manifest.

    Args:
        quantised: the model with Q/DQ nodes and its manifest; None without --qdq-onnx.
        replaces: the result of ``check_output_paths``.
        log: log of the build. Its report receives the written files.

    Raises:
        WriteError: a file cannot be written. In this case, no file is written.
    """
    with log.step('write') as step:
        files: dict[Path, bytes] = {}
        for model in filter(None, (engine, quantised)):
            assert model.manifest is not None
            files[manifest_path(model.path)] = serialise_manifest(model.manifest)
            files[model.path] = model.content
        write_atomically(files)
        assert engine.manifest is not None
        output = {
            'file': str(engine.path),
            'manifest': str(manifest_path(engine.path)),
            'sha256': engine.sha256,
            'size_bytes': len(engine.content),
            'inputs': [dataclasses.asdict(tensor) for tensor in engine.manifest.inputs],
            'outputs': [dataclasses.asdict(tensor) for tensor in engine.manifest.outputs],
        }
        if quantised is not None:
            output['qdq_onnx'] = str(quantised.path)
        log.report.output_engine = output
        step.outcome = f'{replaces} {engine.path}'.strip()
