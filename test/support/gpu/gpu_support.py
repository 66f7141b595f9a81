# SPDX-License-Identifier: Apache-2.0
"""Share parts of GPU tests: reasons to skip tests, copies of arrays, and builds of plans."""

from __future__ import annotations

import functools
import os
from contextlib import ExitStack

import numpy as np
import pytest

from trt_perception import gpu
from trt_perception.errors import CudaError
from trt_perception.gpu.nvjpeg import load_nvjpeg

# Compared float32 results must be float32. TensorRT-RTX 1.4 uses TF32 regardless of its builder
# flag, which moved scores by 3e-3. The variable must be equal at build time and run time.
os.environ.setdefault('NVIDIA_TF32_OVERRIDE', '0')


@functools.cache
def why_no_gpu():
    """Return the reason why no GPU is usable; empty if a GPU is usable."""
    try:
        gpu.Device(0)
    except Exception as error:
        return f'needs an NVIDIA GPU with driver and cuda-python: {error}'
    return ''


@functools.cache
def why_no_tensorrt():
    """Return the reason why engines cannot be built and run here; empty if they can."""
    if why_no_gpu():
        return why_no_gpu()
    return '' if tensorrt() is not None else 'needs tensorrt or tensorrt_rtx'


@functools.cache
def tensorrt():
    """Return the installed TensorRT module, or None."""
    for name in ('tensorrt', 'tensorrt_rtx'):
        try:
            return __import__(name)
        except Exception:  # noqa: PERF203  a missing library is no ImportError
            continue
    return None


@functools.cache
def why_no_open_shapes():
    """Return the reason why engines with open shapes cannot run here; empty if they can."""
    if why_no_tensorrt():
        return why_no_tensorrt()
    # This also happens with TensorRT alone: a profile of one shape is exact, but any other profile
    # fails, or gives boxes with errors of up to 26 pixels.
    module = tensorrt()
    broken = module.__name__ == 'tensorrt_rtx' and module.__version__.startswith('1.4.')
    if broken and gpu.Device(0).compute_capability == (9, 0):
        return 'TensorRT-RTX 1.4 computes open shapes wrongly on compute capability 9.0'
    return ''


@functools.cache
def why_no_nvjpeg():
    """Return the reason why the GPU cannot decode JPEGs here; empty if it can."""
    try:
        load_nvjpeg()
    except CudaError as error:
        return str(error)
    return why_no_gpu()


needs_nvjpeg = pytest.mark.skipif(bool(why_no_nvjpeg()), reason=why_no_nvjpeg())
needs_gpu = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu())
needs_tensorrt = pytest.mark.skipif(bool(why_no_tensorrt()), reason=why_no_tensorrt())
BUILT_ON_CPU_MARKS = [
    pytest.mark.engine_build,
    pytest.mark.skipif(not why_no_gpu(), reason='there is a GPU: test_gpu_build_engine'),
]


def to_device(array):
    """Copy an array to new device memory, through pinned memory."""
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    buffer = gpu.DeviceBuffer(raw.size)
    with gpu.PinnedBuffer(raw.size) as pinned, gpu.Stream() as stream:
        pinned.array[:] = raw
        gpu.copy_async(buffer.pointer, pinned.pointer, raw.size, stream)
        stream.synchronize()
    return buffer


def from_device(pointer, dtype, shape):
    """Copy device memory back into an array."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    with gpu.PinnedBuffer(size) as pinned, gpu.Stream() as stream:
        gpu.copy_async(pinned.pointer, pointer, size, stream)
        stream.synchronize()
        return pinned.array[:size].copy().view(dtype).reshape(shape)


def build_plan(onnx_bytes, profiles=(), capabilities=()):
    """Build a plan from ONNX bytes with the installed TensorRT module.

    Args:
        onnx_bytes: the model.
        profiles: for open inputs, {input: (smallest, usual, largest shape)} of each profile.
        capabilities: for TensorRT-RTX, names of the target GPUs; empty for this GPU.
    """
    trt = tensorrt()
    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    flag = getattr(trt.NetworkDefinitionCreationFlag, 'STRONGLY_TYPED', None)
    network = builder.create_network(0 if flag is None else 1 << int(flag))
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(onnx_bytes), [str(parser.get_error(i)) for i in range(parser.num_errors)]
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    for shapes in profiles:
        profile = builder.create_optimization_profile()
        for name, (low, usual, high) in shapes.items():
            profile.set_shape(name, low, usual, high)
        config.add_optimization_profile(profile)
    if capabilities:
        config.num_compute_capabilities = len(capabilities)
        for index, name in enumerate(capabilities):
            config.set_compute_capability(getattr(trt.ComputeCapability, name), index)
    plan = builder.build_serialized_network(network, config)
    assert plan is not None
    return bytes(plan)


class Gpu:
    """A machine whose kernels use device memory. It has the methods of HostMachine."""

    def __enter__(self):
        self._stack = ExitStack()
        self.stream = self._stack.enter_context(gpu.Stream())
        self.synchronize = self.stream.synchronize
        return self

    def __exit__(self, *_):
        self._stack.close()

    def put(self, array):
        return self._stack.enter_context(to_device(array)).pointer
