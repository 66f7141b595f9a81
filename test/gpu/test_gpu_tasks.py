"""Keypoints, oriented boxes, masks behind the GPU; what is no dense output the host decodes."""

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
from support.models.recorded_exports import recorded, written
from support.oracles.family_outputs import network
from trt_perception.gpu import bindings
from trt_perception.images.frame import frame_from_bgr
from trt_perception.parameters.config import DetectorConfig
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.cuda_results import HostDecoder
from trt_perception.pipelines.pipeline import detect_one

DENSE = [
    *('ultralytics_pose_26', 'ultralytics_pose_of_two'),
    *('ultralytics_obb_26', 'ultralytics_segment_26'),
]
END_TO_END = [
    *('ultralytics_pose_end_to_end', 'ultralytics_obb_end_to_end'),
    'ultralytics_segment_end_to_end',
]
LOW = Thresholds(confidence_threshold=0.02, wants_masks=True)


def front_of(told):
    """Return what Ultralytics' exporter writes in front of a plan."""
    values = dict(told['metadata'].tolist())
    for key in ('names', 'imgsz', 'kpt_shape', 'kpt_names', 'args', 'end2end'):
        if key in values:
            values[key] = literal_eval(values[key])
    text = json.dumps(values).encode()
    return len(text).to_bytes(4, 'little') + text


def found_by(path, family):
    """Return what a pipeline finds in the recorded image."""
    pipeline = open_by_parameters(DetectorConfig(engine_path=str(path), max_detections=300))
    found = detect_one(pipeline, frame_from_bgr(recorded(family)['image']), LOW).detections
    pipeline.close()
    return found


def assert_same(found, expected, within):
    assert len(found) == len(expected) > 3
    assert found.class_ids.tolist() == expected.class_ids.tolist()
    for name in ('xyxy', 'scores', 'keypoints', 'oriented'):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None) == (other is None)
        if one is not None:
            assert np.abs(one - other).max() <= within
    assert sum(part is None for part in (found.keypoints, found.oriented, found.pictured)) == 2
    if found.pictured is not None:
        numbers, told = (np.empty(expected.masks.geometry.size_wh[::-1], 'u2') for _ in range(2))
        found.pictured.number(numbers)
        expected.masks.number(told)
        assert len(np.unique(told)) > 3
        assert (numbers != told).mean() <= (1e-3 if within else 0)


def collected(pipeline, outputs):
    """Let the first slot's engine, a stand-in, have these outputs; return what is found."""
    result = pipeline.slots[0].result
    assert isinstance(result, HostDecoder)
    for name, value in outputs.items():
        content = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        result._outputs[name].array[: content.size] = content
    found = pipeline.collect(0)[0].detections
    for name in outputs:  # the next frame's
        result._outputs[name].array[:] = 0
    return found


@pytest.mark.parametrize('family', END_TO_END)
def test_what_lies_in_pinned_memory_is_decoded(family, monkeypatch, tmp_path):
    told = recorded(family)
    written(told, tmp_path / 'made.onnx')
    outputs = {'output0': told['output']}
    if 'prototypes' in told:
        outputs['output1'] = told['prototypes']
    expected = found_by(tmp_path / 'made.onnx', family)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    recorder = Recorder(fake_cuda.bindings())
    module = FakeTensorRt(
        '',
        inputs=(('images', told['pixels'].shape, 'FLOAT'),),
        outputs=tuple((name, value.shape, 'FLOAT') for name, value in outputs.items()),
    )
    monkeypatch.setattr(bindings, 'load_bindings', lambda: recorder.modules)
    monkeypatch.setitem(sys.modules, 'tensorrt', module)
    path = tmp_path / 'made.engine'
    path.write_bytes(front_of(told) + PLAN)
    pipeline = open_by_parameters(DetectorConfig(engine_path=str(path), max_detections=300))
    pipeline.enqueue(0, [frame_from_bgr(told['image'])], [LOW])
    found = collected(pipeline, outputs)
    assert_same(found, expected, 0)
    pipeline.close()
    assert recorder.kinds() == []
    assert recorder.mistakes == []


RFDETR = {'model_class_names': ('a', 'b', 'c', 'd', 'e'), 'max_detections': 300}
# An image of another size than the network's, so that masks are interpolated.
GREY = np.full((150, 250, 3), 90, np.uint8)


def rfdetr_outputs():
    told = recorded('rfdetr_masks')
    names = {'dets': 'pred_boxes', 'labels': 'logits', 'masks': 'pred_masks'}
    return {name: told[key] for name, key in names.items()}


def rfdetr_found(path):
    pipeline = open_by_parameters(DetectorConfig(engine_path=str(path), **RFDETR))
    found = detect_one(pipeline, frame_from_bgr(GREY), LOW).detections
    pipeline.close()
    return found


def test_masks_of_queries_in_pinned_memory_are_decoded(monkeypatch, tmp_path):
    outputs = rfdetr_outputs()
    (tmp_path / 'made.onnx').write_bytes(network(outputs, (1, 3, 64, 96)))
    expected = rfdetr_found(tmp_path / 'made.onnx')
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
    pipeline = open_by_parameters(DetectorConfig(engine_path=str(path), **RFDETR))
    pipeline.enqueue(0, [frame_from_bgr(GREY)], [LOW])
    found = collected(pipeline, outputs)
    assert_same(found, expected, 0)
    pipeline.close()
    assert recorder.mistakes == []


@needs_tensorrt
def test_an_engine_gives_the_masks_of_queries(tmp_path):
    (tmp_path / 'made.onnx').write_bytes(network(rfdetr_outputs(), (1, 3, 64, 96)))
    plan = build_plan((tmp_path / 'made.onnx').read_bytes())
    (tmp_path / 'made.engine').write_bytes(plan)
    expected = rfdetr_found(tmp_path / 'made.onnx')
    assert_same(rfdetr_found(tmp_path / 'made.engine'), expected, 1e-3)


@needs_tensorrt
@pytest.mark.parametrize('family', [*DENSE, *END_TO_END])
def test_an_engine_gives_what_its_onnx_file_gives(family, tmp_path):
    told = recorded(family)
    written(told, tmp_path / 'made.onnx')
    plan = build_plan((tmp_path / 'made.onnx').read_bytes())
    (tmp_path / 'made.engine').write_bytes(front_of(told) + plan)
    expected = found_by(tmp_path / 'made.onnx', family)
    assert_same(found_by(tmp_path / 'made.engine', family), expected, 1e-3)
