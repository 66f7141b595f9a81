# SPDX-License-Identifier: Apache-2.0
"""The task of a class for each pixel of the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import EngineError
from trt_perception.images.results.class_map import MAX_MAP_CLASSES, ClassMap
from trt_perception.images.results.kernel_maps import KernelMaps
from trt_perception.model.tasks.task import MapTask, TaskResult, Topic

#: The class id of each pixel.
CLASS_MAP_TOPIC: Final = Topic('segmentation/mask', 'sensor_msgs/Image', depth=1, on_demand=True)
#: The probability of each pixel's class, in 1/255.
CLASS_CONFIDENCE_TOPIC: Final = Topic(
    'segmentation/confidence', 'sensor_msgs/Image', depth=1, on_demand=True
)

#: The calibration of the camera in the size of the maps.
CLASS_CAMERA_INFO_TOPIC: Final = Topic(
    'segmentation/camera_info', 'sensor_msgs/CameraInfo', depth=1, on_demand=True
)
#: The names of the classes, where Nav2 expects them.
CLASS_LABELS_TOPIC: Final = Topic(
    'segmentation/label_info', 'vision_msgs/LabelInfo', depth=1, is_latched=True
)


@dataclass(frozen=True)
class Semantic(MapTask):
    """A class for each pixel. The result is a ClassMap."""

    name: ClassVar[str] = 'semantic'
    topics: ClassVar[tuple[Topic, ...]] = (
        CLASS_MAP_TOPIC,
        CLASS_CONFIDENCE_TOPIC,
        CLASS_CAMERA_INFO_TOPIC,
    )
    label_topics: ClassVar[tuple[Topic, ...]] = (CLASS_LABELS_TOPIC,)

    def check_class_count(self, model_name: str, count: int) -> None:
        """Refuse a single class, and more than 256 classes, because a pixel has 8 bits."""
        if not 2 <= count <= MAX_MAP_CLASSES:
            raise EngineError(
                model_name,
                f'task semantic with {count} class names',
                expected=f'2 to {MAX_MAP_CLASSES} classes, which include the background',
                fix='export a model with this number of classes',
            )

    def draw(
        self, bgr: npt.NDArray[np.uint8], found: TaskResult, class_names: Sequence[str]
    ) -> None:
        """Tint each pixel in the colour of its class, and list the classes of the image."""
        # Import OpenCV only when drawing, because reading a manifest must stay fast.
        from trt_perception.images.drawing import draw_class_map

        assert isinstance(found, ClassMap | KernelMaps)
        class_ids = found.image('class_ids')
        if class_ids is not None:
            draw_class_map(bgr, class_ids, class_names)
