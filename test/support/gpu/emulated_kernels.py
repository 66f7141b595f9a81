# SPDX-License-Identifier: Apache-2.0
"""Compile all kernels of the frame path for the CPU, with CUDA's blocks, warps and barriers.

NVRTC gets the same source. Each thread of a block is a coroutine, which runs until it waits for
its warp or block. Blocks run one after the other. A barrier that some threads do not reach ends
the process. Effects that only a GPU shows, such as races, are tested in test/gpu.
"""

import ctypes
import re
from types import SimpleNamespace
from unittest import mock

from support.gpu.host_kernels import CONVERSIONS_SOURCE, compiled_library
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.stages import gpu_kernels

_SOURCE_BEFORE_KERNELS = """
#undef _FORTIFY_SOURCE  // it reports a jump to another stack as an error
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#define __device__
#define __global__
#define __shared__ static
#define __forceinline__ inline
using std::abs;
template <typename T> static inline T max(T one, T other) { return one < other ? other : one; }
template <typename T> static inline T min(T one, T other) { return other < one ? other : one; }

struct Index { int x, y, z; };
enum State { READY, WAITS_FOR_WARP, WAITS_FOR_BLOCK, DONE };
struct Thread {
    ucontext_t context;  // only for the start: each swapcontext would be a system call
    jmp_buf waits_at;
    bool begun;
    char stack[64 * 1024];
    Index index;
    State state;
};
static Thread threads[1024];
static jmp_buf scheduler;
static int current;
static void (*kernel)();
static Index blockIdx, blockDim, gridDim;
#define threadIdx (threads[current].index)

static void wait_for(State state) {
    threads[current].state = state;
    if (!_setjmp(threads[current].waits_at)) _longjmp(scheduler, 1);
}
static void enter() {
    for (;;) {  // one block after the other
        kernel();
        wait_for(DONE);
    }
}
static void resume() {
    if (_setjmp(scheduler)) return;
    Thread& thread = threads[current];
    if (thread.begun) _longjmp(thread.waits_at, 1);
    thread.begun = true;
    setcontext(&thread.context);
}
static inline void __syncthreads() { wait_for(WAITS_FOR_BLOCK); }
static inline void __syncwarp() { wait_for(WAITS_FOR_WARP); }

// The value that each thread gives to the other threads of its warp.
static uint64_t given[1024];
template <typename T> static T __shfl_sync(unsigned, T value, int lane) {
    given[current] = (uint64_t)value;
    __syncwarp();
    const T taken = (T)given[current / 32 * 32 + lane];
    __syncwarp();
    return taken;
}
static unsigned __ballot_sync(unsigned, bool vote) {
    given[current] = vote;
    __syncwarp();
    unsigned bits = 0;
    const uint64_t* votes = given + current / 32 * 32;
    for (int lane = 0; lane < 32; ++lane) bits |= (unsigned)votes[lane] << lane;
    __syncwarp();
    return bits;
}
template <typename T> static T atomicAdd(T* at, T value) {
    const T old = *at;
    *at += value;
    return old;
}
template <typename T> static T atomicOr(T* at, T value) {
    const T old = *at;
    *at |= value;
    return old;
}
static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
static inline int __ffs(unsigned bits) { return __builtin_ffs((int)bits); }

"""
_THREAD_SCHEDULER_SOURCE = """

static bool all_of(int first, int last, State state) {
    bool any = false;
    for (int i = first; i < last; ++i) {
        if (threads[i].state == DONE) continue;
        if (threads[i].state != state) return false;
        any = true;
    }
    return any;
}
static void release(int first, int last) {
    for (int i = first; i < last; ++i)
        if (threads[i].state != DONE) threads[i].state = READY;
}
static void run_block() {
    const int count = blockDim.x * blockDim.y;
    for (int i = 0; i < count; ++i) {
        Thread& thread = threads[i];
        thread.index = {i % blockDim.x, i / blockDim.x, 0};
        thread.state = READY;
        if (thread.begun) continue;
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack;
        thread.context.uc_stack.ss_size = sizeof thread.stack;
        thread.context.uc_link = nullptr;
        makecontext(&thread.context, enter, 0);
    }
    for (;;) {
        for (current = 0; current < count; ++current)
            if (threads[current].state == READY) resume();
        if (all_of(0, count, WAITS_FOR_BLOCK)) { release(0, count); continue; }
        bool released = false, alive = false;
        for (int first = 0; first < count; first += 32) {
            const int last = min(first + 32, count);
            if (all_of(first, last, WAITS_FOR_WARP)) {
                release(first, last);
                released = true;
            }
            for (int i = first; i < last; ++i) alive |= threads[i].state != DONE;
        }
        if (!alive) return;
        if (!released) {
            std::fprintf(stderr, "some threads do not reach a barrier\\n");
            std::abort();
        }
    }
}
static void run_grid(const int* sizes) {
    gridDim = {sizes[0], sizes[1], sizes[2]};
    blockDim = {sizes[3], sizes[4], sizes[5]};
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) run_block();
}
"""
_KERNEL_PATTERN = re.compile(r'extern "C" __global__ void (\w+)\(([^)]*)\)')


def _entry_source(name, parameters):
    """Return C++ code that runs a kernel over a grid."""
    names = ', '.join(each.split()[-1].lstrip('*') for each in parameters.split(','))
    return (
        f'extern "C" void run_{name}(const int* sizes, {parameters}) {{\n'
        f'    auto launched = [=] {{ {name}({names}); }};\n'
        '    static decltype(launched)* held;\n'
        '    held = &launched;\n'
        '    kernel = [] { (*held)(); };\n'
        '    run_grid(sizes);\n}\n'
    )


class _Emulated:
    """Runs the emulated kernels, with the interface of Kernels."""

    def __init__(self, library):
        self._library = library

    def launch(self, name, grid, block, arguments, stream):
        sizes = (ctypes.c_int * 6)(*grid, *block)
        run = getattr(self._library, f'run_{name}')
        run(sizes, *(kind(value) for value, kind in arguments))

    def close(self):
        pass


def emulated_kernels(spec, **limits):
    """Return FrameKernels whose launches run immediately, on host addresses."""
    device = SimpleNamespace(compute_capability=(8, 7))
    with (
        mock.patch.object(gpu_kernels, 'compile_kernels') as compiled,
        mock.patch.object(gpu_kernels, 'Kernels'),
    ):
        kernels = gpu_kernels.FrameKernels(device, spec, DecodingLimits(**limits))
    text = compiled.call_args.args[0]
    entries = ''.join(_entry_source(*found) for found in _KERNEL_PATTERN.findall(text))
    library = compiled_library(
        _SOURCE_BEFORE_KERNELS + CONVERSIONS_SOURCE + _THREAD_SCHEDULER_SOURCE + text + entries,
        '-w',
    )
    kernels._kernels = _Emulated(library)
    return kernels
