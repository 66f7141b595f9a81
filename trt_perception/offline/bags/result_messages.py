# SPDX-License-Identifier: Apache-2.0
"""Serialises the results of an image for the topics of a bag, as the node does for its topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from trt_perception.images.detections import Detections
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.class_scores import ClassScores
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.images.results.image_limits import is_too_large_result
from trt_perception.images.results.kernel_maps import KernelMaps
from trt_perception.images.results.map_size import map_size_wh
from trt_perception.model.tasks.classify import CLASSIFICATION_TOPIC
from trt_perception.model.tasks.depth import (
    DEPTH_CAMERA_INFO_TOPIC,
    DEPTH_TOPIC,
    RELATIVE_DEPTH_TOPIC,
)
from trt_perception.model.tasks.pose import KEYPOINTS_TOPIC
from trt_perception.model.tasks.segment import MASKS_TOPIC
from trt_perception.model.tasks.semantic import (
    CLASS_CAMERA_INFO_TOPIC,
    CLASS_CONFIDENCE_TOPIC,
    CLASS_MAP_TOPIC,
)
from trt_perception.model.tasks.task import DETECTIONS_TOPIC, TaskResult, Topic
from trt_perception.parameters.values import ParameterValues
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

_Map = ClassMap | DepthMap | KernelMaps


class WholeImage(NamedTuple):
    """A result for a whole image, and what its messages depend on.

    Attributes:
        header: header of the image.
        found: the result.
        class_names: names by class id.
        parameters: parameters of the camera.
        calibration: calibration of the camera; None if it is unknown.
    """

    header: HeaderFields
    found: TaskResult
    class_names: tuple[str, ...]
    parameters: ParameterValues
    calibration: CameraInfoFields | None


_Bytes: TypeAlias = bytes | None


def whole_image_messages(
    image: WholeImage, topics: tuple[Topic, ...]
) -> tuple[list[tuple[str, bytes]], int]:
    """Return the names of topics with their serialised messages, in the order of the topics.

    Returns:
        The messages, and the number of maps that are missing: they would be too large, or a GPU
        had no memory for them.
    """
    messages, skipped = [], 0
    for topic in topics:
        made = _MAKERS[topic.name](image)
        if made is not None:
            messages.append((topic.name, made))
        elif isinstance(image.found, _Map) and _lacks_maps(image, image.found):
            skipped += topic.message == 'sensor_msgs/Image'
    return messages, skipped


def _is_too_large(image: WholeImage, found: _Map) -> bool:
    return is_too_large_result(map_size_wh(image.parameters.map_size, found.letterbox))


def _lacks_maps(image: WholeImage, found: _Map) -> bool:
    return _is_too_large(image, found) or (isinstance(found, KernelMaps) and not found.maps)


def _classification(image: WholeImage) -> _Bytes:
    assert isinstance(image.found, ClassScores)
    count = image.parameters.classification_top_k
    return bytes(classification_message(image.header, image.found, image.class_names, count))


def _map_maker(kind: str, is_metric: bool | None = None) -> Callable[[WholeImage], _Bytes]:
    """Return the function that makes the messages of one kind of maps.

    Args:
        is_metric: True for depth in metres, False for relative depth, None for other maps.
    """

    def make(image: WholeImage) -> _Bytes:
        found = image.found
        assert isinstance(found, _Map)
        if not isinstance(found, ClassMap) and is_metric not in (None, found.is_metric):
            return None
        if _is_too_large(image, found):
            return None
        size_wh = map_size_wh(image.parameters.map_size, found.letterbox)
        message = map_message(image.header, found, kind, size_wh)
        return None if message is None else message.tobytes()

    return make


def _camera_info(image: WholeImage) -> _Bytes:
    assert isinstance(image.found, _Map)
    if image.calibration is None:
        return None
    size_wh = map_size_wh(image.parameters.map_size, image.found.letterbox)
    scaled = scaled_camera_info(image.calibration, size_wh)
    return None if scaled is None else bytes(camera_info_message(image.header, scaled))


_MAKERS: Final[Mapping[str, Callable[[WholeImage], _Bytes]]] = MappingProxyType(
    {
        CLASSIFICATION_TOPIC.name: _classification,
        CLASS_MAP_TOPIC.name: _map_maker('class_ids'),
        CLASS_CONFIDENCE_TOPIC.name: _map_maker('confidence'),
        CLASS_CAMERA_INFO_TOPIC.name: _camera_info,
        DEPTH_TOPIC.name: _map_maker('depth', is_metric=True),
        RELATIVE_DEPTH_TOPIC.name: _map_maker('depth', is_metric=False),
        DEPTH_CAMERA_INFO_TOPIC.name: _camera_info,
    }
)


class ObjectMessages:
    """Serialises the objects of a camera's images.

    Args:
        class_names: names by class id.
        topics: the topics of results.
    """

    def __init__(self, class_names: tuple[str, ...], topics: tuple[Topic, ...]) -> None:
        self._topics = topics
        self._serialize = DetectionsSerializer(class_names)

    def __call__(
        self, header: HeaderFields, size_wh: tuple[int, int], found: Detections
    ) -> Iterator[tuple[str, bytes]]:
        """Yield names of topics with their serialised messages, in the order of the topics."""
        for topic in self._topics:
            if topic == DETECTIONS_TOPIC:
                yield topic.name, bytes(self._serialize(header, found))
            elif topic == KEYPOINTS_TOPIC and found.keypoints is not None:
                yield topic.name, bytes(keypoints_message(header, found.keypoints))
            elif topic == MASKS_TOPIC and found.pictured is not None:
                yield topic.name, masks_message(header, size_wh, found.pictured).tobytes()
