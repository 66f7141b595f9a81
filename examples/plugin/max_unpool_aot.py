# SPDX-License-Identifier: Apache-2.0
"""MaxUnpool of ONNX as an ahead-of-time plugin. Needs TensorRT 10.12 or newer.

The engine contains the compiled kernel and runs without Python. The ONNX node needs all attributes
below, another domain, and plugin_namespace: see docs/plugins.md. Not run by us.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import tensorrt as trt
import tensorrt.plugin as trtp

from trt_perception.gpu import Device
from trt_perception.gpu.bindings import nvrtc_call

SOURCE = Path(__file__).with_name('max_unpool.cu').read_text()
Ints = npt.NDArray[np.int32]


def output_size(x, kernel_shape, pads, strides):
    """Return the height and width of the output as expressions of the input's shape."""
    return [
        x.shape_expr[axis + 2] * int(strides[axis])
        + int(kernel_shape[axis] - strides[axis] - pads[axis] - pads[axis + 2])
        for axis in range(2)
    ]


@trtp.register('trt_perception::MaxUnpool')
def max_unpool(
    x: trtp.TensorDesc, indices: trtp.TensorDesc, kernel_shape: Ints, pads: Ints, strides: Ints
) -> trtp.TensorDesc:
    assert (x.dtype, indices.dtype) == (trt.DataType.FLOAT, trt.DataType.INT64)
    y = x.like()
    y.shape_expr[2], y.shape_expr[3] = output_size(x, kernel_shape, pads, strides)
    return y


@trtp.aot_impl('trt_perception::MaxUnpool')
def compile_max_unpool(
    x: trtp.TensorDesc,
    indices: trtp.TensorDesc,
    kernel_shape: Ints,
    pads: Ints,
    strides: Ints,
    outputs: tuple[trtp.TensorDesc],
    tactic: int,
) -> tuple[str, bytes, trtp.KernelLaunchParams, trtp.SymIntExprs]:
    height, width = output_size(x, kernel_shape, pads, strides)
    planes = x.shape_expr[0] * x.shape_expr[1]
    launch = trtp.KernelLaunchParams()
    launch.grid_x, launch.block_x = trtp.cdiv(planes * height * width, 256), 256
    numbers = trtp.SymIntExprs(3)
    for index, value in enumerate((planes, x.shape_expr[2], x.shape_expr[3])):
        numbers[index] = trtp.SymInt32(value)
    return 'max_unpool', compile_ptx([*kernel_shape, *pads, *strides]), launch, numbers


def compile_ptx(values):
    """Return the kernel as PTX for this GPU and newer GPUs."""
    major, minor = Device(0).compute_capability
    flags = [f'--gpu-architecture=compute_{major}{minor}'.encode()]
    source = f'#define ATTRIBUTES {",".join(map(str, values))}\n{SOURCE}'
    program = nvrtc_call('nvrtcCreateProgram', source.encode(), b'max_unpool.cu', 0, [], [])
    try:
        nvrtc_call('nvrtcCompileProgram', program, len(flags), flags)
        ptx = bytes(nvrtc_call('nvrtcGetPTXSize', program))
        nvrtc_call('nvrtcGetPTX', program, ptx)
        return ptx
    finally:
        nvrtc_call('nvrtcDestroyProgram', program)
