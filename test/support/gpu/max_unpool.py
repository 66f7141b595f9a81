# SPDX-License-Identifier: Apache-2.0
"""Run the kernel of examples/plugin, and ONNX's reference evaluator, on the same inputs."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

FOLDER = Path(__file__).resolve().parents[3] / 'examples' / 'plugin'
#: Shape of the larger image, kernel, pads (top, left, bottom, right), strides.
CASES = [
    ((1, 1, 7, 9), (3, 3), (0, 0, 0, 0), (2, 2)),
    ((2, 3, 13, 17), (3, 5), (0, 0, 0, 0), (1, 3)),
    ((1, 5, 11, 9), (3, 3), (1, 1, 1, 1), (2, 2)),
    ((2, 2, 17, 23), (4, 3), (1, 0, 2, 1), (3, 1)),
    ((3, 1, 9, 5), (2, 1), (0, 0, 1, 0), (2, 2)),
    ((1, 1, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
]


def pooled(shape, kernel, pads, strides):
    """Return the maxima of each window of a random image and their indices, float32 and int64."""
    image = np.random.default_rng(sum(shape)).permutation(np.prod(shape)) + 1.0
    image = image.astype(np.float32).reshape(shape)
    count, channels, height, width = shape
    rows = (height + pads[0] + pads[2] - kernel[0]) // strides[0] + 1
    columns = (width + pads[1] + pads[3] - kernel[1]) // strides[1] + 1
    # The size that MaxUnpool computes: indices count its elements.
    out = (
        (rows - 1) * strides[0] - pads[0] - pads[2] + kernel[0],
        (columns - 1) * strides[1] - pads[1] - pads[3] + kernel[1],
    )
    values = np.zeros((count, channels, rows, columns), np.float32)
    indices = np.zeros(values.shape, np.int64)
    for n, c, i, j in np.ndindex(values.shape):
        top, left = i * strides[0] - pads[0], j * strides[1] - pads[1]
        window = [
            (image[n, c, y, x], ((n * channels + c) * out[0] + y) * out[1] + x)
            for y in range(max(top, 0), min(top + kernel[0], out[0]))
            for x in range(max(left, 0), min(left + kernel[1], out[1]))
        ]
        values[n, c, i, j], indices[n, c, i, j] = max(window)
    return values, indices


def reference(values, indices, kernel, pads, strides):
    """Return the result of ONNX's reference evaluator."""
    node = helper.make_node(
        'MaxUnpool', ['x', 'i'], ['y'], kernel_shape=kernel, pads=pads, strides=strides
    )
    inputs = [
        helper.make_tensor_value_info('x', TensorProto.FLOAT, values.shape),
        helper.make_tensor_value_info('i', TensorProto.INT64, indices.shape),
    ]
    output = helper.make_tensor_value_info('y', TensorProto.FLOAT, [None] * 4)
    graph = helper.make_graph([node], 'unpool', inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 19)])
    onnx.checker.check_model(model)
    return ReferenceEvaluator(model).run(None, {'x': values, 'i': indices})[0]


def source(kernel, pads, strides):
    """Return the kernel's source for these attributes."""
    values = ','.join(map(str, (*kernel, *pads, *strides)))
    return f'#define ATTRIBUTES {values}\n' + (FOLDER / 'max_unpool.cu').read_text()
