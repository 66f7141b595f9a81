# SPDX-License-Identifier: Apache-2.0
"""Checks whether a model fits this machine: file, manifest, TensorRT, GPU and a trial run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from trt_perception.checks.finding import Finding
from trt_perception.checks.software import InstalledGpu, ModuleImport
from trt_perception.errors import (
    ConfigError,
    EngineError,
    TrtPerceptionError,
)
from trt_perception.files.plain_text import size_text

_AREA: Final = 'model'
_REBUILD_FIX: Final = 'build it again on this machine'


def is_onnx(path: str) -> bool:
    """Return whether a path names an ONNX file, which ONNX Runtime runs."""
    return path.endswith('.onnx')


def is_engine(path: str) -> bool:
    """Return whether a path names a TensorRT engine: neither '', an ONNX file nor an address."""
    return bool(path) and not (is_onnx(path) or path.startswith('triton:'))


def model_findings(
    path: str,
    modules: Mapping[str, ModuleImport],
    gpus: Sequence[InstalledGpu],
    *,
    trial: Callable[[], str],
) -> Iterator[Finding]:
    """Check whether a model can run on this machine. Yield a finding for each part.

    Args:
        gpus: GPUs that would run the model; may be empty.
        trial: opens and runs the model once, and returns a description. Raises
            TrtPerceptionError if the model does not work.
    """
    # Imported late, because NumPy may be broken.
    from trt_perception.model.files.model_file import read_model_file

    try:
        model = read_model_file(path, accepts_server=True)
    except TrtPerceptionError as error:
        yield _error_finding('address' if path.startswith('triton:') else 'file', error)
        return
    if model.address is not None:
        yield from _trial_findings(trial)
        return
    yield Finding(_AREA, 'file', 'green', f'{model.path}, {size_text(len(model.content))}')
    if model.manifest is None:
        yield Finding(
            _AREA,
            'manifest',
            'green',
            'none next to the file; values are recognised from the model',
        )
    else:
        kind = model.manifest.task.summary(model.manifest.class_names)
        found = f'{kind}, {model.manifest.decoder.family}; SHA-256 and size match the file'
        yield Finding(_AREA, 'manifest', 'green', found)
        yield from _agreement_findings(model.manifest.build)
    fits = True
    if not model.is_onnx:
        for finding in _plan_findings(model, modules, gpus):
            fits = fits and finding.level != 'red'
            yield finding
    # package_findings and gpu_findings report a missing runtime or GPU.
    if fits and (modules['onnxruntime'].version if model.is_onnx else gpus):
        yield from _trial_findings(trial)


def _trial_findings(trial: Callable[[], str]) -> Iterator[Finding]:
    log, handler = logging.getLogger('trt_perception'), _WarningHandler()
    log.addHandler(handler)
    try:
        finding = Finding(_AREA, 'trial run', 'green', trial())
    except TrtPerceptionError as error:
        finding = _error_finding('trial run', error)
    finally:
        log.removeHandler(handler)
    yield finding
    for text, fix in handler.fixes.items():
        yield Finding(_AREA, 'warning', 'yellow', text, fix)


class _WarningHandler(logging.Handler):
    """Collects the fixes of different warnings by text. ``extra`` of a warning may hold a fix."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.fixes: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.fixes[record.getMessage()] = getattr(record, 'fix', 'do what this warning says')


def _agreement_findings(build: Any) -> Iterator[Finding]:
    """Report how well the engine agreed with the original model when it was built."""
    agreement = build and build.agreement
    if not agreement:
        return
    found = agreement.statement or 'the build did not measure the agreement with the original'
    if agreement.warning:
        yield Finding(_AREA, 'accuracy', 'yellow', found, agreement.warning)
    else:
        yield Finding(_AREA, 'accuracy', 'green', found)


def _plan_findings(
    model: Any, modules: Mapping[str, ModuleImport], gpus: Sequence[InstalledGpu]
) -> Iterator[Finding]:
    """Compare the TensorRT version and the GPU of the build with this machine."""
    from trt_perception.model.files.plan_header import read_plan_header
    from trt_perception.model.manifest import rebuild_command

    rebuild = f'{_REBUILD_FIX}: {rebuild_command(model.manifest, model.path)}'
    try:
        header = read_plan_header(model.content, model.path.name)
    except EngineError as error:
        yield _error_finding('plan', error)
        return
    built = '.'.join(map(str, header.version))
    build = model.manifest.build if model.manifest else None
    installed = {name: modules[name].version for name in header.loaders if modules[name].version}
    is_compatible = bool(build and build.options.get('version_compatible'))
    if build and not is_compatible:
        installed.pop('tensorrt_lean', None)
    release = built.split('.')[:3]
    same = [name for name, version in installed.items() if version.split('.')[:3] == release]
    if not installed:
        reason = modules[header.module].error
        found = f'built by {header.module} {built}, which is not installed: {reason}'
        yield Finding(
            _AREA, 'plan', 'red', found, f'install {header.module} {built}, or {rebuild}'
        )
    elif not same:
        others = ' and '.join(
            version if name == header.module else f'{name} {version}'
            for name, version in installed.items()
        )
        found = f'built by {header.module} {built}, but {others} is installed'
        # A later release may load it. The trial run shows whether the installed release does.
        yield Finding(_AREA, 'plan', 'yellow' if is_compatible else 'red', found, rebuild)
    else:
        loader = '' if same[0] == header.module else f'; {same[0]} loads it'
        if loader and not build:
            loader += ' if it is version-compatible'
        yield Finding(_AREA, 'plan', 'green', f'built by {header.module} {built}{loader}')
    if build is None or build.gpu is None:
        return
    for gpu in gpus:
        label = f' on device {gpu.index}' if len(gpus) > 1 else ''
        yield _engine_gpu_finding(f'GPU of the engine{label}', build.gpu, gpu, rebuild)


def _engine_gpu_finding(name: str, built: Any, gpu: InstalledGpu, rebuild: str) -> Finding:
    """Compare the GPU on which an engine was built with a GPU that would run the engine."""
    capability = built.compute_capability
    here = '.'.join(map(str, gpu.compute_capability))
    if capability != here:
        built_for = f'{built.name} (compute capability {capability})'
        found = f'built for {built_for}, but this machine has {gpu.name} ({here})'
        return Finding(_AREA, name, 'red', found, rebuild)
    if built.name != gpu.name:
        found = f'built for {built.name}; runs on {gpu.name}, but may be slower'
        return Finding(_AREA, name, 'yellow', found, rebuild)
    return Finding(_AREA, name, 'green', gpu.name)


def _error_finding(name: str, error: TrtPerceptionError) -> Finding:
    otherwise = 'export the model again, or set the parameters that the message names'
    if isinstance(error, ConfigError):
        otherwise = 'set the parameter to a value that the message allows'
    if name == 'address':
        otherwise = "write the address of the server's gRPC service and the name of the model"
    if name == 'file':
        otherwise = 'name an ONNX file or an engine of build_engine that this user may read'
    fix = error.fix or otherwise
    return Finding(_AREA, name, 'red', error.statement, fix)
