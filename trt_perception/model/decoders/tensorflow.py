"""Decodes models of the TensorFlow Object Detection API.

The outputs are boxes (B, K, 4) as top, left, bottom, right in 0…1 of the input, classes from 1 as
float (B, K), scores (B, K), and the number of boxes (B,).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from trt_perception.model.candidates import Candidates, candidates_from_counted_boxes
from trt_perception.model.decoder import DecoderPreset, ImageContext, ObjectDecoder, OutputArray
from trt_perception.model.output_tensor import OutputTensor

__all__ = ['PRESETS', 'Tensorflow']


@dataclass(frozen=True)
class Tensorflow(ObjectDecoder):
    """The decoder of final boxes in 0…1, with classes from 1 and the number of boxes."""

    family: ClassVar[str] = 'tensorflow'
    documented_outputs: ClassVar[str] = (
        'boxes (B, K, 4), classes float (B, K) from 1, scores (B, K), number (B)'
    )
    documented_boxes: ClassVar[str] = 'top, left, bottom, right in 0…1'
    has_normalised_boxes: ClassVar[bool] = True
    tensors: ClassVar[tuple[OutputTensor, ...]] = tuple(
        OutputTensor(name, shape, tensor_names=(tensor,), must_match_name=True)
        for name, shape, tensor in (
            ('boxes', ('B', 'K', 4), 'detection_boxes'),
            ('classes', ('B', 'K'), 'detection_classes'),
            ('scores', ('B', 'K'), 'detection_scores'),
            ('number', ('B',), 'num_detections'),
        )
    )

    def candidates(self, arrays: Sequence[OutputArray], image: ImageContext) -> Candidates:
        """See ObjectDecoder."""
        boxes, classes, scores, number = arrays
        xyxy = boxes[:, [1, 0, 3, 2]] * np.array(image.network_wh * 2, np.float32)
        return candidates_from_counted_boxes(number, xyxy, scores, classes, first_label=1)


PRESETS: Final = (
    DecoderPreset(
        'tensorflow',
        Tensorflow(),
        "TensorFlow's detection API",
        'detection_boxes, detection_classes, detection_scores, num_detections',
        # The model contains the normalisation and another resize.
        {'resize': 'stretch', 'color_order': 'rgb', 'scale': 1.0},
    ),
)
