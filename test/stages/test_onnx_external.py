"""Weights outside an ONNX file: found as the onnx package finds them, and refused at run time."""

import contextlib
import json
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from docs_pages import ROOT
from onnx import TensorProto
from onnx import helper
from onnx import numpy_helper

from trt_perception import interruption
from trt_perception.building.graph.onnx_model import load_onnx
from trt_perception.config import DetectorConfig
from trt_perception.errors import EngineError
from trt_perception.errors import InterruptionError
from trt_perception.model.model_file import read_model_file
from trt_perception.pipelines.open_pipeline import open_pipeline
from trt_perception.stages import onnx_external
from trt_perception.stages.onnx_external import external_weights

SIDE = 16


def _field(number, content):
    size = len(content)
    length = bytearray()
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + content


def outside(location, name='w'):
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[SIDE, SIDE])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key='location', value=location)
    tensor.external_data.add(key='offset', value='0')
    return tensor


def inside(name='w'):
    return numpy_helper.from_array(np.ones((SIDE, SIDE), np.float32), name)


def model(weights=None, nodes=(), **more):
    shape = ['n', SIDE]
    graph = helper.make_graph(
        [*nodes, helper.make_node('MatMul', ['x', 'w'], ['y'])],
        'graph',
        [helper.make_tensor_value_info('x', TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info('y', TensorProto.FLOAT, shape)],
        [inside() if weights is None else weights],
    )
    opsets = [helper.make_opsetid('', 19), helper.make_opsetid('mine', 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, **more)


def node_with(**attributes):
    return helper.make_node('Thing', [], ['unused'], domain='mine', **attributes)


def subgraph(tensor):
    value = helper.make_tensor_value_info('w', TensorProto.FLOAT, [SIDE, SIDE])
    return helper.make_graph([node_with(value=tensor)], 'inner', [], [value], [inside()])


def sparse(tensor):
    # The helpers would look at the values.
    return onnx.SparseTensorProto(values=tensor, dims=[SIDE, SIDE])


def with_function(tensor):
    opsets = [helper.make_opsetid('', 19)]
    node = helper.make_node('Constant', [], ['out'], value=tensor)
    return model(functions=[helper.make_function('mine', 'F', [], ['out'], [node], opsets)])


def with_training(tensor):
    whole = model()
    whole.training_info.add().algorithm.initializer.append(tensor)
    return whole


PLACES = {
    'initializer': model,
    'attribute': lambda tensor: model(nodes=[node_with(value=tensor)]),
    'attributes': lambda tensor: model(nodes=[node_with(values=[inside('v'), tensor])]),
    'subgraph': lambda tensor: model(nodes=[node_with(body=subgraph(tensor))]),
    'subgraphs': lambda tensor: model(nodes=[node_with(body=[subgraph(tensor)])]),
    'function': with_function,
    'training': with_training,
}


@pytest.mark.parametrize('place', PLACES)
def test_found_wherever_a_tensor_may_be(place):
    content = PLACES[place](outside('weights.bin')).SerializeToString()
    assert external_weights(content) == ('weights.bin',)
    assert external_weights(PLACES[place](inside()).SerializeToString()) == ()


def test_models_that_keep_everything_inside():
    found = sorted(ROOT.glob('models/*.onnx')) + sorted(ROOT.glob('test/data/exports/*/*.onnx'))
    assert found
    for path in found:
        assert external_weights(path.read_bytes()) == ()


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


@pytest.mark.parametrize(
    ('found', 'makes'),
    [
        ('has a sparse tensor', with_sparse_weights),
        ('has a sparse tensor', lambda: model(nodes=[node_with(value=sparse(inside()))])),
        ('has a function that calls itself', lambda: calling(('F', ['F']))),
        ('has a function that calls itself', lambda: calling(('F', ['G']), ('G', ['F', 'F']))),
        ('has functions that make more than', lambda: calling(*DOUBLING, ('F20', []))),
        ('has more than 8 graphs within', lambda: nested(9)),
    ],
)
def test_what_onnx_runtime_does_not_bound_is_refused(found, makes):
    with pytest.raises(EngineError) as caught:
        external_weights(makes().SerializeToString(), 'm.onnx')
    assert caught.value.found.startswith(found)


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
    assert external_weights(whole.SerializeToString()) == ()


def has_external(parsed):
    """Ask the onnx package, over everything that protobuf's own reader finds."""
    pending = [parsed]
    while pending:
        message = pending.pop()
        if isinstance(message, TensorProto) and message.data_location == TensorProto.EXTERNAL:
            return True
        for field, value in message.ListFields():
            if field.message_type is not None:
                pending += [value] if not hasattr(value, 'append') else list(value)
    return False


@pytest.mark.parametrize('place', PLACES)
def test_changed_bytes_hide_nothing_that_protobuf_reads(place):
    """Whatever bytes do to a model: where protobuf sees such weights, we do or refuse the file."""
    whole = PLACES[place](outside('weights.bin')).SerializeToString()
    rng = random.Random(place)
    seen = 0
    for _ in range(1500):
        content = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(content))
            kind = rng.randrange(3)
            if kind == 0:
                content[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                content[at:at] = rng.randbytes(rng.randrange(1, 4))
            else:
                del content[at : at + rng.randrange(1, 4)]
        try:
            parsed = onnx.load_model_from_string(bytes(content))
        except Exception:
            continue
        if has_external(parsed):
            seen += 1
            with contextlib.suppress(EngineError):
                assert external_weights(bytes(content))
    assert seen > 50


def reaches_tensors(message, within=()):
    """Tell whether a message can hold a TensorProto, by the onnx package's description."""
    if message.name in within:
        return False
    return message.name == 'TensorProto' or any(
        field.message_type is not None
        and reaches_tensors(field.message_type, (*within, message.name))
        for field in message.fields
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
        for field in message.fields:
            inner = field.message_type
            if inner is not None and (reaches_tensors(inner) or field.name == 'external_data'):
                expected[field.number] = inner.name.removesuffix('Proto')
                pending.append(inner)
        assert leads == expected
        assert others == {field.number for field in message.fields} - set(expected)
    assert {f'{kind}Proto' for kind in onnx_external._FIELDS} == seen


# The tag of Graph.initializer, field 5 with a length; protobuf takes its lowest 32 bits.
TAGS = {
    'bits above the 32nd': b'\xaa\x80\x80\x80\x10',
    'all bits above the 32nd': b'\xaa\x80\x80\x80\x70',
    'longer than it has to be': b'\xaa\x00',
    'of five bytes': b'\xaa\x80\x80\x80\x00',
}


def hidden(tag, location='weights.bin'):
    """Return a model whose initializer stands under another spelling of its tag."""
    whole = model(outside(location))
    graph = whole.graph.SerializeToString()
    tensor = whole.graph.initializer[0].SerializeToString()
    assert graph.count(_field(5, tensor)) == 1
    graph = graph.replace(_field(5, tensor), tag + _field(5, tensor)[1:])
    whole.ClearField('graph')
    return whole.SerializeToString() + _field(7, graph)


@pytest.mark.parametrize('tag', TAGS.values(), ids=TAGS)
def test_tags_that_hide_weights(tag, tmp_path, monkeypatch):
    """ONNX Runtime reads the file, so the node must not load the model."""
    monkeypatch.chdir(tmp_path)
    np.ones((SIDE, SIDE), np.float32).tofile('weights.bin')
    content = hidden(tag)
    session = onnxruntime.InferenceSession(content)
    assert session.run(None, {'x': np.ones((1, SIDE), np.float32)})[0][0, 0] == SIDE
    path = tmp_path / 'tiny.onnx'
    path.write_bytes(content)
    with pytest.raises(EngineError, match='is not an ONNX model'):
        open_pipeline(DetectorConfig(engine_path=str(path)))
    with pytest.raises(EngineError, match='is not an ONNX model'):
        load_onnx(read_model_file(path))


@pytest.mark.parametrize(
    'number', [b'\x81\x00', b'\x81\x80\x80\x80\x10', b'\x81' + 8 * b'\x80' + b'\x01', b'\x02']
)
def test_spellings_of_data_location(number):
    """An enumeration has 32 bits, whatever is written, and may have more bytes than it needs."""
    tensor = outside('weights.bin').SerializeToString()
    plain = bytes([14 << 3, 1])
    assert tensor.count(plain) == 1
    raw = tensor.replace(plain, plain[:1] + number)
    content = _field(
        7,
        _field(
            1, _field(5, onnx.AttributeProto(name='value').SerializeToString() + _field(5, raw))
        ),
    )
    assert has_external(onnx.load_model_from_string(content)) == (number != b'\x02')
    with pytest.raises(EngineError, match='is not an ONNX model'):
        external_weights(content)


def test_a_tensor_in_two_parts():
    """Protobuf merges them."""
    parts = (TensorProto(data_location=1), TensorProto(name='w'))
    parts[1].external_data.add(key='location', value='weights.bin')
    attribute = b''.join(_field(5, part.SerializeToString()) for part in parts)
    content = _field(7, _field(1, _field(5, attribute)))
    assert has_external(onnx.load_model_from_string(content))
    assert external_weights(content)


def test_no_spelling_lets_onnx_runtime_read_a_file():
    """Fields written otherwise, merged, in groups: what is accepted makes it open no file."""
    script = Path(__file__).parents[1] / 'support' / 'onnx_spellings.py'
    done = subprocess.run(
        [sys.executable, script, '11', '3000'], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    print(found['counts'])
    assert found['holes'] == []
    assert found['counts']['found, opened'] > 100
    assert found['counts']['refused, opened'] > 20


@pytest.mark.parametrize(
    'content',
    [
        _field(7, _field(17, b'x')),
        _field(7, _field(1, _field(11, b'x'))),
        _field(27, b''),
        bytes([7 << 3 | 3, 7 << 3 | 4]),
        bytes([7 << 3, 1]),
        bytes([7 << 3 | 1]) + bytes(8),
        b'\x02\x00',
    ],
    ids=['Graph.17', 'Node.11', 'Model.27', 'group', 'number', 'eight bytes', 'field 0'],
)
def test_what_readers_may_understand_differently(content):
    with pytest.raises(EngineError, match='is not an ONNX model'):
        external_weights(content)


def test_a_file_of_endless_fields_can_be_given_up(monkeypatch):
    asked = threading.Event()
    monkeypatch.setattr(interruption, '_ASKED', asked)
    content = _field(7, _field(2, b'') * 100_000)
    assert external_weights(content) == ()
    asked.set()
    with pytest.raises(InterruptionError):
        external_weights(content)


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
def test_what_is_no_model(content):
    with pytest.raises(EngineError, match='is not an ONNX model, or is cut off'):
        external_weights(content)


def test_graphs_in_graphs_without_end():
    graph = b''
    for _ in range(2000):
        attribute = _field(6, graph)
        graph = _field(1, _field(5, attribute))
    with pytest.raises(EngineError, match='within each other'):
        external_weights(_field(7, graph))


@pytest.mark.parametrize('where', ['weights.bin', '../weights.bin', '{folder}/weights.bin'])
def test_the_node_does_not_read_them(where, tmp_path, monkeypatch):
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
    with pytest.raises(EngineError, match=r'all weights in the file itself .*weights\.bin'):
        open_pipeline(DetectorConfig(engine_path=str(path)))


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
        open_pipeline(DetectorConfig(engine_path=str(path)))
