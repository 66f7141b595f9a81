# SPDX-License-Identifier: Apache-2.0
"""The task of a depth for each pixel of the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from trt_perception.images.results.depth_map import DepthMap
from trt_perception.images.results.kernel_maps import KernelMaps
from trt_perception.model.tasks.task import PARAMETERS_OF_DEPTH, MapTask, TaskResult, Topic

#: The depth of each pixel in metres.
DEPTH_TOPIC: Final = Topic('depth', 'sensor_msgs/Image', depth=1, on_demand=True)
#: The depth of each pixel without unit; larger values are nearer.
RELATIVE_DEPTH_TOPIC: Final = Topic('relative_depth', 'sensor_msgs/Image', depth=1, on_demand=True)
#: The calibration of the camera in the size of the maps.
DEPTH_CAMERA_INFO_TOPIC: Final = Topic(
    'depth/camera_info', 'sensor_msgs/CameraInfo', depth=1, on_demand=True
)


@dataclass(frozen=True)
class Depth(MapTask):
    """A depth for each pixel. The result is a DepthMap."""

    name: ClassVar[str] = 'depth'
    topics: ClassVar[tuple[Topic, ...]] = (
        DEPTH_TOPIC,
        RELATIVE_DEPTH_TOPIC,
        DEPTH_CAMERA_INFO_TOPIC,
    )
    has_classes: ClassVar[bool] = False
    parameters: ClassVar[tuple[str, ...]] = ('map_size', *PARAMETERS_OF_DEPTH)

    def draw(
        self,
        bgr: npt.NDArray[np.uint8],
        found: TaskResult,
        class_names: Sequence[str],
    ) -> None:
        """Replace the pixels by colours of their depth, with a scale."""
        # Import OpenCV only when drawing, because reading a manifest must stay fast.
        from trt_perception.images.drawing import draw_depth

        assert isinstance(found, DepthMap | KernelMaps)
        depth = found.image('depth')
        if depth is not None:
            draw_depth(bgr, depth, unit=' m' if found.is_metric else '')
