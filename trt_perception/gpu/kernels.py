# SPDX-License-Identifier: Apache-2.0
"""Compile CUDA C++ with NVRTC, cache the result, and launch kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from trt_perception.errors import CudaError
from trt_perception.files.cache import read_cached, write_cached
from trt_perception.gpu.bindings import Resource, driver, driver_call, nvrtc, nvrtc_call
from trt_perception.gpu.streams import Stream


class Kernels(Resource):
    """Compiled kernels, loaded on the current device.

    Args:
        cubin: the result of ``compile_kernels``.
    """

    def __init__(self, cubin: bytes) -> None:
        self._library = driver_call('cuLibraryLoadData', cubin, [], [], 0, [], [], 0)
        self._functions: dict[str, Any] = {}  # by name

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
            name: name of an ``extern "C"`` function.
            grid: number of blocks in x, y and z.
            block: number of threads per block in x, y and z.
            arguments: pairs of a value and its ctypes type, in the order of the kernel's
                parameters. Pointers are integers with the type c_void_p.
        """
        function = self._functions.get(name)
        if function is None:
            kernel = driver_call('cuLibraryGetKernel', self._library, name.encode())
            function = driver().CUfunction(int(driver_call('cuKernelGetFunction', kernel)))
            self._functions[name] = function
        values = tuple(value for value, _ in arguments), tuple(kind for _, kind in arguments)
        driver_call('cuLaunchKernel', function, *grid, *block, 0, stream.handle, values, 0)

    def close(self) -> None:
        """Unload the kernels."""
        if self._library is not None:
            library, self._library = self._library, None
            self._functions.clear()
            driver_call('cuLibraryUnload', library)


def compile_kernels(
    source: str, compute_capability: tuple[int, int], options: Sequence[str] = ()
) -> bytes:
    """Compile CUDA C++ for one architecture, or read the result from the cache.

    Args:
        source: the program. Must not include headers, because the toolkit may be missing.
        compute_capability: compute capability of the device, (major, minor).

    Returns:
        A CUBIN.

    Raises:
        CudaError: NVRTC is missing or cannot compile the program. The message has the log.
    """
    try:
        version = nvrtc_call('nvrtcVersion')
    except RuntimeError as error:
        raise CudaError(
            'the CUDA compiler library',
            'NVRTC is missing',
            fix="install the toolkit's libnvrtc (JetPack: sudo apt install cuda-nvrtc-13-2, or "
            'your version), or python3 -m pip install nvidia-cuda-nvrtc (CUDA 12: '
            'nvidia-cuda-nvrtc-cu12)',
        ) from error
    flags = [
        f'--gpu-architecture=sm_{compute_capability[0]}{compute_capability[1]}',
        '--std=c++17',
        # The host rounds after each operation. Without this flag the kernels' results would
        # differ.
        '--fmad=false',
        *options,
    ]
    key = hashlib.sha256(repr((source, flags, version)).encode()).hexdigest()
    cubin = read_cached('kernels', key)
    if cubin is None:
        cubin = _compile(source, flags, version)
        write_cached('kernels', key, cubin)
    return cubin


def _compile(source: str, flags: Sequence[str], version: tuple[int, int]) -> bytes:
    program = nvrtc_call('nvrtcCreateProgram', source.encode(), b'kernels.cu', 0, [], [])
    try:
        encoded = [flag.encode() for flag in flags]
        (status,) = nvrtc().nvrtcCompileProgram(program, len(encoded), encoded)
        if status != nvrtc().nvrtcResult.NVRTC_SUCCESS:
            log = bytes(nvrtc_call('nvrtcGetProgramLogSize', program))
            nvrtc_call('nvrtcGetProgramLog', program, log)
            text = log.rstrip(b'\0').decode(errors='replace').strip()
            unknown_gpu = 'gpu-architecture' in text
            raise CudaError(
                f'NVRTC {".".join(map(str, version))} cannot compile the kernels for {flags[0]}',
                f'{status.name}\n{text}',
                fix='install NVRTC of a CUDA release that supports this GPU'
                if unknown_gpu
                else '',
                status=status.name,
            )
        cubin = bytes(nvrtc_call('nvrtcGetCUBINSize', program))
        nvrtc_call('nvrtcGetCUBIN', program, cubin)
        return cubin
    finally:
        nvrtc().nvrtcDestroyProgram(program)
