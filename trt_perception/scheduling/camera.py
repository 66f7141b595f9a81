"""Handler and settings of one camera of a worker pool, without ROS and CUDA."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from trt_perception.images.frame import Frame, PipelineInput
from trt_perception.model.tasks.task import TaskResult
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.pipeline import FrameError

Message = TypeVar('Message')
Message_contra = TypeVar('Message_contra', contravariant=True)


class CameraHandler(Protocol[Message_contra]):
    """Reads the messages of one camera and publishes the results.

    The worker of the camera's pipeline calls these methods from its thread, for one message at a
    time.
    """

    def read_frame(self, message: Message_contra) -> PipelineInput:
        """Return the image of a message.

        A DeferredFrame defers reading: the pipeline calls its `read` method later, in one of the
        pipeline's threads.

        Raises:
            ImageError: the message contains no valid image.
        """

    def publish_result(self, message: Message_contra, frame: Frame, found: TaskResult) -> None:
        """Publish what was found in the image of a message.

        Raises:
            ImageError: the middleware refused a message.
        """

    def on_image_error(self, message: Message_contra, error: FrameError) -> None:
        """Handle the error of a message that could not be read, decoded or published."""

    def wanted_topics(self) -> frozenset[str]:
        """Return the topics on demand to make for a frame that enters the pipeline now."""


@dataclass(eq=False)
class Camera(Generic[Message]):
    """Handler and settings of one camera.

    Any thread may change the settings `thresholds`, `enabled` and `max_rate_hz` at any time.

    Attributes:
        name: name of the camera; empty if the node has only one camera.
        handler: reads messages and publishes results.
        thresholds: thresholds of each frame that enters the pipeline from now on.
        enabled: if False, messages are dropped with the reason `disabled`.
        max_rate_hz: messages above this rate are dropped with the reason `rate_limit`; 0 disables
            the limit.
        pipeline_index: index of the pipeline that processes all frames of this camera.
    """

    name: str
    handler: CameraHandler[Message]
    thresholds: Thresholds
    enabled: bool = True
    max_rate_hz: float = 0.0
    pipeline_index: int = 0

    def current_thresholds(self) -> Thresholds:
        """Return the thresholds of a frame that enters the pipeline now."""
        wanted = self.handler.wanted_topics()
        return replace(self.thresholds, wanted_topics=wanted) if wanted else self.thresholds
