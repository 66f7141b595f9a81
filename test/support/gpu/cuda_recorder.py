# SPDX-License-Identifier: Apache-2.0
"""Record CUDA calls, check that their resources are released, and let any call fail.

The recorder is between ``trt_perception.gpu`` and the bindings. These are the real bindings or the
stand-ins of ``fake_cuda``.
"""

from __future__ import annotations

# Calls that create a resource, and the call that must release it.
RELEASED_BY = {
    'cudaMalloc': 'cudaFree',
    'cudaHostAlloc': 'cudaFreeHost',
    'cudaStreamCreateWithFlags': 'cudaStreamDestroy',
    'cudaEventCreateWithFlags': 'cudaEventDestroy',
    'cudaStreamEndCapture': 'cudaGraphDestroy',
    'cudaGraphInstantiate': 'cudaGraphExecDestroy',
    'cuLibraryLoadData': 'cuLibraryUnload',
    'nvrtcCreateProgram': 'nvrtcDestroyProgram',
}
CREATED_BY = {release: make for make, release in RELEASED_BY.items()}
# Calls that report or clear an error. The recorder does not record them.
UNRECORDED_CALLS = {'cudaGetErrorString', 'cudaGetLastError'}


class Recorder:
    """Records calls of CUDA, and the resources that the calls create and release.

    Attributes:
        calls: names of the calls that can fail, in order, without releases.
        live: (creating call, handle) of each resource that was not released.
        mistakes: releases of unknown resources.
        fails: function that gets the index and the name of a call. It returns the error status of
            a call that fails, or None for a normal call.
    """

    def __init__(self, bindings):
        self.calls = []
        self.live = set()
        self.mistakes = []
        self.fails = lambda index, name: None
        self.modules = tuple(_Recorded(self, module) for module in bindings)

    def kinds(self):
        """Return the sorted names of the calls whose resources are not released."""
        return sorted(make for make, _ in self.live)


class _Recorded:
    """Wraps a module of the bindings, and records the calls of its functions."""

    def __init__(self, recorder, module):
        self._recorder = recorder
        self._module = module

    def __getattr__(self, name):
        value = getattr(self._module, name)
        if isinstance(value, type) or not callable(value) or name in UNRECORDED_CALLS:
            return value
        return lambda *arguments: self._call(name, value, arguments)

    def _call(self, name, function, arguments):
        recorder = self._recorder
        if name in CREATED_BY:
            # On a lost GPU, the library is unloaded even if the call fails.
            key = (CREATED_BY[name], int(arguments[0]))
            if key not in recorder.live:
                recorder.mistakes.append((name, key))
            recorder.live.discard(key)
            return function(*arguments)
        index = len(recorder.calls)
        recorder.calls.append(name)
        status = recorder.fails(index, name)
        if status is not None:
            return (self._status(name, status),)
        result = function(*arguments)
        if name in RELEASED_BY and int(result[0]) == 0:
            recorder.live.add((name, int(result[1])))
        return result

    def _status(self, name, status):
        """Return the status that the called library uses for a status of the CUDA runtime."""
        if name.startswith('cuda'):
            return getattr(self._module.cudaError_t, status)
        if name.startswith('nvrtc'):
            return self._module.nvrtcResult.NVRTC_ERROR_OUT_OF_MEMORY
        return getattr(
            self._module.CUresult,
            {
                'cudaErrorMemoryAllocation': 'CUDA_ERROR_OUT_OF_MEMORY',
                'cudaErrorIllegalAddress': 'CUDA_ERROR_ILLEGAL_ADDRESS',
            }[status],
        )
