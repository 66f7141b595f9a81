"""Decodes RT-DETR, D-FINE and related models, exported by their own repositories.

The outputs are classes from 0, int64 (B, K), boxes (B, K, 4) as left, top, right, bottom in units
of the second input orig_target_sizes, and scores (B, K). Pipelines set this input to the size of
the network's input, so boxes are in network pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from trt_perception.model.candidates import Candidates, candidates_from_final_boxes
from trt_perception.model.decoder import DecoderPreset, ImageContext, ObjectDecoder, OutputArray
from trt_perception.model.decoders.usual_preprocessing import STRETCH
from trt_perception.model.output_tensor import OutputTensor
from trt_perception.model.tensors import INDEX_DTYPES

__all__ = ['PRESETS', 'LabelsBoxesScores']


@dataclass(frozen=True)
class LabelsBoxesScores(ObjectDecoder):
    """The decoder of final boxes in units of the input ``orig_target_sizes``."""

    family: ClassVar[str] = 'labels_boxes_scores'
    documented_outputs: ClassVar[str] = (
        'labels int64 (B, K) from 0, boxes (B, K, 4), scores (B, K)'
    )
    documented_boxes: ClassVar[str] = (
        'left, top, right, bottom in units of `orig_target_sizes`, here in network pixels'
    )
    is_transformer: ClassVar[bool] = True
    needs_size_input: ClassVar[bool] = True
    tensors: ClassVar[tuple[OutputTensor, ...]] = (
        OutputTensor('labels', ('B', 'K'), INDEX_DTYPES, ('labels',)),
        OutputTensor('boxes', ('B', 'K', 4), tensor_names=('boxes',)),
        OutputTensor('scores', ('B', 'K'), tensor_names=('scores',)),
    )

    def candidates(self, arrays: Sequence[OutputArray], image: ImageContext) -> Candidates:
        """See ObjectDecoder."""
        labels, boxes, scores = arrays
        return candidates_from_final_boxes(boxes, scores, labels)


PRESETS: Final = (
    DecoderPreset(
        'labels_boxes_scores',
        LabelsBoxesScores(),
        'RT-DETR, D-FINE by their own repositories',
        'labels, boxes, scores; second input `orig_target_sizes`',
        STRETCH,
    ),
)
