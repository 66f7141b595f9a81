# SPDX-License-Identifier: Apache-2.0
"""Families of transformers with a box and class scores for each of Q queries. No NMS follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import OutputError
from trt_perception.files.json_records import choice_reader
from trt_perception.model.candidates import (
    Candidates,
    Floats,
    best_class_candidates,
    mask_indices,
    normalised_to_xyxy,
)
from trt_perception.model.decoder import ImageContext, ObjectDecoder, OutputArray
from trt_perception.model.output_tensor import Axis, OutputTensor
from trt_perception.model.tasks.task import Task

_LOGIT_OUTPUT_NAMES: Final = ('logits', 'pred_logits', 'labels')
_BOX_OUTPUT_NAMES: Final = ('pred_boxes', 'dets')
_MASK_OUTPUT_NAMES: Final = ('masks', 'pred_masks')


@dataclass(frozen=True)
class QueryDecoder(ObjectDecoder):
    """A transformer whose boxes are in 0…1 of the network's input."""

    documented_boxes = 'centre x, centre y, width, height in 0…1'
    has_normalised_boxes = True
    is_transformer = True


@dataclass(frozen=True)
class RtdetrUltralytics(QueryDecoder):
    """RT-DETR by Ultralytics up to 8.4.46: rows of box and class probabilities.

    A query is one detection, with its best class.
    """

    family = 'rtdetr_ultralytics'
    documented_outputs = 'one output with Q queries as rows'
    tensors = (OutputTensor('output', ('B', 'Q', Axis(4))),)

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
class Detr(QueryDecoder):
    """Class logits and boxes in two tensors. A third may hold the logits of each query's mask.

    Attributes:
        activation: ``sigmoid`` if each class of a query is a separate detection, because the
            models are trained and evaluated in this way (RF-DETR, and the Hugging Face exports of
            RT-DETR, D-FINE and Deformable DETR). ``softmax`` if a query is one detection with its
            best class, and the last class is "no object" (DETR, YOLOS).
    """

    family = 'detr'
    documented_outputs = 'logits (B, Q, C), with softmax (B, Q, C + 1), and boxes (B, Q, 4)'
    documented_scores = (
        'sigmoid: each class of a query has a score; softmax: only the best class, and the last '
        'class is "no object"'
    )
    tasks_with_own_outputs = ('segment',)

    activation: Annotated[str, choice_reader('sigmoid', 'softmax')]

    def family_outputs(self) -> tuple[OutputTensor, ...]:
        # With softmax, one more class, "no object".
        classes = Axis(after=1 if self.activation == 'softmax' else 0)
        return (
            OutputTensor('logits', ('B', 'Q', classes), tensor_names=_LOGIT_OUTPUT_NAMES),
            OutputTensor('boxes', ('B', 'Q', 4), tensor_names=_BOX_OUTPUT_NAMES),
        )

    def task_outputs(self, task: Task) -> tuple[OutputTensor, ...]:
        """Return the masks of the queries."""
        if task.prototype_count:
            return ()
        return (
            OutputTensor('masks', ('B', 'Q', 'height', 'width'), tensor_names=_MASK_OUTPUT_NAMES),
        )

    def candidates(self, arrays: Sequence[OutputArray], image: ImageContext) -> Candidates:
        logits, boxes, *masks = arrays
        query: npt.NDArray[np.int64]  # the query of each candidate
        xyxy = normalised_to_xyxy(boxes, image.network_wh)
        if self.activation == 'softmax':
            raised = np.exp(logits - logits.max(axis=1, keepdims=True))
            found = best_class_candidates(
                xyxy, (raised / raised.sum(axis=1, keepdims=True))[:, :-1]
            )
            query = np.arange(len(xyxy))
        else:
            scores: Floats = np.float32(1) / (np.float32(1) + np.exp(-logits.reshape(-1)))
            ids = np.arange(scores.size) % logits.shape[1]
            chosen = image.find_passing(scores, ids)
            query = chosen // logits.shape[1]
            found = Candidates(xyxy[query], scores[chosen], ids[chosen])
        if not masks:
            return found
        return replace(found, task_values=mask_indices(len(xyxy))[query], prototypes=masks[0])
