# SPDX-License-Identifier: Apache-2.0
"""Tests that external weights in unusual encodings are found, or the model is refused."""

import contextlib
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from support.models.external_models import (
    MODELS_BY_TENSOR_PLACE,
    SIDE,
    external_tensor,
    has_external_tensor,
    make_model,
    protobuf_field,
)
from support.models.open_model import open_by_parameters
from trt_perception.errors import EngineError
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.files.onnx_external import find_external_weights
from trt_perception.offline.building.graph.onnx_model import load_onnx
from trt_perception.parameters.values import ParameterValues


@pytest.mark.parametrize('place', MODELS_BY_TENSOR_PLACE)
def test_changed_bytes_hide_no_weights_that_protobuf_reads(place):
    """If protobuf finds external weights in a changed model, this reader finds or refuses them."""
    whole = MODELS_BY_TENSOR_PLACE[place](external_tensor('weights.bin')).SerializeToString()
    rng = random.Random(place)
    external_count = 0
    for _ in range(1500):
        content = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            position = rng.randrange(len(content))
            kind = rng.randrange(3)
            if kind == 0:
                content[position] ^= 1 << rng.randrange(8)
            elif kind == 1:
                content[position:position] = rng.randbytes(rng.randrange(1, 4))
            else:
                del content[position : position + rng.randrange(1, 4)]
        try:
            parsed = onnx.load_model_from_string(bytes(content))
        except Exception:
            continue
        if has_external_tensor(parsed):
            external_count += 1
            with contextlib.suppress(EngineError):
                assert find_external_weights(bytes(content))
    assert external_count > 50


# The tag of Graph.initializer, field 5 with a length. Protobuf reads only the lowest 32 bits.
OTHER_TAG_ENCODINGS = {
    'bits above the 32nd': b'\xaa\x80\x80\x80\x10',
    'all bits above the 32nd': b'\xaa\x80\x80\x80\x70',
    'longer than necessary': b'\xaa\x00',
    'of five bytes': b'\xaa\x80\x80\x80\x00',
}


def model_with_tag(tag, location='weights.bin'):
    """Return a model whose initializer has another encoding of its tag."""
    whole = make_model(external_tensor(location))
    graph = whole.graph.SerializeToString()
    tensor = whole.graph.initializer[0].SerializeToString()
    assert graph.count(protobuf_field(5, tensor)) == 1
    graph = graph.replace(protobuf_field(5, tensor), tag + protobuf_field(5, tensor)[1:])
    whole.ClearField('graph')
    return whole.SerializeToString() + protobuf_field(7, graph)


@pytest.mark.parametrize('tag', OTHER_TAG_ENCODINGS.values(), ids=OTHER_TAG_ENCODINGS)
def test_other_encodings_of_a_tag_are_refused(tag, tmp_path, monkeypatch, golden_messages):
    """ONNX Runtime reads the external file, so the node must not load the model."""
    monkeypatch.chdir(tmp_path)
    np.ones((SIDE, SIDE), np.float32).tofile('weights.bin')
    content = model_with_tag(tag)
    session = onnxruntime.InferenceSession(content)
    assert session.run(None, {'x': np.ones((1, SIDE), np.float32)})[0][0, 0] == SIDE
    path = tmp_path / 'tiny.onnx'
    path.write_bytes(content)
    with golden_messages.raises(EngineError):
        open_by_parameters(ParameterValues(engine_path=str(path)))
    with golden_messages.raises(EngineError):
        load_onnx(read_model_file(path))


@pytest.mark.parametrize(
    'number', [b'\x81\x00', b'\x81\x80\x80\x80\x10', b'\x81' + 8 * b'\x80' + b'\x01', b'\x02']
)
def test_unusual_encodings_of_data_location_are_refused(number, golden_messages):
    """Protobuf reads 32 bits of an enumeration, from any number of bytes."""
    tensor = external_tensor('weights.bin').SerializeToString()
    plain = bytes([14 << 3, 1])
    assert tensor.count(plain) == 1
    raw = tensor.replace(plain, plain[:1] + number)
    content = protobuf_field(
        7,
        protobuf_field(
            1,
            protobuf_field(
                5, onnx.AttributeProto(name='value').SerializeToString() + protobuf_field(5, raw)
            ),
        ),
    )
    assert has_external_tensor(onnx.load_model_from_string(content)) == (number != b'\x02')
    with golden_messages.raises(EngineError):
        find_external_weights(content)


def test_external_weights_of_a_tensor_in_two_parts_are_found():
    """Protobuf merges the two parts of a tensor."""
    parts = (TensorProto(data_location=1), TensorProto(name='w'))
    parts[1].external_data.add(key='location', value='weights.bin')
    attribute = b''.join(protobuf_field(5, part.SerializeToString()) for part in parts)
    content = protobuf_field(7, protobuf_field(1, protobuf_field(5, attribute)))
    assert has_external_tensor(onnx.load_model_from_string(content))
    assert find_external_weights(content)


@pytest.mark.unmeasured
def test_no_encoding_lets_onnx_runtime_read_a_file():
    """ONNX Runtime opens no file for any accepted model with unusual encodings."""
    script = Path(__file__).parents[2] / 'support' / 'fuzz' / 'onnx_spellings.py'
    done = subprocess.run(
        [sys.executable, script, '11', '1500'],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    print(found['counts'])
    assert found['holes'] == []
    assert found['counts']['found, opened'] > 50
    assert found['counts']['refused, opened'] > 10


@pytest.mark.parametrize(
    'content',
    [
        protobuf_field(7, protobuf_field(17, b'x')),
        protobuf_field(7, protobuf_field(1, protobuf_field(11, b'x'))),
        protobuf_field(27, b''),
        bytes([7 << 3 | 3, 7 << 3 | 4]),
        bytes([7 << 3, 1]),
        bytes([7 << 3 | 1]) + bytes(8),
        b'\x02\x00',
    ],
    ids=['Graph.17', 'Node.11', 'Model.27', 'group', 'number', 'eight bytes', 'field 0'],
)
def test_ambiguous_encodings_are_refused(content, golden_messages):
    with golden_messages.raises(EngineError):
        find_external_weights(content)
