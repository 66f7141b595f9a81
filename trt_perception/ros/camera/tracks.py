# SPDX-License-Identifier: Apache-2.0
"""The tracks of one camera: ids of its detections, and the service that ends all tracks."""

from __future__ import annotations

import threading
from typing import Any, Final

from rclpy.lifecycle import LifecycleNode
from rclpy.service import Service
from std_srvs.srv import Trigger

from trt_perception.files.plain_text import counted
from trt_perception.images.detections import Detections
from trt_perception.images.frame import Frame
from trt_perception.model.tasks.task import TaskResult
from trt_perception.parameters.values import ParameterValues
from trt_perception.ros.runtime.log import camera_logger
from trt_perception.ros.topics import topic_name
from trt_perception.tracking.settings import TrackerSettings
from trt_perception.tracking.tracker import Tracker
from trt_perception.wire.cdr import StampFields

#: Name of the service of each camera that ends all tracks.
RESET_SERVICE: Final = 'reset_tracks'


class CameraTracks:
    """Tracks the objects of one camera.

    The object lives as long as the node, so that no id is given twice in a process. The worker
    calls `update`, and the executor the other methods.

    Args:
        node: owns the service, which exists while the camera has a tracker.
        camera: name of the camera; empty if the node has only one camera.
    """

    def __init__(self, node: LifecycleNode, camera: str) -> None:
        self._node = node
        self._camera = camera
        self._log = camera_logger(node, camera)
        # Protects the two following attributes.
        self._lock = threading.Lock()
        self._tracker: Tracker | None = None  # kept when the type becomes `none`
        self._settings: TrackerSettings | None = None
        self._confidence_threshold = 0.0
        self._service: Service | None = None

    def counts(self) -> tuple[int, int] | None:
        """Return the numbers of confirmed live tracks and of ids so far, None without tracker."""
        with self._lock:
            if self._settings is None or self._tracker is None:
                return None
            return self._tracker.live_tracks, self._tracker.last_id

    def apply(self, values: ParameterValues) -> None:
        """Apply the parameters of the camera. If the type becomes ``none``, all tracks end."""
        settings = values.tracker_settings(values.confidence_threshold)
        with self._lock:
            self._confidence_threshold = values.confidence_threshold
            self._settings = settings
            if settings is not None:
                self._tracker = self._tracker or Tracker()
                self._tracker.settings = settings
            elif self._tracker is not None:
                self._tracker.reset()
        if settings is None:
            self._destroy_service()
        elif self._service is None:
            name = topic_name(self._camera, RESET_SERVICE)
            self._service = self._node.create_service(Trigger, name, self._on_reset)

    def update(self, stamp: StampFields, frame: Frame, found: TaskResult) -> TaskResult:
        """Return the objects to publish, with the ids of their tracks.

        Args:
            stamp: stamp of the image.
            frame: the image.
            found: the result of the model's task. Without a tracker, it is returned as it is.
        """
        # There was no tracker yet, or only for an earlier model of the node.
        if self._tracker is None or not isinstance(found, Detections):
            return found
        with self._lock:
            if self._settings is not None:
                stamp_s = stamp.sec + stamp.nanosec * 1e-9
                self._check_stamp(stamp_s, self._tracker.stamp_s)
                size_wh = frame.width, frame.height
                return self._tracker.update(found, stamp_s, size_wh).detections
        # The decoder used the lower threshold for frames in flight when the type became `none`.
        if len(found) and not found.scores[-1] > self._confidence_threshold:
            return found.take(found.scores > self._confidence_threshold)
        return found

    def _check_stamp(self, stamp_s: float, last_s: float) -> None:
        """Warn if the stamp of an image is not later than that of the last image."""
        # rclpy throttles each of these lines on its own.
        if stamp_s < last_s:
            self._log.warning(
                f'all tracks end, because a stamp went back by {last_s - stamp_s:.6g} s: several '
                'publishers send images to this topic, or a recording began again',
                throttle_duration_sec=30.0,
            )
        elif stamp_s == last_s:
            self._log.warning(
                f'consecutive images have the same stamp ({stamp_s:.6f} s): tracks cannot follow '
                'motion without the time between images: let the camera driver set stamps',
                throttle_duration_sec=30.0,
            )

    def close(self) -> None:
        """Destroy the service, and end all tracks. Calling it twice does no harm."""
        self._destroy_service()
        self._end_all()

    def _end_all(self) -> int:
        """End all tracks, and return how many were confirmed."""
        with self._lock:
            if self._tracker is None:
                return 0
            count = self._tracker.live_tracks
            self._tracker.reset()
            return count

    def _on_reset(self, _request: Any, response: Any) -> Any:
        count = self._end_all()
        ended = f'ended {counted(count, "track")}'
        if count:  # a client that calls again and again must not flood the log
            self._log.info(f'{RESET_SERVICE}: {ended}')
        response.success, response.message = True, ended
        return response

    def _destroy_service(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            self._node.destroy_service(service)
