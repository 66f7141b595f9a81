# SPDX-License-Identifier: Apache-2.0
"""Marks the NVTX ranges of the frames of a camera."""

from __future__ import annotations

from typing import TypeVar

from trt_perception.images.frame import DeferredFrame, Frame
from trt_perception.model.tasks.task import TaskResult
from trt_perception.pipelines.nvtx_ranges import NvtxRanges
from trt_perception.pipelines.pipeline import FrameError
from trt_perception.scheduling.camera import Camera

Message = TypeVar('Message')


def mark_camera(camera: Camera[Message]) -> None:
    """Mark ranges around the functions of a camera.

    The range `frame` goes from the start of `read_frame` until the frame is published or dropped.
    The ranges `read` and `publish` are its first and last stage. The name of the camera follows
    each of these names.

    Raises:
        ConfigError: the package nvtx cannot be imported.
    """
    ranges = NvtxRanges()
    frame_range, read_range, publish_range = (
        f'{name} {camera.name}'.rstrip() for name in ('frame', 'read', 'publish')
    )
    # Ranges of the frames in flight, by the id of the message. The worker keeps the message.
    in_flight: dict[int, object] = {}
    read_frame, publish_result = camera.read_frame, camera.publish_result
    on_image_error = camera.on_image_error

    def read_marked(message: Message) -> Frame | DeferredFrame:
        in_flight[id(message)] = ranges.start(frame_range)
        with ranges.stage(read_range):
            return read_frame(message)

    def publish_marked(message: Message, frame: Frame, found: TaskResult) -> None:
        with ranges.stage(publish_range):
            publish_result(message, frame, found)
        ranges.end(in_flight.pop(id(message)))

    def end_after_error(message: Message, error: FrameError) -> None:
        ranges.end(in_flight.pop(id(message)))
        on_image_error(message, error)

    camera.read_frame, camera.publish_result = read_marked, publish_marked
    camera.on_image_error = end_after_error
