"""CUDA under observation: which calls come, what they made is released, and any of them can fail.

It stands between ``trt_perception.gpu`` and the bindings: those of the machine, or the stand-in of
``fake_cuda``.
"""

from __future__ import annotations

# What makes something, and what must be called with it in the end.
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
RELEASES = {release: make for make, release in RELEASED_BY.items()}
# They ask about a failure or clear it.
AFTERWARDS = {'cudaGetErrorString', 'cudaGetLastError'}


class Recorder:
    """Records calls and what they made.

    Attributes:
        calls: names of the calls that can fail, in order; releases are not among them.
        live: (call that made it, handle) of everything that was not released yet.
        mistakes: releases of what was not there.
        fails: given the index and the name of a call, tells what status it returns, None to let
            it through.
    """

    def __init__(self, bindings):
        self.calls = []
        self.live = set()
        self.mistakes = []
        self.fails = lambda index, name: None
        self.modules = tuple(_Recorded(self, module) for module in bindings)

    def kinds(self):
        """Return the calls whose things are still there, sorted."""
        return sorted(make for make, _ in self.live)


class _Recorded:
    """A module of bindings whose functions are recorded."""

    def __init__(self, recorder, module):
        self._recorder = recorder
        self._module = module

    def __getattr__(self, name):
        value = getattr(self._module, name)
        if isinstance(value, type) or not callable(value) or name in AFTERWARDS:
            return value
        return lambda *arguments: self._call(name, value, arguments)

    def _call(self, name, function, arguments):
        recorder = self._recorder
        if name in RELEASES:
            # A library that was lost with its GPU is gone, whatever the call says.
            key = (RELEASES[name], int(arguments[0]))
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
        """Return a status by the runtime's name, as the module of the call spells it."""
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
