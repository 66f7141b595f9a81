# SPDX-License-Identifier: Apache-2.0
"""The task of upright boxes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from trt_perception.model.tasks.task import Task


@dataclass(frozen=True)
class Detect(Task):
    """Boxes with a class and a score."""

    name: ClassVar[str] = 'detect'


#: The task of a model whose files name no task.
DETECT: Final = Detect()
