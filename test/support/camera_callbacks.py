"""Provide a camera and a fault handler that call functions of the test."""

from dataclasses import dataclass
from typing import Any

from trt_perception.scheduling.camera import Camera


@dataclass
class CallbackHandler:
    read_frame: Any
    publish_result: Any
    on_image_error: Any
    wanted_topics: Any = frozenset


def camera_of(name, read, publish, refused, thresholds, *, pipeline=0, **settings):
    handler = CallbackHandler(read, publish, lambda _, error: refused(error))
    return Camera(name, handler, thresholds, pipeline_index=pipeline, **settings)


class FaultCallback:
    """Reports each fault to a function of the test.

    Args:
        on_fault: called with the exception that ended the worker.
    """

    def __init__(self, on_fault):
        self.on_fault = on_fault
