# SPDX-License-Identifier: Apache-2.0
"""Make a model whose outputs can be computed by hand.

The score of class red is the mean of the red channel, from 0 to 1; green and blue likewise. The
boxes are fixed. So a black picture has no detections, and the size of a picture of one colour does
not change its detections.
"""

import numpy as np

from support.models.stored_models import stored_model
from support.models.written_manifest import write_manifest
from trt_perception.model.decoders.anchors import Dense

CLASS_NAMES = ('red', 'green', 'blue')
NETWORK_WH = (64, 48)
# Class and box of each anchor: centre x, centre y, width and height in network pixels. The second
# red box overlaps the first with an IoU of 1/3 and has 0.9 of its score.
ANCHORS = (
    ('red', (16.5, 12.25, 8.0, 6.0), 1.0),
    ('red', (20.5, 12.25, 8.0, 6.0), 0.9),
    ('green', (48.0, 12.0, 10.0, 9.0), 1.0),
    ('blue', (32.0, 36.0, 20.5, 8.0), 1.0),
)


def expected_detections(rgb, image_wh, threshold=0.25, classes=CLASS_NAMES):
    """Return the detections in a picture of one colour, highest score first.

    Each detection is (class name, score, box). The box is (centre x, centre y, width, height) in
    pixels of the picture.

    Args:
        rgb: colour of the picture, 0 to 255.
        image_wh: size of the picture, in the network's aspect ratio of 4:3.
        threshold: lowest score, exclusive.
        classes: names of the classes to return.
    """
    factor = image_wh[0] / NETWORK_WH[0]
    assert factor == image_wh[1] / NETWORK_WH[1], 'the letterbox would add grey bars'
    found = [
        (name, weight * rgb[CLASS_NAMES.index(name)] / 255, tuple(factor * side for side in box))
        for name, box, weight in ANCHORS
    ]
    found = [entry for entry in found if entry[1] > threshold and entry[0] in classes]
    return sorted(found, key=lambda entry: -entry[1])


def make_tiny_model(batch=1):
    """Return the bytes of the ONNX file. Requires the onnx package."""
    from onnx import TensorProto, helper, numpy_helper

    width, height = NETWORK_WH
    count, anchors = len(CLASS_NAMES), len(ANCHORS)
    boxes = np.array([[box for _, box, _ in ANCHORS]] * batch, np.float32).transpose(0, 2, 1)
    weights = np.zeros((1, count, anchors), np.float32)
    for index, (name, _, weight) in enumerate(ANCHORS):
        weights[0, CLASS_NAMES.index(name), index] = weight
    graph = helper.make_graph(
        [
            helper.make_node('ReduceMean', ['images', 'axes'], ['means'], keepdims=1),
            helper.make_node('Reshape', ['means', 'column'], ['levels']),
            helper.make_node('Mul', ['levels', 'weights'], ['scores']),
            helper.make_node('Concat', ['boxes', 'scores'], ['output'], axis=1),
        ],
        'tiny',
        [helper.make_tensor_value_info('images', TensorProto.FLOAT, (batch, 3, height, width))],
        [helper.make_tensor_value_info('output', TensorProto.FLOAT, (batch, 4 + count, anchors))],
        [
            numpy_helper.from_array(array, name)
            for name, array in (
                ('axes', np.array([2, 3], np.int64)),
                ('column', np.array([batch, count, 1], np.int64)),
                ('weights', weights),
                ('boxes', boxes),
            )
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 18)], ir_version=9)
    return model.SerializeToString()


def write_tiny_model(path, *, manifest=True, batch=1):
    """Write the ONNX file and its manifest; a batch above 1 needs the onnx package."""
    path.write_bytes(stored_model('tiny.onnx') if batch == 1 else make_tiny_model(batch))
    if manifest:
        width, height = NETWORK_WH
        image = 'images', (batch, 3, height, width), 'float32'
        output = 'output', (batch, 4 + len(CLASS_NAMES), len(ANCHORS)), 'float32'
        write_manifest(path, NETWORK_WH, image, output, Dense(), CLASS_NAMES)
    return path
