"""The topics of tasks that describe the whole image: classification, class and depth maps."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
from sensor_msgs.msg import Image
from std_msgs.msg import Header
from vision_msgs.msg import Classification, ObjectHypothesis

from trt_perception.images.results.class_scores import ClassScores
from trt_perception.images.results.kernel_maps import HEADER_ROOM, KernelMaps
from trt_perception.images.results.map_size import map_size_wh
from trt_perception.model.tasks.classify import CLASSIFICATION_TOPIC
from trt_perception.model.tasks.depth import DEPTH_TOPIC, RELATIVE_DEPTH_TOPIC
from trt_perception.model.tasks.semantic import CLASS_CONFIDENCE_TOPIC, CLASS_MAP_TOPIC
from trt_perception.model.tasks.task import TaskResult
from trt_perception.ros.camera.camera_info import ClassCameraInfoTopic, DepthCameraInfoTopic
from trt_perception.ros.camera.messages import header_message
from trt_perception.ros.camera.task_topics import OBJECT_TOPICS, TaskTopic
from trt_perception.ros.wire.cdr import HeaderFields
from trt_perception.ros.wire.image_message import (
    image_message_start,
    serialize_in_place,
    serialize_with_room,
)
from trt_perception.ros.wire.unlocked_publish import publish_unlocked


class ClassificationTopic(TaskTopic):
    """Publishes the best classes of an image."""

    topic = CLASSIFICATION_TOPIC
    message_type = Classification

    def publish(
        self,
        header: Header | HeaderFields,
        size_wh: tuple[int, int],  # noqa: ARG002
        found: ClassScores,
    ) -> None:
        """Publish the best classes, best first."""
        results = [
            ObjectHypothesis(class_id=self._class_names[class_id], score=float(score))
            for class_id, score in zip(*found.best(self._config.classification_top_k), strict=True)
        ]
        self._publisher.publish(Classification(header=header_message(header), results=results))


class MapTopic(TaskTopic):
    """Publishes a map with one value per pixel as an image.

    Attributes:
        kind: key of the map in ``KernelMaps.maps``, and name of the method that returns the map of
            other results: ``class_ids``, ``confidence`` or ``depth``.
        is_metric: True to publish only depth in metres, False to publish only relative depth; None
            for maps that are not depth.
    """

    message_type = Image
    size_fix = 'set map_size, for example to 1920x1080'
    kind: ClassVar[str]
    encoding: ClassVar[str] = 'mono8'
    is_metric: ClassVar[bool | None] = None

    def _prepare(self) -> None:
        # The serialised message, reused while maps have the same size.
        self._message: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._has_reported = False

    def image_size(self, size_wh: tuple[int, int], found: TaskResult) -> tuple[int, int]:  # noqa: ARG002
        return map_size_wh(self._config.map_size, found.letterbox)

    def can_make(self, found: TaskResult) -> bool:
        """See TaskTopic. Kernels make no large maps while too many are in use."""
        return not isinstance(found, KernelMaps) or bool(found.maps)

    def free_memory(self) -> None:
        self._message = np.empty(0, np.uint8)

    def publish(
        self,
        header: Header | HeaderFields,
        size_wh: tuple[int, int],
        found: TaskResult,
    ) -> None:
        """Publish the map, if the result has one."""
        if self.is_metric is not None and found.is_metric != self.is_metric:
            self._report_wrong_unit(found.is_metric)
            return
        if isinstance(found, KernelMaps):
            made = found.maps.get(self.kind)
            if made is not None:
                start = image_message_start(
                    header, made.size_wh, self.encoding, made.dtype.itemsize
                )
                # The start of the message is written in front of the pixels.
                message = serialize_in_place(start, made.memory(), HEADER_ROOM)
                publish_unlocked(self._publisher, message)
            return
        size_wh = map_size_wh(self._config.map_size, found.letterbox)
        pixels: npt.NDArray[Any] | None = getattr(found, self.kind)(size_wh)
        if pixels is not None:
            start = image_message_start(header, size_wh, self.encoding, pixels.itemsize)
            self._message, room = serialize_with_room(start, self._message)
            np.copyto(room.view(pixels.dtype).reshape(pixels.shape), pixels)
            publish_unlocked(self._publisher, self._message)

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
    encoding = '32FC1'
    is_metric = True


class RelativeDepthTopic(DepthTopic):
    """Publishes a depth without unit; larger values are nearer."""

    topic = RELATIVE_DEPTH_TOPIC
    is_metric = False


#: The class that publishes a topic, by the name of the topic.
TASK_TOPICS: Final[Mapping[str, type[TaskTopic]]] = MappingProxyType(
    {
        **OBJECT_TOPICS,
        **{
            kind.topic.name: kind
            for kind in (
                ClassificationTopic,
                ClassMapTopic,
                ClassConfidenceTopic,
                ClassCameraInfoTopic,
                DepthTopic,
                RelativeDepthTopic,
                DepthCameraInfoTopic,
            )
        },
    }
)
