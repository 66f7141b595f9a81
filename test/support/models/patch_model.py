# SPDX-License-Identifier: Apache-2.0
"""Make a detector of one convolution. Each patch of 8 x 8 pixels is an anchor.

The mean colour of a patch gives the box and the scores.

Boxes and scores depend on every part of the image. The input may have any size, and the output any
dense layout and any floating-point type of an engine.
"""

from __future__ import annotations

import numpy as np

from support.models.written_manifest import write_manifest

CLASS_NAMES = ('red', 'green', 'blue', 'dark')
PATCH_SIZE = 8
#: Type numbers of ONNX.
ONNX_TYPES = {'float32': 1, 'float16': 10, 'bfloat16': 16}


def _constant(name, array, dtype):
    """Return an initialiser. NumPy has no bfloat16, so its bytes are upper halves of float32."""
    from onnx import helper, numpy_helper

    array = np.asarray(array, np.float32)
    if dtype != 'bfloat16':
        return numpy_helper.from_array(array.astype(dtype), name)
    bits = array.view(np.uint32)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return helper.make_tensor(
        name, ONNX_TYPES['bfloat16'], array.shape, rounded.tobytes(), raw=True
    )


def patch_onnx(size_wh, decoder, dtype='float32', output_dtype=None, batch=1):
    """Return the bytes of an ONNX model.

    Args:
        size_wh: width and height of the input; (-1, -1) leaves them open.
        decoder: a decoder. Only its fields objectness and transposed matter.
        dtype: type of the input and of all computations.
        output_dtype: type of the output; ``dtype`` by default.
        batch: images per run; -1 leaves the batch open.
    """
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(5)
    scores = len(CLASS_NAMES) + decoder.objectness
    rows = 4 + scores
    # Weights that turn the mean colour into centres within 64 x 48 pixels, sides from 6 to 26
    # pixels, and logits from -6 to 6.
    colour = np.concatenate([rng.uniform(0, 20, (4, 3)), rng.uniform(-9, 9, (scores, 3))])
    bias = np.concatenate([[2, 2, 6, 6], rng.uniform(-1, 1, scores)])
    weights = np.repeat(colour[:, :, None] / PATCH_SIZE**2, PATCH_SIZE**2, axis=2)
    nodes = [
        helper.make_node(
            'Conv', ['images', 'weights', 'bias'], ['map'], strides=[PATCH_SIZE] * 2, pads=[0] * 4
        ),
        helper.make_node('Reshape', ['map', 'flat'], ['rows']),
        helper.make_node('Split', ['rows', 'parts'], ['boxes', 'logits'], axis=1),
        helper.make_node('Sigmoid', ['logits'], ['scores']),
        helper.make_node('Concat', ['boxes', 'scores'], ['all'], axis=1),
    ]
    last = 'all'
    if decoder.transposed:
        nodes.append(helper.make_node('Transpose', [last], ['turned'], perm=[0, 2, 1]))
        last = 'turned'
    output_dtype = output_dtype or dtype
    nodes.append(helper.make_node('Cast', [last], ['output'], to=ONNX_TYPES[output_dtype]))
    width, height = size_wh
    anchors = -1 if width < 0 else (width // PATCH_SIZE) * (height // PATCH_SIZE)
    shape = [batch, anchors, rows] if decoder.transposed else [batch, rows, anchors]
    # A zero in the shape keeps the size of the batch.
    flat = [1, rows, -1] if batch == 1 else [0, rows, anchors]
    graph = helper.make_graph(
        nodes,
        'patches',
        [_tensor('images', dtype, [batch, 3, height, width])],
        [_tensor('output', output_dtype, shape)],
        [
            _constant('weights', weights.reshape(rows, 3, PATCH_SIZE, PATCH_SIZE), dtype),
            _constant('bias', bias, dtype),
            numpy_helper.from_array(np.array(flat, np.int64), 'flat'),
            numpy_helper.from_array(np.array([4, scores], np.int64), 'parts'),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 19)], ir_version=9)
    return model.SerializeToString()


def _tensor(name, dtype, shape):
    from onnx import helper

    sides = [f'{name}_{index}' if side < 0 else side for index, side in enumerate(shape)]
    return helper.make_tensor_value_info(name, ONNX_TYPES[dtype], sides)


def write_engine(
    path,
    plan,
    size_wh,
    decoder,
    dtype='float32',
    output_dtype=None,
    has_open_shapes=False,
    batch=1,
):
    """Write a plan of a patch model with its manifest.

    With ``has_open_shapes``, image size and number of anchors are dynamic.
    """
    width, height = size_wh
    rows = 4 + len(CLASS_NAMES) + decoder.objectness
    anchors = -1 if has_open_shapes else (width // PATCH_SIZE) * (height // PATCH_SIZE)
    path.write_bytes(plan)
    image = 'images', (batch, 3, *((-1, -1) if has_open_shapes else (height, width))), dtype
    shape = (batch, anchors, rows) if decoder.transposed else (batch, rows, anchors)
    output = 'output', shape, output_dtype or dtype
    write_manifest(path, size_wh, image, output, decoder, CLASS_NAMES)
    return path
