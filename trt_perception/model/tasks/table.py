# SPDX-License-Identifier: Apache-2.0
"""Lists all tasks, and reads and writes their keys of a manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any, Final

from trt_perception.errors import ManifestError
from trt_perception.files.json_records import read_record_leaving_other_keys, to_json
from trt_perception.files.json_section import JsonSection
from trt_perception.model.tasks.classify import Classify
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tasks.detect import DETECT, Detect
from trt_perception.model.tasks.obb import Obb
from trt_perception.model.tasks.pose import Pose
from trt_perception.model.tasks.segment import Segment
from trt_perception.model.tasks.semantic import Semantic
from trt_perception.model.tasks.task import DEBUG_IMAGE, LABEL_INFO, Task, wrong_key

#: Maps the name of each task to its class.
TASKS: Final[Mapping[str, type[Task]]] = MappingProxyType(
    {task.name: task for task in (Detect, Obb, Pose, Segment, Classify, Semantic, Depth)}
)
#: All topics that the node may publish for a camera, whatever the model's task.
PUBLISHED_TOPICS: Final = (
    *dict.fromkeys(
        topic for task in TASKS.values() for topic in (*task.topics, *task.label_topics)
    ),
    LABEL_INFO,
    DEBUG_IMAGE,
)
#: Last parts of the topics on which detectors publish images.
OUTPUT_IMAGE_SUFFIXES: Final = tuple(
    f'/{topic.name}' for topic in PUBLISHED_TOPICS if topic.message == 'sensor_msgs/Image'
)
# For each task, its keys in a manifest, and whether each key is required.
_IS_KEY_REQUIRED_BY_TASK: Final = {
    name: {field.name: field.default is MISSING for field in fields(task)}
    for name, task in TASKS.items()
}
#: Keys of a manifest that only some tasks have.
TASK_KEYS: Final = tuple(
    dict.fromkeys(key for keys in _IS_KEY_REQUIRED_BY_TASK.values() for key in keys)
)


def read_task(section: JsonSection, key: str) -> Task:
    """Read the task and its keys, which are in the same section.

    Args:
        key: the key with the name of the task. Without this key, the task is detect.

    Raises:
        ManifestError: the name is unknown, or a key is missing, wrong or belongs to another task.
    """
    if not section.has(key):
        return DETECT
    task = section.text(key, tuple(TASKS))
    for name in TASK_KEYS:
        given, is_required = section.has(name), _IS_KEY_REQUIRED_BY_TASK[task].get(name, False)
        if (given and name not in _IS_KEY_REQUIRED_BY_TASK[task]) or (is_required and not given):
            owners = [owner for owner, keys in _IS_KEY_REQUIRED_BY_TASK.items() if name in keys]
            raise ManifestError(section.location, **wrong_key(task, name, owners, given=given))
    return read_record_leaving_other_keys(TASKS[task], section)


def write_task(task: Task) -> dict[str, Any]:
    """Return the task and its keys for a manifest, with null for the keys of other tasks."""
    content = to_json(task)
    return {'task': task.name, **{key: content.get(key) for key in TASK_KEYS}}
