"""Decodes dense outputs: a box with class scores for each anchor, as most YOLOs export them.

Shapes for C classes and N anchors:

    (B, 4 + C, N)   YOLOv8, 9, 11, 12
    (B, N, 5 + C)   YOLOv5, 7, and YOLOX with grid decoding in the model: transposed, with
                    objectness, which multiplies the class scores

Boxes are centre x, centre y, width, height in network pixels. Scores are after sigmoid. Task
values (keypoints, an angle or mask coefficients) follow the scores: (B, 4 + C + v, N). The family
needs NMS. On a GPU, the kernels in ``stages/kernels/decode.cu`` give the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from trt_perception.model.candidates import Candidates, cxcywh_to_xyxy
from trt_perception.model.decoder import (
    AnchorRowLayout,
    DecoderPreset,
    ImageContext,
    ObjectDecoder,
    OutputArray,
)
from trt_perception.model.decoders.usual_preprocessing import ULTRALYTICS, YOLOX
from trt_perception.model.output_tensor import Axis, OutputTensor

__all__ = ['PRESETS', 'Dense']


@dataclass(frozen=True)
class Dense(ObjectDecoder):
    """The decoder of dense outputs.

    Attributes:
        objectness: whether an objectness score precedes the class scores, and multiplies them.
        transposed: whether the output is (B, N, C) instead of (B, C, N).
    """

    family: ClassVar[str] = 'dense'
    documented_outputs: ClassVar[str] = 'one output with N anchors as rows'
    documented_boxes: ClassVar[str] = 'centre x, centre y, width, height in network pixels'
    documented_scores: ClassVar[str] = 'probabilities, multiplied by the objectness if present'
    needs_nms: ClassVar[bool] = True
    allows_task_values: ClassVar[bool] = True

    objectness: bool = False
    transposed: bool = False

    def family_outputs(self) -> tuple[OutputTensor, ...]:
        """See Decoder."""
        row = Axis(self._first_class, has_task_values=True)
        return (OutputTensor('output', ('B', 'N', row) if self.transposed else ('B', row, 'N')),)

    def candidates(self, arrays: Sequence[OutputArray], image: ImageContext) -> Candidates:
        """Return the anchors above the threshold. Of equal class scores, the first class wins."""
        rows = arrays[0].T if self.transposed else arrays[0]
        task_value_count = image.task.task_value_count
        behind = len(rows) - task_value_count
        classes = rows[self._first_class : behind].astype(np.float32, copy=False)
        class_ids = classes.argmax(axis=0)
        scores = classes[class_ids, np.arange(classes.shape[1])]
        if self.objectness:
            scores = scores * rows[4].astype(np.float32, copy=False)
        chosen = image.find_passing(scores, class_ids)
        boxes = rows[:4, chosen].astype(np.float32).T
        task_values = rows[behind:, chosen].astype(np.float32).T if task_value_count else None
        prototypes = arrays[1] if image.task.has_masks else None
        return Candidates(
            cxcywh_to_xyxy(boxes), scores[chosen], class_ids[chosen], task_values, prototypes
        )

    def anchor_row_layout(self) -> AnchorRowLayout:
        """See Decoder."""
        return AnchorRowLayout(self.objectness, self.transposed)

    @property
    def _first_class(self) -> int:
        """The index of the first class score in a row."""
        return 5 if self.objectness else 4


PRESETS: Final = (
    DecoderPreset('dense', Dense(), 'YOLOv8, 9, 11, 12', preprocessing=ULTRALYTICS),
    DecoderPreset('dense_transposed', Dense(transposed=True)),
    DecoderPreset('dense_objectness', Dense(objectness=True)),
    DecoderPreset(
        'dense_objectness_transposed',
        Dense(objectness=True, transposed=True),
        'YOLOv5, 7',
        preprocessing=ULTRALYTICS,
    ),
    DecoderPreset(
        'yolox',
        Dense(objectness=True, transposed=True),
        'YOLOX with grid decoding',
        preprocessing=YOLOX,
        anchors_per_cell=(1,),
    ),
)
