"""A camera handler that marks the NVTX ranges of its frames."""

from __future__ import annotations

from typing import Generic, TypeVar

from trt_perception.images.frame import Frame, PipelineInput
from trt_perception.model.tasks.task import TaskResult
from trt_perception.pipelines.nvtx_ranges import NvtxRanges
from trt_perception.pipelines.pipeline import FrameError
from trt_perception.scheduling.camera import CameraHandler

Message = TypeVar('Message')


class MarkedHandler(Generic[Message]):
    """Marks ranges around the calls of another handler. Implements CameraHandler.

    The range `frame` goes from the start of `read_frame` until the frame is published or dropped.
    The ranges `read` and `publish` are its first and last stage. The name of the camera follows
    each of these names.

    Args:
        camera: name of the camera; may be empty.

    Raises:
        ConfigError: the package nvtx cannot be imported.
    """

    def __init__(self, handler: CameraHandler[Message], camera: str) -> None:
        self._ranges = NvtxRanges()
        self._handler = handler
        self._names = [f'{name} {camera}'.rstrip() for name in ('frame', 'read', 'publish')]
        # Ranges of the frames in flight, by the id of the message. The worker keeps the message.
        self._in_flight: dict[int, object] = {}
        self.wanted_topics = handler.wanted_topics

    def read_frame(self, message: Message) -> PipelineInput:
        """Return the image of a message, and start the range of its frame."""
        frame, read, _ = self._names
        self._in_flight[id(message)] = self._ranges.start(frame)
        with self._ranges.stage(read):
            return self._handler.read_frame(message)

    def publish_result(self, message: Message, frame: Frame, found: TaskResult) -> None:
        """Publish the result for the image of a message, and end the range of its frame."""
        with self._ranges.stage(self._names[2]):
            self._handler.publish_result(message, frame, found)
        self._ranges.end(self._in_flight.pop(id(message)))

    def on_image_error(self, message: Message, error: FrameError) -> None:
        """Handle the error of a message, and end the range of its frame."""
        self._ranges.end(self._in_flight.pop(id(message)))
        self._handler.on_image_error(message, error)
