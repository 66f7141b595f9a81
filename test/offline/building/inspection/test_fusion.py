# SPDX-License-Identifier: Apache-2.0
"""The ONNX nodes of an engine's layers, in reports of engines of the digits from an H100.

The reports were recorded with TensorRT-RTX 1.4. Dimensions and kernel names were removed.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from support.models.digits import DIGITS
from support.optional_packages import needs
from trt_perception.model.build_record import BuildRecord, PrecisionRecord, TensorRtRecord
from trt_perception.offline.building.inspection.fusion import compare_layers, read_fusion
from trt_perception.offline.building.inspection.inspector import EngineInfo
from trt_perception.offline.building.inspection.layers import LayerInfo, parse_layers

REPORTS = json.loads((Path(__file__).parents[3] / 'data' / 'inspector_digits.json').read_text())
BUILD = BuildRecord(
    TensorRtRecord('tensorrt_rtx', '1.4.0.76'), None, None, {}, (), PrecisionRecord('fp16')
)


def fusion_of(layers, nodes, precision='fp16', **changes):
    engine = EngineInfo((), (), (), (), None, 'detailed', False, 0, tuple(layers), 0.0)
    asked = PrecisionRecord(precision, **changes)
    return read_fusion(engine, dataclasses.replace(BUILD, nodes=nodes, precision=asked))


@pytest.fixture(scope='module', name='operators')
def _operators():
    import onnx

    return {node.name: node.op_type for node in onnx.load(DIGITS).graph.node}


def recorded(name, operators):
    return fusion_of(parse_layers(json.dumps(REPORTS[name])), operators, name)


@needs('onnx')
@pytest.mark.parametrize('name', ['fp16', 'fp32'])
def test_each_node_of_the_file_is_named_folded_or_lost(name, operators):
    fusion = recorded(name, operators)
    named = {node for layer in fusion.layers for node in layer.nodes} & operators.keys()
    groups = [named, fusion.folded.keys(), fusion.lost.keys()]
    assert set().union(*groups) == operators.keys()
    assert sum(map(len, groups)) == len(operators)
    # The model has 18 constants; two of its six Concat nodes only join memory.
    assert sorted(fusion.folded.values()) == ['Concat'] * 2 + ['Constant'] * 18
    assert not fusion.lost


@needs('onnx')
def test_nodes_that_build_engine_added_are_marked(operators):
    assert not recorded('fp32', operators).added
    fusion = recorded('fp16', operators)
    assert fusion.added
    assert all(name.endswith('_cast') for name in fusion.added)
    [first] = [layer for layer in fusion.layers if 'images_fp16_cast' in layer.nodes]
    assert '+images_fp16_cast' in fusion.node_text(first)
    assert '+/stem' not in fusion.node_text(first)


@needs('onnx')
def test_layers_are_counted_by_their_role(operators):
    fusion = recorded('fp16', operators)
    silent = [layer for layer in fusion.layers if not layer.nodes]
    assert len(fusion.waiting) == 18
    assert {*fusion.waiting, *fusion.reformats} == set(silent)
    assert all(len(layer.nodes) > 1 for layer in fusion.fused)
    # TensorRT-RTX splits a Split node, and computes the ReduceSum node in two steps.
    assert {operators.get(name) for name in fusion.repeated} >= {'Split', 'ReduceSum'}


def test_node_that_no_layer_names_is_lost_unless_it_needs_no_arithmetic():
    layer = LayerInfo('conv', 'correlation', ('fp16',), ('fp16',), nodes=('c',))
    fusion = fusion_of([layer], {'c': 'Conv', 's': 'Sigmoid', 'r': 'Reshape'})
    assert (fusion.lost, fusion.folded) == ({'s': 'Sigmoid'}, {'r': 'Reshape'})


def test_nodes_in_a_wider_type_than_requested_are_listed():
    layers = [LayerInfo(name, 'correlation', ('fp32',), nodes=(name,)) for name in ('a', 'b', 'c')]
    nodes = {'a': 'Conv', 'b': 'Conv', 'c': 'Sigmoid'}
    assert fusion_of(layers, nodes).wider == {'a': 'fp32', 'b': 'fp32'}
    assert fusion_of(layers, nodes, keep_fp32=('a*',)).wider == {'b': 'fp32'}


def test_manifest_without_nodes_marks_no_node_as_added():
    layer = LayerInfo('conv', nodes=('conv_0', 'conv_0_cast'))
    fusion = fusion_of([layer], {})
    assert not fusion.added
    assert fusion.node_text(layer) == 'conv_0, conv_0_cast'


def test_engine_without_layers_has_no_fusion():
    assert fusion_of([], {'a': 'Conv'}) is None


@needs('onnx')
def test_comparison_lists_layers_with_other_nodes_or_types(operators):
    fp16, fp32 = (recorded(name, operators) for name in ('fp16', 'fp32'))
    assert compare_layers(fp16, fp16) == []
    differing = compare_layers(fp16, fp32)
    # Each layer with arithmetic has another type.
    assert len(differing) > 50


def test_layer_with_a_lost_name_in_the_other_engine_does_not_differ():
    one = fusion_of([LayerInfo('x', inputs=('fp16',), nodes=('conv', 'act'))], {})
    other = fusion_of([LayerInfo('y', inputs=('fp16',), nodes=('conv',))], {})
    split = fusion_of(
        [LayerInfo(name, inputs=('fp16',), nodes=(name,)) for name in ('conv', 'act')], {}
    )
    wide = fusion_of([LayerInfo('x', inputs=('fp32',), nodes=('conv', 'act'))], {})
    assert compare_layers(one, other) == []
    assert len(compare_layers(one, split)) == 1
    assert len(compare_layers(one, wide)) == 1
    assert len(compare_layers(split, one)) == 2
