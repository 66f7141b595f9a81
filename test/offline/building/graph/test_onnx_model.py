# SPDX-License-Identifier: Apache-2.0
"""Tests of reading ONNX models (external weights, versions, damage, names) and of slimming."""

import hashlib
import os

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.building.messages import without_variable_text
from trt_perception.errors import EngineError
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.files.onnx_external import find_external_weights
from trt_perception.model.tensors import TensorSpec
from trt_perception.offline.building.graph import onnx_slim
from trt_perception.offline.building.graph.onnx_model import (
    check_model,
    load_onnx,
    unknown_operators,
)
from trt_perception.offline.building.graph.onnx_slim import random_inputs, slim

RANDOM = np.random.default_rng(7)


def small_model(nodes=None, *, opset=19, ir=9, height=4):
    """Return a model with a weight, an unnamed node and metadata."""
    weight = numpy_helper.from_array(RANDOM.random((2, 3, 1, 1), np.float32), 'weight')
    nodes = nodes or [
        helper.make_node('Conv', ['images', 'weight'], ['features']),
        helper.make_node('Identity', ['features'], ['same']),
        helper.make_node('Relu', ['same'], ['out'], name='last'),
    ]
    graph = helper.make_graph(
        nodes,
        'small',
        [helper.make_tensor_value_info('images', TensorProto.FLOAT, ('n', 3, height, 4))],
        [helper.make_tensor_value_info('out', TensorProto.FLOAT, ('n', None, height, 4))],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', opset)], ir_version=ir)
    helper.set_model_props(model, {'names': "{0: 'a'}"})
    return model


def load(path):
    return load_onnx(read_model_file(path))


def saved(tmp_path, model, **external):
    path = tmp_path / 'm.onnx'
    onnx.save_model(model, path, **external)
    return path


def refusal(path):
    with pytest.raises(EngineError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    return without_variable_text(caught.value)


def test_load_onnx_returns_the_content_of_the_file(tmp_path):
    path = saved(tmp_path, small_model())
    source = load(path)
    assert source.inputs == (TensorSpec('images', (-1, 3, 4, 4), 'float32'),)
    assert [tensor.name for tensor in source.outputs] == ['out']
    assert source.metadata == {'names': "{0: 'a'}"}
    assert source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    names = [node.name for node in source.model.graph.node]
    assert names[-1] == 'last'
    assert '' not in names
    assert len(set(names)) == len(names)
    assert check_model(source) == ()


def test_external_weights_are_embedded_and_hashed(tmp_path):
    model = small_model()
    # save_model empties the tensors of its argument
    path = saved(
        tmp_path, small_model(), save_as_external_data=True, location='w.bin', size_threshold=0
    )
    weights = (tmp_path / 'w.bin').read_bytes()
    source = load(path)
    assert source.external_files == ('w.bin',)
    (tensor,) = source.model.graph.initializer
    assert numpy_helper.to_array(tensor).tobytes() == weights
    assert source.model.graph.initializer[0].dims == model.graph.initializer[0].dims
    feed = {'images': RANDOM.random((1, 3, 4, 4), np.float32)}
    theirs = onnxruntime.InferenceSession(str(path)).run(None, feed)[0]
    ours = onnxruntime.InferenceSession(source.model.SerializeToString()).run(None, feed)[0]
    np.testing.assert_array_equal(ours, theirs)
    (tmp_path / 'w.bin').write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    assert load(path).sha256 != source.sha256


def external_model(tmp_path, location, **entries):
    model = small_model()
    tensor = model.graph.initializer[0]
    content = tensor.raw_data
    tensor.ClearField('raw_data')
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {'location': location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    path = tmp_path / 'm.onnx'
    path.write_bytes(model.SerializeToString())
    return path, content


@pytest.mark.parametrize(
    'location', ['../secret', '/etc/hostname', 'a/../../secret', '', '..\\secret']
)
def test_weights_outside_the_folder_are_not_read(tmp_path, location, golden_messages):
    (tmp_path / 'folder').mkdir()
    path, content = external_model(tmp_path / 'folder', location)
    (tmp_path / 'secret').write_bytes(content)
    golden_messages.add(refusal(path))


def test_link_to_weights_outside_the_folder_is_refused(tmp_path, golden_messages):
    (tmp_path / 'folder').mkdir()
    path, content = external_model(tmp_path / 'folder', 'w.bin')
    (tmp_path / 'secret').write_bytes(content)
    (tmp_path / 'folder' / 'w.bin').symlink_to(tmp_path / 'secret')
    golden_messages.add(refusal(path))


def test_links_in_a_model_hub_cache_are_followed(tmp_path):
    for name in ('blobs', 'snapshot'):
        (tmp_path / name).mkdir()
    path, content = external_model(tmp_path / 'blobs', 'w.bin')
    path.rename(tmp_path / 'blobs' / 'aaaa')
    (tmp_path / 'blobs' / 'bbbb').write_bytes(content)
    link = tmp_path / 'snapshot' / 'm.onnx'
    link.symlink_to('../blobs/aaaa')
    (tmp_path / 'snapshot' / 'w.bin').symlink_to('../blobs/bbbb')
    assert load(link).model.graph.initializer[0].raw_data == content


def external_places(location):
    """Return models by the place of their external weight, which is outside the initializers."""
    tensor = TensorProto(name='w', data_type=TensorProto.FLOAT, dims=[4, 4])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key='location', value=location)
    constant = helper.make_node('Constant', [], ['w'], value=tensor)
    add = helper.make_node('Add', ['images', 'w'], ['out'])
    call = helper.make_node('F', [], ['w'], domain='mine')
    opsets = [helper.make_opsetid('', 19)]
    models = {
        'function': small_model([call, add]),
        'constant': small_model([constant, add]),
        'training': small_model(),
    }
    models['function'].functions.append(
        helper.make_function('mine', 'F', [], ['w'], [constant], opsets)
    )
    models['function'].opset_import.add(domain='mine', version=1)
    models['training'].training_info.add().algorithm.initializer.append(tensor)
    return models


@pytest.mark.parametrize('place', external_places('w.bin'))
def test_external_weights_are_embedded_at_any_place_in_the_model(
    tmp_path, monkeypatch, place, golden_messages
):
    (tmp_path / 'folder').mkdir()
    monkeypatch.chdir(tmp_path)
    path = tmp_path / 'folder' / 'm.onnx'
    path.write_bytes(external_places('w.bin')[place].SerializeToString())
    weights = RANDOM.random((4, 4), np.float32)
    weights.tofile(path.with_name('w.bin'))
    source = load(path)
    assert source.external_files == ('w.bin',)
    content = source.model.SerializeToString()
    assert find_external_weights(content) == ()
    images = RANDOM.random((1, 3, 4, 4), np.float32)
    (found,) = onnxruntime.InferenceSession(content).run(None, {'images': images})
    if place != 'training':
        np.testing.assert_array_equal(found, images + weights)
    for outside in (str(path.with_name('w.bin')), '../w.bin'):
        path.write_bytes(external_places(outside)[place].SerializeToString())
        golden_messages.add(refusal(path))


def test_folder_replaced_by_a_link_during_opening_is_refused(
    tmp_path, monkeypatch, golden_messages
):
    """The check must use the opened file, because the path may lead to another file by then."""
    for name in ('folder/inner', 'secret'):
        (tmp_path / name).mkdir(parents=True)
    path, content = external_model(tmp_path / 'folder', 'inner/w.bin')
    (tmp_path / 'folder' / 'inner' / 'w.bin').write_bytes(content)
    (tmp_path / 'secret' / 'w.bin').write_bytes(content)
    assert load(path).external_files == ('inner/w.bin',)
    real = os.open

    def swapping(name, *arguments, **options):
        if str(name).endswith('w.bin') and not (tmp_path / 'aside').exists():
            (tmp_path / 'folder' / 'inner').rename(tmp_path / 'aside')
            (tmp_path / 'folder' / 'inner').symlink_to(tmp_path / 'secret')
        return real(name, *arguments, **options)

    monkeypatch.setattr('trt_perception.model.files.model_file.os.open', swapping)
    golden_messages.add(refusal(path))


def test_weights_file_shared_by_many_tensors_is_limited_in_size(
    tmp_path, monkeypatch, golden_messages
):
    path, content = external_model(tmp_path, 'w.bin')
    (tmp_path / 'w.bin').write_bytes(content)
    monkeypatch.setattr(
        'trt_perception.offline.building.graph.onnx_model._MAX_BYTES', len(content) - 1
    )
    with golden_messages.raises(EngineError):
        load(path)


def test_missing_or_truncated_weights_are_refused(tmp_path, golden_messages):
    path, content = external_model(tmp_path, 'w.bin')
    golden_messages.add(refusal(path))
    path, _ = external_model(tmp_path, 'w.bin', offset=8, length=len(content))
    (tmp_path / 'w.bin').write_bytes(content)
    golden_messages.add(refusal(path))
    path, _ = external_model(tmp_path, 'w.bin', offset=-4)
    golden_messages.add(refusal(path))
    path, _ = external_model(tmp_path, 'w.bin', offset='x')
    refusal(path)


@pytest.mark.parametrize(
    'content',
    [
        b'\xff' * 100,
        b'\x08\x07',
    ],
)
def test_content_that_is_no_model_is_refused(tmp_path, content, golden_messages):
    path = tmp_path / 'm.onnx'
    path.write_bytes(content)
    golden_messages.add(refusal(path))


@pytest.mark.parametrize('share', [0.1, 0.5, 0.9, 0.99])
def test_truncated_file_is_refused(tmp_path, share, golden_messages):
    path = saved(tmp_path, small_model())
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    golden_messages.add(refusal(path))


def test_missing_file_and_other_suffix_are_refused(tmp_path, golden_messages):
    with golden_messages.raises(EngineError):
        read_model_file(tmp_path / 'none.onnx')
    with golden_messages.raises(EngineError):
        read_model_file(tmp_path / 'model.pt')


@pytest.mark.parametrize('newer', [{'ir': 99}, {'opset': 99}])
def test_unknown_onnx_versions_are_refused(tmp_path, newer, golden_messages):
    path = tmp_path / 'm.onnx'
    path.write_bytes(small_model(**newer).SerializeToString())
    golden_messages.add(refusal(path))


def test_unknown_operators_are_listed_with_their_nodes(tmp_path, golden_messages):
    nodes = [
        helper.make_node('MyOp', ['images'], ['a'], name='first', domain='my.domain'),
        helper.make_node('NotAnOp', ['a'], ['b'], name='second'),
        helper.make_node('NotAnOp', ['b'], ['out'], name='third'),
    ]
    model = small_model(nodes)
    assert unknown_operators(model) == {
        'my.domain.MyOp': ['first'],
        'NotAnOp': ['second', 'third'],
    }
    (warning,) = check_model(load(saved(tmp_path, model)))
    golden_messages.add(warning)
    # An operator is unknown in opsets before its introduction.
    gelu = [helper.make_node('Gelu', ['images'], ['out'], name='gelu')]
    assert unknown_operators(small_model(gelu, opset=20)) == {}
    assert unknown_operators(small_model(gelu, opset=19)) == {'Gelu': ['gelu']}


def test_unknown_operators_in_branches_are_found():
    branch = helper.make_graph(
        [helper.make_node('NotAnOp', ['images'], ['y'], name='inner')],
        'branch',
        [],
        [helper.make_tensor_value_info('y', TensorProto.FLOAT, None)],
    )
    nodes = [helper.make_node('If', ['flag'], ['out'], then_branch=branch, else_branch=branch)]
    assert unknown_operators(small_model(nodes)) == {'NotAnOp': ['inner', 'inner']}


def test_invalid_graph_is_refused(tmp_path):
    nodes = [helper.make_node('Relu', ['nowhere'], ['out'])]
    with pytest.raises(EngineError, match='nowhere'):
        check_model(load(saved(tmp_path, small_model(nodes))))


FEED = {'images': RANDOM.random((1, 3, 4, 4), np.float32)}


def test_slimming_removes_a_useless_node_and_keeps_the_results():
    model = small_model()
    slimmed, warning = slim(model, FEED)
    assert warning == ''
    assert [node.op_type for node in slimmed.graph.node] == ['Conv', 'Relu']
    assert {entry.key for entry in slimmed.metadata_props} == {'names'}
    side = slimmed.graph.input[0].type.tensor_type.shape.dim[0]
    assert side.dim_param
    assert len(model.graph.node) == 3
    assert all(node.name for node in slimmed.graph.node)
    one, other = (
        onnxruntime.InferenceSession(m.SerializeToString()).run(None, FEED)[0]
        for m in (model, slimmed)
    )
    np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize(
    ('change', 'says'),
    [
        (lambda m: m.graph.node[-1].__setattr__('op_type', 'Sigmoid'), 'the results differ'),
        (lambda m: m.graph.output.pop(), 'onnxslim failed'),
        (lambda m: m.graph.output[0].__setattr__('name', 'features'), 'other outputs'),
    ],
)
def test_slimmed_graph_with_other_results_is_dropped(monkeypatch, change, says):
    def broken(model):
        copied = onnx.ModelProto()
        copied.CopyFrom(model)
        change(copied)
        return copied

    monkeypatch.setattr(onnx_slim, '_run_onnxslim', broken)
    model = small_model()
    left, warning = slim(model, FEED)
    assert left is model
    assert says in warning


def test_error_of_onnxslim_is_only_a_warning(monkeypatch, golden_messages):
    def fail(_):
        raise IndexError('inside')

    monkeypatch.setattr(onnx_slim, '_run_onnxslim', fail)
    golden_messages.add(slim(small_model(), FEED)[1])
    assert 'ONNX Runtime' in slim(small_model(), {})[1]


@pytest.mark.parametrize(
    ('one', 'other', 'expected'),
    [
        ([0.0], [0.0], 0),
        ([1.0, 200.0], [1.0, 200.02], 1e-4),
        ([1.0], [np.nan], np.inf),
        ([np.inf], [np.inf], 0),
        ([1.0, 2.0], [1.0], np.inf),
        ([0.0], [0.5], 0.5),
    ],
)
def test_difference_is_relative_to_the_largest_value(one, other, expected):
    found = onnx_slim._relative_difference(np.array(one), np.array(other))
    assert found == pytest.approx(expected, rel=1e-3)


def test_difference_of_unequal_integers_is_infinite():
    assert onnx_slim._relative_difference(np.array([1]), np.array([1])) == 0
    assert onnx_slim._relative_difference(np.array([1]), np.array([2])) == np.inf


def test_random_inputs_match_types_and_shapes():
    found = random_inputs(small_model(), {'images': (2, 3, 4, 4)})
    assert [(name, array.shape) for name, array in found.items()] == [('images', (2, 3, 4, 4))]
    assert found['images'].dtype == np.float32
    assert np.unique(found['images']).size > 90
