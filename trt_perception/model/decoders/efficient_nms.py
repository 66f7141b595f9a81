"""Decodes the final boxes of TensorRT's plugin EfficientNMS_TRT.

The outputs are the number of boxes, int32 (B, 1), boxes (B, K, 4) as left, top, right, bottom in
network pixels, scores (B, K), and classes from 0, int32 (B, K).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from trt_perception.model.candidates import Candidates, candidates_from_counted_boxes
from trt_perception.model.decoder import DecoderPreset, ImageContext, ObjectDecoder, OutputArray
from trt_perception.model.output_tensor import OutputTensor
from trt_perception.model.tensors import INDEX_DTYPES

__all__ = ['PRESETS', 'EfficientNms']

_COUNT_OUTPUT_NAMES: Final = ('num_detections', 'num_dets', 'num')
_BOX_OUTPUT_NAMES: Final = ('detection_boxes', 'det_boxes', 'boxes')
_SCORE_OUTPUT_NAMES: Final = ('detection_scores', 'det_scores', 'scores')
_CLASS_OUTPUT_NAMES: Final = ('detection_classes', 'det_classes', 'classes', 'labels')


@dataclass(frozen=True)
class EfficientNms(ObjectDecoder):
    """The decoder of final boxes in network pixels, with an output that counts the boxes."""

    family: ClassVar[str] = 'efficient_nms'
    documented_outputs: ClassVar[str] = (
        'number int32 (B, 1), boxes (B, K, 4), scores (B, K), classes int32 (B, K) from 0'
    )
    documented_boxes: ClassVar[str] = 'left, top, right, bottom in network pixels'
    tensors: ClassVar[tuple[OutputTensor, ...]] = (
        OutputTensor('number', ('B', 1), INDEX_DTYPES, _COUNT_OUTPUT_NAMES),
        OutputTensor('boxes', ('B', 'K', 4), tensor_names=_BOX_OUTPUT_NAMES),
        OutputTensor('scores', ('B', 'K'), tensor_names=_SCORE_OUTPUT_NAMES),
        OutputTensor('classes', ('B', 'K'), INDEX_DTYPES, _CLASS_OUTPUT_NAMES),
    )

    def candidates(self, arrays: Sequence[OutputArray], image: ImageContext) -> Candidates:
        """See ObjectDecoder."""
        number, boxes, scores, classes = arrays
        return candidates_from_counted_boxes(number, boxes, scores, classes)


PRESETS: Final = (
    DecoderPreset(
        'efficient_nms',
        EfficientNms(),
        "exports with TensorRT's plugin EfficientNMS_TRT",
        'number, boxes, scores, classes',
    ),
)
