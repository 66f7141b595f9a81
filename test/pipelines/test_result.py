# SPDX-License-Identifier: Apache-2.0
"""Tests of the result that a pipeline returns for each frame."""

from trt_perception.errors import EngineError
from trt_perception.images.detections import Detections
from trt_perception.pipelines.pipeline import Result
from trt_perception.pipelines.warm_up import grey_frame


def test_result_of_a_detector_has_its_detections():
    found = Detections.empty()
    assert Result(found, 0.0, grey_frame()).detections is found


def test_result_without_detections_raises_an_error_on_access(golden_messages):
    with golden_messages.raises(EngineError):
        _ = Result('cat', 0.0, grey_frame()).detections
