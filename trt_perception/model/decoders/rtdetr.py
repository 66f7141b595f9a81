"""Decodes RT-DETR exported by Ultralytics: rows of queries in one tensor.

Boxes are centre x, centre y, width, height in 0…1 of the network's input. No NMS follows.

    rtdetr_ultralytics   (B, Q, 4 + C): box and probabilities. A query is one detection, with its
                         best class. Ultralytics up to 8.4.46.
    rtdetr_end_to_end    (B, K, 6): box, probability, class from 0. The rows are the K best pairs
                         of query and class. Ultralytics from 8.4.47.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from trt_perception.errors import OutputError
from trt_perception.model.candidates import (
    Candidates,
    best_class_candidates,
    candidates_from_final_boxes,
    normalised_to_xyxy,
)
from trt_perception.model.decoder import DecoderPreset, ImageContext, ObjectDecoder, OutputArray
from trt_perception.model.decoders.usual_preprocessing import RGB_0_TO_1
from trt_perception.model.output_tensor import Axis, OutputTensor

__all__ = ['PRESETS', 'RtdetrEndToEnd', 'RtdetrUltralytics']

_USUAL_PREPROCESSING: Final = {**RGB_0_TO_1, 'resize': 'stretch'}


@dataclass(frozen=True)
class RtdetrUltralytics(ObjectDecoder):
    """The decoder of one row per query, with a box and class probabilities."""

    family: ClassVar[str] = 'rtdetr_ultralytics'
    documented_outputs: ClassVar[str] = 'one output with Q queries as rows'
    documented_boxes: ClassVar[str] = 'centre x, centre y, width, height in 0…1'
    has_normalised_boxes: ClassVar[bool] = True
    is_transformer: ClassVar[bool] = True
    tensors: ClassVar[tuple[OutputTensor, ...]] = (OutputTensor('output', ('B', 'Q', Axis(4))),)

    def candidates(self, arrays: Sequence[OutputArray], image: ImageContext) -> Candidates:
        """Return each query with its best class.

        Raises:
            OutputError: each row ends in a score and a class number, as in rtdetr_end_to_end. With
                two classes, both layouts have the same shape.
        """
        (rows,) = arrays
        if rows.shape[1] == 6 and len(rows) and np.isin(rows[:, 5], (0, 1)).all():
            raise OutputError(
                "the model's output",
                'rows of box, score and class (all last values are 0 or 1), as Ultralytics '
                'exports RT-DETR since 8.4.47',
                fix='set model.decoder to rtdetr_end_to_end, or write the manifest again',
            )
        return best_class_candidates(
            normalised_to_xyxy(rows[:, :4], image.network_wh), rows[:, 4:]
        )


@dataclass(frozen=True)
class RtdetrEndToEnd(ObjectDecoder):
    """The decoder of rows with box, score and class."""

    family: ClassVar[str] = 'rtdetr_end_to_end'
    documented_outputs: ClassVar[str] = (
        'K rows: box, score, class from 0; a query may give several rows'
    )
    documented_boxes: ClassVar[str] = 'centre x, centre y, width, height in 0…1'
    has_normalised_boxes: ClassVar[bool] = True
    is_transformer: ClassVar[bool] = True
    tensors: ClassVar[tuple[OutputTensor, ...]] = (OutputTensor('output', ('B', 'K', 6)),)

    def candidates(self, arrays: Sequence[OutputArray], image: ImageContext) -> Candidates:
        """See ObjectDecoder."""
        (rows,) = arrays
        boxes = normalised_to_xyxy(rows[:, :4], image.network_wh)
        return candidates_from_final_boxes(boxes, rows[:, 4], rows[:, 5])


PRESETS: Final = (
    DecoderPreset(
        'rtdetr_ultralytics',
        RtdetrUltralytics(),
        'RT-DETR by Ultralytics up to 8.4.46',
        preprocessing=_USUAL_PREPROCESSING,
    ),
    DecoderPreset(
        'rtdetr_end_to_end',
        RtdetrEndToEnd(),
        'RT-DETR by Ultralytics from 8.4.47 (May 2026)',
        preprocessing=_USUAL_PREPROCESSING,
    ),
)
