# SPDX-License-Identifier: Apache-2.0
"""Load a plan with the first Python module that accepts the plan.

``tensorrt_lean`` is TensorRT's lean runtime. It has no builder and no inspector, and runs only
version-compatible plans.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trt_perception.errors import EngineError
from trt_perception.gpu import Device
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.files.plan_header import PlanHeader
from trt_perception.model.manifest import rebuild_command
from trt_perception.stages.tensorrt.log import TensorRtLog
from trt_perception.stages.tensorrt.plugins import load_plugins

_LOG: Final = logging.getLogger('trt_perception.tensorrt')
_PACKAGES: Final = {
    'tensorrt': 'tensorrt',
    'tensorrt_lean': 'tensorrt-lean-cu13',
    'tensorrt_rtx': 'tensorrt-rtx-cu13',
}
# TensorRT names this method when it refuses a plan with embedded code.
_HOST_CODE_METHOD: Final = 'getEngineHostCodeAllowed'


@dataclass(frozen=True)
class LoadedPlan:
    """A deserialised plan.

    Attributes:
        module: name of the Python module that loaded the plan.
        runtime: the module's Runtime, which must outlive the engine.
        engine: the module's ICudaEngine.
    """

    module: str
    trt: Any
    log: TensorRtLog
    runtime: Any
    engine: Any


def load_plan(
    model: ModelFile, header: PlanHeader, device: Device, plugin_libraries: Sequence[str | Path]
) -> LoadedPlan:
    """Load a plan with the first module of ``header.loaders`` that accepts the plan.

    Args:
        device: the current device. Without a driver, the lean runtime would end the process.
        plugin_libraries: paths of plugin libraries to load before the plan.

    Raises:
        EngineError: no module can be imported, or each module refuses the plan or a plugin
            library. The message has the errors of all modules.
    """
    errors: list[EngineError] = []
    for name in header.loaders:
        try:
            plan = _load_with(name, model, header, device, plugin_libraries)
        except EngineError as error:  # noqa: PERF203  each module may refuse the plan
            # Most machines have no lean runtime, and need none.
            if not (errors and _is_missing(error)):
                errors.append(error)
        else:
            for refusal in errors:
                if not _is_missing(refusal):
                    _LOG.warning('%s', refusal.statement)
            _LOG.info('%s is loaded with %s %s', model.path.name, name, plan.trt.__version__)
            return plan
    if len({str(error) for error in errors}) == 1:  # both modules may lack a plugin library
        raise errors[0]
    first, *others = errors
    found = '; '.join([first.found, *(error.statement for error in others)])
    fixes = dict.fromkeys(error.fix for error in errors if error.fix)
    raise EngineError(first.subject, found, fix=', or '.join(fixes)) from first


def _is_missing(error: EngineError) -> bool:
    return isinstance(error.__cause__, ModuleNotFoundError)


def _import(name: str, model: ModelFile, header: PlanHeader) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # missing libraries raise RuntimeError or OSError
        fix = f'python3 -m pip install {_PACKAGES[name]}'
        if name != 'tensorrt_lean':
            fix = (
                f'install {name}: on JetPack with sudo apt install python3-libnvinfer, elsewhere '
                f'with {fix}'
            )
        raise _error(name, model, header, name, f'cannot be imported: {error}', fix) from error


def _error(
    name: str, model: ModelFile, header: PlanHeader, subject: str, found: str, fix: str
) -> EngineError:
    """Return the error of a module. The first module's error also says what built the plan."""
    if name != header.module:
        return EngineError(subject, found, fix=fix)
    built = '.'.join(map(str, header.version))
    return EngineError(str(model.path), f'built by {name} {built}; {subject} {found}', fix=fix)


def _load_with(
    name: str, model: ModelFile, header: PlanHeader, device: Device, plugins: Sequence[str | Path]
) -> LoadedPlan:
    trt = _import(name, model, header)
    log = TensorRtLog(trt)
    build = model.manifest.build if model.manifest else None
    load_plugins(trt, log, plugins, model.path.name, build.plugins if build else ())
    try:
        runtime = trt.Runtime(log.logger)
    except Exception as error:  # raised by the bindings if TensorRT returns a null pointer
        raise EngineError(
            f'{name} {trt.__version__}',
            f'cannot start on {device.name}: {error}. TensorRT reported: {log.last_errors()}',
        ) from error
    engine = runtime.deserialize_cuda_engine(model.content)
    if engine is not None:
        return LoadedPlan(name, trt, log, runtime, engine)
    free, total = (size // 2**20 for size in device.memory())
    reported = log.last_errors()
    del runtime  # the traceback of the error would keep its memory
    capability = '.'.join(map(str, device.compute_capability))
    subject = (
        f'{name} {trt.__version__} on {device.name} (compute capability {capability}, {free} of '
        f'{total} MiB free)'
    )
    found = f'cannot load it. TensorRT reported: {reported}'
    raise _error(name, model, header, subject, found, _fix(name, trt, model, reported))


def _fix(name: str, trt: Any, model: ModelFile, reported: str) -> str:
    """Return the fix for a plan that a module refused with these errors of TensorRT."""
    command = rebuild_command(model.manifest, model.path)
    compatible = f'{command.replace(" --version-compatible", "")} --version-compatible'
    if _HOST_CODE_METHOD in reported:
        return f'build it again without embedded code, which this package never runs: {compatible}'
    if name == 'tensorrt_lean':
        return f'build it for the lean runtime, with TensorRT {trt.__version__}: {compatible}'
    return f'if enough GPU memory is free, build it again on this machine: {command}'
