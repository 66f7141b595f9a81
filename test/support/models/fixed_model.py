# SPDX-License-Identifier: Apache-2.0
"""Make a detector of five anchors with the same boxes for all images, to test benchmarks."""

import numpy as np

from support.models.stored_models import stored_model

# The cx, cy, w, h, score of cat and score of dog of each anchor. Three anchors have a score above
# 0.25, and two of these three belong to one object.
OUTPUT_ROWS = np.array(
    [
        [20, 21, 44, 5, 60],
        [24, 24, 24, 5, 40],
        [16, 16, 12, 4, 4],
        [16, 16, 12, 4, 4],
        [0.9, 0.8, 0, 0, 0.1],
        [0, 0, 0.7, 0.2, 0],
    ],
    np.float32,
)


def small_onnx():
    """Return a model with fixed boxes, whose scores depend on the image by up to 0.001."""
    return stored_model('small.onnx')


def make_small_onnx():
    """Return the bytes of the stored model; needs the onnx package."""
    from onnx import TensorProto, helper, numpy_helper

    constants = {'rows': OUTPUT_ROWS[None], 'little': np.float32(1e-3)}
    nodes = [
        helper.make_node('ReduceMean', ['images'], ['mean'], axes=[1, 2, 3], keepdims=0),
        helper.make_node('Mul', ['mean', 'little'], ['change']),
        helper.make_node('Add', ['rows', 'change'], ['output0']),
    ]
    graph = helper.make_graph(
        nodes,
        'small',
        [helper.make_tensor_value_info('images', TensorProto.FLOAT, [1, 3, 48, 64])],
        [helper.make_tensor_value_info('output0', TensorProto.FLOAT, [1, 6, 5])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)
    return model.SerializeToString()


OUTPUTS = [{'name': 'output0', 'shape': [1, 6, 5], 'dtype': 'float32'}]
