# SPDX-License-Identifier: Apache-2.0
"""Tests of models with exporter faults: unsorted nodes, float64, auxiliary inputs."""

from __future__ import annotations

import importlib.util
import random
from contextlib import nullcontext

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.models.detector_models import (
    CLASS_NAMES,
    DECODER_AND_CLASSES_ARGUMENTS,
    detector_model,
    parsed_models,
    run_build_engine,
    write_images,
)
from support.models.open_model import open_by_parameters
from trt_perception.errors import EngineError
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.tensors import TensorSpec
from trt_perception.parameters.values import ParameterValues

needs_builder = pytest.mark.skipif(
    not importlib.util.find_spec('tensorrt_rtx'), reason='needs tensorrt_rtx'
)


@pytest.fixture(autouse=True)
def _caches(tmp_path_factory, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))


def answers(model, **inputs):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=['CPUExecutionProvider']
    )
    return session.run(None, inputs)


def shuffled(nodes, seed):
    order = list(nodes)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in order]
    random.Random(seed).shuffle(copies)
    del nodes[:]
    nodes.extend(copies)


def nested():
    """Return a model with a function, and with branches that read tensors of the outer graph."""
    value = helper.make_tensor_value_info

    def branch(name, kind):
        nodes = [
            helper.make_node(kind, ['late', 'one'], [f'{name} a']),
            helper.make_node('Neg', [f'{name} a'], [f'{name} b']),
            helper.make_node('Abs', [f'{name} b'], [f'{name} c']),
        ]
        output = value(f'{name} c', TensorProto.FLOAT, [3])
        return helper.make_graph(nodes, name, [], [output])

    nodes = [
        helper.make_node('Mul', ['x', 'x'], ['square']),
        helper.make_node('Sqrt', ['square'], ['late']),
        helper.make_node('ReduceSum', ['x'], ['sum'], keepdims=0),
        helper.make_node('Greater', ['sum', 'one'], ['large']),
        helper.make_node(
            'If',
            ['large'],
            ['chosen'],
            then_branch=branch('then', 'Add'),
            else_branch=branch('else', 'Sub'),
        ),
        helper.make_node('Twice', ['chosen'], ['y'], domain='mine'),
    ]
    inside = [
        helper.make_node('Neg', ['v'], ['n']),
        helper.make_node('Neg', ['n'], ['p']),
        helper.make_node('Add', ['p', 'v'], ['twice']),
    ]
    imports = [helper.make_opsetid('', 17), helper.make_opsetid('mine', 1)]
    graph = helper.make_graph(
        nodes,
        'nested',
        [value('x', TensorProto.FLOAT, [3])],
        [value('y', TensorProto.FLOAT, [3])],
        [numpy_helper.from_array(np.array(1, np.float32), 'one')],
    )
    function = helper.make_function('mine', 'Twice', ['v'], ['twice'], inside, imports)
    return helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=9)


@pytest.mark.parametrize('seed', range(30))
def test_shuffled_nodes_are_sorted_for_onnx(seed):
    from trt_perception.offline.building.graph.graph_repair import sort_nodes

    straight = nested()
    model = nested()
    branches = [attribute.g for attribute in model.graph.node[4].attribute]
    for nodes in (*(branch.node for branch in branches), model.functions[0].node):
        shuffled(nodes, seed)
    shuffled(model.graph.node, seed)
    changed = model.SerializeToString() != straight.SerializeToString()
    with pytest.raises(onnx.checker.ValidationError) if changed else nullcontext():
        onnx.checker.check_model(model, full_check=True)
    assert sort_nodes(model) == changed
    onnx.checker.check_model(model, full_check=True)
    assert not sort_nodes(model)
    for values in ([1, 2, 3], [-1, -2, -3]):
        x = np.array(values, np.float32)
        assert answers(model, x=x)[0].tolist() == answers(straight, x=x)[0].tolist()


def test_sorted_nodes_do_not_move_and_cycles_are_left_to_the_checker():
    from trt_perception.offline.building.graph.graph_repair import sort_nodes

    model = nested()
    before = model.SerializeToString()
    assert not sort_nodes(model)
    assert model.SerializeToString() == before
    model.graph.node[0].input[1] = 'late'  # a cycle
    sort_nodes(model)
    assert len(model.graph.node) == 6
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(model)


def with_float64(model):
    """Insert float64 before the output: a cosine, a node's constant, a constant beyond float32."""
    (last,) = (node for node in model.graph.node if node.output[0] == 'output')
    last.output[0] = 'all'
    wide = [
        helper.make_node('Cast', ['all'], ['wide'], to=TensorProto.DOUBLE),
        helper.make_node(
            'ConstantOfShape',
            ['none'],
            ['zero'],
            value=numpy_helper.from_array(np.zeros(1, np.float64)),
        ),
        helper.make_node('Cos', ['zero'], ['one']),
        helper.make_node('Mul', ['wide', 'one'], ['kept']),
        helper.make_node('Min', ['kept', 'most'], ['bounded']),
        helper.make_node('Cast', ['bounded'], ['output'], to=TensorProto.FLOAT),
    ]
    model.graph.node.extend(wide)
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(np.zeros(0, np.int64), 'none'),
            numpy_helper.from_array(np.array(np.finfo(np.float64).max), 'most'),
        ]
    )
    model.graph.value_info.append(
        helper.make_tensor_value_info('wide', TensorProto.DOUBLE, [1, 6, 64])
    )
    return model


def test_float64_becomes_float32():
    from trt_perception.offline.building.graph.graph_repair import convert_float64

    model = with_float64(detector_model())
    assert convert_float64(model)
    onnx.checker.check_model(model, full_check=True)
    image = np.random.default_rng(4).random((1, 3, 64, 64), np.float32)
    (found,) = answers(model, images=image)
    (plain,) = answers(detector_model(), images=image)
    assert found.tolist() == plain.tolist()
    assert not convert_float64(model)
    assert all(tensor.data_type != TensorProto.DOUBLE for tensor in model.graph.initializer)


@needs_builder
@pytest.mark.parametrize('kind', ['order', 'float64', 'both'])
@pytest.mark.parametrize('precision', ['fp16', 'int8'])
def test_model_with_exporter_faults_is_built(kind, precision, tmp_path, capsys):
    model = detector_model()
    if kind != 'order':
        with_float64(model)
    if kind != 'float64':
        model.graph.node.insert(0, model.graph.node[-1])
        del model.graph.node[-1]
    path = tmp_path / 'net.onnx'
    onnx.save_model(model, path)
    images = write_images(tmp_path / 'images')
    given = () if precision == 'fp16' else ('--calibration-images', images)
    assert (
        run_build_engine(
            '--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS, '--precision', precision, *given
        )
        == 0
    )
    said = capsys.readouterr()
    assert ('topological' in said.out + said.err) == (kind != 'float64')
    assert ('float64' in said.out + said.err) == (kind != 'order')
    assert 'was not slimmed' not in said.out


def with_sizes(batch=1):
    """Return a detector whose boxes are in units of a second input, like RT-DETR's own export."""
    model = detector_model((batch, 3, 64, 64))
    del model.graph.node[-1]
    nodes = [
        helper.make_node('Transpose', ['boxes'], ['rows'], perm=[0, 2, 1]),
        helper.make_node('Cast', ['orig_target_sizes'], ['size'], to=TensorProto.FLOAT),
        helper.make_node('Concat', ['size', 'size'], ['four'], axis=1),
        helper.make_node('Unsqueeze', ['four', 'middle'], ['sizes']),
        helper.make_node('Div', ['rows', 'network'], ['parts']),
        helper.make_node('Mul', ['parts', 'sizes'], ['final']),
        helper.make_node('ArgMax', ['scores'], ['labels'], axis=1, keepdims=0),
        helper.make_node('ReduceMax', ['scores', 'middle'], ['best'], keepdims=0),
    ]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(np.array([1]), 'middle'),
            numpy_helper.from_array(np.array(64, np.float32), 'network'),
        ]
    )
    # The image must be found although it is not the first input.
    model.graph.input.insert(
        0, helper.make_tensor_value_info('orig_target_sizes', TensorProto.INT64, (batch, 2))
    )
    del model.graph.output[:]
    for name, kind, shape in (
        ('labels', TensorProto.INT64, (batch, 64)),
        ('final', TensorProto.FLOAT, (batch, 64, 4)),
        ('best', TensorProto.FLOAT, (batch, 64)),
    ):
        model.graph.output.append(helper.make_tensor_value_info(name, kind, shape))
    return model


@needs_builder
@pytest.mark.parametrize(('batch', 'options'), [(1, ()), ('N', ('--batch', '1'))])
def test_model_with_image_sizes_as_input_is_calibrated(batch, options, tmp_path, monkeypatch):
    parsed = parsed_models(monkeypatch)
    path = tmp_path / 'net.onnx'
    onnx.save_model(with_sizes(batch), path)
    images = write_images(tmp_path / 'images')
    given = ('--class-names', *CLASS_NAMES, '--precision', 'int8', '--calibration-images', images)
    assert run_build_engine('--onnx', path, *given, *options) == 0
    manifest = read_model_file(tmp_path / 'net.engine').manifest
    assert manifest.decoder.family == 'labels_boxes_scores'
    open_side = 1 if batch == 1 else -1
    assert TensorSpec('orig_target_sizes', (open_side, 2), 'int64') in manifest.inputs
    model = parsed[0]  # a later model is the FP16 model of the comparison
    assert sum(node.op_type == 'QuantizeLinear' for node in model.graph.node) == 2


def test_calibration_feeds_the_same_auxiliary_inputs_as_the_pipeline(tmp_path):
    """Calibration must set the size input to the network's size, not to 0 or 1 pixel."""
    from trt_perception.model.preprocessing import Preprocessing
    from trt_perception.offline.building.calibration.activations import collect_histograms
    from trt_perception.offline.building.calibration.images import CalibrationImages, select_images

    images = select_images(write_images(tmp_path / 'images'), 8)
    model = with_sizes()
    checked = CalibrationImages(images, Preprocessing((64, 64), 'stretch'), lambda *_: None)
    found = collect_histograms(model, ['final', 'images'], checked)
    path = tmp_path / 'net.onnx'
    onnx.save_model(model, path)
    pipeline = open_by_parameters(
        ParameterValues(engine_path=str(path), model_class_names=CLASS_NAMES)
    )
    assert pipeline.spec.auxiliary_inputs[0].name == 'orig_target_sizes'
    assert found['final'].largest > 20


def test_operator_missing_in_onnx_runtime_gives_a_remedy(tmp_path, golden_messages):
    value = helper.make_tensor_value_info('images', TensorProto.DOUBLE, (1, 3, 8, 8))
    output = helper.make_tensor_value_info('output', TensorProto.DOUBLE, (1, 3, 8, 8))
    node = helper.make_node(
        'Asinh', ['images'], ['output']
    )  # ONNX Runtime's CPU kernel of this operator supports only float32
    graph = helper.make_graph([node], 'wide', [value], [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=9)
    (tmp_path / 'net.onnx').write_bytes(model.SerializeToString())
    with pytest.raises(EngineError) as caught:
        open_by_parameters(ParameterValues(engine_path=str(tmp_path / 'net.onnx')))
    advice = str(caught.value).partition('; ')[2]
    golden_messages.add(advice.replace(onnxruntime.__version__, 'VERSION'))
