"""What a graph of half precision computes, for runtimes that compute it in float32.

ONNX Runtime's kernels on a CPU take float16 tensors and compute rows of layers in float32: what
overflows or loses bits on a GPU does neither there. In a rounded graph every result is a float32
that went through its own type.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ['emulate_rounding']

_HALF: Final = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def emulate_rounding(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the same graph in float32, in which each result is rounded to its own type.

    Args:
        model: with types in its graph; inputs and outputs keep theirs. Not changed.
    """
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    graph = copied.graph
    inferred = onnx.shape_inference.infer_shapes(model).graph
    ends = {entry.name: entry.type.tensor_type.elem_type for entry in graph.output}
    half = {
        entry.name: entry.type.tensor_type.elem_type
        for entry in (*inferred.value_info, *graph.input, *graph.output)
        if entry.type.tensor_type.elem_type in _HALF
    }
    for tensor in graph.initializer:
        if tensor.data_type in _HALF:
            wide = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
            half.pop(tensor.name, None)
    given = {entry.name for entry in graph.input}
    nodes = [_cast(name, f'{name}_wide', TensorProto.FLOAT) for name in half if name in given]
    for node in graph.node:
        if node.op_type == 'Cast' and node.attribute[0].i in _HALF:
            node.attribute[0].i = TensorProto.FLOAT
        for index, name in enumerate(node.input):
            if name in half:
                node.input[index] = f'{name}_wide'
        results = [name for name in node.output if name in half]
        for index, name in enumerate(node.output):
            if name in half:
                node.output[index] = f'{name}_exact'
        nodes.append(node)
        for name in results:
            narrow = name if name in ends else f'{name}_narrow'
            nodes.append(_cast(f'{name}_exact', narrow, half[name]))
            nodes.append(_cast(narrow, f'{name}_wide', TensorProto.FLOAT))
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.value_info[:]
    return copied


def _cast(source: str, target: str, kind: int) -> onnx.NodeProto:
    return helper.make_node('Cast', [source], [target], name=f'{target}_cast', to=kind)
