"""The record that all tasks share, and the topics that tasks publish, as data without ROS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from trt_perception.files.plain_text import Fault
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tensors import ModelInfo

__all__ = ['DETECTIONS', 'DetectionFields', 'Floats', 'Task', 'TaskResult', 'Topic', 'key_fault']

Floats = npt.NDArray[np.float32]
#: What a task finds in one image: Detections, if it is a task of objects. Only the task itself,
#: its decoders and its topics know the type.
TaskResult: TypeAlias = Any
#: Values for fields of Detections, by name. The first axis of an array counts the objects.
DetectionFields = dict[str, Any]


@dataclass(frozen=True)
class Topic:
    """A topic that each camera of a node publishes.

    Attributes:
        name: for a node with one camera, before remapping.
        message: package and name of the message type, as in ``sensor_msgs/Image``.
        depth: how many messages the publisher keeps for a slow subscriber.
        on_demand: published only while the topic has a subscriber. If publishing fails, only this
            message is lost, and the image still counts as published.
        is_latched: later subscribers get the last messages (transient local durability).
    """

    name: str
    message: str
    depth: int = 10
    on_demand: bool = False
    is_latched: bool = False


#: The boxes of all objects. Every task of objects has this topic.
DETECTIONS: Final = Topic('detections', 'vision_msgs/Detection2DArray')


@dataclass(frozen=True)
class Task:
    """What the outputs of a model say of each object.

    A subclass has a name, and a field for each key that a manifest has for this task only. A field
    must not have the name of an attribute of this class: it would become the field's default.

    Attributes:
        name: in manifests, in metadata of Ultralytics and in reports.
        measure: what evaluation compares of the objects, a name in
            `evaluation/metrics/task_measures.py`.
        topics: published for each image, in this order.
        has_masks: the outputs include masks, or prototypes that masks are made of.
        is_oriented: boxes are rotated. Their rows hold centre, size and an angle.
    """

    name: ClassVar[str]
    measure: ClassVar[str] = 'boxes'
    topics: ClassVar[tuple[Topic, ...]] = (DETECTIONS,)
    has_masks: ClassVar[bool] = False
    is_oriented: ClassVar[bool] = False

    @property
    def task_value_count(self) -> int:
        """How many values each row of the outputs has behind its box, scores and class."""
        return 0

    @property
    def prototype_count(self) -> int:
        """How many prototypes masks are made of; 0 if there are none."""
        return 0

    @property
    def keypoint_names(self) -> tuple[str, ...]:
        """Names of the keypoints of each object; empty if there are none."""
        return ()

    def __str__(self) -> str:
        """Return the task for messages: ``pose (17 keypoints)``."""
        return self.name

    def as_dict(self) -> dict[str, Any]:
        """Return the task for reports."""
        return {'name': self.name}

    def diagnostic_values(self) -> dict[str, str]:
        """Return what /diagnostics says of the task, next to its name."""
        return {}

    def coco_category(self) -> dict[str, Any]:
        """Return what COCO's format says of the task in each category."""
        return {}

    # Recognition.

    @classmethod
    def from_ultralytics_metadata(
        cls, model_name: str, metadata: Mapping[str, str], class_names: tuple[str, ...]
    ) -> tuple[Task, tuple[str, ...]]:
        """Return the task that Ultralytics' metadata describe, and a sentence for each finding.

        Args:
            model_name: file name of the model, for error messages.
            metadata: metadata of the ONNX file. Their ``task`` is the name of this task.
            class_names: in the order of the network's outputs; empty if unknown.

        Raises:
            EngineError: the metadata lack what the task needs.
        """
        return cls(), ()

    def complete_from_outputs(self, model: ModelInfo) -> Task:
        """Return the task with what only the shapes of the outputs say.

        Raises:
            EngineError: the outputs are not those of this task.
        """
        return self

    # Checks.

    def manifest_fault(self, family: str, *, has_own_outputs: bool) -> Fault | None:
        """Return what is wrong with the manifest's keys of this task; None if nothing is.

        Args:
            family: of the decoder.
            has_own_outputs: decoders of this family read the task from outputs of its own, not
                from values in the rows of boxes.
        """
        return None

    def check_preprocessing(self, model_name: str, preprocessing: Preprocessing) -> None:
        """Check that images are prepared in a way that the task allows.

        Args:
            model_name: file name of the model, for error messages.
            preprocessing: of the model.

        Raises:
            EngineError: they are not.
        """

    # Decoding.

    def nms_boxes(self, xyxy: Floats, task_values: Floats | None) -> Floats:
        """Return the boxes that non-maximum suppression compares.

        Args:
            xyxy: float32 (n, 4), network pixels.
            task_values: float32 (n, v), what the rows hold behind their scores; None if v is 0.

        Returns:
            float32 (n, 4), or (n, 5) for oriented boxes; network pixels.
        """
        return xyxy

    def boxes_in_source(
        self, boxes: Floats, letterbox: Letterbox
    ) -> tuple[Floats, DetectionFields]:
        """Return boxes in source pixels, clipped to the image. Some may be empty then.

        Args:
            boxes: as ``nms_boxes`` returns them.
            letterbox: geometry of the frame.

        Returns:
            float32 (n, 4), and fields of Detections that describe the same boxes.
        """
        return letterbox.to_source(boxes), {}

    def detection_fields(
        self,
        xyxy: Floats,
        task_values: Floats | None,
        prototypes: npt.NDArray[np.floating] | None,
        letterbox: Letterbox,
    ) -> DetectionFields:
        """Return what the task says of detected objects, in memory of its own.

        Args:
            xyxy: float32 (n, 4), source pixels.
            task_values: float32 (n, v), the values behind the scores of each row, in network
                pixels. With one mask per object: (n, 1), the index of the object's mask. None if v
                is 0.
            prototypes: float (m, rows, columns), prototypes or logits of masks; None if masks are
                made elsewhere.
            letterbox: geometry of the frame.

        Raises:
            EngineError: the outputs cannot be what the task needs.
        """
        return {}

    # For people.

    def draw(
        self, bgr: npt.NDArray[np.uint8], found: TaskResult, class_names: Sequence[str]
    ) -> None:
        """Draw what was found into an image, in place.

        Args:
            bgr: uint8 (height, width, 3), BGR, contiguous.
            found: in the image's pixels.
            class_names: by class id.
        """
        # Imported here: OpenCV must not load with every manifest.
        from trt_perception.images.drawing import draw_detections

        draw_detections(bgr, found, class_names)


def key_fault(
    task: str, key: str, owners: Sequence[str], *, given: bool, without: str = ''
) -> Fault:
    """Return the fault of a key that a manifest has for another task, or lacks.

    Args:
        task: name of the manifest's task.
        key: of the manifest.
        owners: names of the tasks that have the key.
        given: the manifest has the key.
        without: a family of decoders with which the task lacks the key; may be empty.
    """
    names = ' or '.join(f'"{owner}"' for owner in owners)
    exception = f' (not with {without})' if without else ''
    return Fault(
        found=f'task "{task}" {"with" if given else "without"} "{key}"',
        expected=f'"{key}" with task {names}, and only there{exception}',
    )
