# SPDX-License-Identifier: Apache-2.0
"""Functions and settings of one camera of a worker pool, without ROS and CUDA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from trt_perception.images.frame import DeferredFrame, Frame
from trt_perception.model.tasks.task import TaskResult
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.pipeline import FrameError

Message = TypeVar('Message')


@dataclass(eq=False)
class Camera(Generic[Message]):
    """Functions and settings of one camera.

    The worker of the camera's pipeline calls the functions from its thread, for one message at a
    time. Any thread may change the settings `thresholds`, `enabled` and `max_rate_hz` at any time.

    Attributes:
        name: name of the camera; empty if the node has only one camera.
        read_frame: returns the image of a message, or raises ImageError. A DeferredFrame defers
            reading: the pipeline calls its `read` method later, in one of the pipeline's threads.
        publish_result: publishes what was found in the image of a message. Raises ImageError if
            the middleware refused a message.
        on_image_error: handles the error of a message that could not be read, decoded or
            published.
        thresholds: thresholds of each frame that enters the pipeline from now on, without
            `wanted_topics`.
        wanted_topics: returns the topics on demand to make for a frame that enters the pipeline
            now.
        enabled: if False, messages are dropped with the reason `disabled`.
        max_rate_hz: messages above this rate are dropped with the reason `rate_limit`; 0 disables
            the limit.
        pipeline_index: index of the pipeline that processes all frames of this camera.
    """

    name: str
    read_frame: Callable[[Message], Frame | DeferredFrame]
    publish_result: Callable[[Message, Frame, TaskResult], None]
    on_image_error: Callable[[Message, FrameError], None]
    thresholds: Thresholds
    wanted_topics: Callable[[], frozenset[str]] = frozenset
    enabled: bool = True
    max_rate_hz: float = 0.0
    pipeline_index: int = 0
