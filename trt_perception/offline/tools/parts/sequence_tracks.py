# SPDX-License-Identifier: Apache-2.0
"""Tracks of detect_images: ids of the objects in each sequence of images."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import numpy.typing as npt

from trt_perception.images.bag_images import sequence_name
from trt_perception.images.detections import Detections
from trt_perception.images.trails import Trails
from trt_perception.model.tasks.task import TaskResult
from trt_perception.tracking.settings import TrackerSettings
from trt_perception.tracking.tracker import Tracker


class SequenceTracks:
    """Tracks the objects of several sequences. No id is given twice.

    Args:
        draws: whether to draw trails into the images.
    """

    def __init__(self, settings: TrackerSettings, *, draws: bool) -> None:
        self._tracker = Tracker(**asdict(settings))
        self._trails = Trails() if draws else None
        self._sequence: str | None = None

    @property
    def count(self) -> int:
        """Number of ids so far."""
        return self._tracker.last_id

    def start_sequence(self) -> None:
        """End all tracks. The images of a new folder or topic do this themselves."""
        self._tracker.reset()
        self._trails = None if self._trails is None else Trails()

    def update(
        self, name: str, bgr: npt.NDArray[np.uint8], stamp_s: float, found: TaskResult
    ) -> Detections:
        """Return the objects to report with their ids, and draw their trails.

        Args:
            name: name of the image, relative to the folder of all sources.
            bgr: uint8 (height, width, 3), BGR, contiguous. Changed in place.
            stamp_s: stamp of the image in seconds.
            found: the objects of the image.
        """
        assert isinstance(found, Detections)
        sequence = sequence_name(name)
        if sequence != self._sequence:
            self._sequence = sequence
            self.start_sequence()
        size_wh = bgr.shape[1], bgr.shape[0]
        tracked = self._tracker.update(found, stamp_s, size_wh).detections
        if self._trails is not None:
            self._trails.draw(bgr, tracked, stamp_s)
        return tracked
