# SPDX-License-Identifier: Apache-2.0
"""Write tiny networks for the tasks that describe the whole image.

Their outputs depend on the pixels: the mean of each channel, sums of channels in cells of 4 x 4
pixels, and the mean of the channels of each pixel.
"""

import itertools
import json

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: Width and height of the input.
NETWORK = (64, 48)
NAMES = ('red', 'green', 'blue', 'gray')
# A row for each class: weights of red, green and blue.
_WEIGHTS = np.array([[9, 0, 0], [0, 9, 0], [0, 0, 9], [2, 2, 2]], np.float32)
_NODES = {
    'classify': (
        ('GlobalAveragePool', ['images'], ['means'], {}),
        ('Conv', ['means', 'weights'], ['scores'], {}),
        ('Flatten', ['scores'], ['output'], {}),
    ),
    'semantic': (
        ('AveragePool', ['images'], ['means'], {'kernel_shape': [4, 4], 'strides': [4, 4]}),
        ('Conv', ['means', 'weights'], ['output'], {}),
    ),
    'depth': (('ReduceMean', ['images'], ['output'], {'axes': [1], 'keepdims': 0}),),
}
_SHAPES = {
    'classify': (1, 4),
    'semantic': (1, 4, NETWORK[1] // 4, NETWORK[0] // 4),
    'depth': (1, NETWORK[1], NETWORK[0]),
}
_DECODERS = {'classify': 'class_logits', 'semantic': 'pixel_logits', 'depth': 'metric_depth'}
#: The tasks of this module.
IMAGE_TASKS = tuple(_NODES)


def add_layers(path, count=3):
    """Insert convolutions behind the input that copy the pixels, so that a build has layers."""
    model = onnx.load(path)
    graph = model.graph
    kernel = np.zeros((3, 3, 3, 3), np.float32)
    kernel[range(3), range(3), 1, 1] = 1
    names = ['images', *(f'copy {index}' for index in range(count))]
    for node in graph.node:
        node.input[:] = [names[-1] if name == 'images' else name for name in node.input]
    layers = [
        helper.make_node('Conv', [one, 'copy'], [other], pads=[1, 1, 1, 1])
        for one, other in itertools.pairwise(names)
    ]
    nodes = [*layers, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.append(numpy_helper.from_array(kernel, 'copy'))
    onnx.checker.check_model(model)
    onnx.save(model, path)


def tool_arguments(task, path, **others):
    """Write the network of a task. Return the arguments of a tool that runs the file.

    Args:
        task: name of the task.
        path: path of the ONNX file.
        others: further parameters, with ``_`` for ``.``, such as ``model_decoder``.
    """
    parameters = write_image_model(task, path)
    words = [parameters.pop('engine_path')]
    parameters |= {name.replace('_', '.', 1): value for name, value in others.items()}
    for name, value in parameters.items():
        words += ['--param', f'{name}={json.dumps(value)}']
    return words


def write_depth_anything_3(path):
    """Write a network with the outputs of Depth Anything 3: the mean of the channels, and 0.

    Return the node's parameters for the file, without preprocessing in the network.
    """
    shape = [1, 1, *NETWORK[::-1]]
    graph = helper.make_graph(
        [
            helper.make_node('ReduceMean', ['image'], ['depth'], axes=[1], keepdims=1),
            helper.make_node('Mul', ['depth', 'zero'], ['sky']),
        ],
        'depth',
        [helper.make_tensor_value_info('image', TensorProto.FLOAT, [1, 3, *NETWORK[::-1]])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name in ('depth', 'sky')
        ],
        [numpy_helper.from_array(np.float32(0), 'zero')],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    plain = {'model.mean': [0.0, 0.0, 0.0], 'model.std': [1.0, 1.0, 1.0]}
    return {'engine_path': str(path), **plain}


def write_depth_anything(folder, side=56):
    """Write a depth network with open sides, whose size follows from the image. Return its path.

    The network returns the mean of the channels. The usual size is ``side`` x ``side`` pixels, and
    sides are multiples of 14.
    """
    graph = helper.make_graph(
        [helper.make_node('ReduceMean', ['images'], ['output'], axes=[1], keepdims=0)],
        'depth',
        [helper.make_tensor_value_info('images', TensorProto.FLOAT, ['b', 3, 'h', 'w'])],
        [helper.make_tensor_value_info('output', TensorProto.FLOAT, ['b', 'h', 'w'])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=9)
    path = folder / 'model.onnx'
    path.write_bytes(model.SerializeToString())
    processor = {
        'image_processor_type': 'DPTImageProcessor',
        'size': {'height': side, 'width': side},
        'keep_aspect_ratio': True,
        'ensure_multiple_of': 14,
        'resample': 3,
        'image_mean': [0.485, 0.456, 0.406],
        'image_std': [0.229, 0.224, 0.225],
    }
    (folder / 'config.json').write_text(json.dumps({'model_type': 'depth_anything'}))
    (folder / 'preprocessor_config.json').write_text(json.dumps(processor))
    return path


def write_image_model(task, path, batch=1):
    """Write the network of a task. Return the node's parameters for the file.

    Args:
        task: name of the task.
        path: path of the ONNX file.
        batch: size of a batch, or a name for an open size.
    """
    graph = helper.make_graph(
        [helper.make_node(kind, *names, **values) for kind, *names, values in _NODES[task]],
        task,
        [helper.make_tensor_value_info('images', TensorProto.FLOAT, [batch, 3, *NETWORK[::-1]])],
        [helper.make_tensor_value_info('output', TensorProto.FLOAT, [batch, *_SHAPES[task][1:]])],
        [numpy_helper.from_array(_WEIGHTS[:, :, None, None], 'weights')],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=9)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    names = {} if task == 'depth' else {'model.class_names': list(NAMES)}
    return {
        'engine_path': str(path),
        'model.task': task,
        'model.decoder': _DECODERS[task],
        'model.resize': 'stretch',
        'model.color_order': 'rgb',
        'model.scale': 1 / 255,
        'model.mean': [0.0, 0.0, 0.0],
        'model.std': [1.0, 1.0, 1.0],
        **names,
    }
