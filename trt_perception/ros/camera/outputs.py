"""What is published of one camera: detections, what the task adds, label_info, debug image."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSDurabilityPolicy, QoSProfile
from rclpy.timer import Timer
from sensor_msgs.msg import Image, PointCloud2
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray, LabelInfo

from trt_perception.errors import ImageError
from trt_perception.images.detections import Detections, NumberedMasks
from trt_perception.images.jpeg import AnyFrame
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.task import Task
from trt_perception.parameters.config import DetectorConfig
from trt_perception.ros.camera.debug_image import NO_EVENTS, DebugImage
from trt_perception.ros.runtime.log import camera_logger, log_text
from trt_perception.ros.runtime.timers import steady_timer
from trt_perception.ros.topics import topic_name
from trt_perception.ros.wire.cdr import HeaderView
from trt_perception.ros.wire.serialize import (
    DetectionsSerializer,
    KeypointsSerializer,
    LabelInfoSerializer,
)
from trt_perception.ros.wire.unlocked_publish import publish_unlocked, serialize_with_room

__all__ = ['DetectorOutputs']

_AGAIN_S: Final = 0.05
# Bytes of a message whose copy in the middleware takes longer than to let go of the lock.
_LARGE: Final = 2**14


class DetectorOutputs:
    """The publishers of one camera of a configured model.

    Args:
        node: publishes on it.
        class_names: by class id.
        config: the camera's parameters.
        task: of the model.
        camera: its name, empty where there is only one.
    """

    def __init__(
        self,
        node: LifecycleNode,
        class_names: tuple[str, ...],
        config: DetectorConfig,
        task: Task = DETECT,
        camera: str = '',
    ) -> None:
        self._node = node
        self._log = camera_logger(node, camera)
        self._serialize = DetectionsSerializer(class_names)
        self._serialize_labels = LabelInfoSerializer(class_names)
        self._detections = self._keypoints = self._label_info = None
        self._masks: Any = None
        # Used again while the images keep their size.
        self._mask_message: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._serialize_keypoints: KeypointsSerializer | None = None
        self._debug_image: DebugImage | None = None
        self._again: Timer | None = None
        try:
            self._detections = node.create_publisher(
                Detection2DArray, topic_name(camera, 'detections'), QoSProfile(depth=10)
            )
            if task.keypoint_names:
                self._serialize_keypoints = KeypointsSerializer(len(task.keypoint_names))
                self._keypoints = node.create_publisher(
                    PointCloud2, topic_name(camera, 'keypoints'), QoSProfile(depth=10)
                )
            if task.has_masks:
                self._masks = node.create_publisher(
                    Image,
                    topic_name(camera, 'masks'),
                    QoSProfile(depth=1),
                    event_callbacks=NO_EVENTS,
                )
            # A plain publisher: a lifecycle one would drop this message, which belongs to
            # configure.
            latched = QoSProfile(depth=1, durability=QoSDurabilityPolicy.TRANSIENT_LOCAL)
            self._label_info = node.create_publisher(
                LabelInfo, topic_name(camera, 'label_info'), latched, event_callbacks=NO_EVENTS
            )
            self._debug_image = DebugImage(
                node, class_names, config.debug_image_max_rate_hz, task, camera
            )
            self.publish_label_info(config.confidence_threshold)
        except BaseException:
            self.close()
            raise

    def publish(
        self, header: Header | HeaderView, frame: AnyFrame, detections: Detections
    ) -> None:
        """Publish what was found in one image, detections first; from the worker.

        Raises:
            ImageError: ``not_published``, where the middleware does not take the detections or
                keypoints.
        """
        assert self._detections is not None
        assert self._debug_image is not None
        try:
            message = self._serialize(header, detections)
            if len(message) < _LARGE:
                self._detections.publish(bytes(message))
            else:
                publish_unlocked(self._detections, np.frombuffer(message, np.uint8))
            if self._keypoints is not None and self._serialize_keypoints is not None:
                self._keypoints.publish(self._serialize_keypoints(header, detections))
        except rclpy_implementation.RCLError as error:
            raise ImageError(
                'not_published',
                'detections',
                f'the middleware did not take them: {error}',
                fix='look for a subscriber that is too slow, or behind a slow network',
            ) from error
        if self._masks is not None and self._masks.get_subscription_count():
            try:
                self._publish_masks(header, frame, detections.pictured)
            except (MemoryError, RuntimeError) as error:  # an image's worth, and not what is found
                reason = f'{type(error).__name__}: {error}'.rstrip(': ')
                self._log.error(
                    f'no masks: {log_text(reason)}; detections go on', throttle_duration_sec=5.0
                )
        self._debug_image.offer(header, frame, detections)

    def masks_wanted(self) -> bool:
        """Tell whether somebody looks at the masks of a frame that comes now."""
        assert self._debug_image is not None
        if self._masks is None:
            return False
        return bool(self._masks.get_subscription_count()) or self._debug_image.watched

    def _publish_masks(
        self, header: Header | HeaderView, frame: AnyFrame, numbered: NumberedMasks | None
    ) -> None:
        """Publish which pixels belong to which detection: 0 to none, i to the i-th."""
        if numbered is None:
            return  # nobody had subscribed yet when the frame came
        stamp = Time(sec=header.stamp.sec, nanosec=header.stamp.nanosec)
        written = Header(stamp=stamp, frame_id=header.frame_id)
        empty = Image(header=written, height=frame.height, width=frame.width, encoding='mono16')
        empty.step = 2 * frame.width
        self._mask_message, pixels = serialize_with_room(
            empty, empty.step * frame.height, self._mask_message
        )
        numbered.number(pixels.view('<u2').reshape(frame.height, frame.width))
        publish_unlocked(self._masks, self._mask_message)

    def publish_label_info(self, confidence_threshold: float) -> None:
        """Publish the class names and the threshold, for subscribers of now and later.

        Fast DDS refuses it while it still sends the one before, as there is room for one only: it
        is published a moment later then.
        """
        self._forget_again()
        assert self._label_info is not None
        stamp = self._node.get_clock().now().to_msg()
        try:
            self._label_info.publish(self._serialize_labels(stamp, confidence_threshold))
        except rclpy_implementation.RCLError as error:
            self._log.warning(
                f'label_info is not out yet, trying again: {log_text(error)}',
                throttle_duration_sec=5.0,
            )
            again = partial(self.publish_label_info, confidence_threshold)
            self._again = steady_timer(self._node, _AGAIN_S, again)

    def _forget_again(self) -> None:
        if self._again is not None:
            self._node.destroy_timer(self._again)
            self._again = None

    def close(self) -> None:
        """Destroy the publishers. May be called again."""
        if self._debug_image is not None:
            self._debug_image.close()
            self._debug_image = None
        publishers: list[Any] = [self._detections, self._keypoints, self._masks, self._label_info]
        self._detections = self._keypoints = self._masks = self._label_info = None
        for publisher in publishers:
            if publisher is not None:
                self._node.destroy_publisher(publisher)
        self._forget_again()
