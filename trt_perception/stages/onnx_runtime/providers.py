# SPDX-License-Identifier: Apache-2.0
"""Add an execution provider to a session of ONNX Runtime, and say why a provider cannot be used.

ONNX Runtime builds a session on the CPU if a provider cannot be loaded, and only prints the
reason. This module therefore finds the reason itself, and stops ONNX Runtime from printing.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from trt_perception.errors import EngineError
from trt_perception.files.cache import private_cache_folder
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.files.onnx_external import has_half_weights

#: Maps each value of the parameter `onnx_provider`, except auto, to ONNX Runtime's name.
NAMES_BY_PROVIDER: Final = {
    'cpu': 'CPUExecutionProvider',
    'cuda': 'CUDAExecutionProvider',
    'tensorrt': 'TensorrtExecutionProvider',
    'tensorrt_rtx': 'NvTensorRTRTXExecutionProvider',
}
#: A provider as ONNX Runtime's session expects it: its name and its options.
SessionProvider: TypeAlias = tuple[str, dict[str, Any]]

_RTX_MODULE: Final = 'onnxruntime_ep_nv_tensorrt_rtx'
_ONLY_FATAL_ERRORS: Final = 4
_GPU_WHEEL_FIX: Final = (
    'python3 -m pip uninstall onnxruntime, then python3 -m pip install '
    "'onnxruntime-gpu[cuda,cudnn]'"
)
_FIXES: Final = {
    'cpu': 'python3 -m pip install --force-reinstall onnxruntime',
    'cuda': f'{_GPU_WHEEL_FIX}; the NVIDIA driver must support the CUDA release of this wheel',
    'tensorrt': f'{_GPU_WHEEL_FIX}; libnvinfer and CUDA must be in LD_LIBRARY_PATH',
    'tensorrt_rtx': "python3 -m pip install 'onnxruntime>=1.24' onnxruntime-ep-nv-tensorrt-rtx "
    '(Python 3.11 or newer), on a machine with a GPU that TensorRT-RTX supports',
}


def available_providers(runtime: Any) -> list[str]:
    """Return the providers of this build and the installed plugin, although they may not work."""
    names = runtime.get_available_providers()
    plugins = ['tensorrt_rtx'] if importlib.util.find_spec(_RTX_MODULE) else []
    return plugins + [word for word, name in NAMES_BY_PROVIDER.items() if name in names]


def check_available(runtime: Any, provider: str) -> None:
    """Check that this build of ONNX Runtime has the provider or can load it as a plugin.

    Raises:
        EngineError: the provider or its plugin is missing.
    """
    if provider == 'tensorrt_rtx':
        _register_tensorrt_rtx(runtime)
        return
    installed = available_providers(runtime)
    if provider not in installed:
        raise EngineError(
            'ONNX Runtime',
            f'a build with {", ".join(installed)}',
            expected=f'a build with {provider}',
            fix=_FIXES[provider],
        )


def provider_error(runtime: Any, provider: str, error: Exception | None) -> EngineError:
    """Return the error of a provider that could not be added to a session.

    Args:
        error: exception of the session; None if the session runs without the provider.
    """
    found = _library_problem(runtime, provider) or (
        str(error) if error else 'ONNX Runtime left the provider out of the session'
    )
    return EngineError(f'ONNX Runtime provider {provider}', found, fix=_FIXES[provider])


def add_provider(
    runtime: Any, options: Any, provider: str, model: ModelFile, device_id: int
) -> Sequence[SessionProvider] | None:
    """Add a provider to the options of a session.

    Args:
        options: SessionOptions, to which a plugin is added.
        device_id: index of the CUDA device; ignored on the CPU.

    Returns:
        The providers for the constructor of the session; None for a plugin. The CPU runs
        operators that the provider lacks.

    Raises:
        EngineError: the plugin does not have this device.
    """
    cpu: SessionProvider = (NAMES_BY_PROVIDER['cpu'], {})
    if provider == 'cpu':
        return [cpu]
    runtime.set_default_logger_severity(_ONLY_FATAL_ERRORS)
    if provider == 'tensorrt_rtx':
        name = NAMES_BY_PROVIDER[provider]
        devices = [device for device in runtime.get_ep_devices() if device.ep_name == name]
        if device_id >= len(devices):
            found = f'device {device_id} is not among the {len(devices)} devices that it supports'
            raise EngineError(f'ONNX Runtime provider {provider}', found, fix=_FIXES[provider])
        folder = _cache_folder(runtime, provider, model)
        cached = {'nv_runtime_cache_path': folder} if folder else {}
        options.add_provider_for_devices([devices[device_id]], cached)
        return None
    # ONNX Runtime finds CUDA's libraries in the packages of pip only after this call.
    if hasattr(runtime, 'preload_dlls'):  # from 1.21 on
        with contextlib.redirect_stdout(io.StringIO()):
            runtime.preload_dlls()
    cuda: SessionProvider = (
        NAMES_BY_PROVIDER['cuda'],
        {
            'device_id': device_id,
            # The default, EXHAUSTIVE, tries all algorithms at the first image of each batch size.
            'cudnn_conv_algo_search': 'HEURISTIC',
            # TF32 changes the third digit of results. build_engine does not use it either.
            'use_tf32': 0,
        },
    )
    if provider == 'cuda':
        return [cuda, cpu]
    tensorrt = NAMES_BY_PROVIDER['tensorrt'], _tensorrt_options(runtime, model, device_id)
    return [tensorrt, cuda, cpu]


def _tensorrt_options(runtime: Any, model: ModelFile, device_id: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        'device_id': device_id,
        # TensorRT 10 refuses FP16 tensors and Q/DQ nodes without these flags. A float32 model
        # stays in float32, so that its results are those of the CPU.
        'trt_fp16_enable': has_half_weights(model.content),
        'trt_int8_enable': b'QuantizeLinear' in model.content,
    }
    if folder := _cache_folder(runtime, 'tensorrt', model):
        options |= {'trt_engine_cache_enable': True, 'trt_engine_cache_path': folder}
        options |= {'trt_timing_cache_enable': True, 'trt_timing_cache_path': folder}
    return options


def _cache_folder(runtime: Any, provider: str, model: ModelFile) -> str:
    """Return the folder for engines of a model; '' if there is no safe folder.

    The provider's own file names do not depend on the weights, so each model has a folder.
    """
    key = repr((model.sha256, runtime.__version__, provider))
    folder = private_cache_folder('onnx_providers', hashlib.sha256(key.encode()).hexdigest())
    return str(folder or '')


@functools.cache  # a library can only be registered once; failures are not cached
def _register_tensorrt_rtx(runtime: Any) -> None:
    fix = _FIXES['tensorrt_rtx']
    if tuple(int(part) for part in runtime.__version__.split('.')[:2]) < (1, 24):
        raise EngineError('ONNX Runtime', runtime.__version__, expected='1.24 or newer', fix=fix)
    try:
        plugin = importlib.import_module(_RTX_MODULE)
        name = NAMES_BY_PROVIDER['tensorrt_rtx']
        runtime.register_execution_provider_library(name, plugin.get_library_path())
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        raise EngineError('ONNX Runtime provider tensorrt_rtx', str(error), fix=fix) from error


def _library_problem(runtime: Any, provider: str) -> str:
    """Return why the dynamic linker cannot load a provider's library; '' if it can."""
    library = Path(runtime.__file__).parent / 'capi' / f'libonnxruntime_providers_{provider}.so'
    if provider not in ('cuda', 'tensorrt') or not library.exists():
        return ''
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return str(error)
    return ''
