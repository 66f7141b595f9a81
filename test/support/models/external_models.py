# SPDX-License-Identifier: Apache-2.0
"""Make ONNX models with a tensor in another file, for each place of a tensor in a model."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from support.fuzz.onnx_spellings import varint

SIDE = 16


def protobuf_field(tag, content):
    """Return a length-delimited field of protobuf."""
    return bytes([tag << 3 | 2]) + varint(len(content)) + content


def external_tensor(location, name='w'):
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[SIDE, SIDE])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key='location', value=location)
    tensor.external_data.add(key='offset', value='0')
    return tensor


def embedded_tensor(name='w'):
    return numpy_helper.from_array(np.ones((SIDE, SIDE), np.float32), name)


def make_model(weights=None, nodes=(), **more):
    shape = ['n', SIDE]
    graph = helper.make_graph(
        [*nodes, helper.make_node('MatMul', ['x', 'w'], ['y'])],
        'graph',
        [helper.make_tensor_value_info('x', TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info('y', TensorProto.FLOAT, shape)],
        [embedded_tensor() if weights is None else weights],
    )
    opsets = [helper.make_opsetid('', 19), helper.make_opsetid('mine', 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, **more)


def node_with(**attributes):
    return helper.make_node('Thing', [], ['unused'], domain='mine', **attributes)


def subgraph_with(tensor):
    value = helper.make_tensor_value_info('w', TensorProto.FLOAT, [SIDE, SIDE])
    return helper.make_graph([node_with(value=tensor)], 'inner', [], [value], [embedded_tensor()])


def sparse_tensor(tensor):
    # onnx's helper functions would read the values.
    return onnx.SparseTensorProto(values=tensor, dims=[SIDE, SIDE])


def with_function(tensor):
    opsets = [helper.make_opsetid('', 19)]
    node = helper.make_node('Constant', [], ['out'], value=tensor)
    return make_model(functions=[helper.make_function('mine', 'F', [], ['out'], [node], opsets)])


def with_training(tensor):
    whole = make_model()
    whole.training_info.add().algorithm.initializer.append(tensor)
    return whole


MODELS_BY_TENSOR_PLACE = {
    'initializer': make_model,
    'attribute': lambda tensor: make_model(nodes=[node_with(value=tensor)]),
    'attributes': lambda tensor: make_model(
        nodes=[node_with(values=[embedded_tensor('v'), tensor])]
    ),
    'subgraph': lambda tensor: make_model(nodes=[node_with(body=subgraph_with(tensor))]),
    'subgraphs': lambda tensor: make_model(nodes=[node_with(body=[subgraph_with(tensor)])]),
    'function': with_function,
    'training': with_training,
}


def has_external_tensor(parsed):
    """Return whether any tensor of a model parsed by the onnx package is in another file."""
    pending = [parsed]
    while pending:
        message = pending.pop()
        if isinstance(message, TensorProto) and message.data_location == TensorProto.EXTERNAL:
            return True
        for described, value in message.ListFields():
            if described.message_type is not None:
                pending += [value] if not hasattr(value, 'append') else list(value)
    return False
