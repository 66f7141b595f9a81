# SPDX-License-Identifier: Apache-2.0
"""Tests of GPU outputs that the host decodes, with stand-ins or on a real GPU."""

from __future__ import annotations

import ctypes
import json
from dataclasses import replace

import numpy as np
import pytest

from support.gpu.fake_tensorrt import PLAN
from support.gpu.gpu_support import build_plan, needs_tensorrt
from support.models.open_model import open_by_parameters
from support.models.tiny_model import write_tiny_model
from support.oracles.family_outputs import (
    EXTRA_INPUTS,
    NAMES,
    NETWORK,
    OUTPUTS,
    batched,
    network,
    random_objects,
)
from trt_perception.errors import EngineError
from trt_perception.images.frame import Frame
from trt_perception.model.decoders.table import OBJECT_PRESETS, PRESETS
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.evaluation.offline_detection import detect_batch
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.open_pipeline import open_offline_pipeline
from trt_perception.pipelines.pipeline import detect_one

pytest_plugins = ['support.gpu.gpu_standin_fixtures']

DTYPES = {'float32': 'FLOAT', 'int64': 'INT64', 'int32': 'INT32'}
IMAGE_INPUT = ('image', (1, 3, NETWORK[1], NETWORK[0]), 'FLOAT')
HOST_DECODED = [
    name
    for name, preset in OBJECT_PRESETS.items()
    if preset.decoder.family not in ('dense', 'yolox_raw')
]


def parameters_for(path, name, **values):
    return ParameterValues(
        engine_path=str(path),
        pipeline_depth=2,
        model_decoder=name,
        model_class_names=NAMES,
        # test_padding.py has pixel masks with padding.
        model_resize='stretch' if has_pixel_mask(name) else 'letterbox',
        model_color_order='rgb',
        model_scale=1 / 255,
        **values,
    )


def has_pixel_mask(name):
    return any(tensor == 'pixel_mask' for tensor, _ in EXTRA_INPUTS.get(name, ()))


def in_the_image(name, xyxy):
    """Convert boxes from the network's 640 x 480 pixels to a 1280 x 720 image.

    For a network with a pixel mask, the image is stretched. For other networks, the image has half
    its size and begins 60 rows below the top.
    """
    if has_pixel_mask(name):
        return xyxy * [2, 1.5, 2, 1.5]
    return (xyxy - [0, 60, 0, 60]) * 2


def grey(width=1280, height=720):
    pixels = np.full(width * height, 114, np.uint8)
    return Frame.view(pixels, width=width, height=height, step=width, encoding='mono8')


@pytest.fixture
def install_standins(install_standins, tmp_path):
    """Return a function that installs stand-ins for CUDA and TensorRT with the given tensors."""

    def put(inputs, outputs, profiles=()):
        tensors = {'inputs': inputs, 'outputs': outputs, 'profiles': profiles}
        recorder, _ = install_standins(tensors=tensors)
        path = tmp_path / 'made.engine'
        path.write_bytes(PLAN)
        return path, recorder

    return put


def tensors_of(outputs):
    return tuple((key, value.shape, DTYPES[str(value.dtype)]) for key, value in outputs.items())


@pytest.mark.parametrize('name', HOST_DECODED)
def test_outputs_in_pinned_memory_are_decoded(name, install_standins):
    rng = np.random.default_rng(30)
    objects = [random_objects(rng, count) for count in (6, 4)]
    frames = [batched(name, [OUTPUTS[name](rng, *one)]) for one in objects]
    if name == 'onnx_nms_xyxy' or name.startswith('onnx_nms'):
        objects[1] = objects[0]
        frames[1] = frames[0]
    if name == 'torchvision':
        objects[1], frames[1] = objects[0], frames[0]
    more_inputs = tuple((key, shape, 'INT64') for key, shape in EXTRA_INPUTS.get(name, ()))
    path, recorder = install_standins((IMAGE_INPUT, *more_inputs), tensors_of(frames[0]))
    pipeline = open_by_parameters(parameters_for(path, name))
    for slot, outputs in enumerate(frames):
        pipeline.enqueue(slot, [grey()], [Thresholds()])
        for key, value in outputs.items():
            pinned = pipeline.slots[slot].decoder._outputs[key].array
            assert pinned.size >= value.nbytes
            pinned[: value.nbytes] = value.reshape(-1).view(np.uint8)
    for slot, (xyxy, scores, labels) in enumerate(objects):
        (result,) = pipeline.collect(slot)
        found = result.detections
        assert np.abs(found.xyxy - in_the_image(name, xyxy)).max() < 1e-3
        assert np.abs(found.scores - scores).max() < 1e-5
        assert found.class_ids.tolist() == labels.tolist()
        assert result.compute_s > 0
    pipeline.close()
    assert recorder.kinds() == []
    assert recorder.mistakes == []


def test_graph_copies_each_output(install_standins):
    outputs = batched('detr', [OUTPUTS['detr'](np.random.default_rng(31), *known_boxes())])
    path, recorder = install_standins((IMAGE_INPUT,), tensors_of(outputs))
    pipeline = open_by_parameters(parameters_for(path, 'detr'))
    calls = recorder.calls
    began = calls.index('cudaStreamBeginCapture')
    ended = calls.index('cudaStreamEndCapture')
    assert calls[began:ended].count('cudaMemcpyAsync') == len(outputs)
    pipeline.close()


def known_boxes():
    return random_objects(np.random.default_rng(32))


def test_unsupported_image_layout_is_refused(install_standins, golden_messages):
    outputs = batched('detr', [OUTPUTS['detr'](np.random.default_rng(33), *known_boxes())])
    by_row = ('image', (1, NETWORK[1], NETWORK[0], 3), 'FLOAT')
    path, recorder = install_standins((by_row,), tensors_of(outputs))
    with golden_messages.raises(EngineError):
        open_by_parameters(parameters_for(path, 'detr'))
    assert recorder.kinds() == []


def test_engine_with_wrong_output_shapes_is_refused(install_standins, golden_messages):
    outputs = batched('detr', [OUTPUTS['detr'](np.random.default_rng(34), *known_boxes())])
    path, _ = install_standins((IMAGE_INPUT,), tensors_of(outputs))
    # For five class names, softmax needs six logits, and sigmoid needs five.
    with golden_messages.raises(EngineError):
        open_by_parameters(parameters_for(path, 'rtdetr'))


def test_engine_with_a_wrong_cell_count_is_refused_before_compiling(
    install_standins, golden_messages
):
    path, recorder = install_standins(
        (IMAGE_INPUT,), (('output', (1, 6301, 5 + len(NAMES)), 'FLOAT'),)
    )
    with golden_messages.raises(EngineError):
        open_by_parameters(parameters_for(path, 'yolox_raw'))
    assert recorder.kinds() == []


def test_ultralytics_engine_needs_no_parameters(install_standins):
    path, _ = install_standins((IMAGE_INPUT,), (('output0', (1, 4 + len(NAMES), 6300), 'FLOAT'),))
    metadata = {'author': 'Ultralytics', 'task': 'detect', 'names': dict(enumerate(NAMES))}
    metadata_bytes = json.dumps(metadata).encode()
    path.write_bytes(len(metadata_bytes).to_bytes(4, 'little') + metadata_bytes + PLAN)
    pipeline = open_by_parameters(ParameterValues(engine_path=str(path)))
    assert pipeline.spec.class_names == NAMES
    assert pipeline.spec.decoder == PRESETS['dense'].decoder
    assert pipeline.spec.preprocessing == Preprocessing(NETWORK, size_rounding='half_even')
    pipeline.close()


def test_engine_with_open_shapes_is_recognised_by_its_computed_output_shapes(install_standins):
    inputs = (('image', (-1, 3, -1, -1), 'FLOAT'),)
    profile = tuple((1, 3, side, side) for side in (320, 640, 960))
    path, _ = install_standins(inputs, (('output0', (-1, -1, -1), 'FLOAT'),), (profile,))
    metadata = {'author': 'Ultralytics', 'task': 'detect', 'head': 'Detect'}
    metadata |= {'imgsz': [480, 640], 'names': ['a', 'b', 'c']}
    metadata_bytes = json.dumps(metadata).encode()
    path.write_bytes(len(metadata_bytes).to_bytes(4, 'little') + metadata_bytes + PLAN)
    pipeline = open_by_parameters(ParameterValues(engine_path=str(path)))
    assert pipeline.spec.decoder == PRESETS['dense'].decoder  # output shape (1, 7, 4)
    assert pipeline.spec.preprocessing == Preprocessing(NETWORK, size_rounding='half_even')
    pipeline.close()


@pytest.mark.parametrize('name', ['dense', 'onnx_nms_xyxy', 'labels_boxes_scores', 'detr'])
def test_each_image_of_a_batch_is_decoded_from_its_own_outputs(name, install_standins):
    rng = np.random.default_rng(36)
    objects = [random_objects(rng, count) for count in (6, 4, 5)]
    outputs = batched(name, [OUTPUTS[name](rng, *one) for one in objects])
    more_inputs = tuple(
        (key, (3, *shape[1:]), 'INT64') for key, shape in EXTRA_INPUTS.get(name, ())
    )
    image = ('image', (3, *IMAGE_INPUT[1][1:]), 'FLOAT')
    path, recorder = install_standins((image, *more_inputs), tensors_of(outputs))
    uploaded = []
    runtime = recorder.modules[2]._module
    runtime.cudaMemcpyAsync = lambda to, source, size, *how: (
        uploaded.append(ctypes.string_at(source, size) if size == 3 * 16 else b'') or (0,)
    )
    # The kernels support fewer candidates, so the host decodes complete dense outputs too.
    options = replace(
        parameters_for(path, name).pipeline_options(), limits=DecodingLimits(max_candidates=2000)
    )
    pipeline = open_offline_pipeline(read_model_file(path), options)
    assert pipeline.batch == 3
    if name == 'labels_boxes_scores':
        sizes = np.array([NETWORK] * 3, np.int64).tobytes()
        assert uploaded.count(sizes) == pipeline.depth
    frames = [grey(), grey(640, 480), grey(64, 48)]
    for slot, count in ((0, 3), (1, 2)):
        pipeline.enqueue(slot, frames[:count], [Thresholds()] * count)
        for key, value in outputs.items():
            pinned = pipeline.slots[slot].decoder._outputs[key].array
            pinned[: value.nbytes] = value.reshape(-1).view(np.uint8)
        run = [result.detections for result in pipeline.collect(slot)]
        assert len(run) == count
        # The second image has the size of the network's input, and the third a tenth of this size.
        for found, place, (xyxy, scores, labels) in zip(run, range(count), objects, strict=False):
            boxes = [in_the_image(name, xyxy), xyxy, 0.1 * xyxy][place]
            assert np.abs(found.xyxy - boxes).max() < 1e-3
            assert np.abs(found.scores - scores).max() < 1e-5
            assert found.class_ids.tolist() == labels.tolist()
    pipeline.close()
    assert recorder.kinds() == []
    assert recorder.mistakes == []


def test_batch_above_64_is_refused(install_standins, golden_messages):
    image = ('image', (65, *IMAGE_INPUT[1][1:]), 'FLOAT')
    outputs = {'output': np.zeros((65, 4 + len(NAMES), 10), np.float32)}
    path, recorder = install_standins((image,), tensors_of(outputs))
    with golden_messages.raises(EngineError):
        open_by_parameters(parameters_for(path, 'dense'))
    assert recorder.kinds() == []


@needs_tensorrt
def test_batch_engine_finds_the_same_as_a_single_image_model(tmp_path):
    rng = np.random.default_rng(37)
    colours = rng.integers(60, 256, (7, 3), np.uint8)
    frames = [
        Frame.view(np.tile(rgb, 320 * 240), width=320, height=240, step=960, encoding='rgb8')
        for rgb in colours
    ]
    single = open_by_parameters(
        ParameterValues(engine_path=str(write_tiny_model(tmp_path / 'a.onnx')))
    )
    several = write_tiny_model(tmp_path / 'b.onnx', batch=4)
    engine = tmp_path / 'b.engine'
    engine.write_bytes(build_plan(several.read_bytes()))
    parameters = ParameterValues(
        engine_path=str(engine),
        model_decoder='dense',
        model_class_names=single.spec.class_names,
    )
    pipeline = open_offline_pipeline(read_model_file(engine), parameters.pipeline_options())
    for start in (0, 4):
        for found, frame in zip(
            detect_batch(pipeline, frames[start : start + 4], Thresholds()),
            frames[start : start + 4],
            strict=True,
        ):
            expected = detect_one(single, frame, Thresholds()).detections
            assert len(found) == len(expected) >= 2
            assert found.class_ids.tolist() == expected.class_ids.tolist()
            assert np.abs(found.xyxy - expected.xyxy).max() < 1e-3
            assert np.abs(found.scores - expected.scores).max() < 1e-3
    pipeline.close()


@needs_tensorrt
@pytest.mark.parametrize('use_cuda_graph', [True, False])
@pytest.mark.parametrize('name', OBJECT_PRESETS)
def test_engine_gives_the_detections_of_its_onnx_file(name, use_cuda_graph, tmp_path):
    rng = np.random.default_rng(35)
    xyxy, scores, labels = random_objects(rng)
    outputs = batched(name, [OUTPUTS[name](rng, xyxy, scores, labels)])
    content = network(outputs, beside=EXTRA_INPUTS.get(name, ()))
    (tmp_path / 'made.onnx').write_bytes(content)
    (tmp_path / 'made.engine').write_bytes(build_plan(content))
    found = {}
    for suffix in ('.onnx', '.engine'):
        path = tmp_path / f'made{suffix}'
        pipeline = open_by_parameters(parameters_for(path, name, use_cuda_graph=use_cuda_graph))
        for slot in range(pipeline.depth):
            pipeline.enqueue(slot, [grey()], [Thresholds()])
        found[suffix] = [pipeline.collect(slot)[0].detections for slot in range(pipeline.depth)]
        pipeline.close()
    (expected,) = found['.onnx']
    assert np.abs(expected.xyxy - in_the_image(name, xyxy)).max() < 1e-3
    for detections in found['.engine']:
        assert detections.class_ids.tolist() == labels.tolist()
        assert np.abs(detections.scores - scores).max() < 1e-5
        assert np.abs(detections.xyxy - expected.xyxy).max() < 1e-3
