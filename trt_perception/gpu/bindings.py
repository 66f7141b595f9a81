"""Calls of the CUDA runtime, the driver and NVRTC: one check of what they return, for all.

The only module that imports cuda.bindings, at the first call. Written for cuda-bindings 12.9 and
13.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from trt_perception.errors import CudaError

__all__ = [
    'Resource',
    'call',
    'cuda_error',
    'driver',
    'driver_call',
    'load_bindings',
    'nvrtc',
    'nvrtc_call',
    'runtime',
    'versions',
]

# After one of these the context is lost for the life of the process: every later call fails, too.
_STICKY: Final = (
    'cudaErrorIllegalAddress',
    'cudaErrorLaunchFailure',
    'cudaErrorLaunchTimeout',
    'cudaErrorHardwareStackError',
    'cudaErrorIllegalInstruction',
    'cudaErrorMisalignedAddress',
    'cudaErrorInvalidAddressSpace',
    'cudaErrorInvalidPc',
    'cudaErrorECCUncorrectable',
    'cudaErrorAssert',
    # The driver's names of the same.
    'CUDA_ERROR_ILLEGAL_ADDRESS',
    'CUDA_ERROR_LAUNCH_FAILED',
    'CUDA_ERROR_LAUNCH_TIMEOUT',
    'CUDA_ERROR_HARDWARE_STACK_ERROR',
    'CUDA_ERROR_ILLEGAL_INSTRUCTION',
    'CUDA_ERROR_MISALIGNED_ADDRESS',
    'CUDA_ERROR_INVALID_ADDRESS_SPACE',
    'CUDA_ERROR_INVALID_PC',
    'CUDA_ERROR_ECC_UNCORRECTABLE',
    'CUDA_ERROR_ASSERT',
)
_INSTALL_DRIVER: Final = (
    'install the NVIDIA driver (nvidia-smi shows it; in a container, start it with the GPU)'
)


@functools.cache
def load_bindings() -> Any:
    """Return the modules (driver, nvrtc, runtime) of cuda.bindings."""
    try:
        from cuda.bindings import driver, nvrtc, runtime
    except ImportError as error:
        raise CudaError(
            'cuda-bindings',
            f'TensorRT engines need it, and it cannot be imported ({error})',
            fix='for a CUDA 13 driver: python3 -m pip install "cuda-bindings>=13.0.3,<14", '
            'for CUDA 12 (JetPack 6): "cuda-bindings>=12.9,<13"',
        ) from error
    return driver, nvrtc, runtime


def driver() -> Any:
    """Return cuda.bindings.driver."""
    return load_bindings()[0]


def nvrtc() -> Any:
    """Return cuda.bindings.nvrtc."""
    return load_bindings()[1]


def runtime() -> Any:
    """Return cuda.bindings.runtime."""
    return load_bindings()[2]


def call(function: str, *arguments: Any) -> Any:
    """Call the CUDA runtime; return its value, a tuple of several, or None.

    Raises:
        CudaError: it failed; ``sticky`` says whether the context is lost.
    """
    found = _called(runtime(), function, arguments)
    if found[0]:  # success is 0 everywhere
        # The failed status stays for the next caller that asks for the last error, as TensorRT
        # does: remove it.
        runtime().cudaGetLastError()
        raise cuda_error(function, found[0])
    return _value(found)


def driver_call(function: str, *arguments: Any) -> Any:
    """Call the CUDA driver; as ``call``."""
    found = _called(driver(), function, arguments)
    if found[0]:
        raise _failed(function, found[0])
    return _value(found)


def nvrtc_call(function: str, *arguments: Any) -> Any:
    """Call NVRTC; as ``call``.

    Raises:
        CudaError: it failed.
        RuntimeError: cuda-bindings finds no NVRTC library.
    """
    found = getattr(nvrtc(), function)(*arguments)
    if found[0]:
        raise _failed(function, found[0])
    return _value(found)


def _called(module: Any, function: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what a call returns: its status and its values.

    Raises:
        CudaError: there is no driver library.
    """
    try:
        found: tuple[Any, ...] = getattr(module, function)(*arguments)
    except RuntimeError as error:  # how cuda-bindings reports that there is no driver library
        raise CudaError(function, f'no CUDA driver: {error}', fix=_INSTALL_DRIVER) from error
    return found


def _value(found: tuple[Any, ...]) -> Any:
    return found[1] if len(found) == 2 else found[1:] or None


def cuda_error(function: str, status: Any) -> CudaError:
    """Return the error of a failed runtime call, with what to do where one cause is usual."""
    error = _failed(function, status)
    text = runtime().cudaGetErrorString(status)[1]
    error.found += f': {text.decode() if isinstance(text, bytes) else text}'
    if error.status == 'cudaErrorInsufficientDriver':
        installed = int(runtime().cudaDriverGetVersion()[1])
        if installed == 0:
            error.found += ', no NVIDIA driver was found'
            error.fix = _INSTALL_DRIVER
        else:
            needed = _dotted(runtime().cudaRuntimeGetVersion()[1])
            error.found += (
                f', the driver supports CUDA up to {_dotted(installed)}, this cuda-bindings needs '
                f'{needed}'
            )
            error.fix = (
                'install a newer driver, or for CUDA 12 (JetPack 6) python3 -m pip install '
                '"cuda-bindings>=12.9,<13"'
            )
    elif error.status == 'cudaErrorNoDevice':
        error.found += ', the driver shows no GPU'
        error.fix = 'check nvidia-smi and CUDA_VISIBLE_DEVICES'
    return error


def _failed(function: str, status: Any) -> CudaError:
    return CudaError(
        f'{function} failed', status.name, status=status.name, sticky=status.name in _STICKY
    )


def _dotted(number: int) -> str:
    return f'{number // 1000}.{number % 1000 // 10}'


def versions() -> dict[str, str]:
    """Return the CUDA versions of driver and runtime, as ``major.minor``."""
    numbers = {
        'driver': int(call('cudaDriverGetVersion')),
        'runtime': int(call('cudaRuntimeGetVersion')),
    }
    return {name: _dotted(number) for name, number in numbers.items()}


class Resource:
    """Something that must be closed; usable as a context manager."""

    def close(self) -> None:
        """Free it; a second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
