# SPDX-License-Identifier: Apache-2.0
"""Keypoints, oriented boxes and masks with a GPU. The host decodes outputs that are not dense."""

from __future__ import annotations

import json
import sys
from ast import literal_eval

import numpy as np
import pytest

from support.gpu import fake_cuda
from support.gpu.cuda_recorder import Recorder
from support.gpu.fake_tensorrt import PLAN, FakeTensorRt
from support.gpu.gpu_support import build_plan, needs_tensorrt
from support.models.open_model import open_by_parameters
from support.models.recorded_exports import recorded_values, write_export
from support.oracles.family_outputs import network
from trt_perception.gpu import bindings
from trt_perception.images.frame import frame_from_bgr
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.cuda.results import HostDecoder
from trt_perception.pipelines.pipeline import detect_one

DENSE = [
    *('ultralytics_pose_26', 'ultralytics_pose_of_two'),
    *('ultralytics_obb_26', 'ultralytics_segment_26'),
]
END_TO_END = [
    *('ultralytics_pose_end_to_end', 'ultralytics_obb_end_to_end'),
    'ultralytics_segment_end_to_end',
]
LOW = Thresholds(confidence_threshold=0.02, wanted_topics=frozenset(['masks']))


def metadata_bytes(recording):
    """Return the metadata bytes that Ultralytics' exporter writes in front of a plan."""
    values = {'author': 'Ultralytics', **dict(recording['metadata'].tolist())}
    for key in ('names', 'imgsz', 'kpt_shape', 'kpt_names', 'args', 'end2end'):
        if key in values:
            values[key] = literal_eval(values[key])
    text = json.dumps(values).encode()
    return len(text).to_bytes(4, 'little') + text


def detect_with(path, family):
    """Return the detections of a pipeline in the recorded image."""
    pipeline = open_by_parameters(ParameterValues(engine_path=str(path), max_detections=300))
    found = detect_one(pipeline, frame_from_bgr(recorded_values(family)['image']), LOW).detections
    pipeline.close()
    return found


def assert_same(found, expected, within):
    assert len(found) == len(expected) > 3
    assert found.class_ids.tolist() == expected.class_ids.tolist()
    for name in ('xyxy', 'scores', 'keypoints', 'oriented'):
        found_values, expected_values = getattr(found, name), getattr(expected, name)
        assert (found_values is None) == (expected_values is None)
        if found_values is not None:
            assert np.abs(found_values - expected_values).max() <= within
    assert sum(part is None for part in (found.keypoints, found.oriented, found.pictured)) == 2
    if found.pictured is not None:
        numbers, expected_numbers = (
            np.empty(expected.masks.geometry.size_wh[::-1], 'u2') for _ in range(2)
        )
        found.pictured.number(numbers)
        expected.masks.number(expected_numbers)
        assert len(np.unique(expected_numbers)) > 3
        assert (numbers != expected_numbers).mean() <= (1e-3 if within else 0)


def collect_with_outputs(pipeline, outputs):
    """Write outputs to the first slot in place of the engine's. Return the detections."""
    decoder = pipeline.slots[0].decoder
    assert isinstance(decoder, HostDecoder)
    for name, value in outputs.items():
        content = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        decoder._outputs[name].array[: content.size] = content
    found = pipeline.collect(0)[0].detections
    for name in outputs:  # clear the outputs for the next frame
        decoder._outputs[name].array[:] = 0
    return found


@pytest.mark.parametrize('family', END_TO_END)
def test_end_to_end_outputs_in_pinned_memory_are_decoded(family, monkeypatch, tmp_path):
    recording = recorded_values(family)
    write_export(recording, tmp_path / 'made.onnx')
    outputs = {'output0': recording['output']}
    if 'prototypes' in recording:
        outputs['output1'] = recording['prototypes']
    expected = detect_with(tmp_path / 'made.onnx', family)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    recorder = Recorder(fake_cuda.bindings())
    module = FakeTensorRt(
        '',
        inputs=(('images', recording['pixels'].shape, 'FLOAT'),),
        outputs=tuple((name, value.shape, 'FLOAT') for name, value in outputs.items()),
    )
    monkeypatch.setattr(bindings, 'load_bindings', lambda: recorder.modules)
    monkeypatch.setitem(sys.modules, 'tensorrt', module)
    path = tmp_path / 'made.engine'
    path.write_bytes(metadata_bytes(recording) + PLAN)
    pipeline = open_by_parameters(ParameterValues(engine_path=str(path), max_detections=300))
    pipeline.enqueue(0, [frame_from_bgr(recording['image'])], [LOW])
    found = collect_with_outputs(pipeline, outputs)
    assert_same(found, expected, 0)
    pipeline.close()
    assert recorder.kinds() == []
    assert recorder.mistakes == []


RFDETR = {'model_class_names': ('a', 'b', 'c', 'd', 'e'), 'max_detections': 300}
# The image size differs from the network size, so that masks are interpolated.
GREY = np.full((150, 250, 3), 90, np.uint8)


def rfdetr_outputs():
    recording = recorded_values('rfdetr_masks')
    names = {'dets': 'pred_boxes', 'labels': 'logits', 'masks': 'pred_masks'}
    return {name: recording[key] for name, key in names.items()}


def rfdetr_detections(path):
    pipeline = open_by_parameters(ParameterValues(engine_path=str(path), **RFDETR))
    found = detect_one(pipeline, frame_from_bgr(GREY), LOW).detections
    pipeline.close()
    return found


def test_query_masks_in_pinned_memory_are_decoded(monkeypatch, tmp_path):
    outputs = rfdetr_outputs()
    (tmp_path / 'made.onnx').write_bytes(network(outputs, (1, 3, 64, 96)))
    expected = rfdetr_detections(tmp_path / 'made.onnx')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    recorder = Recorder(fake_cuda.bindings())
    module = FakeTensorRt(
        '',
        inputs=(('images', (1, 3, 64, 96), 'FLOAT'),),
        outputs=tuple((name, value.shape, 'FLOAT') for name, value in outputs.items()),
    )
    monkeypatch.setattr(bindings, 'load_bindings', lambda: recorder.modules)
    monkeypatch.setitem(sys.modules, 'tensorrt', module)
    path = tmp_path / 'made.engine'
    path.write_bytes(PLAN)
    pipeline = open_by_parameters(ParameterValues(engine_path=str(path), **RFDETR))
    pipeline.enqueue(0, [frame_from_bgr(GREY)], [LOW])
    found = collect_with_outputs(pipeline, outputs)
    assert_same(found, expected, 0)
    pipeline.close()
    assert recorder.mistakes == []


@needs_tensorrt
def test_engine_gives_the_query_masks_of_its_onnx_file(tmp_path):
    (tmp_path / 'made.onnx').write_bytes(network(rfdetr_outputs(), (1, 3, 64, 96)))
    plan = build_plan((tmp_path / 'made.onnx').read_bytes())
    (tmp_path / 'made.engine').write_bytes(plan)
    expected = rfdetr_detections(tmp_path / 'made.onnx')
    assert_same(rfdetr_detections(tmp_path / 'made.engine'), expected, 1e-3)


@needs_tensorrt
@pytest.mark.parametrize('family', [*DENSE, *END_TO_END])
def test_engine_gives_the_detections_of_its_onnx_file(family, tmp_path):
    recording = recorded_values(family)
    write_export(recording, tmp_path / 'made.onnx')
    plan = build_plan((tmp_path / 'made.onnx').read_bytes())
    (tmp_path / 'made.engine').write_bytes(metadata_bytes(recording) + plan)
    expected = detect_with(tmp_path / 'made.onnx', family)
    assert_same(detect_with(tmp_path / 'made.engine', family), expected, 1e-3)
