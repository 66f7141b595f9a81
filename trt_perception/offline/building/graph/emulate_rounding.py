# SPDX-License-Identifier: Apache-2.0
"""Makes a float32 graph that computes like a graph in half precision, for ONNX Runtime on CPUs.

ONNX Runtime's CPU kernels compute several layers of a float16 graph in float32, so they neither
overflow nor round like a GPU. In the returned graph, each float32 result is converted to its type
in half precision and back.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_HALF_TYPES: Final = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def emulate_rounding(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a float32 copy of a graph that rounds each result to its type in the given graph.

    Args:
        model: model in half precision, not changed. Inputs and outputs keep their types.
    """
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    graph = copied.graph
    inferred = onnx.shape_inference.infer_shapes(model).graph
    output_types = {entry.name: entry.type.tensor_type.elem_type for entry in graph.output}
    half_types = {
        entry.name: entry.type.tensor_type.elem_type
        for entry in (*inferred.value_info, *graph.input, *graph.output)
        if entry.type.tensor_type.elem_type in _HALF_TYPES
    }
    for tensor in graph.initializer:
        if tensor.data_type in _HALF_TYPES:
            wide = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
            half_types.pop(tensor.name, None)
    input_names = {entry.name for entry in graph.input}
    nodes = [
        _cast_node(name, f'{name}_wide', TensorProto.FLOAT)
        for name in half_types
        if name in input_names
    ]
    for node in graph.node:
        if node.op_type == 'Cast' and node.attribute[0].i in _HALF_TYPES:
            node.attribute[0].i = TensorProto.FLOAT
        for index, name in enumerate(node.input):
            if name in half_types:
                node.input[index] = f'{name}_wide'
        results = [name for name in node.output if name in half_types]
        for index, name in enumerate(node.output):
            if name in half_types:
                node.output[index] = f'{name}_exact'
        nodes.append(node)
        for name in results:
            narrow = name if name in output_types else f'{name}_narrow'
            nodes.append(_cast_node(f'{name}_exact', narrow, half_types[name]))
            nodes.append(_cast_node(narrow, f'{name}_wide', TensorProto.FLOAT))
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.value_info[:]
    return copied


def _cast_node(source: str, target: str, kind: int) -> onnx.NodeProto:
    return helper.make_node('Cast', [source], [target], name=f'{target}_cast', to=kind)
