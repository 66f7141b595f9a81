# SPDX-License-Identifier: Apache-2.0
"""Compile the letterbox kernel for the CPU, to test its arithmetic without a GPU.

NVRTC gets the same source. A few lines of C++ replace CUDA's own functions. Threads run one after
the other. test_gpu_kernels.py tests effects that only a GPU shows.
"""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.tensors import TensorSpec
from trt_perception.model.thresholds import Thresholds
from trt_perception.stages import gpu_kernels
from trt_perception.stages.frame_header import batch_table

COMPILER = shutil.which('c++')
_LIBRARY_FOLDER = Path(__file__).resolve().parents[3] / '.env' / 'kernels'
needs_compiler = pytest.mark.skipif(COMPILER is None, reason='needs a C++ compiler, c++')

#: C++ replacements of CUDA's type conversions. The code needs <cmath> and <cstring>.
CONVERSIONS_SOURCE = """
template <typename To, typename From> static inline To bits_of(From value) {
    To result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}
static inline float __int_as_float(int value) { return bits_of<float>(value); }
static inline float __uint_as_float(unsigned value) { return bits_of<float>(value); }
static inline unsigned __float_as_uint(float value) { return bits_of<unsigned>(value); }
static inline int __float2int_rn(float value) { return (int)std::nearbyint(value); }
"""
_SOURCE_BEFORE_KERNEL = """
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#define __device__
#define __global__
#define __forceinline__ inline
using std::abs;
using std::max;
using std::min;
struct Index { int x, y, z; };
static Index blockIdx, blockDim, threadIdx;
"""
_SOURCE_AFTER_KERNEL = """
extern "C" void run(const Batch* batch, INPUT_T* tensor, int most) {
    blockDim = {1, 1, 1};
    for (blockIdx.z = 0; blockIdx.z < most; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < NET_HEIGHT; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < NET_WIDTH; ++blockIdx.x) letterbox(batch, tensor);
}
"""


def compiled_library(text, *flags):
    """Return the library of a C++ source. It is compiled once for all runs in this checkout."""
    flags = ('-std=c++17', '-O1', '-ffp-contract=off', '-shared', '-fPIC', *flags)
    digest = hashlib.sha256('\0'.join((COMPILER, *flags, text)).encode()).hexdigest()
    library = _LIBRARY_FOLDER / f'{digest}.so'
    if not library.exists():
        _LIBRARY_FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_LIBRARY_FOLDER) as folder:
            source, made = Path(folder, 'kernels.cpp'), Path(folder, 'kernels.so')
            source.write_text(text)
            subprocess.run([COMPILER, *flags, source, '-o', made], check=True)
            made.rename(library)  # atomic
    return ctypes.CDLL(str(library))


class HostLetterbox:
    """Runs the letterbox kernel of one preprocessing on the CPU. Call the object with a frame."""

    def __init__(self, preprocessing):
        self._preprocessing = preprocessing
        width, height = preprocessing.input_size
        self._shape = (1, 3, height, width)
        spec = ModelSpec(
            TensorSpec('images', self._shape, 'float32'),
            (TensorSpec('output0', (1, 300, 6), 'float32'),),
            preprocessing,
            PRESETS['end_to_end'].decoder,  # has no kernels, so only the letterbox is compiled
            ('thing',),
            True,
        )
        device = SimpleNamespace(compute_capability=(8, 7))
        with (
            mock.patch.object(gpu_kernels, 'compile_kernels') as compiled,
            mock.patch.object(gpu_kernels, 'Kernels'),
        ):
            kernels = gpu_kernels.FrameKernels(device, spec, DecodingLimits())
        self._header = kernels.header
        text = (
            _SOURCE_BEFORE_KERNEL
            + CONVERSIONS_SOURCE
            + compiled.call_args.args[0]
            + _SOURCE_AFTER_KERNEL
        )
        self._run = compiled_library(text).run
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]

    def __call__(self, frame):
        """Return the input tensor, float32 (1, 3, height, width)."""
        geometry = self._preprocessing.letterbox((frame.width, frame.height))
        header = np.zeros(self._header.size, np.uint8)
        pixels = np.ascontiguousarray(frame.data)
        content = self._header.content(frame, geometry, Thresholds())
        self._header.write(header, content, pixels.ctypes.data - header.ctypes.data)
        tensor = np.full(self._shape, np.nan, np.float32)
        batch = batch_table([header.ctypes.data])
        self.launch(batch.ctypes.data, tensor.ctypes.data, 1)
        return tensor

    def launch(self, batch, tensor, most):
        """Run the kernel for ``most`` frames. ``batch`` and ``tensor`` are addresses."""
        self._run(batch, tensor, most)
