# SPDX-License-Identifier: Apache-2.0
"""build_engine builds exported files whose output shapes are open."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest

from support.models.detector_models import (
    DECODER_AND_CLASSES_ARGUMENTS,
    run_build_engine,
    write_detector,
)
from support.oracles.family_outputs import batched, network, random_objects, rtdetr_end_to_end
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.recognition.recognise import ModelOverrides
from trt_perception.model.resolve_spec import resolve_model_spec
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.offline.building.steps import engine_steps

pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
pytestmark = pytest.mark.engine_build


@pytest.fixture(autouse=True)
def _caches(tmp_path_factory, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))


def write_open(path, names):
    """Write RT-DETR's outputs with shapes that ONNX shape inference cannot determine."""
    rng = np.random.default_rng(1)
    outputs = batched('rtdetr_end_to_end', [rtdetr_end_to_end(rng, *random_objects(rng))])
    metadata = {'task': 'detect', 'names': str(names), 'head': 'RTDETRDecoder', 'stride': '32'}
    metadata['author'] = 'Ultralytics'
    model = onnx.load_model_from_string(network(outputs, metadata=metadata))
    # A loop or a TopK with a computed size has the same effect on ONNX shape inference.
    (last,) = (node for node in model.graph.node if node.output[0] == 'output0')
    last.output[0] = 'all'
    steps = [('shape', 'Shape', ['all']), ('output0', 'Reshape', ['all', 'sides'])]
    steps.insert(1, ('kept', 'Compress', ['shape', 'which']))
    steps.insert(2, ('sides', 'Identity', ['kept']))
    for output, kind, inputs in steps:
        model.graph.node.append(onnx.helper.make_node(kind, inputs, [output]))
    which = onnx.numpy_helper.from_array(np.ones(3, bool), 'which')
    model.graph.initializer.append(which)
    for side in model.graph.output[0].type.tensor_type.shape.dim:
        side.Clear()
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize('count', [1, 2, 5])
def test_open_output_shapes_are_found_by_a_run(count, tmp_path):
    path = write_open(tmp_path / 'net.onnx', [f'class {number}' for number in range(5)][:count])
    assert run_build_engine('--onnx', path, '--precision', 'fp32') == 0
    engine = read_model_file(tmp_path / 'net.engine')
    manifest = engine.manifest
    assert manifest.decoder == PRESETS['rtdetr_end_to_end'].decoder
    assert manifest.preprocessing.resize == 'stretch'
    model = ModelInfo('net.engine', manifest.inputs, manifest.outputs)
    resolve_model_spec(model, manifest, ModelOverrides())


def test_engine_that_no_pipeline_can_load_is_not_written(
    tmp_path, monkeypatch, capsys, golden_messages
):
    """The outputs of the built engine may differ from the outputs of the ONNX file."""
    # The warnings of a build depend on this variable, which GPU tests in the same process set.
    monkeypatch.setenv('NVIDIA_TF32_OVERRIDE', '0')
    real = engine_steps.build_plan

    def build_plan(*arguments, **named):
        plan = real(*arguments, **named)
        return dataclasses.replace(plan, outputs=(TensorSpec('output', (1, 7, 64), 'float32'),))

    monkeypatch.setattr(engine_steps, 'build_plan', build_plan)
    path = write_detector(tmp_path)
    assert run_build_engine('--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS) == 1
    golden_messages.add(capsys.readouterr().err)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ['net.onnx']
