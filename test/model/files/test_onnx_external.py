# SPDX-License-Identifier: Apache-2.0
"""Tests that all external weights of ONNX files are found, and such models are refused."""

import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from support.docs_pages import ROOT
from support.models.external_models import (
    MODELS_BY_TENSOR_PLACE,
    SIDE,
    embedded_tensor,
    external_tensor,
    make_model,
    node_with,
    protobuf_field,
    sparse_tensor,
)
from support.models.open_model import open_by_parameters
from trt_perception.errors import EngineError, InterruptionError
from trt_perception.model.files import onnx_external
from trt_perception.model.files.onnx_external import find_external_weights
from trt_perception.parameters.values import ParameterValues
from trt_perception.process import interruption


@pytest.mark.parametrize('place', MODELS_BY_TENSOR_PLACE)
def test_external_weights_are_found_at_each_place_in_a_model(place):
    content = MODELS_BY_TENSOR_PLACE[place](external_tensor('weights.bin')).SerializeToString()
    assert find_external_weights(content) == ('weights.bin',)
    assert (
        find_external_weights(MODELS_BY_TENSOR_PLACE[place](embedded_tensor()).SerializeToString())
        == ()
    )


def test_models_of_the_repository_have_no_external_weights():
    found = sorted(ROOT.glob('models/*.onnx')) + sorted(ROOT.glob('test/data/exports/*/*.onnx'))
    assert found
    for path in found:
        assert find_external_weights(path.read_bytes()) == ()


def model_with_functions(*calls):
    """Return a model with functions.

    Args:
        calls: for each function, its name and the names of the functions that it calls.
    """
    opsets = [helper.make_opsetid('', 19), helper.make_opsetid('mine', 1)]
    functions = [
        helper.make_function(
            'mine',
            name,
            ['x'],
            ['y'],
            [helper.make_node(other, ['x'], ['y'], domain='mine') for other in others],
            opsets,
        )
        for name, others in calls
    ]
    return make_model(functions=functions)


def model_with_nested_graphs(depth):
    """Return a model with nested graphs. The depth includes the outer graph."""
    node = node_with(value=embedded_tensor('v'))
    value = helper.make_tensor_value_info('w', TensorProto.FLOAT, [SIDE, SIDE])
    for _ in range(depth - 1):
        node = node_with(body=helper.make_graph([node], 'inner', [], [value]))
    return make_model(nodes=[node])


def model_with_sparse_weights():
    whole = make_model()
    whole.graph.sparse_initializer.append(sparse_tensor(embedded_tensor('w')))
    return whole


DOUBLING_FUNCTIONS = [(f'F{level}', [f'F{level + 1}'] * 2) for level in range(20)]


UNBOUNDED = {
    'sparse weights': model_with_sparse_weights,
    'sparse constant': lambda: make_model(
        nodes=[node_with(value=sparse_tensor(embedded_tensor()))]
    ),
    'function that calls itself': lambda: model_with_functions(('F', ['F'])),
    'functions that call each other': lambda: model_with_functions(
        ('F', ['G']), ('G', ['F', 'F'])
    ),
    'functions without end': lambda: model_with_functions(*DOUBLING_FUNCTIONS, ('F20', [])),
    'graphs within graphs': lambda: model_with_nested_graphs(9),
}


@pytest.mark.parametrize('kind', UNBOUNDED)
def test_nesting_that_onnx_runtime_does_not_limit_is_refused(kind, golden_messages):
    with golden_messages.raises(EngineError):
        find_external_weights(UNBOUNDED[kind]().SerializeToString(), 'm.onnx')


@pytest.mark.parametrize(
    'whole',
    [
        model_with_functions(('F', ['G', 'G', 'Other']), ('G', ['H'] * 5), ('H', [])),
        model_with_functions(*DOUBLING_FUNCTIONS[:10], ('F10', [])),
        model_with_nested_graphs(8),
    ],
    ids=['functions', 'doubling', 'graphs'],
)
def test_usual_functions_and_graphs_are_accepted(whole):
    assert find_external_weights(whole.SerializeToString()) == ()


def may_hold_tensors(message, outer_messages=()):
    """Return whether a message may contain a TensorProto, according to onnx's descriptors."""
    if message.name in outer_messages:
        return False
    return message.name == 'TensorProto' or any(
        field_descriptor.message_type is not None
        and may_hold_tensors(field_descriptor.message_type, (*outer_messages, message.name))
        for field_descriptor in message.fields
    )


def test_field_table_matches_the_installed_onnx():
    """The table has all fields that may contain tensors, and the numbers of all other fields."""
    pending, seen = [onnx.ModelProto.DESCRIPTOR], set()
    while pending:
        message = pending.pop()
        if message.name in seen:
            continue
        seen.add(message.name)
        message_fields, others = onnx_external._FIELDS_BY_MESSAGE[
            message.name.removesuffix('Proto')
        ]
        expected = {}
        for field_descriptor in message.fields:
            inner = field_descriptor.message_type
            if inner is not None and (
                may_hold_tensors(inner) or field_descriptor.name == 'external_data'
            ):
                expected[field_descriptor.number] = inner.name.removesuffix('Proto')
                pending.append(inner)
        assert message_fields == expected
        assert others == {field_descriptor.number for field_descriptor in message.fields} - set(
            expected
        )
    assert {f'{kind}Proto' for kind in onnx_external._FIELDS_BY_MESSAGE} == seen


def test_reading_many_fields_can_be_interrupted(monkeypatch):
    monkeypatch.setattr(interruption, '_REQUESTED_S', [])
    content = protobuf_field(7, protobuf_field(2, b'') * 100_000)
    assert find_external_weights(content) == ()
    interruption.interrupt()
    with pytest.raises(InterruptionError):
        find_external_weights(content)


@pytest.mark.parametrize(
    'content',
    [
        make_model().SerializeToString()[:-1],
        b'\x3a',
        b'\x3a\x7f\x00',
        b'\x3b\x00',
        b'\xff' * 12,
        b'\x09\0',
        b'\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f',
    ],
)
def test_content_that_is_not_a_model_is_refused(content, golden_messages):
    with golden_messages.raises(EngineError):
        find_external_weights(content)


def test_deeply_nested_graphs_are_refused(golden_messages):
    graph = b''
    for _ in range(2000):
        attribute = protobuf_field(6, graph)
        graph = protobuf_field(1, protobuf_field(5, attribute))
    with golden_messages.raises(EngineError):
        find_external_weights(protobuf_field(7, graph))


@pytest.mark.parametrize('location', ['weights.bin', '../weights.bin', '{folder}/weights.bin'])
def test_model_with_external_weights_is_refused_when_it_opens(
    location, tmp_path, monkeypatch, golden_messages
):
    """ONNX Runtime itself reads files in the working folder; 1.23 also outside it, 1.32 not."""
    work = tmp_path / 'work'
    work.mkdir()
    monkeypatch.chdir(work)
    for folder in (tmp_path, work):
        np.ones((SIDE, SIDE), np.float32).tofile(folder / 'weights.bin')
    content = make_model(external_tensor(location.format(folder=tmp_path))).SerializeToString()
    try:
        session = onnxruntime.InferenceSession(content)
    except Exception:
        assert location != 'weights.bin'
    else:
        assert session.run(None, {'x': np.ones((1, SIDE), np.float32)})[0][0, 0] == SIDE
    path = tmp_path / 'tiny.onnx'
    path.write_bytes(content)
    with golden_messages.raises(EngineError):
        open_by_parameters(ParameterValues(engine_path=str(path)))


def test_fix_for_external_weights_works_from_the_current_folder(tmp_path, monkeypatch):
    folder = tmp_path / "the user's models"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    np.ones((SIDE, SIDE), np.float32).tofile(folder / 'weights.bin')
    path = Path(folder.name) / 'tiny.onnx'
    path.write_bytes(make_model(external_tensor('weights.bin')).SerializeToString())
    with pytest.raises(EngineError) as caught:
        open_by_parameters(ParameterValues(engine_path=str(path)))
    command = caught.value.fix.partition(': ')[2]
    subprocess.run(command, shell=True, check=True)
    session = onnxruntime.InferenceSession((folder / 'tiny_whole.onnx').read_bytes())
    assert session.run(None, {'x': np.ones((1, SIDE), np.float32)})[0][0, 0] == SIDE


def test_ort_format_is_refused(tmp_path):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / 'model.ort')
    options.add_session_config_entry('session.save_model_format', 'ORT')
    onnxruntime.InferenceSession(make_model().SerializeToString(), options)
    content = (tmp_path / 'model.ort').read_bytes()
    onnxruntime.InferenceSession(content)  # ONNX Runtime loads this format with any file name
    path = tmp_path / 'tiny.onnx'
    path.write_bytes(content)
    with pytest.raises(EngineError):
        open_by_parameters(ParameterValues(engine_path=str(path)))
