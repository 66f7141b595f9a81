"""Decodes NanoDet-Plus, exported by its own repository.

The shape is (B, N, C + 4 * (R + 1)) for C classes. Each cell has one anchor. The grids have
strides of 8, 16, 32 and 64 network pixels by default. The finest grid is first, and each grid is
in row-major order. A row holds the class scores after sigmoid, then R + 1 logits for each of the
sides left, top, right and bottom. The softmax of these logits is a distribution over 0 … R. Its
expected value is the distance of the side from the cell, in strides:

    left, top = (column, row) * stride - distance * stride
    right, bottom = (column, row) * stride + distance * stride   [network pixels]

Boxes are clipped to the network's input. Source: Li et al., Generalized Focal Loss, arXiv
2006.04388. R is ``reg_max`` in the training configuration. The family needs NMS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np

from trt_perception.files.json_records import integer_reader
from trt_perception.model.candidates import Candidates
from trt_perception.model.decoder import DecoderPreset, ImageContext, ObjectDecoder, OutputArray
from trt_perception.model.grids import check_anchor_count, grid_cells, read_strides
from trt_perception.model.output_tensor import Axis, OutputTensor

__all__ = ['PRESETS', 'Nanodet']


@dataclass(frozen=True)
class Nanodet(ObjectDecoder):
    """The decoder of class scores and distance distributions for each grid cell.

    Attributes:
        strides: network pixels between two cells of each grid, finest grid first.
        reg_max: the largest distance of a side from its cell, in strides.
    """

    family: ClassVar[str] = 'nanodet'
    documented_outputs: ClassVar[str] = (
        'one output with the cells of all grids as rows, finest grid first'
    )
    documented_boxes: ClassVar[str] = (
        'distances of left, top, right, bottom from the cell, in strides, each as `reg_max` + 1 '
        'logits'
    )
    needs_nms: ClassVar[bool] = True

    strides: Annotated[tuple[int, ...], read_strides]
    reg_max: Annotated[int, integer_reader(1, 64)]

    def family_outputs(self) -> tuple[OutputTensor, ...]:
        """See Decoder."""
        return (OutputTensor('output', ('B', 'N', Axis(4 * (self.reg_max + 1)))),)

    def grid_strides(self) -> tuple[int, ...]:
        """See Decoder."""
        return self.strides

    def candidates(self, arrays: Sequence[OutputArray], image: ImageContext) -> Candidates:
        """Return the anchors above the threshold. Of equal class scores, the first class wins.

        Raises:
            EngineError: the number of anchors differs from the number of grid cells.
        """
        (rows,) = arrays
        check_anchor_count(len(rows), self.strides, image.network_wh)
        bins = self.reg_max + 1
        scores, logits = np.split(rows, [rows.shape[1] - 4 * bins], axis=1)
        class_ids = scores.argmax(axis=1)
        best = scores[np.arange(len(rows)), class_ids]
        chosen = image.find_passing(best, class_ids)
        sides = logits[chosen].reshape(-1, 4, bins)
        raised = np.exp(sides - sides.max(axis=2, keepdims=True))
        expected = raised @ np.arange(bins, dtype=np.float32) / raised.sum(axis=2)
        cell = grid_cells(self.strides, image.network_wh)[chosen]
        stride = cell[:, 2:]
        distance, centre = expected * stride, cell[:, :2] * stride
        xyxy = np.concatenate([centre - distance[:, :2], centre + distance[:, 2:]], axis=1)
        limit = np.array(image.network_wh * 2, np.float32)
        return Candidates(xyxy.clip(0, limit), best[chosen], class_ids[chosen])


PRESETS: Final = (
    DecoderPreset(
        'nanodet_plus',
        Nanodet((8, 16, 32, 64), reg_max=7),
        'NanoDet-Plus',
        preprocessing={
            'resize': 'stretch',
            'color_order': 'bgr',
            'scale': 1 / 255,
            'mean': (0.406, 0.456, 0.485),
            'std': (0.225, 0.224, 0.229),
        },
        anchors_per_cell=(1,),
    ),
)
