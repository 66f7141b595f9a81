# SPDX-License-Identifier: Apache-2.0
"""Make small manifests and models for tests."""

import copy
import hashlib
import json
from pathlib import Path

import numpy as np

from support.models.stored_models import stored_model

DIGEST = 'a1' * 32

#: Size of the network input in pixels.
WIDTH, HEIGHT = 64, 48
# The model reads one anchor from each of these pixels of its input. Red is the centre and green is
# the size, both in 1/255 of 64 pixels. Blue is the score. Row 0 is class 0, row 1 is class 1.
ANCHORS = 4

MANIFEST = {
    'schema': 1,
    'onnx': {'file': 'tiny.onnx', 'sha256': DIGEST, 'size_bytes': 7},
    'engine': {'file': 'tiny.engine', 'sha256': DIGEST, 'size_bytes': 9},
    'inputs': [{'name': 'images', 'shape': [1, 3, 48, 64], 'dtype': 'float32'}],
    'outputs': [{'name': 'output0', 'shape': [1, 6, -1], 'dtype': 'float32'}],
    'preprocessing': {
        'input_size': [64, 48],
        'resize': 'letterbox',
        'pad_value': 114,
        'color_order': 'rgb',
        'scale': 0.00392156862745098,
        'mean': [0, 0.5, 0],
        'std': [1, 1, 0.25],
        'layout': 'nchw',
        'dtype': 'float32',
    },
    'decoder': {'family': 'dense', 'objectness': False, 'transposed': False},
    'class_names': ['cat', 'dog'],
    'notes': {'trained_on': 'nothing'},
}


def manifest(**changes):
    """Return a complete manifest with some top-level keys replaced."""
    return {**copy.deepcopy(MANIFEST), **changes}


def manifest_with_value(path, value):
    """Return a manifest with another value at a path of keys and indices."""
    content = copy.deepcopy(MANIFEST)
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return content


def manifest_bytes(content=None):
    return json.dumps(manifest() if content is None else content).encode()


def file_identity(name, content):
    return {
        'file': name,
        'sha256': hashlib.sha256(content).hexdigest(),
        'size_bytes': len(content),
    }


def write_model(folder, name='tiny.onnx', content=b'a model', **changes):
    """Write a model file and its manifest; return the model's path."""
    path = Path(folder) / name
    path.write_bytes(content)
    kind = 'onnx' if path.suffix == '.onnx' else 'engine'
    described = manifest(
        **{'onnx': None, 'engine': None, kind: file_identity(name, content), **changes}
    )
    path.with_name(name + '.json').write_text(json.dumps(described))
    return path


def tiny_onnx(**changes):
    """Return a model that makes boxes from the top left pixels; changes need the onnx package."""
    return make_tiny_onnx(**changes) if changes else stored_model('corner.onnx')


def make_tiny_onnx(
    shape=(1, 3, HEIGHT, WIDTH),
    dtype='FLOAT',
    output_shape=(1, 6, 2 * ANCHORS),
    hidden_rows=False,
):
    """Return the model with other inputs and outputs; needs the onnx package.

    With hidden rows, the shape leaves the number of rows open. The model always returns six.
    """
    from onnx import TensorProto, helper, numpy_helper

    dtype = TensorProto.DataType.Value(dtype)
    top_left = [0, 0, 0, 0], [1, 3, 2, ANCHORS], [0, 1, 2, 3]
    constants = {
        'starts': np.array(top_left[0]),
        'ends': np.array(top_left[1]),
        'axes': np.array(top_left[2]),
        'flat': np.array([1, 3, 2 * ANCHORS]),
        'channels': np.array([1, 1, 1]),
        'size': np.array([WIDTH], np.float32),
        'rows': np.array([[[1] * ANCHORS + [0] * ANCHORS], [[0] * ANCHORS + [1] * ANCHORS]])
        .transpose(1, 0, 2)
        .astype(np.float32),
    }
    nodes = [
        helper.make_node('Cast', ['images'], ['single'], to=TensorProto.FLOAT),
        helper.make_node('Slice', ['single', 'starts', 'ends', 'axes'], ['corner']),
        helper.make_node('Reshape', ['corner', 'flat'], ['pixels']),
        helper.make_node('Split', ['pixels', 'channels'], ['red', 'green', 'blue'], axis=1),
        helper.make_node('Mul', ['red', 'size'], ['centre']),
        helper.make_node('Mul', ['green', 'size'], ['extent']),
        helper.make_node('Mul', ['blue', 'rows'], ['scores']),
        helper.make_node(
            'Concat', ['centre', 'centre', 'extent', 'extent', 'scores'], ['wide'], axis=1
        ),
    ]
    if hidden_rows:
        nodes += [
            helper.make_node('ReduceMax', ['wide'], ['six'], axes=[2], keepdims=1),
            helper.make_node('Equal', ['six', 'six'], ['each']),
            helper.make_node('Reshape', ['each', 'line'], ['condition']),
            helper.make_node('Compress', ['wide', 'condition'], ['rows_out'], axis=1),
        ]
        constants['line'] = np.array([-1])
    last = 'rows_out' if hidden_rows else 'wide'
    nodes.append(helper.make_node('Cast', [last], ['output0'], to=dtype))
    graph = helper.make_graph(
        nodes,
        'tiny',
        [helper.make_tensor_value_info('images', dtype, shape)],
        [helper.make_tensor_value_info('output0', dtype, output_shape)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 13)], ir_version=8)
    return model.SerializeToString()
