"""CUDA for the rest of the package: a thin layer over cuda.bindings, and the only importer of it.

Every return code passes one check. What owns memory has ``close``, which may be called twice, and
frees what it had if its construction fails half-way. Pointers, streams and events are plain
integers, as TensorRT wants them. Written for cuda-bindings 12.9 and 13; nothing is imported before
the first call.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable
from collections.abc import Sequence
from types import TracebackType
from typing import Any
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import CudaError
from trt_perception.files.cache import read_cached
from trt_perception.files.cache import write_cached

__all__ = [
    'Device',
    'DeviceBuffer',
    'Event',
    'Graph',
    'Kernels',
    'PinnedBuffer',
    'Stream',
    'clear_async',
    'compile_kernels',
    'copy_async',
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
def _bindings() -> Any:
    """Return the namespace (driver, nvrtc, runtime) of cuda.bindings."""
    try:
        from cuda.bindings import driver
        from cuda.bindings import nvrtc
        from cuda.bindings import runtime
    except ImportError as error:
        raise CudaError(
            'a TensorRT engine needs cuda-python; for a CUDA 13 driver: python3 -m pip install '
            '"cuda-bindings>=13.0.3,<14", '
            'for CUDA 12 (JetPack 6): "cuda-bindings>=12.9,<13"'
        ) from error
    return driver, nvrtc, runtime


def _call(function: str, *arguments: Any) -> Any:
    """Call the CUDA runtime; return its value, a tuple of several, or None.

    Raises:
        CudaError: it failed; ``sticky`` says whether the context is lost.
    """
    runtime = _bindings()[2]
    try:
        status, *values = getattr(runtime, function)(*arguments)
    except RuntimeError as error:  # how cuda-bindings says that there is no driver library
        raise CudaError(f'{function}: no CUDA driver: {error}; {_INSTALL_DRIVER}') from error
    if status != runtime.cudaError_t.cudaSuccess:
        text = runtime.cudaGetErrorString(status)[1]
        # What failed stays behind for whoever asks for the last error next, as TensorRT does.
        runtime.cudaGetLastError()
        raise CudaError(
            f'{function} failed: {status.name}: '
            f'{text.decode() if isinstance(text, bytes) else text}{_hint(status.name)}',
            sticky=status.name in _STICKY,
        )
    return values[0] if len(values) == 1 else tuple(values) or None


def _hint(status: str) -> str:
    """Return what to do about an error that has one usual cause, empty for others."""
    runtime = _bindings()[2]
    if status == 'cudaErrorInsufficientDriver':
        driver, ours = int(runtime.cudaDriverGetVersion()[1]), runtime.cudaRuntimeGetVersion()[1]
        if driver == 0:
            return f'; no NVIDIA driver was found: {_INSTALL_DRIVER}'
        return (
            f'; the driver serves CUDA up to {_dotted(driver)}, this cuda-bindings needs '
            f'{_dotted(ours)}: install a newer driver, or for CUDA 12 (JetPack 6) python3 -m pip '
            'install "cuda-bindings>=12.9,<13"'
        )
    if status == 'cudaErrorNoDevice':
        return '; the driver shows no GPU: look at nvidia-smi and at CUDA_VISIBLE_DEVICES'
    return ''


def _dotted(number: int) -> str:
    return f'{number // 1000}.{number % 1000 // 10}'


def _driver_call(function: str, *arguments: Any) -> Any:
    """Call the CUDA driver; as ``_call``."""
    driver = _bindings()[0]
    try:
        status, *values = getattr(driver, function)(*arguments)
    except RuntimeError as error:
        raise CudaError(f'{function}: no CUDA driver: {error}; {_INSTALL_DRIVER}') from error
    if status != driver.CUresult.CUDA_SUCCESS:
        raise CudaError(f'{function} failed: {status.name}', sticky=status.name in _STICKY)
    return values[0] if len(values) == 1 else tuple(values) or None


def versions() -> dict[str, str]:
    """Return the CUDA versions of driver and runtime, as ``major.minor``."""
    numbers = {
        'driver': int(_call('cudaDriverGetVersion')),
        'runtime': int(_call('cudaRuntimeGetVersion')),
    }
    return {name: _dotted(number) for name, number in numbers.items()}


class _Owner:
    """Something that must be closed; usable as a context manager."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Device:
    """One GPU, used through its primary context.

    Attributes:
        index: the CUDA ordinal.
        name: as the driver gives it.
        compute_capability: (major, minor).
        integrated: CPU and GPU share their memory, as on Jetson.

    Raises:
        CudaError: there is no driver, it is too old, or no such device.
    """

    def __init__(self, index: int) -> None:
        runtime = _bindings()[2]
        count = _call('cudaGetDeviceCount')
        if not 0 <= index < count:
            raise CudaError(
                f"parameter 'device_id' must be below the number of GPUs, {count} (got {index})"
            )
        self.index = index
        self.use()
        attribute = runtime.cudaDeviceAttr
        self.compute_capability = (
            int(
                _call('cudaDeviceGetAttribute', attribute.cudaDevAttrComputeCapabilityMajor, index)
            ),
            int(
                _call('cudaDeviceGetAttribute', attribute.cudaDevAttrComputeCapabilityMinor, index)
            ),
        )
        self.integrated = bool(
            _call('cudaDeviceGetAttribute', attribute.cudaDevAttrIntegrated, index)
        )
        self.name: str = _call('cudaGetDeviceProperties', index).name.decode()

    def use(self) -> None:
        """Make it this thread's device; each thread starts with device 0.

        CUDA alone knows which one is: another Device, or a library, may have set it meanwhile.
        """
        _call('cudaSetDevice', self.index)

    def memory(self) -> tuple[int, int]:
        """Return free and total memory in bytes."""
        free, total = _call('cudaMemGetInfo')
        return int(free), int(total)

    def synchronize(self) -> None:
        """Wait for everything on the device; for setting up and tests, not for the frame path."""
        _call('cudaDeviceSynchronize')


class Stream(_Owner):
    """A non-blocking stream; ``handle`` is its integer."""

    def __init__(self) -> None:
        runtime = _bindings()[2]
        self._stream = _call('cudaStreamCreateWithFlags', runtime.cudaStreamNonBlocking)
        self.handle = int(self._stream)

    def synchronize(self) -> None:
        """Wait for all work on the stream."""
        _call('cudaStreamSynchronize', self.handle)

    def raise_if_lost(self) -> None:
        """Raise CudaError where the context is lost; whatever else is wrong passes."""
        try:
            self.synchronize()
        except CudaError as error:
            if error.sticky:
                raise

    def close(self) -> None:
        """Destroy the stream."""
        if self.handle:
            self.handle = 0
            _call('cudaStreamDestroy', self._stream)


class Event(_Owner):
    """A point in a stream's work that can be waited for and timed.

    Args:
        blocking: waiting sleeps until an interrupt comes, which takes up to 0.3 ms longer than
            spinning but leaves the core to others.
    """

    def __init__(self, *, blocking: bool = False) -> None:
        runtime = _bindings()[2]
        flags = runtime.cudaEventBlockingSync if blocking else runtime.cudaEventDefault
        self._event = _call('cudaEventCreateWithFlags', flags)
        self.handle = int(self._event)

    def record(self, stream: Stream) -> None:
        """Record the event behind the work that the stream has."""
        _call('cudaEventRecord', self.handle, stream.handle)

    def done(self) -> bool:
        """Tell without waiting whether the work is done."""
        runtime = _bindings()[2]
        (status,) = runtime.cudaEventQuery(self.handle)
        if status == runtime.cudaError_t.cudaErrorNotReady:
            return False
        if status != runtime.cudaError_t.cudaSuccess:
            raise CudaError(f'cudaEventQuery failed: {status.name}', sticky=status.name in _STICKY)
        return True

    def synchronize(self) -> None:
        """Wait until the work is done."""
        _call('cudaEventSynchronize', self.handle)

    def seconds_since(self, start: Event) -> float:
        """Return the time between two events that are done."""
        return float(_call('cudaEventElapsedTime', start.handle, self.handle)) * 1e-3

    def close(self) -> None:
        """Destroy the event."""
        if self.handle:
            self.handle = 0
            _call('cudaEventDestroy', self._event)


class DeviceBuffer(_Owner):
    """Device memory; ``pointer`` is its address, ``size`` its bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pointer = 0
        try:
            self.pointer = int(_call('cudaMalloc', max(1, size)))
        except CudaError as error:
            raise _out_of_memory(error, size, 'GPU memory') from error

    def close(self) -> None:
        """Free the memory."""
        if self.pointer:
            pointer, self.pointer = self.pointer, 0
            _call('cudaFree', pointer)


class PinnedBuffer(_Owner):
    """Page-locked host memory that the device can copy from at full speed, or read where it lies.

    Attributes:
        array: uint8 (size,), valid until ``close``.
        pointer: address on the host.
        device_pointer: address on the device of the same bytes.
    """

    def __init__(self, size: int) -> None:
        runtime = _bindings()[2]
        self.size = size
        try:
            self.pointer = int(_call('cudaHostAlloc', max(1, size), runtime.cudaHostAllocMapped))
        except CudaError as error:
            raise _out_of_memory(error, size, 'page-locked host memory') from error
        try:
            self.device_pointer = int(_call('cudaHostGetDevicePointer', self.pointer, 0))
        except BaseException:
            self.close()
            raise
        raw = (ctypes.c_uint8 * size).from_address(self.pointer)
        self.array: npt.NDArray[np.uint8] = np.ctypeslib.as_array(raw)

    def close(self) -> None:
        """Free the memory; ``array`` must not be used any more."""
        if self.pointer:
            pointer, self.pointer = self.pointer, 0
            self.array = np.empty(0, np.uint8)
            _call('cudaFreeHost', pointer)


def _out_of_memory(error: CudaError, size: int, kind: str) -> CudaError:
    """Return an error that says how much was asked for, and what to do."""
    if 'cudaErrorMemoryAllocation' not in str(error):
        return error
    return CudaError(
        f'{size / 2**20:.1f} MiB of {kind} are not to be had: {error}; end other programs that '
        "use the GPU (nvidia-smi lists them), or lower the parameter 'pipeline_depth'"
    )


def copy_async(destination: int, source: int, size: int, stream: Stream) -> None:
    """Copy between any two addresses, in the stream's order; the host side must be pinned."""
    runtime = _bindings()[2]
    _call(
        'cudaMemcpyAsync',
        destination,
        source,
        size,
        runtime.cudaMemcpyKind.cudaMemcpyDefault,
        stream.handle,
    )


def clear_async(pointer: int, size: int, stream: Stream) -> None:
    """Set bytes to zero, in the stream's order."""
    _call('cudaMemsetAsync', pointer, 0, size, stream.handle)


class Graph(_Owner):
    """Work captured once and launched many times with one call.

    Args:
        stream: captured on it.
        record: issues the work; it must not synchronise or allocate.

    Raises:
        CudaError: something in it cannot be captured; the stream can be used again.
    """

    def __init__(self, stream: Stream, record: Callable[[], None]) -> None:
        runtime = _bindings()[2]
        mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._executable: Any = None
        _call('cudaStreamBeginCapture', stream.handle, mode)
        try:
            record()
        except BaseException:
            # Ends the capture, which may be invalid by now, and clears the error it left behind.
            status, graph = (*runtime.cudaStreamEndCapture(stream.handle), None)[:2]
            if status == runtime.cudaError_t.cudaSuccess and int(graph):
                runtime.cudaGraphDestroy(graph)
            runtime.cudaGetLastError()
            raise
        graph = _call('cudaStreamEndCapture', stream.handle)
        try:
            self._executable = _call('cudaGraphInstantiate', graph, 0)
        finally:
            _call('cudaGraphDestroy', graph)

    def launch(self, stream: Stream) -> None:
        """Queue all the work on the stream."""
        _call('cudaGraphLaunch', self._executable, stream.handle)

    def close(self) -> None:
        """Destroy the graph."""
        if self._executable is not None:
            executable, self._executable = self._executable, None
            _call('cudaGraphExecDestroy', executable)


class Kernels(_Owner):
    """Compiled kernels, loaded into the current device.

    Args:
        cubin: as ``compile_kernels`` returns it.
    """

    def __init__(self, cubin: bytes) -> None:
        self._library = _driver_call('cuLibraryLoadData', cubin, [], [], 0, [], [], 0)

    def launch(
        self,
        name: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Sequence[tuple[Any, Any]],
        stream: Stream,
    ) -> None:
        """Queue one kernel.

        Args:
            name: an ``extern "C"`` function.
            grid: blocks.
            block: threads of a block.
            arguments: (value, ctypes type) in the kernel's order; pointers as integers with
                c_void_p.
            stream: queued on it.
        """
        driver = _bindings()[0]
        kernel = _driver_call('cuLibraryGetKernel', self._library, name.encode())
        function = driver.CUfunction(int(_driver_call('cuKernelGetFunction', kernel)))
        values = tuple(value for value, _ in arguments), tuple(kind for _, kind in arguments)
        _driver_call('cuLaunchKernel', function, *grid, *block, 0, stream.handle, values, 0)

    def close(self) -> None:
        """Unload the kernels."""
        if self._library is not None:
            library, self._library = self._library, None
            _driver_call('cuLibraryUnload', library)


def compile_kernels(
    source: str, compute_capability: tuple[int, int], options: Sequence[str] = ()
) -> bytes:
    """Compile CUDA C++ for one architecture, or take the result of an earlier time from the cache.

    Args:
        source: the program; it includes no headers, so that the toolkit's are not needed.
        compute_capability: of the device.
        options: more compiler options.

    Returns:
        A CUBIN.

    Raises:
        CudaError: NVRTC is missing or refuses the program; the message holds its log.
    """
    nvrtc = _bindings()[1]
    try:
        version = _nvrtc_call('nvrtcVersion')
    except RuntimeError as error:
        raise CudaError(
            "the CUDA compiler library NVRTC is missing; install the toolkit's libnvrtc "
            '(JetPack: sudo apt install '
            'cuda-nvrtc-13-2, or your version), or python3 -m pip install nvidia-cuda-nvrtc '
            '(CUDA 12: nvidia-cuda-nvrtc-cu12)'
        ) from error
    flags = [
        f'--gpu-architecture=sm_{compute_capability[0]}{compute_capability[1]}',
        '--std=c++17',
        # The host rounds after each operation, and so must the kernels where they are compared
        # with it.
        '--fmad=false',
        *options,
    ]
    key = hashlib.sha256(repr((source, flags, version)).encode()).hexdigest()
    cached = read_cached('kernels', key)
    if cached is not None:
        return cached
    program = _nvrtc_call('nvrtcCreateProgram', source.encode(), b'kernels.cu', 0, [], [])
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])[
            0
        ]
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytes(_nvrtc_call('nvrtcGetProgramLogSize', program))
            _nvrtc_call('nvrtcGetProgramLog', program, log)
            text = log.rstrip(b'\0').decode(errors='replace').strip()
            if 'gpu-architecture' in text:
                text += (
                    '\nthis NVRTC does not know the GPU: install the one of another CUDA release'
                )
            raise CudaError(
                f'NVRTC {".".join(map(str, version))} cannot compile the kernels for {flags[0]}: '
                f'{status.name}\n{text}'
            )
        cubin = bytes(_nvrtc_call('nvrtcGetCUBINSize', program))
        _nvrtc_call('nvrtcGetCUBIN', program, cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    write_cached('kernels', key, cubin)
    return cubin


def _nvrtc_call(function: str, *arguments: Any) -> Any:
    nvrtc = _bindings()[1]
    status, *values = getattr(nvrtc, function)(*arguments)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CudaError(f'{function} failed: {status.name}')
    return values[0] if len(values) == 1 else tuple(values) or None
