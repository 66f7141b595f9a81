# SPDX-License-Identifier: Apache-2.0
"""The kernel of examples/plugin equals ONNX's reference evaluator on a GPU."""

from ctypes import c_int, c_void_p

import numpy as np
import pytest

from support.gpu.gpu_support import from_device, needs_gpu, to_device

pytest.importorskip('onnx', reason='needs onnx')
from support.gpu.max_unpool import CASES, pooled, reference, source
from trt_perception import gpu

pytestmark = needs_gpu


@pytest.mark.parametrize(('shape', 'kernel', 'pads', 'strides'), CASES)
def test_kernel_equals_the_reference_evaluator_on_a_gpu(shape, kernel, pads, strides):
    values, indices = pooled(shape, kernel, pads, strides)
    expected = reference(values, indices, kernel, pads, strides)
    count, channels, height, width = values.shape
    cubin = gpu.compile_kernels(source(kernel, pads, strides), gpu.Device(0).compute_capability)

    with (
        gpu.Kernels(cubin) as kernels,
        gpu.Stream() as stream,
        to_device(values) as x,
        to_device(indices) as positions,
        to_device(np.full(expected.shape, np.nan, np.float32)) as y,
    ):
        sizes = [(value, c_int) for value in (count * channels, height, width)]
        pointers = [(buffer.pointer, c_void_p) for buffer in (x, positions, y)]
        blocks = -(-expected.size // 256)
        arguments = [*pointers[:2], *sizes, pointers[2]]
        kernels.launch('max_unpool', (blocks, 1, 1), (256, 1, 1), arguments, stream)
        stream.synchronize()
        found = from_device(y.pointer, np.float32, expected.shape)

    np.testing.assert_array_equal(found, expected)
