# SPDX-License-Identifier: Apache-2.0
"""If a model's outputs are invalid for some images of a batch, only these images get an error."""

from contextlib import closing

import numpy as np
import pytest

import trt_perception
from support.models.open_model import open_by_parameters
from support.models.output_models import write_label_model
from support.models.tiny_model import CLASS_NAMES, write_tiny_model
from trt_perception.errors import OutputError, UnnamedClassError
from trt_perception.images.frame import frame_from_bgr
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.open_pipeline import open_pipeline
from trt_perception.pipelines.pipeline import Result, collect_all, detect_one
from trt_perception.pipelines.warm_up import open_warm_pipeline

# A grey image has scores of 0.67, and a white image has scores of 1.5.
SCALE = 1.5 / 255
GREY, WHITE = (np.full((48, 64, 3), level, np.uint8) for level in (114, 255))


def test_invalid_output_affects_no_other_frame_of_the_batch(tmp_path):
    path = write_tiny_model(tmp_path / 'three.onnx', batch=3)
    parameters = ParameterValues(engine_path=str(path), model_scale=SCALE)
    with closing(open_by_parameters(parameters)) as pipeline:
        frames = [frame_from_bgr(image) for image in (GREY, WHITE, GREY)]
        for _ in range(2):
            pipeline.enqueue(0, frames, [Thresholds()] * 3)
            first, error, last = pipeline.collect(0)
            assert [len(each.detections) for each in (first, last)] == [4, 4]
            assert isinstance(error, OutputError)
            assert error.reason == 'bad_output'
            assert error.found == 'a score of 1.5'
        pipeline.enqueue(0, frames, [Thresholds()] * 3)
        with pytest.raises(OutputError):
            collect_all(pipeline, 0)
        assert isinstance(detect_one(pipeline, frames[0], Thresholds()), Result)


def test_class_without_a_name_is_an_error_of_its_image(tmp_path, golden_messages):
    parameters = ParameterValues(
        engine_path=str(write_label_model(tmp_path / 'labels.onnx')),
        model_decoder='end_to_end',
        model_class_names=CLASS_NAMES,
        model_resize='letterbox',
        model_color_order='rgb',
        model_scale=1 / 255,
    )
    with closing(open_by_parameters(parameters)) as pipeline:
        assert detect_one(pipeline, frame_from_bgr(GREY), Thresholds()).found.class_ids == [1]
        with golden_messages.raises(UnnamedClassError):
            detect_one(pipeline, frame_from_bgr(WHITE), Thresholds())


def test_trial_run_and_python_api_raise_the_error_of_an_invalid_output(tmp_path):
    path = str(write_tiny_model(tmp_path / 'tiny.onnx'))
    bad = ParameterValues(engine_path=path, model_scale=3 / 255)
    with pytest.raises(OutputError):
        open_warm_pipeline(path, bad.pipeline_options(), open_pipeline)
    with trt_perception.load(path, model_scale=SCALE) as model:
        assert len(model(GREY)) == 4
        with pytest.raises(OutputError):
            model(WHITE)
        assert len(model(GREY)) == 4
