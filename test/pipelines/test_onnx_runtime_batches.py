# SPDX-License-Identifier: Apache-2.0
"""Tests of batches on the CPU: results equal ONNX Runtime's on each single frame."""

from __future__ import annotations

import contextlib
import logging

import cv2
import numpy as np
import onnxruntime
import pytest

import trt_perception as tp
from support.models.batch_models import write_digits_twin
from support.models.detector_models import CLASS_NAMES, detector_model
from support.models.digits import DIGITS, SCENES
from support.models.image_models import IMAGE_TASKS, write_image_model
from support.models.open_model import open_by_parameters
from support.models.support_models import tiny_onnx
from support.oracles.dense_decoding import decode_dense
from support.scheduling.pool_runs import found_by_cameras
from trt_perception.images.frame import Frame
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.evaluation.offline_detection import detect_batch, detect_in_files
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.host.onnx_runtime_pipeline import OnnxRuntimePipeline
from trt_perception.pipelines.open_pipeline import open_offline_pipeline
from trt_perception.pipelines.pipeline import collect_all, detect_one
from trt_perception.stages.host_preprocess import HostPreprocessor

OPEN_BATCH, FIXED = 'open', 4
BATCH = {OPEN_BATCH: 8, FIXED: 4}
# By default, an open batch has size 1, because larger batches take longer on the CPU.
USED = {OPEN_BATCH: 1, FIXED: 4}
# These are more images than one fixed batch contains.
SOME_SCENES = sorted(SCENES.glob('*.jpg'))[:6]
# Each frame has another size, threshold and class filter.
THRESHOLDS = (
    Thresholds(0.3),
    Thresholds(0.5, iou_threshold=0.2),
    Thresholds(0.3, class_ids=(1,)),
    Thresholds(0.4, iou_threshold=0.9),
)


def colours(seed):
    """Return a frame of coloured blocks. Each seed gives another frame size."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (6, 8, 3), np.uint8)
    width, height = 80 + 10 * seed, 60 + 4 * seed
    bgr = cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)
    return Frame.view(bgr, width=width, height=height, step=3 * width, encoding='bgr8')


def parameters_for(path, **changes):
    return ParameterValues(
        **{
            'engine_path': str(path),
            'model_decoder': 'dense',
            'model_class_names': CLASS_NAMES,
            'model_resize': 'letterbox',
            'model_color_order': 'rgb',
            'model_scale': 1 / 255,
            **changes,
        }
    )


def open_several(path, **changes):
    options = parameters_for(path, **changes).pipeline_options()
    return OnnxRuntimePipeline(read_model_file(path), options, open_batch=8)


@pytest.fixture
def open_detector(tmp_path):
    """Return a function that opens a small detector for batches of several images."""
    import onnx

    pipelines = []

    def open_it(batch):
        path = tmp_path / f'{batch}.onnx'
        onnx.save_model(detector_model((batch if batch == FIXED else 'n', 3, 64, 64)), path)
        pipelines.append(open_several(path))
        return pipelines[-1]

    yield open_it
    for pipeline in pipelines:
        pipeline.close()


def alone(content, pipeline, frame, thresholds):
    """Return ONNX Runtime's detections in one frame, with a model of batch size 1."""
    session = onnxruntime.InferenceSession(content, providers=['CPUExecutionProvider'])
    tensor, letterbox = HostPreprocessor(pipeline.spec.preprocessing)(frame)
    (output,) = session.run(None, {'images': tensor})
    return decode_dense(
        output, PRESETS['dense'].decoder, letterbox, thresholds, max_detections=300
    )


def assert_same(found, expected):
    assert found.class_ids.tolist() == expected.class_ids.tolist()
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5, rtol=0)
    np.testing.assert_allclose(found.xyxy, expected.xyxy, atol=1e-3, rtol=0)


@pytest.mark.parametrize('batch', BATCH)
def test_frames_of_a_batch_have_the_same_boxes_as_single_frames(open_detector, batch):
    pipeline = open_detector(batch)
    assert (pipeline.batch, pipeline.depth) == (BATCH[batch], 1)
    content = detector_model().SerializeToString()
    counts = set()
    # Smaller batches follow larger batches: unused places must not return old results.
    for count in (pipeline.batch, 1, 3, 2, pipeline.batch, 1):
        frames = [colours(seed) for seed in range(count)]
        own = [THRESHOLDS[(count + index) % 4] for index in range(count)]
        pipeline.enqueue(0, frames, own)
        assert pipeline.is_done(0)
        results = pipeline.collect(0)
        assert len(results) == count
        assert len({result.compute_s for result in results}) == 1
        for frame, thresholds, result in zip(frames, own, results, strict=True):
            expected = alone(content, pipeline, frame, thresholds)
            assert_same(result.detections, expected)
            counts.add(len(expected))
    assert max(counts) > 3
    assert len(counts) > 2


def values_of(found):
    """Return the values of a result of a task that describes the whole image."""
    if hasattr(found, 'scores'):
        return found.scores
    return found.depth() if hasattr(found, 'depth') else found.class_ids()


@pytest.mark.parametrize('batch', BATCH)
@pytest.mark.parametrize('task', IMAGE_TASKS)
def test_batches_of_image_tasks_have_the_results_of_single_frames(task, batch, tmp_path):
    several, single = (
        write_image_model(task, tmp_path / f'{size}.onnx', size)
        for size in (batch if batch == FIXED else 'n', 1)
    )
    options = ParameterValues.from_values(several).pipeline_options()
    model = read_model_file(several['engine_path'])
    with (
        contextlib.closing(OnnxRuntimePipeline(model, options, open_batch=8)) as pipeline,
        contextlib.closing(open_by_parameters(ParameterValues.from_values(single))) as alone,
    ):
        assert pipeline.batch == BATCH[batch]
        for count in (pipeline.batch, 1, 3):
            frames = [colours(seed) for seed in range(count)]
            pipeline.enqueue(0, frames, [Thresholds()] * count)
            for frame, result in zip(frames, pipeline.collect(0), strict=True):
                alone.enqueue(0, [frame], [Thresholds()])
                (expected,) = alone.collect(0)
                found, wanted = values_of(result.found), values_of(expected.found)
                assert np.ptp(wanted) > 0
                np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize('batch', BATCH)
def test_dynamic_batch_has_only_the_frames_and_fixed_batch_is_filled(
    open_detector, batch, monkeypatch
):
    pipeline = open_detector(batch)
    detect_batch(pipeline, [colours(seed) for seed in (1, 2)], Thresholds())
    ran, run = [], pipeline._model.run
    monkeypatch.setattr(
        pipeline._model, 'run', lambda tensors: ran.append(len(tensors['images'])) or run(tensors)
    )
    for count in (1, 2, 4):
        detect_batch(pipeline, [colours(seed) for seed in range(count)], Thresholds())
    assert ran == ([1, 2, 4] if batch == OPEN_BATCH else [4, 4, 4])


def test_model_with_inner_batch_of_one_runs_frame_by_frame(tmp_path, caplog, golden_messages):
    """The input declares a dynamic batch, but a reshape inside the model fixes it to 1."""
    path = tmp_path / 'tiny.onnx'
    path.write_bytes(
        tiny_onnx(shape=('batch', 3, 'height', 'width'), output_shape=('batch', 6, 8))
    )
    pipeline = open_several(path, model_input_size=(64, 48))
    frames = [colours(seed) for seed in range(3)]
    own = [Thresholds(0.0), Thresholds(0.3), Thresholds(0.0, class_ids=(1,))]
    singles = [
        detect_one(pipeline, frame, thresholds).detections
        for frame, thresholds in zip(frames, own, strict=True)
    ]
    assert caplog.records == []
    for _ in range(2):
        pipeline.enqueue(0, frames, own)
        for result, expected in zip(collect_all(pipeline, 0), singles, strict=True):
            assert_same(result.detections, expected)
    assert sum(map(len, singles)) > 3
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    golden_messages.add(record.message)


@pytest.mark.parametrize('batch', BATCH)
def test_each_camera_gets_its_own_boxes(open_detector, batch):
    """Five cameras with their own sizes and thresholds share batches. One sends bad frames."""
    pipeline = open_detector(batch)
    content = detector_model().SerializeToString()
    sources = [[colours(2 * camera + turn) for turn in range(2)] for camera in range(5)]
    own = [THRESHOLDS[camera % 4] for camera in range(5)]
    expected = [
        [alone(content, pipeline, frame, thresholds) for frame in frames]
        for frames, thresholds in zip(sources, own, strict=True)
    ]
    results, _, (statistics,) = found_by_cameras([pipeline], sources, own, 20, bad=(2,))
    for camera, found in enumerate(results):
        for index, detections in found:
            assert_same(detections, expected[camera][index])
    assert statistics.frames == sum(map(len, results))
    assert statistics.frames > statistics.batches


def test_failure_after_a_successful_batch_fails_the_whole_batch(
    open_detector, monkeypatch, golden_messages
):
    """Only a model that never ran a batch is tried again with single frames."""
    pipeline = open_detector(OPEN_BATCH)
    frames = [colours(seed) for seed in range(3)]
    detect_batch(pipeline, frames, Thresholds())
    ran = []

    def broken(tensors):
        ran.append(len(tensors['images']))
        raise RuntimeError('broke')

    monkeypatch.setattr(pipeline._model, 'run', broken)
    with golden_messages.raises(RuntimeError):
        detect_batch(pipeline, frames, Thresholds())
    assert ran == [3]


@pytest.fixture(scope='module')
def twins(tmp_path_factory):
    """Return the paths of the digits model and of two copies for batches, by batch size."""
    folder = tmp_path_factory.mktemp('twins')
    return {
        1: DIGITS,
        OPEN_BATCH: write_digits_twin(folder / 'open.onnx', 0),
        FIXED: write_digits_twin(folder / 'fixed.onnx', FIXED),
    }


def offline(path):
    """Return a model's detections in some scenes."""
    files = [(scene, None) for scene in SOME_SCENES]
    pipeline = open_offline_pipeline(read_model_file(path), PipelineOptions())
    found = detect_in_files(pipeline, files, Thresholds(), lambda *_: None)
    pipeline.close()
    return found


@pytest.fixture(scope='module')
def one_by_one():
    found = offline(DIGITS)
    assert sum(map(len, found.detections)) > 10
    return found


@pytest.mark.parametrize('batch', USED)
def test_pipeline_uses_the_batch_size_of_the_file(twins, batch):
    pipeline = open_by_parameters(ParameterValues(engine_path=str(twins[batch])))
    assert pipeline.batch == USED[batch]
    pipeline.close()


@pytest.mark.parametrize('batch', BATCH)
def test_python_api_uses_the_batch_size_of_the_model(twins, one_by_one, batch):
    images = [cv2.imread(str(path)) for path in SOME_SCENES]
    with tp.load(twins[batch]) as several:
        for found, one in zip(several(images), one_by_one.detections, strict=True):
            assert_same(found, one)
        assert_same(several(images[3]), one_by_one.detections[3])


@pytest.mark.parametrize('batch', BATCH)
def test_offline_runs_use_the_batch_size_of_the_model(twins, one_by_one, batch):
    several = offline(twins[batch])
    for found, one in zip(several.detections, one_by_one.detections, strict=True):
        assert_same(found, one)
    assert (one_by_one.latency.batch, several.latency.batch) == (1, USED[batch])
