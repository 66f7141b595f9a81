# SPDX-License-Identifier: Apache-2.0
"""Call the CUDA runtime, the driver and NVRTC, and check their return codes.

Only this module imports cuda.bindings, at the first call. Works with cuda-bindings 12.9 and 13.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Final

from trt_perception.errors import CudaError

# After one of these errors, the context is lost, and all later calls of the process fail.
_STICKY_ERRORS: Final = (
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
    # The driver's names for the same errors.
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
        if not _has_driver():
            raise CudaError(
                'this machine',
                'no NVIDIA driver was found, and TensorRT engines need one',
                fix=f'on a machine with an NVIDIA GPU: {_INSTALL_DRIVER}',
            ) from error
        raise CudaError(
            'cuda-bindings',
            f'cannot be imported ({error}), and TensorRT engines need this package',
            fix='for a CUDA 13 driver: python3 -m pip install "cuda-bindings>=13.0.3,<14", '
            'for CUDA 12 (JetPack 6): "cuda-bindings>=12.9,<13"',
        ) from error
    return driver, nvrtc, runtime


def _has_driver() -> bool:
    """Return whether the library of the NVIDIA driver can be loaded."""
    try:
        ctypes.CDLL('libcuda.so.1')
    except OSError:
        return False
    return True


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
    """Call a function of the CUDA runtime. Return its value, a tuple of values, or None.

    Raises:
        CudaError: the call failed. ``sticky`` is True if the context is lost.
    """
    # A frame needs eleven of these calls, so this function calls no helpers.
    try:
        found = getattr(runtime(), function)(*arguments)
    except RuntimeError as error:
        raise _missing_driver_error(function, error) from error
    if found[0]:  # success is 0 in all three libraries
        # Clear CUDA's last error, because TensorRT would read and report it.
        runtime().cudaGetLastError()
        raise cuda_error(function, found[0])
    return found[1] if len(found) == 2 else found[1:] or None


def driver_call(function: str, *arguments: Any) -> Any:
    """Call a function of the CUDA driver; see ``call``."""
    try:
        found = getattr(driver(), function)(*arguments)
    except RuntimeError as error:
        raise _missing_driver_error(function, error) from error
    if found[0]:
        raise _error_of_status(function, found[0])
    return _returned_value(found)


def nvrtc_call(function: str, *arguments: Any) -> Any:
    """Call a function of NVRTC; see ``call``.

    Raises:
        CudaError: the call failed.
        RuntimeError: cuda-bindings cannot find the NVRTC library.
    """
    found = getattr(nvrtc(), function)(*arguments)
    if found[0]:
        raise _error_of_status(function, found[0])
    return _returned_value(found)


def _missing_driver_error(function: str, error: RuntimeError) -> CudaError:
    """Return the error for an exception of cuda-bindings, which cannot find the driver library."""
    return CudaError(function, f'no CUDA driver: {error}', fix=_INSTALL_DRIVER)


def _returned_value(found: tuple[Any, ...]) -> Any:
    return found[1] if len(found) == 2 else found[1:] or None


def cuda_error(function: str, status: Any) -> CudaError:
    """Return the error of a failed runtime call, with a fix for the usual causes."""
    error = _error_of_status(function, status)
    text = runtime().cudaGetErrorString(status)[1]
    error.found += f': {text.decode() if isinstance(text, bytes) else text}'
    if error.status == 'cudaErrorInsufficientDriver':
        installed = int(runtime().cudaDriverGetVersion()[1])
        if installed == 0:
            error.found += ', no NVIDIA driver was found'
            error.fix = _INSTALL_DRIVER
        else:
            needed = _version_text(runtime().cudaRuntimeGetVersion()[1])
            error.found += (
                f', the driver supports CUDA up to {_version_text(installed)}, this release of '
                f'cuda-bindings needs {needed}'
            )
            error.fix = (
                'install a newer driver, or for CUDA 12 (JetPack 6) python3 -m pip install '
                '"cuda-bindings>=12.9,<13"'
            )
    elif error.status == 'cudaErrorNoDevice':
        error.found += ', the driver shows no GPU'
        error.fix = 'check nvidia-smi and CUDA_VISIBLE_DEVICES'
    return error


def _error_of_status(function: str, status: Any) -> CudaError:
    return CudaError(
        f'{function} failed', status.name, status=status.name, sticky=status.name in _STICKY_ERRORS
    )


def _version_text(number: int) -> str:
    return f'{number // 1000}.{number % 1000 // 10}'


def versions() -> dict[str, str]:
    """Return the CUDA versions of driver and runtime, as ``major.minor``."""
    numbers = {
        'driver': int(call('cudaDriverGetVersion')),
        'runtime': int(call('cudaRuntimeGetVersion')),
    }
    return {name: _version_text(number) for name, number in numbers.items()}


class Resource:
    """A resource that must be closed. Also a context manager."""

    def close(self) -> None:
        """Free the resource. Further calls do nothing."""
        raise NotImplementedError

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
