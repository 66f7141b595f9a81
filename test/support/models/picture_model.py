# SPDX-License-Identifier: Apache-2.0
"""Make a detector whose boxes are the pixels of the picture, so that a test chooses the boxes.

Row i of the picture holds box i: centre x, centre y, width and height in network pixels, and the
scores of the two classes from 0 to 255. Rows of zeros hold no box.
"""

import numpy as np

from support.models.written_manifest import write_manifest
from trt_perception.model.decoders.anchors import Dense

CLASS_NAMES = ('person', 'car')
NETWORK_WH = (64, 48)
_VALUES = 4 + len(CLASS_NAMES)


def write_picture_model(path):
    """Write the ONNX file and its manifest. Requires the onnx package."""
    from onnx import TensorProto, helper, numpy_helper

    width, height = NETWORK_WH
    constants = {
        'starts': np.array([0, 0, 0, 0], np.int64),
        'ends': np.array([1, 1, height, _VALUES], np.int64),
        'shape': np.array([1, height, _VALUES], np.int64),
        'scale': np.array([255] * 4 + [1] * len(CLASS_NAMES), np.float32),
    }
    nodes = [
        helper.make_node('Slice', ['images', 'starts', 'ends'], ['values']),
        helper.make_node('Reshape', ['values', 'shape'], ['rows']),
        helper.make_node('Mul', ['rows', 'scale'], ['scaled']),
        helper.make_node('Transpose', ['scaled'], ['output'], perm=[0, 2, 1]),
    ]
    image = 'images', (1, 3, height, width), 'float32'
    output = 'output', (1, _VALUES, height), 'float32'
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape, _ in (image, output)
    ]
    graph = helper.make_graph(
        nodes,
        'picture',
        tensors[:1],
        tensors[1:],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    write_manifest(path, NETWORK_WH, image, output, Dense(), CLASS_NAMES)
    return path


def picture_with(boxes, scale=1):
    """Return the picture for boxes: uint8 (48 * scale, 64 * scale, 3).

    Args:
        boxes: rows of centre x, centre y, width, height (whole network pixels), score (0 to 1),
            and class, which may be left out if it is 0.
        scale: enlarges the picture. The boxes in pixels of the picture grow with it.
    """
    picture = np.zeros((NETWORK_WH[1], NETWORK_WH[0], 3), np.uint8)
    for row, (*box, score) in zip(picture, (each[:5] for each in boxes), strict=False):
        row[:4] = np.array(box)[:, None]
        row[4] = round(255 * score)
    for row, box in zip(picture, boxes, strict=False):
        if box[5:] == (1,):
            row[5], row[4] = row[4], 0
    return picture.repeat(scale, axis=0).repeat(scale, axis=1)
