# SPDX-License-Identifier: Apache-2.0
"""The task of classes for the whole image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from trt_perception.images.results.class_scores import ClassScores
from trt_perception.model.tasks.task import Task, TaskResult, Topic

#: The best classes of the image.
CLASSIFICATION_TOPIC: Final = Topic('classification', 'vision_msgs/Classification')
# The debug image lists at most this many classes.
_DRAWN_CLASSES: Final = 5


@dataclass(frozen=True)
class Classify(Task):
    """A score for each class. The result is a ClassScores."""

    name: ClassVar[str] = 'classify'
    finds_objects: ClassVar[bool] = False
    topics: ClassVar[tuple[Topic, ...]] = (CLASSIFICATION_TOPIC,)
    parameters: ClassVar[tuple[str, ...]] = ('classification.top_k',)

    def draw(
        self, bgr: npt.NDArray[np.uint8], found: TaskResult, class_names: Sequence[str]
    ) -> None:
        """Draw the best classes with their scores."""
        # Import OpenCV only when drawing, because reading a manifest must stay fast.
        from trt_perception.images.drawing import draw_class_list
        from trt_perception.images.text import drawable_name

        assert isinstance(found, ClassScores)
        ids, scores = found.best(_DRAWN_CLASSES)
        lines = [
            f'{drawable_name(class_names[id_], id_)} {score:.2f}'
            for id_, score in zip(ids.tolist(), scores, strict=True)
        ]
        draw_class_list(bgr, lines, ids.tolist())
