# SPDX-License-Identifier: Apache-2.0
"""Compare ONNX Runtime's CUDA provider with its CPU provider, on a real GPU."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from support.models.detector_models import CLASS_NAMES, SIZE, write_detector
from trt_perception.errors import EngineError
from trt_perception.images.frame import frame_from_bgr
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.open_pipeline import open_onnx_pipeline
from trt_perception.pipelines.pipeline import detect_one
from trt_perception.stages.onnx_runtime import OnnxModel

RANDOM = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


@pytest.fixture
def detector(tmp_path):
    """Return the file of a model with convolutions; skip the test without the CUDA provider."""
    model = read_model_file(write_detector(tmp_path))
    try:
        OnnxModel(model, 1, 'cuda').close()
    except EngineError as error:
        pytest.skip(f'needs onnxruntime-gpu, CUDA and a GPU: {error}')
    return model


def test_outputs_of_cuda_equal_those_of_the_cpu(detector):
    on_gpu, on_cpu = (OnnxModel(detector, 1, provider) for provider in ('cuda', 'cpu'))
    assert (on_gpu.provider, on_cpu.provider) == ('cuda', 'cpu')
    if on_gpu.node_counts is not None:
        assert on_gpu.node_counts['cuda'] > 0
    for _ in range(3):
        tensors = {'images': RANDOM.random((1, 3, SIZE, SIZE), np.float32)}
        [found], [expected] = on_gpu.run(tensors), on_cpu.run(tensors)
        assert found.dtype == expected.dtype
        assert np.ptp(expected) > 1  # a constant output would agree, too
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_pipeline_with_cuda_finds_the_boxes_of_the_cpu(detector):
    config = ParameterValues(
        model_decoder='dense',
        model_class_names=CLASS_NAMES,
        model_resize='letterbox',
        model_color_order='rgb',
        model_scale=1 / 255,
    )
    open_it = functools.partial(open_onnx_pipeline, detector)
    on_gpu, on_cpu = (
        open_it(replace(config.pipeline_options(), onnx_provider=provider))
        for provider in ('cuda', 'cpu')
    )
    assert (on_gpu.provider, on_cpu.provider) == ('cuda', 'cpu')
    frame = frame_from_bgr(RANDOM.integers(0, 256, (120, 160, 3), np.uint8))
    found, expected = (
        detect_one(pipeline, frame, Thresholds(0.25, 0.45)).detections
        for pipeline in (on_gpu, on_cpu)
    )
    assert len(expected) > 0
    np.testing.assert_array_equal(found.class_ids, expected.class_ids)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
    np.testing.assert_allclose(found.xyxy, expected.xyxy, atol=0.05)
    for pipeline in (on_gpu, on_cpu):
        pipeline.close()
