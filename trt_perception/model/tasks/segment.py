# SPDX-License-Identifier: Apache-2.0
"""The task of masks, which mark the pixels of each object."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import EngineError, OutputShapeError
from trt_perception.files.json_records import integer_reader, optional_reader
from trt_perception.files.plain_text import Mistake
from trt_perception.images.detections import MaskGeometry, Masks
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.candidates import mask_indices
from trt_perception.model.tasks.task import (
    ANNOTATIONS_TOPIC,
    DETECTIONS_TOPIC,
    DetectionFields,
    Floats,
    Task,
    Topic,
    wrong_key,
)
from trt_perception.model.tensors import ModelInfo, tensors_text

#: Publishes an image in which each pixel has the number of its object.
MASKS_TOPIC: Final = Topic('masks', 'sensor_msgs/Image', depth=1, on_demand=True)


@dataclass(frozen=True)
class Segment(Task):
    """Boxes with one mask per object.

    Attributes:
        mask_coefficients: number of prototypes whose weighted sum is a mask; 0 if the outputs have
            a separate mask for each object. A manifest has null instead of 0.
    """

    name: ClassVar[str] = 'segment'
    measure: ClassVar[str] = 'masks'
    topics: ClassVar[tuple[Topic, ...]] = (DETECTIONS_TOPIC, MASKS_TOPIC, ANNOTATIONS_TOPIC)
    has_masks: ClassVar[bool] = True

    mask_coefficients: Annotated[
        int, optional_reader(integer_reader(1, 1024), missing=0), lambda count: count or None
    ] = 0

    @property
    def task_value_count(self) -> int:
        """Return the number of mask coefficients."""
        return self.mask_coefficients

    @property
    def prototype_count(self) -> int:
        """Return the number of prototypes: one per coefficient."""
        return self.mask_coefficients

    def complete_from_outputs(self, model: ModelInfo) -> Task:
        """Return the task with the number of coefficients, which is the number of prototypes.

        Raises:
            EngineError: the number of outputs with prototypes is not 1.
        """
        if self.mask_coefficients:
            return self
        prototypes = [tensor for tensor in model.outputs if len(tensor.shape) == 4]
        if len(prototypes) != 1 or prototypes[0].shape[1] < 1:
            raise EngineError(
                model.name,
                f"task 'segment' with the outputs {tensors_text(model.outputs)}",
                expected='rows of boxes, and one tensor of mask prototypes (1, M, height, width)',
                fix='export the model again with fixed shapes'
                if any(not tensor.shape or -1 in tensor.shape for tensor in model.outputs)
                else 'export all outputs of a model of the task segment (docs/decoders.md)',
            )
        return replace(self, mask_coefficients=prototypes[0].shape[1])

    def manifest_mistake(self, family: str, *, has_own_outputs: bool) -> Mistake | None:
        """Return a mistake if coefficients and separate masks are both given or both missing."""
        given = self.mask_coefficients > 0
        if given != has_own_outputs:
            return None
        without = family if has_own_outputs else ''
        key = 'mask_coefficients'
        return wrong_key(self.name, key, [self.name], given=given, without=without)

    def detection_fields(
        self,
        xyxy: Floats,
        task_values: Floats | None,
        prototypes: npt.NDArray[np.floating] | None,
        letterbox: Letterbox,
    ) -> DetectionFields:
        """Return the field ``masks``, which computes masks on demand.

        Raises:
            OutputShapeError: there are objects, but masks or prototypes have no pixels.
        """
        if prototypes is None:
            return {}
        assert task_values is not None
        if len(xyxy) and not prototypes[:1].size:
            raise OutputShapeError(
                "the model's output",
                f'masks or prototypes of {prototypes.shape[2]} x {prototypes.shape[1]} pixels',
                expected='1 x 1 or more',
                fix='export the model again with fixed shapes',
            )
        is_own = not self.mask_coefficients
        if is_own:  # keep only the masks of these objects
            prototypes = prototypes[task_values[:, 0].astype(np.int64)]
            task_values = mask_indices(len(xyxy))
        # Copy, because the pipeline reuses the memory of the outputs.
        used = np.array(prototypes if len(xyxy) else prototypes[:, :0, :0], np.float32)
        geometry = mask_geometry(letterbox, prototypes.shape[1:])
        return {'masks': Masks(xyxy, task_values.copy(), used, geometry, is_own)}


def mask_geometry(letterbox: Letterbox, shape: tuple[int, ...]) -> MaskGeometry:
    """Return the position and scale of an image in prototypes.

    Args:
        shape: rows and columns of prototypes.
    """
    rows, columns = shape
    share = columns / letterbox.network_wh[0], rows / letterbox.network_wh[1]
    scale = [
        part * resized / side
        for part, resized, side in zip(
            share, letterbox.resized_wh, letterbox.source_wh, strict=True
        )
    ]
    return MaskGeometry(
        letterbox.source_wh,
        (scale[0], scale[1]),
        (share[0] * letterbox.pad_left, share[1] * letterbox.pad_top),
        _parts_per_pixel(letterbox, columns),
    )


def _parts_per_pixel(letterbox: Letterbox, columns: int) -> int:
    """Return the fewest parts of a prototype pixel so that the padding ends between two parts."""
    stride = max(1, letterbox.network_wh[0] // max(1, columns))
    sides = [
        side - resized
        for side, resized in zip(letterbox.network_wh, letterbox.resized_wh, strict=True)
    ]
    either = sides[0] | sides[1]
    return max(1, stride // math.gcd(stride, either | either // 2))
