"""Tests of the result that a pipeline returns for each frame."""

from trt_perception.errors import EngineError
from trt_perception.images.detections import Detections
from trt_perception.pipelines.pipeline import Result
from trt_perception.pipelines.warm_up import grey_frame


def test_detections_are_what_a_task_of_objects_found():
    found = Detections.empty()
    assert Result(found, 0.0, grey_frame()).detections is found


def test_other_results_are_not_taken_for_detections(golden_messages):
    with golden_messages.raises(EngineError):
        _ = Result('cat', 0.0, grey_frame()).detections
