# SPDX-License-Identifier: Apache-2.0
"""The task of keypoints: named points of each object, such as joints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import EngineError
from trt_perception.files.json_records import integer_reader
from trt_perception.files.json_section import JsonSection
from trt_perception.files.literals import parse_literal
from trt_perception.files.plain_text import (
    Mistake,
    counted,
    name_mistake,
    names_mistake,
    repair_names,
    short_repr,
)
from trt_perception.images.detections import Detections
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.tasks.task import (
    ANNOTATIONS_TOPIC,
    DETECTIONS_TOPIC,
    DetectionFields,
    Floats,
    Task,
    TaskResult,
    Topic,
)

#: Maximum number of keypoints of an object.
MAX_KEYPOINTS: Final = 1000
#: A point cloud with one row per object and one column per keypoint.
KEYPOINTS_TOPIC: Final = Topic('keypoints', 'sensor_msgs/PointCloud2')


def _keypoint_names_mistake(names: Sequence[object]) -> Mistake | None:
    """Return why the names of keypoints are invalid; None if they are valid."""
    if not 1 <= len(names) <= MAX_KEYPOINTS:
        return Mistake(found=str(len(names)), expected=f'1 to {MAX_KEYPOINTS} names')
    return names_mistake(names)


def _read_keypoint_names(section: JsonSection, key: str) -> tuple[str, ...]:
    return section.check_value(key, tuple(section.items(key)), _keypoint_names_mistake)


def _read_skeleton(section: JsonSection, key: str) -> tuple[tuple[int, int], ...]:
    lines = section.items(key)
    for line in lines:
        if not (
            isinstance(line, list)
            and len(line) == 2
            and all(type(end) is int and 0 <= end < MAX_KEYPOINTS for end in line)
        ):
            raise section.wrong_value_error(key, line, 'pairs of keypoints, counted from 0')
    if len(lines) > MAX_KEYPOINTS:
        raise section.wrong_value_error(key, len(lines), f'at most {MAX_KEYPOINTS} pairs')
    return tuple((first, second) for first, second in lines)


@dataclass(frozen=True)
class KeypointSpec:
    """The keypoints of each object.

    Attributes:
        names: in the order of the network's outputs, without duplicates.
        values: number of values per keypoint in the outputs: 3 (x, y, score) or 2 (x, y).
        skeleton: pairs of keypoints that drawings connect, as indices of ``names``.
    """

    names: Annotated[tuple[str, ...], _read_keypoint_names]
    values: Annotated[int, integer_reader(2, 3)]
    skeleton: Annotated[tuple[tuple[int, int], ...], _read_skeleton] = ()

    @classmethod
    def read(cls, section: JsonSection, key: str) -> KeypointSpec:
        """Read the keypoints from a manifest.

        Raises:
            ManifestError: a key is missing, unknown or wrong.
        """
        inner = section.section(key)
        found = cls(
            _read_keypoint_names(inner, 'names'),
            inner.integer('values', 2, 3),
            _read_skeleton(inner, 'skeleton'),
        )
        inner.finish()
        if missing := [line for line in found.skeleton if max(line) >= len(found.names)]:
            raise inner.wrong_value_error(
                'skeleton', missing[0], f'keypoints 0 to {len(found.names) - 1}'
            )
        return found


#: The keypoints of people in the order of COCO (https://cocodataset.org/#keypoints-2020).
COCO_KEYPOINTS: Final = KeypointSpec(
    (
        *('nose', 'left_eye', 'right_eye', 'left_ear', 'right_ear', 'left_shoulder'),
        *('right_shoulder', 'left_elbow', 'right_elbow', 'left_wrist', 'right_wrist'),
        *('left_hip', 'right_hip', 'left_knee', 'right_knee', 'left_ankle', 'right_ankle'),
    ),
    3,
    (
        *((15, 13), (13, 11), (16, 14), (14, 12), (11, 12), (5, 11), (6, 12), (5, 6), (5, 7)),
        *((6, 8), (7, 9), (8, 10), (1, 2), (0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6)),
    ),
)


@dataclass(frozen=True)
class Pose(Task):
    """Boxes with keypoints.

    Attributes:
        keypoints: the keypoints that each object has: names, values per keypoint, and skeleton.
    """

    name: ClassVar[str] = 'pose'
    measure: ClassVar[str] = 'keypoints'
    topics: ClassVar[tuple[Topic, ...]] = (DETECTIONS_TOPIC, KEYPOINTS_TOPIC, ANNOTATIONS_TOPIC)

    keypoints: Annotated[KeypointSpec, KeypointSpec.read]

    @property
    def task_value_count(self) -> int:
        """Return the number of all values: two or three per keypoint."""
        return len(self.keypoints.names) * self.keypoints.values

    @property
    def keypoint_names(self) -> tuple[str, ...]:
        """Return the names in the order of the network's outputs."""
        return self.keypoints.names

    def __str__(self) -> str:
        """Return the task with the number of keypoints."""
        return f'{self.name} ({counted(len(self.keypoints.names), "keypoint")})'

    def as_dict(self) -> dict[str, Any]:
        """Return the task for reports, with the keypoints' names."""
        return {'name': self.name, 'keypoints': list(self.keypoints.names)}

    def diagnostic_values(self) -> dict[str, str]:
        """Return the names of the keypoints, in the order of the published points."""
        return {'keypoints': ', '.join(self.keypoints.names)}

    def coco_category_fields(self) -> dict[str, Any]:
        """Return names and skeleton. COCO numbers keypoints from 1."""
        skeleton = [[first + 1, second + 1] for first, second in self.keypoints.skeleton]
        return {'keypoints': list(self.keypoints.names), 'skeleton': skeleton}

    @classmethod
    def from_ultralytics_metadata(
        cls, model_name: str, metadata: Mapping[str, str], class_names: tuple[str, ...]
    ) -> tuple[Task, tuple[str, ...]]:
        """Return the task with the keypoints in the metadata, and a sentence about them.

        Raises:
            EngineError: the metadata lack a valid `kpt_shape`.
        """
        shape_text = metadata.get('kpt_shape', '')
        shape = parse_literal(shape_text)
        is_valid = (
            isinstance(shape, list | tuple)
            and len(shape) == 2
            and all(type(number) is int for number in shape)
            and 1 <= shape[0] <= MAX_KEYPOINTS
            and shape[1] in (2, 3)
        )
        if not is_valid:
            raise EngineError(
                model_name,
                f'"kpt_shape" {short_repr(shape_text)} in the metadata, with task \'pose\'',
                expected=f'[K, 2] or [K, 3] for 1 to {MAX_KEYPOINTS} keypoints',
                fix='export the model again, or write a manifest (docs/manifest.md)',
            )
        count, values = shape
        spec, source = _named_keypoints(count, values, metadata, class_names)
        return cls(spec), (
            f'metadata "kpt_shape" {list(shape)} -> {counted(count, "keypoint")}; {source}',
        )

    def detection_fields(
        self,
        xyxy: Floats,
        task_values: Floats | None,
        prototypes: npt.NDArray[np.floating] | None,
        letterbox: Letterbox,
    ) -> DetectionFields:
        """Return the field ``keypoints``: float32 (n, K, 3) with x, y and score.

        Points are in source pixels, clipped to the image. Scores are clipped to 0…1, and 1 if the
        outputs have no scores.
        """
        assert task_values is not None
        count, values = len(self.keypoints.names), self.keypoints.values
        found = np.ones((len(task_values), count, 3), np.float32)
        found[:, :, :values] = task_values.reshape(-1, count, values)
        limit = np.array(letterbox.source_wh, np.float32)
        found[:, :, :2] = letterbox.points_to_source(found[:, :, :2]).clip(0, limit)
        found[:, :, 2] = found[:, :, 2].clip(0, 1)
        return {'keypoints': found}

    def draw(
        self, bgr: npt.NDArray[np.uint8], found: TaskResult, class_names: Sequence[str]
    ) -> None:
        """Draw detections with their keypoints and skeletons."""
        from trt_perception.images.drawing import draw_detections

        assert isinstance(found, Detections)
        draw_detections(bgr, found, class_names, self.keypoints.skeleton)


def _named_keypoints(
    count: int, values: int, metadata: Mapping[str, str], class_names: tuple[str, ...]
) -> tuple[KeypointSpec, str]:
    """Return keypoints with names from the metadata, and the source of the names.

    Args:
        class_names: in the order of the network's outputs; empty if unknown.
    """
    names = tuple(str(index) for index in range(count))
    source = 'keypoints are named by index'
    names_by_class = parse_literal(metadata.get('kpt_names', ''))
    lists = list(names_by_class.values()) if isinstance(names_by_class, Mapping) else []
    # If the classes have different names, no single list is right for all classes.
    all_equal = bool(lists) and all(names_of_class == lists[0] for names_of_class in lists)
    if all_equal and isinstance(lists[0], list | tuple):
        given_names = tuple(lists[0])
        if len(given_names) == count and not all(map(name_mistake, given_names)):
            names, remark = repair_names(given_names, 'keypoint')
            source = f'metadata "kpt_names"{f" ({remark})" if remark else ""}'
    coco_names = COCO_KEYPOINTS.names
    skeleton: tuple[tuple[int, int], ...] = ()
    if count == len(coco_names) and (names == coco_names or class_names == ('person',)):
        names, skeleton = coco_names, COCO_KEYPOINTS.skeleton
        source = 'COCO person keypoints'
    return KeypointSpec(names, values, skeleton), source
