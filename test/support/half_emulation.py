"""FP16 and BF16 graphs as float32 ones whose results are rounded, for runtimes without kernels."""

import numpy as np
import onnx
from onnx import TensorProto
from onnx import helper
from onnx import numpy_helper

HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def in_float32(model):
    """Return a model of the same graph in float32; each result is rounded to its own type."""
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    inferred = onnx.shape_inference.infer_shapes(model).graph
    half = {
        entry.name: entry.type.tensor_type.elem_type
        for entry in inferred.value_info
        if entry.type.tensor_type.elem_type in HALF
    }
    for tensor in copied.graph.initializer:
        if tensor.data_type in HALF:
            wide = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    nodes = []
    for node in copied.graph.node:
        if node.op_type == 'Cast' and node.attribute[0].i in HALF:
            node.attribute[0].i = TensorProto.FLOAT
        rounded = [name for name in node.output if name in half]
        for index, name in enumerate(node.output):
            if name in half:
                node.output[index] = name + '_exact'
        nodes.append(node)
        for name in rounded:
            nodes.append(helper.make_node('Cast', [name + '_exact'], [name + '_r'], to=half[name]))
            nodes.append(helper.make_node('Cast', [name + '_r'], [name], to=TensorProto.FLOAT))
    del copied.graph.node[:]
    copied.graph.node.extend(nodes)
    return copied
