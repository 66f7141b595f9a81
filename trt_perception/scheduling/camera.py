"""The detector's view of one camera; it knows neither ROS nor CUDA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from trt_perception.errors import ImageError
from trt_perception.images.detections import Detections
from trt_perception.images.jpeg import AnyFrame, GivenFrame
from trt_perception.parameters.config import Thresholds

__all__ = ['Camera']

Message = TypeVar('Message')


@dataclass(eq=False)
class Camera(Generic[Message]):
    """How one camera's messages are read and what becomes of their results.

    The functions are called in the worker of the pipeline, for one message at a time. Where
    ``read`` gives an UnreadFrame, that is read in a thread of the pipeline.

    Attributes:
        name: '' where there is only one camera.
        read: makes a frame of a message; raises ImageError where it cannot.
        publish: takes a message, its frame, which is read by then, and its detections; raises
            ImageError where they cannot be published.
        refused: takes the error of each message that cannot be read, or not be published.
        thresholds: for each frame that enters the pipeline from now on; may be set at any time.
        enabled: else messages are dropped as ``disabled``; may be set at any time.
        max_rate_hz: what comes faster is dropped as ``rate_limit``, 0: no limit; may be set at
            any time.
        pipeline: index of the pipeline that serves it, always the same one.
        masks_wanted: tells whether somebody looks at masks.
    """

    name: str
    read: Callable[[Message], GivenFrame]
    publish: Callable[[Message, AnyFrame, Detections], None]
    refused: Callable[[ImageError], None]
    thresholds: Thresholds
    enabled: bool = True
    max_rate_hz: float = 0.0
    pipeline: int = 0
    masks_wanted: Callable[[], bool] = bool

    def wanted(self) -> Thresholds:
        """Return the thresholds of a frame that enters the pipeline now."""
        return replace(self.thresholds, numbered=True) if self.masks_wanted() else self.thresholds
