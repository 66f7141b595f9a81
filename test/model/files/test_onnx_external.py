"""Weights outside an ONNX file: found as the onnx package finds them, and refused at run time."""

import threading

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from support.docs_pages import ROOT
from support.models.external_models import (
    PLACES,
    SIDE,
    field,
    inside,
    model,
    node_with,
    outside,
    sparse,
)
from support.models.open_model import open_by_parameters
from trt_perception.errors import EngineError, InterruptionError
from trt_perception.model.files import onnx_external
from trt_perception.model.files.onnx_external import find_external_weights
from trt_perception.parameters.config import DetectorConfig
from trt_perception.process import interruption


@pytest.mark.parametrize('place', PLACES)
def test_found_wherever_a_tensor_may_be(place):
    content = PLACES[place](outside('weights.bin')).SerializeToString()
    assert find_external_weights(content) == ('weights.bin',)
    assert find_external_weights(PLACES[place](inside()).SerializeToString()) == ()


def test_models_that_keep_everything_inside():
    found = sorted(ROOT.glob('models/*.onnx')) + sorted(ROOT.glob('test/data/exports/*/*.onnx'))
    assert found
    for path in found:
        assert find_external_weights(path.read_bytes()) == ()


def calling(*calls):
    """Return a model with functions of these names, each of which calls the others given."""
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
    return model(functions=functions)


def nested(depth):
    """Return a model with graphs within each other; the outer one counts."""
    node = node_with(value=inside('v'))
    value = helper.make_tensor_value_info('w', TensorProto.FLOAT, [SIDE, SIDE])
    for _ in range(depth - 1):
        node = node_with(body=helper.make_graph([node], 'inner', [], [value]))
    return model(nodes=[node])


def with_sparse_weights():
    whole = model()
    whole.graph.sparse_initializer.append(sparse(inside('w')))
    return whole


DOUBLING = [(f'F{level}', [f'F{level + 1}'] * 2) for level in range(20)]


UNBOUNDED = {
    'sparse weights': with_sparse_weights,
    'sparse constant': lambda: model(nodes=[node_with(value=sparse(inside()))]),
    'function that calls itself': lambda: calling(('F', ['F'])),
    'functions that call each other': lambda: calling(('F', ['G']), ('G', ['F', 'F'])),
    'functions without end': lambda: calling(*DOUBLING, ('F20', [])),
    'graphs within graphs': lambda: nested(9),
}


@pytest.mark.parametrize('kind', UNBOUNDED)
def test_what_onnx_runtime_does_not_bound_is_refused(kind, golden_messages):
    with golden_messages.raises(EngineError):
        find_external_weights(UNBOUNDED[kind]().SerializeToString(), 'm.onnx')


@pytest.mark.parametrize(
    'whole',
    [
        calling(('F', ['G', 'G', 'Other']), ('G', ['H'] * 5), ('H', [])),
        calling(*DOUBLING[:10], ('F10', [])),
        nested(8),
    ],
    ids=['functions', 'doubling', 'graphs'],
)
def test_functions_and_graphs_as_exporters_write_them(whole):
    assert find_external_weights(whole.SerializeToString()) == ()


def reaches_tensors(message, within=()):
    """Tell whether a message can hold a TensorProto, by the onnx package's description."""
    if message.name in within:
        return False
    return message.name == 'TensorProto' or any(
        described.message_type is not None
        and reaches_tensors(described.message_type, (*within, message.name))
        for described in message.fields
    )


def test_every_field_of_onnx_is_known():
    """Fields that lead to tensors lead there here, too; all others are known to hold none."""
    pending, seen = [onnx.ModelProto.DESCRIPTOR], set()
    while pending:
        message = pending.pop()
        if message.name in seen:
            continue
        seen.add(message.name)
        leads, others = onnx_external._FIELDS[message.name.removesuffix('Proto')]
        expected = {}
        for described in message.fields:
            inner = described.message_type
            if inner is not None and (reaches_tensors(inner) or described.name == 'external_data'):
                expected[described.number] = inner.name.removesuffix('Proto')
                pending.append(inner)
        assert leads == expected
        assert others == {described.number for described in message.fields} - set(expected)
    assert {f'{kind}Proto' for kind in onnx_external._FIELDS} == seen


def test_a_file_of_endless_fields_can_be_given_up(monkeypatch):
    asked = threading.Event()
    monkeypatch.setattr(interruption, '_END_REQUESTED', asked)
    content = field(7, field(2, b'') * 100_000)
    assert find_external_weights(content) == ()
    asked.set()
    with pytest.raises(InterruptionError):
        find_external_weights(content)


@pytest.mark.parametrize(
    'content',
    [
        model().SerializeToString()[:-1],
        b'\x3a',
        b'\x3a\x7f\x00',
        b'\x3b\x00',
        b'\xff' * 12,
        b'\x09\0',
        b'\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f',
    ],
)
def test_what_is_no_model(content, golden_messages):
    with golden_messages.raises(EngineError):
        find_external_weights(content)


def test_graphs_in_graphs_without_end(golden_messages):
    graph = b''
    for _ in range(2000):
        attribute = field(6, graph)
        graph = field(1, field(5, attribute))
    with golden_messages.raises(EngineError):
        find_external_weights(field(7, graph))


@pytest.mark.parametrize('where', ['weights.bin', '../weights.bin', '{folder}/weights.bin'])
def test_the_node_does_not_read_them(where, tmp_path, monkeypatch, golden_messages):
    """ONNX Runtime would: relative to the working folder, out of it, and anywhere."""
    work = tmp_path / 'work'
    work.mkdir()
    monkeypatch.chdir(work)
    for folder in (tmp_path, work):
        np.ones((SIDE, SIDE), np.float32).tofile(folder / 'weights.bin')
    content = model(outside(where.format(folder=tmp_path))).SerializeToString()
    session = onnxruntime.InferenceSession(content)
    assert session.run(None, {'x': np.ones((1, SIDE), np.float32)})[0][0, 0] == SIDE
    path = tmp_path / 'tiny.onnx'
    path.write_bytes(content)
    with golden_messages.raises(EngineError):
        open_by_parameters(DetectorConfig(engine_path=str(path)))


def test_onnx_runtimes_own_format_is_refused(tmp_path):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / 'model.ort')
    options.add_session_config_entry('session.save_model_format', 'ORT')
    onnxruntime.InferenceSession(model().SerializeToString(), options)
    content = (tmp_path / 'model.ort').read_bytes()
    onnxruntime.InferenceSession(content)  # which takes it, whatever it is called
    path = tmp_path / 'tiny.onnx'
    path.write_bytes(content)
    with pytest.raises(EngineError):
        open_by_parameters(DetectorConfig(engine_path=str(path)))
