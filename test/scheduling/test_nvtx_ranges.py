# SPDX-License-Identifier: Apache-2.0
"""Tests of NVTX ranges: their names, and that each range ends, also after errors."""

import sys
from collections import Counter
from contextlib import closing

import numpy as np
import pytest

from support.gpu.host_kernels import needs_compiler
from support.gpu.late_nvjpeg import undecoded_jpeg_frame
from support.models.digits import DIGITS
from support.oracles.reference_images import random_frame
from support.range_recorder import RangeRecorder
from support.scheduling.fake_pipeline import CAMERA, FakePipeline, Recorder
from trt_perception.errors import ConfigError, ImageError, OutputError
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.nvtx_ranges import mark_pipeline
from trt_perception.pipelines.open_pipeline import open_pipeline
from trt_perception.pipelines.warm_up import grey_frame, warm_up
from trt_perception.scheduling.marked_camera import mark_camera

pytest_plugins = ['support.gpu.late_gpu_fixtures']


@pytest.fixture
def recorder(monkeypatch):
    recorder = RangeRecorder()
    monkeypatch.setitem(sys.modules, 'nvtx', recorder.module)
    return recorder


def test_pipeline_on_the_host_marks_batch_and_stages(recorder):
    with closing(open_pipeline(str(DIGITS), PipelineOptions(nvtx=True))) as pipeline:
        recorder.take()
        warm_up(pipeline)
    stages = ['preprocess', 'infer', 'decode']
    assert recorder.take() == ['enqueue 1', *stages, 'collect 1', 'batch of 1']


@needs_compiler
def test_pipeline_on_a_gpu_marks_batch_and_stages(recorder, open_jpeg_pipeline):
    _, pipeline = open_jpeg_pipeline(nvtx=True)
    raw = random_frame(np.random.default_rng(0), 'bgr8', 40, 30, 0)
    launched_by = {
        'worker': [raw],
        'worker or JPEG thread': [undecoded_jpeg_frame(0)],
    }
    for who, frames in launched_by.items():
        pipeline.enqueue(1, frames, [Thresholds()])
        pipeline.collect(1)
        names = recorder.take()
        jpeg = ['decode JPEG'] if who != 'worker' else []
        expected = ['upload', *jpeg, 'launch', 'enqueue 1', 'read results', 'collect 1']
        assert sorted(names) == sorted([*expected, 'batch of 1'])
        assert names[-2:] == ['collect 1', 'batch of 1']


def test_frame_has_a_range_of_its_camera_also_after_errors(recorder):
    pipeline = FakePipeline(depth=2)
    mark_pipeline(pipeline, [])
    run = Recorder(pipeline, cameras=2)
    for camera, name in zip(run.cameras, ('front', 'rear'), strict=True):
        camera.name = name
        mark_camera(camera)
    run.errors['read', 2] = ImageError('not_decodable', 'image', 'bad')
    run.errors['publish', 3] = ImageError('not_published', 'image', 'bad')
    pipeline.errors['collect', 4] = OutputError('model', 'bad')
    with run:
        for number in (1, 2, 3, 4, CAMERA + 1):
            run.submit(number)
            run.settled()
    assert run.published == [1, CAMERA + 1]
    assert Counter(recorder.take()) == {
        'frame front': 4,
        'read front': 4,
        'publish front': 2,
        'frame rear': 1,
        'read rear': 1,
        'publish rear': 1,
        'batch of 1': 4,
        'enqueue 1': 4,
        'collect 1': 4,
    }


def test_frame_of_a_single_camera_has_no_name(recorder):
    pipeline = FakePipeline()
    run = Recorder(pipeline)
    run.cameras[0].name = ''
    mark_camera(run.cameras[0])
    with run:
        run.submit(1)
        run.settled()
    assert recorder.take() == ['read', 'publish', 'frame']


def test_marked_pipeline_gives_the_same_results(recorder):
    frame = grey_frame()
    found = []
    for nvtx in (False, True):
        with closing(open_pipeline(str(DIGITS), PipelineOptions(nvtx=nvtx))) as pipeline:
            pipeline.enqueue(0, [frame], [Thresholds(0.0)])
            (result,) = pipeline.collect(0)
            found.append(result)
    np.testing.assert_array_equal(found[0].detections.xyxy, found[1].detections.xyxy)
    assert found[1].frame is frame


def test_pipeline_without_ranges_needs_no_package(monkeypatch):
    monkeypatch.setitem(sys.modules, 'nvtx', None)
    with closing(open_pipeline(str(DIGITS), PipelineOptions())) as pipeline:
        warm_up(pipeline)
        # Calls of the class are not wrapped.
        assert not {'enqueue', 'collect', *pipeline.stage_ranges} & vars(pipeline).keys()


def test_missing_package_is_reported(monkeypatch, golden_messages):
    monkeypatch.setitem(sys.modules, 'nvtx', None)
    with golden_messages.raises(ConfigError):
        open_pipeline(str(DIGITS), PipelineOptions(nvtx=True))
