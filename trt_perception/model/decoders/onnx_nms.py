"""Decodes models that end in ONNX's operator NonMaxSuppression.

The outputs are the operator's two inputs and its output:

    boxes              (B, N, 4), network pixels: two opposite corners, or centre and size. The
                       operator's attribute center_point_box decides, and no output shows it.
    scores             (B, C, N), probabilities
    selected_indices   int64 (M, 3): image, class, box. M varies from image to image.

The selected boxes are final, so no NMS follows. The operator may select one box for several
classes. Source: onnx.ai, Operators.md, NonMaxSuppression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np

from trt_perception.files.json_records import choice_reader
from trt_perception.model.candidates import Candidates, cxcywh_to_xyxy
from trt_perception.model.decoder import DecoderPreset, ImageContext, ObjectDecoder, OutputArray
from trt_perception.model.output_tensor import Axis, OutputTensor
from trt_perception.model.tensors import INDEX_DTYPES

__all__ = ['PRESETS', 'OnnxNms']

_BOX_OUTPUT_NAMES: Final = ('detection_boxes', 'det_boxes', 'boxes')
_SCORE_OUTPUT_NAMES: Final = ('detection_scores', 'det_scores', 'scores')
_SELECTION_OUTPUT_NAMES: Final = ('selected_indices', 'selected')


@dataclass(frozen=True)
class OnnxNms(ObjectDecoder):
    """The decoder of boxes that NonMaxSuppression selected.

    Attributes:
        box_format: ``xyxy``, ``yxyx`` or ``cxcywh``.
    """

    family: ClassVar[str] = 'onnx_nms'
    documented_outputs: ClassVar[str] = (
        'boxes (B, N, 4), scores (B, C, N), selected_indices int64 (M, 3)'
    )
    documented_boxes: ClassVar[str] = '`box_format`, in network pixels'
    tensors: ClassVar[tuple[OutputTensor, ...]] = (
        OutputTensor('boxes', ('B', 'N', 4), tensor_names=_BOX_OUTPUT_NAMES),
        OutputTensor('scores', ('B', Axis(), 'N'), tensor_names=_SCORE_OUTPUT_NAMES),
        OutputTensor('selected', ('M', 3), INDEX_DTYPES, _SELECTION_OUTPUT_NAMES),
    )

    box_format: Annotated[str, choice_reader('xyxy', 'yxyx', 'cxcywh')]

    def candidates(self, arrays: Sequence[OutputArray], image: ImageContext) -> Candidates:
        """Return the selected boxes of one image. The selected indices cover the whole batch."""
        boxes, scores, selected = arrays
        ids, indices = selected[selected[:, 0] == image.index, 1:].T
        # A runtime with fixed shapes fills unused rows with -1.
        valid = (ids >= 0) & (ids < len(scores)) & (indices >= 0) & (indices < len(boxes))
        ids, indices = ids[valid], indices[valid]
        chosen = boxes[indices]
        if self.box_format == 'cxcywh':
            xyxy = cxcywh_to_xyxy(chosen)
        else:
            xyxy = chosen[:, [1, 0, 3, 2]] if self.box_format == 'yxyx' else chosen
            # The operator accepts any two opposite corners.
            least = np.minimum(xyxy[:, :2], xyxy[:, 2:])
            most = np.maximum(xyxy[:, :2], xyxy[:, 2:])
            xyxy = np.concatenate([least, most], axis=1)
        return Candidates(xyxy, scores[ids, indices], ids)


PRESETS: Final = (
    DecoderPreset(
        'onnx_nms_xyxy',
        OnnxNms('xyxy'),
        "exports with ONNX's NonMaxSuppression",
        'boxes, scores, selected_indices',
    ),
    DecoderPreset('onnx_nms_yxyx', OnnxNms('yxyx'), documented_outputs='as above'),
    DecoderPreset(
        'onnx_nms_cxcywh', OnnxNms('cxcywh'), documented_outputs='as above, `center_point_box=1`'
    ),
)
