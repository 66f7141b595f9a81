# SPDX-License-Identifier: Apache-2.0
"""Replace cuda.bindings without a GPU. The stand-in returns handles and computes nothing.

Host memory is real, so that headers and pixels can be written. test_cuda_names checks that the
names and signatures of the stand-in exist in cuda-bindings 12.9 and 13.
"""

from __future__ import annotations

import ctypes
import itertools
from enum import IntEnum
from types import SimpleNamespace

_handles = itertools.count(0x7000_0000_0000, 0x1000)

cudaError_t = IntEnum(  # noqa: N816
    'cudaError_t',
    {
        'cudaSuccess': 0,
        'cudaErrorInvalidValue': 1,
        'cudaErrorMemoryAllocation': 2,
        'cudaErrorInsufficientDriver': 35,
        'cudaErrorNoDevice': 100,
        'cudaErrorNotReady': 600,
        'cudaErrorIllegalAddress': 700,
        'cudaErrorStreamCaptureInvalidated': 901,
    },
)
CUresult = IntEnum(
    'CUresult',
    {
        'CUDA_SUCCESS': 0,
        'CUDA_ERROR_OUT_OF_MEMORY': 2,
        'CUDA_ERROR_ILLEGAL_ADDRESS': 700,
    },
)
nvrtcResult = IntEnum(  # noqa: N816
    'nvrtcResult',
    {
        'NVRTC_SUCCESS': 0,
        'NVRTC_ERROR_OUT_OF_MEMORY': 1,
        'NVRTC_ERROR_COMPILATION': 6,
    },
)
cudaDeviceAttr = IntEnum(  # noqa: N816
    'cudaDeviceAttr',
    {
        'cudaDevAttrIntegrated': 18,
        'cudaDevAttrComputeCapabilityMajor': 75,
        'cudaDevAttrComputeCapabilityMinor': 76,
    },
)


def _returning_status(status):
    return lambda *arguments: (status,)


def _returning_handle(status):
    return lambda *arguments: (status, next(_handles))


def _returning_value(status, value):
    return lambda *arguments: (status, value)


def runtime(*, integrated=False):
    """Return the stand-in for cuda.bindings.runtime."""
    ok = cudaError_t.cudaSuccess
    host_memory = {}

    def host_alloc(size, flags):
        memory = ctypes.create_string_buffer(size)
        address = ctypes.addressof(memory)
        host_memory[address] = memory
        return ok, address

    def free_host(address):
        del host_memory[address]
        return (ok,)

    attributes = {
        cudaDeviceAttr.cudaDevAttrIntegrated: int(integrated),
        cudaDeviceAttr.cudaDevAttrComputeCapabilityMajor: 8,
        cudaDeviceAttr.cudaDevAttrComputeCapabilityMinor: 7,
    }
    return SimpleNamespace(
        cudaError_t=cudaError_t,
        cudaDeviceAttr=cudaDeviceAttr,
        cudaStreamCaptureMode=IntEnum('Mode', {'cudaStreamCaptureModeThreadLocal': 1}),
        cudaMemcpyKind=IntEnum('Kind', {'cudaMemcpyDefault': 4}),
        cudaStreamNonBlocking=1,
        cudaEventDefault=0,
        cudaEventBlockingSync=1,
        cudaHostAllocPortable=1,
        cudaHostAllocMapped=2,
        cudaGetErrorString=lambda status: (ok, status.name.encode()),
        cudaGetLastError=_returning_status(ok),
        cudaDriverGetVersion=_returning_value(ok, 13000),
        cudaRuntimeGetVersion=_returning_value(ok, 13000),
        cudaGetDeviceCount=_returning_value(ok, 1),
        cudaSetDevice=_returning_status(ok),
        cudaDeviceGetAttribute=lambda attribute, index: (ok, attributes[attribute]),
        cudaGetDeviceProperties=_returning_value(ok, SimpleNamespace(name=b'Stand-in')),
        cudaMemGetInfo=_returning_pair(ok, 3 * 2**30, 8 * 2**30),
        cudaDeviceSynchronize=_returning_status(ok),
        cudaStreamCreateWithFlags=_returning_handle(ok),
        cudaStreamSynchronize=_returning_status(ok),
        cudaStreamWaitEvent=_returning_status(ok),
        cudaStreamDestroy=_returning_status(ok),
        cudaEventCreateWithFlags=_returning_handle(ok),
        cudaEventRecord=_returning_status(ok),
        cudaEventQuery=_returning_status(ok),
        cudaEventSynchronize=_returning_status(ok),
        cudaEventElapsedTime=_returning_value(ok, 1.5),
        cudaEventDestroy=_returning_status(ok),
        cudaMalloc=_returning_handle(ok),
        cudaFree=_returning_status(ok),
        cudaHostAlloc=host_alloc,
        cudaHostGetDevicePointer=lambda address, flags: (ok, address),
        cudaFreeHost=free_host,
        cudaMemcpyAsync=_returning_status(ok),
        cudaMemcpy2DAsync=_returning_status(ok),
        cudaMemsetAsync=_returning_status(ok),
        cudaStreamBeginCapture=_returning_status(ok),
        cudaStreamEndCapture=_returning_handle(ok),
        cudaGraphInstantiate=_returning_handle(ok),
        cudaGraphDestroy=_returning_status(ok),
        cudaGraphLaunch=_returning_status(ok),
        cudaGraphExecDestroy=_returning_status(ok),
    )


def _returning_pair(status, first, second):
    return lambda *arguments: (status, first, second)


def driver():
    """Return the stand-in for cuda.bindings.driver."""
    ok = CUresult.CUDA_SUCCESS
    return SimpleNamespace(
        CUresult=CUresult,
        CUfunction=int,
        cuLibraryLoadData=_returning_handle(ok),
        cuLibraryGetKernel=_returning_handle(ok),
        cuKernelGetFunction=_returning_handle(ok),
        cuLaunchKernel=_returning_status(ok),
        cuLibraryUnload=_returning_status(ok),
    )


def nvrtc(*, log=b''):
    """Return the stand-in for cuda.bindings.nvrtc; with a log, it refuses every program."""
    ok = nvrtcResult.NVRTC_SUCCESS

    def get_log(program, target):
        # The real bindings also write into the given bytes object.
        ctypes.memmove(target, log, len(log))
        return (ok,)

    return SimpleNamespace(
        nvrtcResult=nvrtcResult,
        nvrtcVersion=_returning_pair(ok, 13, 0),
        nvrtcCreateProgram=_returning_handle(ok),
        nvrtcCompileProgram=_returning_status(nvrtcResult.NVRTC_ERROR_COMPILATION if log else ok),
        nvrtcGetProgramLogSize=_returning_value(ok, len(log) + 1),
        nvrtcGetProgramLog=get_log,
        nvrtcGetCUBINSize=_returning_value(ok, 4),
        nvrtcGetCUBIN=_returning_status(ok),
        nvrtcDestroyProgram=_returning_status(ok),
    )


def bindings(*, integrated=False, log=b''):
    """Return (driver, nvrtc, runtime), as ``trt_perception.gpu`` expects them."""
    return driver(), nvrtc(log=log), runtime(integrated=integrated)
