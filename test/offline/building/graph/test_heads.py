# SPDX-License-Identifier: Apache-2.0
"""Tests that a detector's head is found by its structure, independent of names."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.models import small_detectors
from trt_perception.errors import ConfigError
from trt_perception.offline.building.graph.graph_index import GraphIndex, match_nodes, name_nodes
from trt_perception.offline.building.graph.heads import find_head
from trt_perception.offline.building.graph.mac_count import count_layer_macs

FAMILIES = {
    'anchor_free': small_detectors.anchor_free,
    'anchor_based': small_detectors.anchor_based,
    'transformer': small_detectors.transformer,
    'raw_maps': small_detectors.raw_maps,
}


def macs(model):
    return {layer.node: layer.macs for layer in count_layer_macs(model)}


@pytest.mark.parametrize('family', FAMILIES)
def test_output_layers_of_a_detector_are_found(family):
    model, layers, fixed = FAMILIES[family]()
    onnx.checker.check_model(model)
    head = find_head(model)
    assert head.layers == tuple(layers)
    assert head.fixed == tuple(fixed)
    assert not set(head.decoding) & {*layers, *fixed}
    assert find_head(model, macs(model)) == head


def test_decoding_has_all_nodes_after_the_output_layers():
    model, layers, _ = small_detectors.anchor_free()
    behind = {node.name for node in model.graph.node[10:]} & set(find_head(model).decoding)
    kinds = {node.op_type for node in model.graph.node if node.name in behind}
    assert kinds == {
        'Add', 'Concat', 'Div', 'Identity', 'Mul', 'Reshape', 'Sigmoid', 'Softmax', 'Split',
        'Sub', 'Transpose',
    }  # fmt: skip
    # The decoding excludes the activations of the head's hidden layers.
    readers = {name for node in model.graph.node if node.name in layers for name in node.input}
    hidden = [node.name for node in model.graph.node if set(node.output) & readers]
    assert len(hidden) == 2
    assert not set(hidden) & set(find_head(model).decoding)


def test_bin_weights_with_unequal_steps_are_not_recognised():
    model, layers, fixed = small_detectors.anchor_free()
    node = next(node for node in model.graph.node if node.name == fixed[0])
    weights = next(t for t in model.graph.initializer if t.name == node.input[1])
    values = numpy_helper.to_array(weights).copy()
    values[0, 3] += 0.5
    weights.CopyFrom(numpy_helper.from_array(values, weights.name))
    head = find_head(model)
    assert head.fixed == ()
    assert head.layers == tuple(sorted([layers[1], fixed[0]], key=lambda name: int(name[1:])))


def test_strict_search_finds_no_output_layers_in_a_residual_network():
    model = small_detectors.features()
    loose = find_head(model)
    assert len(loose.layers) == 5  # the loose search goes through all residual blocks
    head = find_head(model, macs(model))
    assert head.strict
    assert head.layers == ()


def test_nodes_get_unique_names():
    model, *_ = small_detectors.anchor_free()
    for node in model.graph.node[::2]:
        node.name = ''
    model.graph.node[3].name = model.graph.node[1].name
    kept = model.graph.node[1].name
    name_nodes(model)
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)
    assert all(names)
    assert names[1] == kept


def test_patterns_match_whole_names_case_sensitively():
    model, *_ = small_detectors.raw_maps()
    names = [node.name for node in model.graph.node]
    assert match_nodes(model, ['n1?']) == tuple(
        n for n in names if n[1:] in map(str, range(10, 20))
    )
    assert match_nodes(model, []) == ()
    model.graph.node[0].name = 'a[0]'
    assert match_nodes(model, ['a[0]']) == ('a[0]',)


def test_pattern_without_a_match_is_an_error_with_close_names(golden_messages):
    model, *_ = small_detectors.raw_maps()
    model.graph.node[0].name = '/model.22/cv3.0/Conv'
    with golden_messages.raises(ConfigError):
        match_nodes(model, ['n*', '/model.22/cv3/Conv'])
    with golden_messages.raises(ConfigError):
        match_nodes(model, ['N1'])


def test_macs_equal_a_manual_count():
    net = small_detectors.Net()
    x = net.conv('images', 3, 8, size=3, stride=2, silu=False)
    weight = net.constant(np.ones((8, 4, 2, 2)))
    x = net.node('ConvTranspose', [x, weight], kernel_shape=[2, 2], strides=[2, 2])
    depth = net.constant(np.ones((4, 1, 3, 3)))
    x = net.node('Conv', [x, depth], kernel_shape=[3, 3], pads=[1] * 4, group=4)
    x = net.reshape(x, 4, 64 * 64)
    x = net.node('MatMul', [x, net.constant(np.ones((64 * 64, 7)))])
    x = net.node('Gemm', [x, net.constant(np.ones((5, 7)))], transB=1)
    work = [layer.macs for layer in count_layer_macs(net.model([x]))]
    assert work == [
        32 * 32 * 8 * 3 * 9,
        32 * 32 * 8 * 4 * 4,
        64 * 64 * 4 * 9,
        4 * 64 * 64 * 7,
        4 * 7 * 5,
    ]


def test_macs_of_a_dynamic_model_follow_the_given_shapes():
    model, *_ = small_detectors.raw_maps()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = 'batch'
    once = sum(layer.macs for layer in count_layer_macs(model))
    four = sum(layer.macs for layer in count_layer_macs(model, {'images': (4, 3, 64, 64)}))
    assert once > 0
    assert four == 4 * once


@pytest.mark.parametrize('zero_point', ['initializer', 'Constant', 'none'])
def test_precision_of_a_layer_is_the_type_of_its_stored_weights(zero_point):
    """A zero point may come from a Constant node, and is optional in DequantizeLinear."""
    zero = helper.make_tensor('zero', TensorProto.INT8, [], [0])
    constants = [
        helper.make_tensor('scale', TensorProto.FLOAT, [], [0.1]),
        helper.make_tensor('stored', TensorProto.INT8, [4, 3, 1, 1], range(12)),
    ]
    nodes = [
        helper.make_node('QuantizeLinear', ['images', 'scale', 'zero'], ['levels']),
        *(
            helper.make_node('DequantizeLinear', [source, 'scale', 'zero'], [target])
            for source, target in (('levels', 'data'), ('stored', 'weights'))
        ),
        helper.make_node('Conv', ['data', 'weights'], ['result']),
    ]
    if zero_point == 'Constant':
        nodes.insert(0, helper.make_node('Constant', [], ['zero'], value=zero))
    else:
        constants.append(zero)
    if zero_point == 'none':
        for node in nodes[1:3]:
            del node.input[2]
    images, result = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, channels, 8, 8])
        for name, channels in (('images', 3), ('result', 4))
    )
    graph = helper.make_graph(nodes, 'quantised', [images], [result], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 19)])
    onnx.checker.check_model(model, full_check=True)

    (layer,) = count_layer_macs(model)

    assert layer.precision == 'int8'


def test_constants_and_their_copies_are_recognised():
    one, two = np.float32([1]), np.float32([2])
    nodes = [
        helper.make_node('Constant', [], ['constant'], value=numpy_helper.from_array(one)),
        helper.make_node('Constant', [], ['number'], value_float=3.0),
        helper.make_node('Identity', ['constant'], ['copied']),
        helper.make_node('Identity', ['weights'], ['weights again']),
        helper.make_node('Neg', ['weights'], ['computed']),
        helper.make_node('Identity', ['x'], ['passed on']),
    ]
    image = helper.make_tensor_value_info('x', TensorProto.FLOAT, [1])
    graph = helper.make_graph(nodes, 'g', [image], [], [numpy_helper.from_array(two, 'weights')])
    index = GraphIndex(graph)
    found = {name: index.constant(name) for node in nodes for name in node.output}
    assert found['constant'] == found['copied'] == one
    assert index.constant('weights') == found['weights again'] == two
    for name in ('number', 'computed', 'passed on'):
        assert found[name] is None
    assert index.constant('x') is None
