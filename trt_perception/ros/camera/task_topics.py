# SPDX-License-Identifier: Apache-2.0
"""The topics that tasks publish for each image: one class per topic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt
from rclpy.lifecycle import LifecycleNode
from sensor_msgs.msg import CameraInfo, Image, PointCloud2
from std_msgs.msg import Header
from vision_msgs.msg import Classification, Detection2DArray

from trt_perception.images.detections import Detections
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.class_scores import ClassScores
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.images.results.kernel_maps import KernelMaps
from trt_perception.images.results.map_size import map_size_wh
from trt_perception.model.tasks.classify import CLASSIFICATION_TOPIC
from trt_perception.model.tasks.depth import (
    DEPTH_CAMERA_INFO_TOPIC,
    DEPTH_TOPIC,
    RELATIVE_DEPTH_TOPIC,
)
from trt_perception.model.tasks.pose import KEYPOINTS_TOPIC, Pose
from trt_perception.model.tasks.segment import MASKS_TOPIC
from trt_perception.model.tasks.semantic import (
    CLASS_CAMERA_INFO_TOPIC,
    CLASS_CONFIDENCE_TOPIC,
    CLASS_MAP_TOPIC,
)
from trt_perception.model.tasks.task import (
    ANNOTATIONS_TOPIC,
    DETECTIONS_TOPIC,
    Task,
    TaskResult,
    Topic,
)
from trt_perception.parameters.values import ParameterValues
from trt_perception.ros.camera.annotations import (
    ImageAnnotations,
    annotations_have_metadata,
    can_publish_annotations,
)
from trt_perception.ros.camera.debug_image import NO_EVENTS
from trt_perception.ros.topics import topic_name, topic_qos
from trt_perception.ros.wire.unlocked_publish import publish_unlocked
from trt_perception.wire.annotations import AnnotationsSerializer
from trt_perception.wire.camera_info import (
    CameraInfoFields,
    camera_info_message,
    scaled_camera_info,
)
from trt_perception.wire.cdr import HeaderFields
from trt_perception.wire.result_messages import (
    classification_message,
    keypoints_message,
    map_message,
    masks_message,
)
from trt_perception.wire.serialize import DetectionsSerializer

# Above this size (bytes), copying a message in the middleware takes longer than releasing and
# taking the GIL.
_LARGE_MESSAGE_BYTES: Final = 2**14

#: The results that a topic publishes. A camera's topics get the results of its model's task.
_ResultT = TypeVar('_ResultT', bound=TaskResult)
_Map = ClassMap | DepthMap | KernelMaps


class TaskTopic(ABC, Generic[_ResultT]):
    """Publishes one topic of one camera.

    A subclass sets its own attributes in ``_prepare``. The constructor then creates the publisher,
    so a failure leaves no publisher behind.

    Args:
        node: owns the publisher.
        class_names: names by class id.
        parameters: parameters of the camera.
        task: task of the model.
        camera: name of the camera; empty if the node has only one camera.

    Attributes:
        topic: name and QoS of the topic.
        message_type: class of the messages.
        size_fix: what a user can do if the image of the topic is too large.
    """

    topic: ClassVar[Topic]
    message_type: ClassVar[type[Any]]
    size_fix: ClassVar[str] = 'send smaller images'

    def __init__(
        self,
        node: LifecycleNode,
        class_names: Sequence[str],
        parameters: ParameterValues,
        task: Task,
        camera: str = '',
    ) -> None:
        self._node = node
        self._class_names = class_names
        self._parameters = parameters
        self._task = task
        self._prepare()
        self._publisher = node.create_publisher(
            self.message_type,
            topic_name(camera, self.topic.name),
            topic_qos(self.topic),
            event_callbacks=NO_EVENTS if self.topic.on_demand else None,
        )

    def _prepare(self) -> None:
        """Set the attributes of a subclass. The publisher does not exist yet."""

    @classmethod
    def is_available(cls) -> bool:
        """Return whether the package of the messages is installed."""
        return True

    @property
    def has_subscriber(self) -> bool:
        """Whether the topic has a subscriber."""
        return self._publisher.get_subscription_count() > 0

    def image_size(
        self,
        size_wh: tuple[int, int],
        found: _ResultT,
    ) -> tuple[int, int] | None:
        """Return the size of the image that `publish` makes; None if it makes no image.

        Args:
            size_wh: width and height of the camera's image in pixels.
            found: the result of the model's task.
        """
        return None

    def can_make(self, found: _ResultT) -> bool:
        """Return whether a result has the values for the image that `publish` makes."""
        return True

    def free_memory(self) -> None:
        """Free the memory that `publish` keeps for the next message."""

    @abstractmethod
    def publish(
        self, header: Header | HeaderFields, size_wh: tuple[int, int], found: _ResultT
    ) -> None:
        """Publish the result of one image.

        Args:
            header: header of the image.
            size_wh: width and height of the image in pixels.
            found: the result of the model's task.

        Raises:
            RCLError: the middleware refused the message.
        """

    def _publish(self, message: bytearray | memoryview) -> None:
        """Publish a serialised message."""
        if len(message) < _LARGE_MESSAGE_BYTES:
            self._publisher.publish(bytes(message))
        else:
            publish_unlocked(self._publisher, message)

    def close(self) -> None:
        """Destroy the publisher."""
        self._node.destroy_publisher(self._publisher)


class DetectionsTopic(TaskTopic[Detections]):
    """Publishes boxes with class and score."""

    topic = DETECTIONS_TOPIC
    message_type = Detection2DArray

    def _prepare(self) -> None:
        self._serialize = DetectionsSerializer(self._class_names)

    def publish(
        self,
        header: Header | HeaderFields,
        size_wh: tuple[int, int],
        found: Detections,
    ) -> None:
        """Publish all boxes."""
        self._publish(self._serialize(header, found))


class KeypointsTopic(TaskTopic[Detections]):
    """Publishes keypoints as a point cloud with a row per detection and a column per keypoint."""

    topic = KEYPOINTS_TOPIC
    message_type = PointCloud2

    def publish(
        self,
        header: Header | HeaderFields,
        size_wh: tuple[int, int],
        found: Detections,
    ) -> None:
        """Publish the keypoints of all detections."""
        assert found.keypoints is not None
        self._publish(keypoints_message(header, found.keypoints))


class MasksTopic(TaskTopic[Detections]):
    """Publishes masks as an image with the number of each pixel's detection."""

    topic = MASKS_TOPIC
    message_type = Image

    def _prepare(self) -> None:
        # The serialised message, reused while images have the same size.
        self._message: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def image_size(self, size_wh: tuple[int, int], found: Detections) -> tuple[int, int]:
        return size_wh

    def can_make(self, found: Detections) -> bool:
        """See TaskTopic. Kernels draw masks only for frames that arrive with a subscriber."""
        return found.pictured is not None

    def free_memory(self) -> None:
        self._message = np.empty(0, np.uint8)

    def publish(
        self,
        header: Header | HeaderFields,
        size_wh: tuple[int, int],
        found: Detections,
    ) -> None:
        """Publish an image with i in the pixels of the i-th detection (from 1), 0 elsewhere."""
        masks = found.pictured
        if masks is None:
            return  # without a subscriber, no mask image was made for the frame
        self._message = masks_message(header, size_wh, masks, self._message)
        publish_unlocked(self._publisher, self._message)


class AnnotationsTopic(TaskTopic[Detections]):
    """Publishes boxes, outlines of masks and skeletons as drawings."""

    topic = ANNOTATIONS_TOPIC
    message_type = ImageAnnotations

    def _prepare(self) -> None:
        skeleton = self._task.keypoints.skeleton if isinstance(self._task, Pose) else ()
        self._serialize = AnnotationsSerializer(
            self._class_names, skeleton, has_metadata=bool(annotations_have_metadata())
        )

    @classmethod
    def is_available(cls) -> bool:
        return can_publish_annotations()

    def image_size(self, size_wh: tuple[int, int], found: Detections) -> tuple[int, int] | None:
        """See TaskTopic. Outlines are traced in an image of mask numbers."""
        return None if found.pictured is None else size_wh

    def can_make(self, found: Detections) -> bool:
        """See TaskTopic. Kernels draw masks only for frames that arrive with a subscriber."""
        return found.pictured is not None or not self._task.has_masks

    def publish(
        self,
        header: Header | HeaderFields,
        size_wh: tuple[int, int],
        found: Detections,
    ) -> None:
        """Publish drawings of all objects."""
        self._publish(self._serialize(header.stamp, size_wh, found))


class ClassificationTopic(TaskTopic[ClassScores]):
    """Publishes the best classes of an image."""

    topic = CLASSIFICATION_TOPIC
    message_type = Classification

    def publish(
        self,
        header: Header | HeaderFields,
        size_wh: tuple[int, int],
        found: ClassScores,
    ) -> None:
        """Publish the best classes, best first."""
        count = self._parameters.classification_top_k
        self._publish(classification_message(header, found, self._class_names, count))


class MapTopic(TaskTopic[_Map]):
    """Publishes a map with one value per pixel as an image.

    Attributes:
        kind: the map that is published: ``class_ids``, ``confidence`` or ``depth``.
        is_metric: True to publish only depth in metres, False to publish only relative depth; None
            for maps that are not depth.
    """

    message_type = Image
    size_fix = 'set map_size, for example to 1920x1080'
    kind: ClassVar[str]
    is_metric: ClassVar[bool | None] = None

    def _prepare(self) -> None:
        # The serialised message, reused while maps have the same size.
        self._message: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._has_reported = False

    def image_size(self, size_wh: tuple[int, int], found: _Map) -> tuple[int, int]:
        return map_size_wh(self._parameters.map_size, found.letterbox)

    def can_make(self, found: _Map) -> bool:
        """See TaskTopic. Kernels make no large maps while too many are in use."""
        return not isinstance(found, KernelMaps) or bool(found.maps)

    def free_memory(self) -> None:
        self._message = np.empty(0, np.uint8)

    def publish(
        self,
        header: Header | HeaderFields,
        size_wh: tuple[int, int],
        found: _Map,
    ) -> None:
        """Publish the map, if the result has one."""
        if not isinstance(found, ClassMap) and self.is_metric not in (None, found.is_metric):
            self._report_wrong_unit(found.is_metric)
            return
        size_wh = map_size_wh(self._parameters.map_size, found.letterbox)
        message = map_message(header, found, self.kind, size_wh, self._message)
        if message is None:
            return
        if not isinstance(found, KernelMaps):  # these maps have memory of their own
            self._message = message
        publish_unlocked(self._publisher, message)

    def _report_wrong_unit(self, is_metric: bool) -> None:
        """Log once that nothing is published here, and which topic to subscribe to."""
        if self._has_reported:
            return
        self._has_reported = True
        unit = 'is in metres' if is_metric else 'has no unit'
        other = DEPTH_TOPIC if is_metric else RELATIVE_DEPTH_TOPIC
        self._node.get_logger().info(
            f'nothing is published on {self._publisher.topic_name}, because the depth {unit}: '
            f'subscribe to {other.name}'
        )


class ClassMapTopic(MapTopic):
    """Publishes the class of each pixel."""

    topic = CLASS_MAP_TOPIC
    kind = 'class_ids'


class ClassConfidenceTopic(MapTopic):
    """Publishes the probability of each pixel's class, if the network outputs logits."""

    topic = CLASS_CONFIDENCE_TOPIC
    kind = 'confidence'


class DepthTopic(MapTopic):
    """Publishes the depth of each pixel in metres."""

    topic = DEPTH_TOPIC
    kind = 'depth'
    is_metric = True


class RelativeDepthTopic(DepthTopic):
    """Publishes a depth without unit; larger values are nearer."""

    topic = RELATIVE_DEPTH_TOPIC
    is_metric = False


class CameraInfoTopic(TaskTopic[_Map]):
    """Publishes the calibration of the camera, scaled to the size of the maps.

    Attributes:
        info: the last calibration on the camera's ``camera_info``; None if none has arrived.
    """

    message_type: ClassVar[type[CameraInfo]] = CameraInfo

    def _prepare(self) -> None:
        self.info: CameraInfoFields | None = None

    def publish(
        self,
        header: Header | HeaderFields,
        size_wh: tuple[int, int],
        found: _Map,
    ) -> None:
        """Publish the calibration with the header of the image, if one has arrived."""
        info, size_wh = self.info, map_size_wh(self._parameters.map_size, found.letterbox)
        scaled = scaled_camera_info(info, size_wh) if info is not None else None
        if scaled is not None:
            self._publish(camera_info_message(header, scaled))


class ClassCameraInfoTopic(CameraInfoTopic):
    """Publishes the calibration for class maps."""

    topic = CLASS_CAMERA_INFO_TOPIC


class DepthCameraInfoTopic(CameraInfoTopic):
    """Publishes the calibration for depth maps."""

    topic = DEPTH_CAMERA_INFO_TOPIC


#: The class that publishes a topic, by the name of the topic. A camera has only the topics of its
#: model's task, so each topic gets only results of its own type.
TASK_TOPICS: Final[Mapping[str, type[TaskTopic[TaskResult]]]] = MappingProxyType(
    {
        kind.topic.name: cast('type[TaskTopic[TaskResult]]', kind)
        for kind in (
            DetectionsTopic,
            AnnotationsTopic,
            KeypointsTopic,
            MasksTopic,
            ClassificationTopic,
            ClassMapTopic,
            ClassConfidenceTopic,
            ClassCameraInfoTopic,
            DepthTopic,
            RelativeDepthTopic,
            DepthCameraInfoTopic,
        )
    }
)
