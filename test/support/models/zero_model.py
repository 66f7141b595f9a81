# SPDX-License-Identifier: Apache-2.0
"""Write a model of any inputs and outputs, whose outputs are 0."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def write_zero_model(path, inputs, outputs):
    """Write a model with these inputs and outputs.

    Args:
        inputs: shape of each input, with -1 for a dynamic dimension. Two axes are whole numbers.
        outputs: shape of each output.
    """
    infos = [
        helper.make_tensor_value_info(
            name,
            TensorProto.INT64 if len(shape) == 2 else TensorProto.FLOAT,
            [side if side > 0 else f'{name} {axis}' for axis, side in enumerate(shape)],
        )
        for name, shape in inputs.items()
    ]
    graph = helper.make_graph(
        [helper.make_node('ConstantOfShape', [f'{name} shape'], [name]) for name in outputs],
        'zeros',
        infos,
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in outputs.items()
        ],
        [
            numpy_helper.from_array(np.array(shape, np.int64), f'{name} shape')
            for name, shape in outputs.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path
