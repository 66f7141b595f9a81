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


def _nothing(status):
    return lambda *arguments: (status,)


def _handle(status):
    return lambda *arguments: (status, next(_handles))


def _value(status, value):
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
        cudaGetLastError=_nothing(ok),
        cudaDriverGetVersion=_value(ok, 13000),
        cudaRuntimeGetVersion=_value(ok, 13000),
        cudaGetDeviceCount=_value(ok, 1),
        cudaSetDevice=_nothing(ok),
        cudaDeviceGetAttribute=lambda attribute, index: (ok, attributes[attribute]),
        cudaGetDeviceProperties=_value(ok, SimpleNamespace(name=b'Stand-in')),
        cudaMemGetInfo=_value_pair(ok, 3 * 2**30, 8 * 2**30),
        cudaDeviceSynchronize=_nothing(ok),
        cudaStreamCreateWithFlags=_handle(ok),
        cudaStreamSynchronize=_nothing(ok),
        cudaStreamWaitEvent=_nothing(ok),
        cudaStreamDestroy=_nothing(ok),
        cudaEventCreateWithFlags=_handle(ok),
        cudaEventRecord=_nothing(ok),
        cudaEventQuery=_nothing(ok),
        cudaEventSynchronize=_nothing(ok),
        cudaEventElapsedTime=_value(ok, 1.5),
        cudaEventDestroy=_nothing(ok),
        cudaMalloc=_handle(ok),
        cudaFree=_nothing(ok),
        cudaHostAlloc=host_alloc,
        cudaHostGetDevicePointer=lambda address, flags: (ok, address),
        cudaFreeHost=free_host,
        cudaMemcpyAsync=_nothing(ok),
        cudaMemcpy2DAsync=_nothing(ok),
        cudaMemsetAsync=_nothing(ok),
        cudaStreamBeginCapture=_nothing(ok),
        cudaStreamEndCapture=_handle(ok),
        cudaGraphInstantiate=_handle(ok),
        cudaGraphDestroy=_nothing(ok),
        cudaGraphLaunch=_nothing(ok),
        cudaGraphExecDestroy=_nothing(ok),
    )


def _value_pair(status, first, second):
    return lambda *arguments: (status, first, second)


def driver():
    """Return the stand-in for cuda.bindings.driver."""
    ok = CUresult.CUDA_SUCCESS
    return SimpleNamespace(
        CUresult=CUresult,
        CUfunction=int,
        cuLibraryLoadData=_handle(ok),
        cuLibraryGetKernel=_handle(ok),
        cuKernelGetFunction=_handle(ok),
        cuLaunchKernel=_nothing(ok),
        cuLibraryUnload=_nothing(ok),
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
        nvrtcVersion=_value_pair(ok, 13, 0),
        nvrtcCreateProgram=_handle(ok),
        nvrtcCompileProgram=_nothing(nvrtcResult.NVRTC_ERROR_COMPILATION if log else ok),
        nvrtcGetProgramLogSize=_value(ok, len(log) + 1),
        nvrtcGetProgramLog=get_log,
        nvrtcGetCUBINSize=_value(ok, 4),
        nvrtcGetCUBIN=_nothing(ok),
        nvrtcDestroyProgram=_nothing(ok),
    )


def bindings(*, integrated=False, log=b''):
    """Return (driver, nvrtc, runtime), as ``trt_perception.gpu`` expects them."""
    return driver(), nvrtc(log=log), runtime(integrated=integrated)
