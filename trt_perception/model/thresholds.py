# SPDX-License-Identifier: Apache-2.0
"""Parameters that decoding reads again for each frame, on the host and in the kernels."""

from __future__ import annotations

from dataclasses import dataclass

from trt_perception.images.letterbox import Letterbox
from trt_perception.model.decoder import USUAL_SKY, Sky


@dataclass(frozen=True)
class FrameParameters:
    """Numeric parameters that decoding reads for each frame. Each is also a parameter of the node.

    The kernels read each field as a float32 of the same name in `struct FrameHeader`.
    """

    confidence_threshold: float = 0.25
    iou_threshold: float = 0.45


@dataclass(frozen=True, kw_only=True)
class Thresholds(FrameParameters):
    """All values that may change from one frame to the next.

    Attributes:
        class_ids: indices of the classes to keep; empty keeps all classes.
        wanted_topics: names of the topics with a subscriber, if they are made on demand. Pipelines
            whose kernels draw masks or maps draw only these.
        focal_length_px: focal length of the camera in pixels of the image; 0 if unknown.
        normalised_focal_lengths: fx / width and fy / height of the image, used if
            ``focal_length_px`` is 0; None if unknown.
    """

    class_ids: tuple[int, ...] = ()
    wanted_topics: frozenset[str] = frozenset()
    focal_length_px: float = 0.0
    normalised_focal_lengths: tuple[float, float] | None = None
    sky: Sky = USUAL_SKY

    def network_focal_length(self, letterbox: Letterbox) -> float | None:
        """Return the mean of fx and fy in network pixels; None if they are unknown."""
        normalised = self.normalised_focal_lengths
        if self.focal_length_px:
            width, height = letterbox.source_wh
            normalised = self.focal_length_px / width, self.focal_length_px / height
        if normalised is None:
            return None
        columns, rows = letterbox.resized_wh
        return (normalised[0] * columns + normalised[1] * rows) / 2
