"""What a model says of each object next to its box, and how many values of a row that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from trt_perception.files.json_records import whole
from trt_perception.files.json_section import JsonSection
from trt_perception.files.plain_text import Fault, names_fault

__all__ = [
    *('COCO_KEYPOINTS', 'DETECT', 'MAX_KEYPOINTS', 'TASKS', 'KeypointSpec', 'TaskSpec'),
    'keypoint_names_fault',
]

#: Every task that this version knows, by the manifest's name.
TASKS: Final = ('detect', 'obb', 'pose', 'segment')
#: Most keypoints of an object.
MAX_KEYPOINTS: Final = 1000


def keypoint_names_fault(names: Sequence[object]) -> Fault | None:
    """Return what is wrong with the names of an object's keypoints; None where nothing is."""
    if not 1 <= len(names) <= MAX_KEYPOINTS:
        return Fault(found=str(len(names)), expected=f'1 to {MAX_KEYPOINTS} names')
    return names_fault(names)


def _names(section: JsonSection, key: str) -> tuple[str, ...]:
    return section.checked(key, tuple(section.items(key)), keypoint_names_fault)


def _skeleton(section: JsonSection, key: str) -> tuple[tuple[int, int], ...]:
    lines = section.items(key)
    for line in lines:
        if not (
            isinstance(line, list)
            and len(line) == 2
            and all(type(end) is int and 0 <= end < MAX_KEYPOINTS for end in line)
        ):
            raise section.refusal(key, line, 'pairs of keypoints, counted from 0')
    if len(lines) > MAX_KEYPOINTS:
        raise section.refusal(key, len(lines), f'at most {MAX_KEYPOINTS} pairs')
    return tuple((first, second) for first, second in lines)


@dataclass(frozen=True)
class KeypointSpec:
    """The keypoints that each object has.

    Attributes:
        names: in the network's order, all different.
        values: how many each has in the outputs: 3 (x, y, score) or 2 (x, y).
        skeleton: pairs of keypoints, as indices into the names, that drawings join.
    """

    names: Annotated[tuple[str, ...], _names]
    values: Annotated[int, whole(2, 3)]
    skeleton: Annotated[tuple[tuple[int, int], ...], _skeleton] = ()

    @classmethod
    def read(cls, section: JsonSection, key: str) -> KeypointSpec:
        """Read what a manifest says at a key."""
        inner = section.section(key)
        found = cls(
            _names(inner, 'names'), inner.integer('values', 2, 3), _skeleton(inner, 'skeleton')
        )
        inner.finish()
        if missing := [line for line in found.skeleton if max(line) >= len(found.names)]:
            raise inner.refusal('skeleton', missing[0], f'keypoints 0 to {len(found.names) - 1}')
        return found


@dataclass(frozen=True)
class TaskSpec:
    """What the outputs say of each object.

    Attributes:
        name: one of TASKS.
        keypoints: of pose, else None.
        mask_coefficients: of segment, how many prototypes a mask is made of; 0 where each object
            has a mask of its own in the outputs, and of other tasks.
    """

    name: str = 'detect'
    keypoints: KeypointSpec | None = None
    mask_coefficients: int = 0

    @property
    def row_values(self) -> int:
        """How many values each row of the outputs has behind its box, scores and class."""
        if self.keypoints is None:
            return self.mask_coefficients or int(self.is_oriented)
        return len(self.keypoints.names) * self.keypoints.values

    @property
    def has_masks(self) -> bool:
        """Whether each object has a mask."""
        return self.name == 'segment'

    @property
    def is_oriented(self) -> bool:
        """Whether boxes are rotated: their rows hold centre, size and an angle."""
        return self.name == 'obb'

    @property
    def skeleton(self) -> tuple[tuple[int, int], ...]:
        """The pairs of keypoints that drawings join; empty where there are none."""
        return self.keypoints.skeleton if self.keypoints else ()

    def __str__(self) -> str:
        """Return it for messages: ``pose (17 keypoints)``."""
        if self.keypoints is None:
            return self.name
        return f'{self.name} ({len(self.keypoints.names)} keypoints)'

    def as_dict(self) -> dict[str, Any]:
        """Return what reports say of it."""
        if self.keypoints is None:
            return {'name': self.name}
        return {'name': self.name, 'keypoints': list(self.keypoints.names)}


#: Boxes and nothing else.
DETECT: Final = TaskSpec()

#: People's, as COCO numbers them (https://cocodataset.org/#keypoints-2020), and its skeleton.
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
