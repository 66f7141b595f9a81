# SPDX-License-Identifier: Apache-2.0
"""The base class of tasks, and descriptions of their topics that need no ROS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, TypeAlias, TypedDict, cast

import numpy as np
import numpy.typing as npt

from trt_perception.errors import EngineError
from trt_perception.files.plain_text import Mistake, counted
from trt_perception.images.detections import Detections, Masks
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.class_scores import ClassScores
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.images.results.kernel_maps import KernelMaps
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tensors import ModelInfo
from trt_perception.tracking.settings import TrackerSettings

Floats = npt.NDArray[np.float32]
#: The result of a task for one image. Tasks of objects have Detections. Kernels of a GPU make
#: KernelMaps, instead of a ClassMap or DepthMap, for a node's topics.
TaskResult: TypeAlias = Detections | ClassScores | ClassMap | DepthMap | KernelMaps


def detections_of(results: Iterable[TaskResult]) -> list[Detections]:
    """Return the results of a task of objects with their type."""
    found = list(results)
    assert all(isinstance(result, Detections) for result in found)
    return cast('list[Detections]', found)


class DetectionFields(TypedDict, total=False):
    """The fields of Detections that `Task.detection_fields` makes."""

    keypoints: Floats
    masks: Masks


@dataclass(frozen=True)
class Topic:
    """A topic that each camera of a node publishes.

    Attributes:
        name: name of the topic in a node with one camera, before remapping.
        message: package and name of the message type, such as ``sensor_msgs/Image``.
        depth: number of messages that the publisher keeps for a slow subscriber.
        on_demand: published only while the topic has a subscriber. If publishing fails, only this
            message is lost, and the image still counts as published.
        is_latched: new subscribers get the last messages (transient local durability).
    """

    name: str
    message: str
    depth: int = 10
    on_demand: bool = False
    is_latched: bool = False


#: Parameters of the node that only its tracker reads. ``tracker.type`` is refused, not ignored.
PARAMETERS_OF_TRACKER: Final = tuple(
    f'tracker.{field.name}'
    for field in fields(TrackerSettings)
    if field.name != 'confidence_threshold'
)
_PARAMETERS_OF_OBJECTS: Final = (
    'confidence_threshold',
    'iou_threshold',
    'max_detections',
    'class_filter',
    'class_agnostic_nms',
    *PARAMETERS_OF_TRACKER,
)
#: Parameters of the node that only models with an output for the sky read.
PARAMETERS_OF_SKY: Final = ('depth.sky', 'depth.sky_depth_m', 'depth.sky_threshold')
#: Parameters of the node that only models of depth read.
PARAMETERS_OF_DEPTH: Final = (*PARAMETERS_OF_SKY, 'model.focal_length')
_PARAMETERS_OF_TASKS: Final = frozenset(
    (*_PARAMETERS_OF_OBJECTS, *PARAMETERS_OF_DEPTH, 'classification.top_k', 'map_size')
)
#: The boxes of all objects. Every task of objects has this topic.
DETECTIONS_TOPIC: Final = Topic('detections', 'vision_msgs/Detection2DArray')
#: The results of all objects as drawings for Foxglove. Every task of objects has this topic.
ANNOTATIONS_TOPIC: Final = Topic(
    'annotations', 'foxglove_msgs/ImageAnnotations', depth=1, on_demand=True
)
#: Class names and confidence threshold. Every task has this topic.
LABEL_INFO: Final = Topic('label_info', 'vision_msgs/LabelInfo', depth=1, is_latched=True)
#: The image with its result drawn.
DEBUG_IMAGE: Final = Topic('debug_image', 'sensor_msgs/Image', depth=1, on_demand=True)


@dataclass(frozen=True)
class Task:
    """The task of a model: the values that its outputs hold for each object.

    A subclass has a name, and a field for each key that manifests of this task have. A field must
    not have the name of an attribute of this class, which would become the default of the field.

    Attributes:
        name: name in manifests, in metadata of Ultralytics and in reports.
        measure: the comparison that evaluation makes, a name in
            `offline/evaluation/metrics/task_measures.py`.
        topics: topics for each image, in the order of publishing.
        label_topics: further topics with the content of ``label_info``.
        has_masks: whether the outputs include masks or prototypes of masks.
        is_oriented: whether boxes are rotated. Their rows hold centre, size and an angle.
        finds_objects: whether the result is a Detections.
        has_classes: whether the model has classes. Other models need no class names.
        parameters: names of the node's parameters that only some tasks read, this task included.
    """

    name: ClassVar[str]
    measure: ClassVar[str] = 'boxes'
    topics: ClassVar[tuple[Topic, ...]] = (DETECTIONS_TOPIC, ANNOTATIONS_TOPIC)
    label_topics: ClassVar[tuple[Topic, ...]] = ()
    has_masks: ClassVar[bool] = False
    is_oriented: ClassVar[bool] = False
    finds_objects: ClassVar[bool] = True
    has_classes: ClassVar[bool] = True
    parameters: ClassVar[tuple[str, ...]] = _PARAMETERS_OF_OBJECTS

    @property
    def unused_parameters(self) -> frozenset[str]:
        """The names of the node's parameters that have no effect with this task."""
        names = () if self.has_classes else ('model.class_names',)
        return _PARAMETERS_OF_TASKS.difference(self.parameters).union(names)

    @property
    def task_value_count(self) -> int:
        """The number of task values in each row, behind box, scores and class."""
        return 0

    @property
    def prototype_count(self) -> int:
        """The number of prototypes of a mask; 0 without prototypes."""
        return 0

    @property
    def keypoint_names(self) -> tuple[str, ...]:
        """Names of the keypoints of each object; empty without keypoints."""
        return ()

    def __str__(self) -> str:
        """Return the task for messages: ``pose (17 keypoints)``."""
        return self.name

    def summary(self, class_names: Sequence[str]) -> str:
        """Return the task for messages, with its number of classes if it has classes."""
        return (
            f'{self}, {counted(len(class_names), "class", "classes")}'
            if self.has_classes
            else str(self)
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the task for reports."""
        return {'name': self.name}

    def diagnostic_values(self) -> dict[str, str]:
        """Return values for /diagnostics, besides the name of the task."""
        return {}

    def coco_category_fields(self) -> dict[str, Any]:
        """Return the fields that the task adds to each category of a COCO file."""
        return {}

    # Recognition.

    @classmethod
    def from_ultralytics_metadata(
        cls, model_name: str, metadata: Mapping[str, str], class_names: tuple[str, ...]
    ) -> tuple[Task, tuple[str, ...]]:
        """Return the task in the metadata of Ultralytics, and a sentence for each finding.

        Args:
            model_name: file name of the model, for error messages.
            metadata: metadata of the ONNX file, with the name of this task under ``task``.
            class_names: in the order of the network's outputs; empty if unknown.

        Raises:
            EngineError: the metadata lack a value that the task needs.
        """
        return cls(), ()

    def complete_from_outputs(self, model: ModelInfo) -> Task:
        """Return the task with fields that only the shapes of the outputs show.

        Raises:
            EngineError: the outputs do not match the task.
        """
        return self

    # Checks.

    def manifest_mistake(self, family: str, *, has_own_outputs: bool) -> Mistake | None:
        """Return why the manifest's keys of this task are invalid; None if they are valid.

        Args:
            family: family of the decoder.
            has_own_outputs: whether decoders of this family read the task from additional outputs,
                instead of task values in the rows of boxes.
        """
        return None

    def check_preprocessing(self, model_name: str, preprocessing: Preprocessing) -> None:
        """Check that the task allows the preprocessing.

        Args:
            model_name: file name of the model, for error messages.
            preprocessing: the preprocessing of the model.

        Raises:
            EngineError: the task does not allow the preprocessing.
        """

    def check_class_count(self, model_name: str, count: int) -> None:
        """Check that the task allows the number of classes.

        Args:
            model_name: file name of the model, for error messages.
            count: number of class names.

        Raises:
            EngineError: the task does not allow this number of classes.
        """

    # Decoding.

    def nms_boxes(self, xyxy: Floats, task_values: Floats | None) -> Floats:
        """Return the boxes that non-maximum suppression compares.

        Args:
            xyxy: float32 (n, 4), network pixels.
            task_values: float32 (n, v), the values behind the scores of each row; None if v is 0.

        Returns:
            float32 (n, 4), or (n, 5) for oriented boxes; network pixels.
        """
        return xyxy

    def boxes_in_source(self, boxes: Floats, letterbox: Letterbox) -> tuple[Floats, Floats | None]:
        """Return boxes in source pixels, clipped to the image. Outside boxes become empty.

        Args:
            boxes: as ``nms_boxes`` returns them.
            letterbox: geometry of the frame.

        Returns:
            float32 (n, 4); and the field ``oriented`` of Detections, None for upright boxes.
        """
        return letterbox.to_source(boxes), None

    def detection_fields(
        self,
        xyxy: Floats,
        task_values: Floats | None,
        prototypes: npt.NDArray[np.floating] | None,
        letterbox: Letterbox,
    ) -> DetectionFields:
        """Return the task's fields of Detections. The arrays are copies.

        Args:
            xyxy: float32 (n, 4), source pixels.
            task_values: float32 (n, v), the values behind the scores of each row, in network
                pixels. With one mask per object: (n, 1), the index of the object's mask. None if v
                is 0.
            prototypes: float (m, rows, columns), prototypes or logits of masks; None if the caller
                computes the masks.
            letterbox: geometry of the frame.

        Raises:
            EngineError: the outputs do not match the task.
        """
        return {}

    # Drawing.

    def draw(
        self, bgr: npt.NDArray[np.uint8], found: TaskResult, class_names: Sequence[str]
    ) -> None:
        """Draw a result into an image, in place.

        Args:
            bgr: uint8 (height, width, 3), BGR, contiguous.
            found: the result, in pixels of the image.
            class_names: names by class id.
        """
        # Import OpenCV only when drawing, because reading a manifest must stay fast.
        from trt_perception.images.drawing import draw_detections

        assert isinstance(found, Detections)
        draw_detections(bgr, found, class_names)


@dataclass(frozen=True)
class MapTask(Task):
    """A task with a value for each pixel of the image."""

    finds_objects: ClassVar[bool] = False
    parameters: ClassVar[tuple[str, ...]] = ('map_size',)

    def check_preprocessing(self, model_name: str, preprocessing: Preprocessing) -> None:
        """Refuse a crop, because the pixels outside have no value."""
        if preprocessing.resize == 'center_crop':
            raise EngineError(
                model_name,
                f'task {self} with resize center_crop, so pixels outside the crop have no value',
                expected='a resize that keeps the whole image',
                fix='set model.resize to stretch or letterbox, and measure the accuracy',
            )


def wrong_key(
    task: str, key: str, owners: Sequence[str], *, given: bool, without: str = ''
) -> Mistake:
    """Return the mistake for a missing key, or for a key that belongs to other tasks.

    Args:
        task: name of the manifest's task.
        key: key of the manifest.
        owners: names of the tasks with this key.
        given: whether the manifest has the key.
        without: a decoder family whose manifests lack the key; empty if all manifests have it.
    """
    names = ' or '.join(f'"{owner}"' for owner in owners)
    exception = f' (not with {without})' if without else ''
    return Mistake(
        found=f'task "{task}" {"with" if given else "without"} "{key}"',
        expected=f'"{key}" with task {names}, and with no other task{exception}',
    )
