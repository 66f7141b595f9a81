# SPDX-License-Identifier: Apache-2.0
"""Tests that the decoder of a transformer is found by its number of queries."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from support.models.small_detectors import Net
from trt_perception.offline.building.graph.graph_index import match_nodes, name_nodes
from trt_perception.offline.building.graph.query_decoder import find_query_decoder

EXPORTS = Path(__file__).parents[4] / 'test' / 'data' / 'exports'


def exported(family):
    model = onnx.load(EXPORTS / family / 'model.onnx')
    name_nodes(model)
    image = model.graph.input[0]
    sides = image.type.tensor_type.shape.dim
    return model, {image.name: [side.dim_value for side in sides]}


@pytest.mark.parametrize(
    ('family', 'attention'),
    # Each of two decoder layers has a Softmax for self-attention and one for cross-attention.
    # Except in DETR, cross-attention samples each of three levels with GridSample.
    [
        ('rt_detr', {'GridSample': 6, 'Softmax': 4}),
        ('detr', {'GridSample': 0, 'Softmax': 4}),
        ('deformable_detr', {'GridSample': 6, 'Softmax': 4}),
    ],
)
def test_query_decoder_is_found_by_the_number_of_queries(family, attention):
    model, shapes = exported(family)
    found = find_query_decoder(model, shapes)
    kinds = [node.op_type for node in model.graph.node if node.name in found.nodes]
    assert {kind: kinds.count(kind) for kind in attention} == attention
    assert 'Conv' not in kinds
    assert 0 < found.share < 0.2
    # The decoder starts behind the selected or learned queries, and ends at the outputs.
    made = {name: node for node in model.graph.node for name in node.output}
    assert {made[output.name].name for output in model.graph.output} <= set(found.nodes)


def test_decoder_nodes_with_a_common_name_prefix_give_one_pattern():
    model, shapes = exported('rt_detr')
    nodes = set(find_query_decoder(model, shapes).nodes)
    for number, node in enumerate(model.graph.node):
        part = 'decoder/layers[0]' if node.name in nodes else 'encoder'
        node.name = f'/model/{part}/{node.op_type}_{number}'
    found = find_query_decoder(model, shapes)
    assert len(found.patterns) == 1
    assert set(match_nodes(model, found.patterns)) == set(found.nodes)
    assert "--keep-fp32 '/model/decoder/*'" in found.advice('fp16')
    assert '--keep-fp32 and --keep-float' in found.advice('int8')


def test_feature_map_as_wide_as_the_queries_is_not_in_the_decoder():
    net = Net()
    x = net.conv(net.conv('images', 3, 8, stride=2), 8, 8, stride=2)  # 16 x 16
    backbone = {node.name for node in net.nodes}
    tokens = net.node('Transpose', [net.reshape(x, 1, 8, 256)], perm=[0, 2, 1])
    keys = net.node('Transpose', [net.linear(tokens, 8, 8)], perm=[0, 2, 1])
    rest = {node.name for node in net.nodes}
    queries = net.constant(np.random.default_rng(0).standard_normal((1, 16, 8)))
    scores = net.node('Softmax', [net.node('MatMul', [queries, keys])], axis=-1)
    found = net.node('MatMul', [scores, tokens])
    model = net.model([net.linear(found, 8, 5), net.linear(found, 8, 4)])
    decoder = set(find_query_decoder(model, {'images': (1, 3, 64, 64)}).nodes)
    assert not decoder & (backbone | rest)
    assert decoder == {node.name for node in model.graph.node} - backbone - rest


@pytest.mark.parametrize('family', ['yolos'])
def test_query_decoder_of_yolos_has_fewer_than_25_nodes(family):
    found = find_query_decoder(*exported(family))
    assert len(found.nodes) < 25
