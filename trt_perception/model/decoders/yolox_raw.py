"""Decodes YOLOX without grid decoding in the model, as its own exporter writes it by default.

The shape is (B, N, 5 + C) for C classes. Each cell has one anchor. The grids have strides of 8, 16
and 32 network pixels by default. The finest grid is first, and each grid is in row-major order.
Class scores and objectness are after sigmoid, and a score is their product. The box of a cell is

    centre = (value + (column, row)) * stride,   size = exp(value) * stride   [network pixels]

Source: Ge et al., YOLOX: Exceeding YOLO Series in 2021, arXiv 2107.08430. The family needs NMS. On
a GPU, the kernels in ``stages/kernels/decode.cu`` give the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np

from trt_perception.model.candidates import Candidates, cxcywh_to_xyxy
from trt_perception.model.decoder import (
    AnchorRowLayout,
    DecoderPreset,
    ImageContext,
    ObjectDecoder,
    OutputArray,
)
from trt_perception.model.decoders.usual_preprocessing import YOLOX
from trt_perception.model.grids import check_anchor_count, grid_cells, read_strides
from trt_perception.model.output_tensor import Axis, OutputTensor

__all__ = ['PRESETS', 'YoloxRaw']


@dataclass(frozen=True)
class YoloxRaw(ObjectDecoder):
    """The decoder of boxes relative to grid cells.

    Attributes:
        strides: network pixels between two cells of each grid, finest grid first.
    """

    family: ClassVar[str] = 'yolox_raw'
    documented_outputs: ClassVar[str] = (
        'one output with the cells of all grids as rows, finest grid first'
    )
    documented_boxes: ClassVar[str] = 'offset to the cell and logarithm of the size, in strides'
    documented_scores: ClassVar[str] = 'probabilities times objectness'
    needs_nms: ClassVar[bool] = True
    tensors: ClassVar[tuple[OutputTensor, ...]] = (OutputTensor('output', ('B', 'N', Axis(5))),)

    strides: Annotated[tuple[int, ...], read_strides]

    def grid_strides(self) -> tuple[int, ...]:
        """See Decoder."""
        return self.strides

    def candidates(self, arrays: Sequence[OutputArray], image: ImageContext) -> Candidates:
        """Return the anchors above the threshold. Of equal class scores, the first class wins.

        Raises:
            EngineError: the number of anchors differs from the number of grid cells.
        """
        (output,) = arrays
        check_anchor_count(len(output), self.strides, image.network_wh)
        cell = grid_cells(self.strides, image.network_wh)
        class_ids = output[:, 5:].argmax(axis=1)
        scores = output[np.arange(len(output)), 5 + class_ids] * output[:, 4]
        chosen = image.find_passing(scores, class_ids)
        stride = cell[chosen, 2:]
        centre = (output[chosen, :2] + cell[chosen, :2]) * stride
        size = np.exp(output[chosen, 2:4]) * stride
        boxes = cxcywh_to_xyxy(np.concatenate([centre, size], axis=1))
        return Candidates(boxes, scores[chosen], class_ids[chosen])

    def anchor_row_layout(self) -> AnchorRowLayout:
        """See Decoder."""
        return AnchorRowLayout(objectness=True, transposed=True, strides=self.strides)


PRESETS: Final = (
    DecoderPreset(
        'yolox_raw',
        YoloxRaw((8, 16, 32)),
        "YOLOX without grid decoding, its exporter's default",
        preprocessing=YOLOX,
        anchors_per_cell=(1,),
    ),
)
