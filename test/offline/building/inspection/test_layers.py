# SPDX-License-Identifier: Apache-2.0
"""Tests of reading the inspector's JSON, with reports that TensorRT wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trt_perception.errors import EngineError
from trt_perception.offline.building.inspection.layers import (
    LayerInfo,
    check_precision,
    compare_precision,
    layer_precisions,
    parse_layers,
)

RTX = json.loads((Path(__file__).parents[3] / 'data' / 'inspector_rtx.json').read_text())
# The recorded network's layers with weights: three convolutions and a matrix product.
COMPUTE = {'stem', 'body', 'wide', 'fc'}


def rtx(name):
    return parse_layers(json.dumps(RTX[name]))


def test_empty_reports_have_no_layers():
    assert parse_layers('') == ()
    assert parse_layers('{"Layers": [], "Bindings": []}') == ()
    assert layer_precisions(()) == {}


@pytest.mark.parametrize(
    ('name', 'counts'),
    [
        ('fp32', {'fp32': 9}),
        ('fp16', {'fp16': 8, 'fp32': 1}),  # the Cast of the input reads float32
        ('bf16', {'bf16': 7, 'fp32': 3}),  # pooling is in float32, with a Cast before and after
    ],
)
def test_layers_are_counted_by_their_narrowest_input_type(name, counts):
    assert layer_precisions(rtx(name)) == counts


def test_layer_has_nodes_types_and_tactic():
    layer = rtx('fp16')[2]
    assert layer.nodes == ('body', 'body_sigmoid', 'body_mul', 'residual')
    assert (layer.kind, layer.inputs, layer.outputs) == (
        'runtime_fusion',
        ('fp16', 'fp16'),
        ('fp16',),
    )
    assert rtx('fp16')[0].tactic.startswith('__myl_CastConc')


def test_report_of_names_gives_layers_without_types():
    layers = rtx('names_only')
    assert [layer.name for layer in layers] == [layer.name for layer in rtx('fp16')]
    assert layer_precisions(layers) == {}


@pytest.mark.parametrize(
    ('text', 'kind'),
    [
        ('Float', 'fp32'),
        ('Half', 'fp16'),
        ('BFloat16', 'bf16'),
        ('Int8', 'int8'),
        ('FP8', 'fp8'),
        ('Int64', 'int64'),
        # TensorRT also writes each tensor's memory format.
        ('Row major linear FP32', 'fp32'),
        ('Channel major FP16 format where channel % 8 == 0', 'fp16'),
        ('Two wide channel vectorized row major FP16 format', 'fp16'),
        ('Thirty-two wide channel vectorized row major Int8 format', 'int8'),
        ('N/A due to dynamic shapes', ''),
        ('', ''),
    ],
)
def test_data_type_is_found_in_a_memory_format(text, kind):
    entry = {'Name': 'a', 'Inputs': [{'Name': 'x', 'Format/Datatype': text}]}
    assert parse_layers(json.dumps({'Layers': [entry]}))[0].inputs == (kind,)


def test_precision_of_a_layer_is_its_narrowest_input_type():
    assert LayerInfo('a', inputs=('fp32', 'int8')).precision == 'int8'
    assert LayerInfo('a', inputs=('fp32', 'fp16', 'bf16')).precision == 'fp16'
    assert LayerInfo('a', inputs=('int64', 'bool')).precision == 'int64'
    assert LayerInfo('a', outputs=('fp16',)).precision == ''


@pytest.mark.parametrize('text', ['{', '[]', '{"Layers": [{}]}', '{"Layers": [3]}', '{"x": 1}'])
def test_unknown_report_is_refused(text, golden_messages):
    with golden_messages.raises(EngineError):
        parse_layers(text)


def test_control_characters_in_a_report_are_accepted():
    text = '{"Layers": [{"Name": "a", "Metadata": "[ONNX Layer: x]\x1e[ONNX Layer: y]"}]}'
    assert parse_layers(text)[0].nodes == ('x', 'y')


@pytest.mark.parametrize('name', ['fp32', 'fp16', 'bf16'])
@pytest.mark.parametrize('nodes', [COMPUTE, None])
def test_all_layers_of_a_matching_engine_have_the_precision(name, nodes):
    check = compare_precision(rtx(name), name, nodes)
    assert (check.share, check.deviations) == (1.0, {})
    # Without the model, a matrix product in a fused layer is not recognised.
    assert check.node_count == (4 if nodes else 3)
    check_precision(check, 'a.engine')


def test_fp32_layers_are_refused_if_fp16_was_requested(golden_messages):
    check = compare_precision(rtx('fp32'), 'fp16', COMPUTE)
    assert check.share == 0
    assert check.deviations == dict.fromkeys(COMPUTE, 'fp32')
    with golden_messages.raises(EngineError):
        check_precision(check, 'a.engine')


@pytest.mark.parametrize(
    ('asked', 'built', 'fits'),
    [
        ('fp16', 'int8', True),
        ('fp16', 'fp8', True),
        ('fp16', 'bf16', False),
        ('bf16', 'fp16', False),
        ('int8', 'fp16', False),
        ('tf32', 'fp32', True),
        ('fp32', 'fp16', False),
        ('fp8', 'int8', False),
    ],
)
def test_narrower_types_fulfil_a_requested_precision(asked, built, fits):
    check = compare_precision([LayerInfo('conv', inputs=(built,), nodes=('n',))], asked, {'n'})
    assert check.share == fits


def test_at_least_half_of_the_layers_must_have_the_precision(golden_messages):
    def layers(half, single):
        kinds = ['fp16'] * half + ['fp32'] * single
        return [LayerInfo(f'conv{i}', inputs=(kind,)) for i, kind in enumerate(kinds)]

    check_precision(compare_precision(layers(5, 5), 'fp16'), 'x')
    with golden_messages.raises(EngineError):
        check_precision(compare_precision(layers(4, 5), 'fp16'), 'x')


def test_excluded_nodes_are_not_counted():
    layers = [
        LayerInfo('conv a', inputs=('fp32',), nodes=('a',)),
        LayerInfo('conv b', inputs=('fp16',), nodes=('b',)),
    ]
    for nodes in ({'a', 'b'}, None):
        assert compare_precision(layers, 'fp16', nodes).share == 0.5
        assert compare_precision(layers, 'fp16', nodes, excluded_nodes={'a'}).share == 1


def test_conversion_layer_does_not_hide_the_type_of_its_convolution():
    layers = [
        LayerInfo('conv', inputs=('fp16',), nodes=('n',)),
        LayerInfo('cast', inputs=('fp32',), outputs=('fp16',), nodes=('n',)),
    ]
    for order in (layers, layers[::-1]):
        assert compare_precision(order, 'fp16', {'n'}).share == 1


def test_engine_without_convolutions_passes_the_precision_check():
    assert compare_precision([LayerInfo('pool', inputs=('fp32',))], 'fp16').share == 1
