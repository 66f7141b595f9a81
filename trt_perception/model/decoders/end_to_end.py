"""Decodes rows of final boxes, from models that contain NMS or need none.

The output is (B, K, 6): left, top, right, bottom in network pixels, score, class from 0. Unused
rows have the score 0. YOLOv10, YOLO26 and Ultralytics exports with nms=True have this output. Task
values (keypoints, an angle or mask coefficients) follow the class: (B, K, 6 + v). Oriented boxes
are centre x, centre y, width, height instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from trt_perception.model.candidates import Candidates, candidates_from_final_boxes, cxcywh_to_xyxy
from trt_perception.model.decoder import DecoderPreset, ImageContext, ObjectDecoder, OutputArray
from trt_perception.model.output_tensor import OutputTensor

__all__ = ['PRESETS', 'EndToEnd']


@dataclass(frozen=True)
class EndToEnd(ObjectDecoder):
    """The decoder of rows of final boxes in network pixels."""

    family: ClassVar[str] = 'end_to_end'
    documented_outputs: ClassVar[str] = 'K rows: box, score, class from 0'
    documented_boxes: ClassVar[str] = 'left, top, right, bottom in network pixels'
    allows_task_values: ClassVar[bool] = True

    def expected_box_outputs(
        self, classes: int | None, value_count: int = 0
    ) -> tuple[OutputTensor, ...]:
        """See ObjectDecoder."""
        # LibreYOLO's nms=True adds a second output with all boxes.
        shape = ('B', 'K', 6 + value_count)
        return (OutputTensor('output', shape, tensor_names=('output',)),)

    def candidates(self, arrays: Sequence[OutputArray], image: ImageContext) -> Candidates:
        """See ObjectDecoder."""
        rows, task = arrays[0], image.task
        return candidates_from_final_boxes(
            cxcywh_to_xyxy(rows[:, :4]) if task.is_oriented else rows[:, :4],
            rows[:, 4],
            rows[:, 5],
            task_values=rows[:, 6:] if task.task_value_count else None,
            prototypes=arrays[1] if task.has_masks else None,
        )


PRESETS: Final = (
    DecoderPreset('end_to_end', EndToEnd(), 'YOLOv10, YOLO26, Ultralytics with `nms=True`'),
)
