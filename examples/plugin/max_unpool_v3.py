# SPDX-License-Identifier: Apache-2.0
"""MaxUnpool of ONNX as a TensorRT plugin in Python, IPluginV3. Needs TensorRT 10.12 or newer.

Not run by us with TensorRT. Use: build_engine --onnx model.onnx --plugins max_unpool_v3.py
"""

from ctypes import c_int, c_void_p
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import tensorrt as trt

from trt_perception.gpu import Device, Kernels, compile_kernels

SOURCE = Path(__file__).with_name('max_unpool.cu').read_text()
TYPES = (trt.DataType.FLOAT, trt.DataType.INT64, trt.DataType.FLOAT)  # values, indices, result
DEFAULTS = {'kernel_shape': [1, 1], 'pads': [0, 0, 0, 0], 'strides': [1, 1]}
INT32 = trt.PluginFieldType.INT32
BASES = trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime


@cache
def load_kernels(*values):
    source = f'#define ATTRIBUTES {",".join(map(str, values))}\n{SOURCE}'
    return Kernels(compile_kernels(source, Device(0).compute_capability))


class MaxUnpool(*BASES):
    def __init__(self, attributes):
        for base in BASES:
            base.__init__(self)
        self.plugin_name, self.plugin_version, self.plugin_namespace = 'MaxUnpool', '1', ''
        self.num_outputs, self.attributes = 1, attributes

    def get_capability_interface(self, kind):
        return self

    def get_output_data_types(self, input_types):
        return [input_types[0]]

    def get_output_shapes(self, inputs, shape_inputs, builder):
        output, (kernel, pads, strides) = trt.DimsExprs(inputs[0]), self.attributes.values()
        added = kernel - strides - pads[:2] - pads[2:]
        for axis in range(2):
            stride, rest = (builder.constant(int(v[axis])) for v in (strides, added))
            size = builder.operation(trt.DimensionOperation.PROD, inputs[0][axis + 2], stride)
            output[axis + 2] = builder.operation(trt.DimensionOperation.SUM, size, rest)
        return [output]

    def supports_format_combination(self, index, tensors, input_count):
        tensor = tensors[index].desc
        return tensor.type == TYPES[index] and tensor.format == trt.TensorFormat.LINEAR

    def configure_plugin(self, inputs, outputs):
        pass

    on_shape_change = configure_plugin

    def get_fields_to_serialize(self):
        fields = [trt.PluginField(*item, INT32) for item in self.attributes.items()]
        return trt.PluginFieldCollection(fields)

    def clone(self, context=None):
        return MaxUnpool(self.attributes)

    attach_to_context = clone

    def enqueue(self, input_desc, output_desc, inputs, outputs, workspace, stream):
        count, channels, height, width = input_desc[0].dims
        grid = (-(-int(np.prod(output_desc[0].dims)) // 256), 1, 1)
        numbers = [(value, c_int) for value in (count * channels, height, width)]
        x, indices, y = ((pointer, c_void_p) for pointer in (*inputs, *outputs))
        kernels = load_kernels(*map(int, np.concatenate(list(self.attributes.values()))))
        launch = 'max_unpool', grid, (256, 1, 1), [x, indices, *numbers, y]
        kernels.launch(*launch, SimpleNamespace(handle=stream))


class Creator(trt.IPluginCreatorV3One):
    def __init__(self):
        trt.IPluginCreatorV3One.__init__(self)
        self.name, self.plugin_version, self.plugin_namespace = 'MaxUnpool', '1', ''
        fields = [trt.PluginField(name, np.array([], np.int32), INT32) for name in DEFAULTS]
        self.field_names = trt.PluginFieldCollection(fields)

    def create_plugin(self, name, fields, phase):
        values = DEFAULTS | {field.name: field.data for field in fields}
        return MaxUnpool({name: np.array(values[name], np.int32) for name in DEFAULTS})


CREATORS = [Creator()]
