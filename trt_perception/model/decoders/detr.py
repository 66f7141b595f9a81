"""Decodes transformers that output class logits and boxes of Q queries in two tensors.

Boxes are centre x, centre y, width, height in 0…1 of the network's input. The family needs no NMS.

    sigmoid   logits (B, Q, C) and boxes (B, Q, 4): RF-DETR, and the Hugging Face exports of
              RT-DETR, D-FINE and Deformable DETR. Each class of a query is a separate detection,
              because these models are trained and evaluated in this way.
    softmax   logits (B, Q, C + 1) and boxes (B, Q, 4): DETR, YOLOS. The last class is "no object".
              A query is one detection, with its best class.

A third tensor may hold the logits of each query's mask: (B, Q, height, width).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Final

import numpy as np
import numpy.typing as npt

from trt_perception.files.json_records import choice_reader
from trt_perception.model.candidates import (
    Candidates,
    Floats,
    best_class_candidates,
    mask_indices,
    normalised_to_xyxy,
)
from trt_perception.model.decoder import DecoderPreset, ImageContext, ObjectDecoder, OutputArray
from trt_perception.model.decoders.usual_preprocessing import DETR, IMAGENET, STRETCH
from trt_perception.model.output_tensor import OutputTensor, class_axis_size
from trt_perception.model.tasks.task import Task

__all__ = ['PRESETS', 'Detr']

_LOGIT_OUTPUT_NAMES: Final = ('logits', 'pred_logits', 'labels')
_BOX_OUTPUT_NAMES: Final = ('pred_boxes', 'dets')
_MASK_OUTPUT_NAMES: Final = ('masks', 'pred_masks')


@dataclass(frozen=True)
class Detr(ObjectDecoder):
    """The decoder of query logits and boxes.

    Attributes:
        activation: ``sigmoid``, or ``softmax`` if the last class is "no object".
    """

    family: ClassVar[str] = 'detr'
    documented_outputs: ClassVar[str] = (
        'logits (B, Q, C), with softmax (B, Q, C + 1), and boxes (B, Q, 4)'
    )
    documented_boxes: ClassVar[str] = 'centre x, centre y, width, height in 0…1'
    documented_scores: ClassVar[str] = (
        'sigmoid: each class of a query has a score; softmax: only the best class, and the last '
        'class is "no object"'
    )
    has_normalised_boxes: ClassVar[bool] = True
    is_transformer: ClassVar[bool] = True
    tasks_with_own_outputs: ClassVar[tuple[str, ...]] = ('segment',)

    activation: Annotated[str, choice_reader('sigmoid', 'softmax')]

    def expected_box_outputs(
        self, classes: int | None, value_count: int = 0
    ) -> tuple[OutputTensor, ...]:
        """See ObjectDecoder."""
        width = class_axis_size(classes)
        if self.activation == 'softmax':  # one more class, "no object"
            width = 'C + 1' if isinstance(width, str) else width + 1
        return (
            OutputTensor('logits', ('B', 'Q', width), tensor_names=_LOGIT_OUTPUT_NAMES),
            OutputTensor('boxes', ('B', 'Q', 4), tensor_names=_BOX_OUTPUT_NAMES),
        )

    def expected_task_outputs(self, task: Task) -> tuple[OutputTensor, ...]:
        """Return the masks of the queries."""
        if task.prototype_count:
            return ()
        return (
            OutputTensor('masks', ('B', 'Q', 'height', 'width'), tensor_names=_MASK_OUTPUT_NAMES),
        )

    def candidates(self, arrays: Sequence[OutputArray], image: ImageContext) -> Candidates:
        """See ObjectDecoder."""
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


PRESETS: Final = (
    DecoderPreset(
        'rtdetr',
        Detr('sigmoid'),
        'RT-DETR, D-FINE, DEIMv2 by Hugging Face',
        'logits, pred_boxes',
        STRETCH,
        transformers=('rt_detr', 'rt_detr_v2', 'd_fine', 'deimv2'),
        image_processors=('RTDetr',),
    ),
    DecoderPreset(
        'rfdetr',
        Detr('sigmoid'),
        'RF-DETR, RF-DETR-Seg',
        'dets, labels; RF-DETR-Seg also masks',
        # rfdetr and transformers convert pixels to float32, then resize without antialiasing.
        {**IMAGENET, 'resize': 'stretch', 'round_pixels': False},
        transformers=('rf_detr',),
        image_processors=('RfDetr',),
        tensor_names=(frozenset({'dets', 'labels'}), frozenset({'dets', 'labels', 'masks'})),
        # rfdetr up to 1.4 uses the category ids of the dataset, which usually begin at 1. Up to
        # 1.9, the root category 0 of Roboflow's datasets, which has no objects, keeps its column.
        background='RF-DETR trained with own classes has one more class, without objects: give '
        'it the name "background". It is the last class, but the first class if rfdetr up to 1.4 '
        'trained the model, or rfdetr up to 1.9 with a dataset of Roboflow. To tell: with the '
        'wrong order, objects have the name of the next or previous class',
    ),
    DecoderPreset(
        'detr_sigmoid',
        Detr('sigmoid'),
        'Deformable, Conditional, DAB- and LW-DETR',
        'logits, pred_boxes',
        DETR,
        transformers=('deformable_detr', 'conditional_detr', 'dab-detr', 'lw_detr'),
        image_processors=('ConditionalDetr', 'DeformableDetr'),
    ),
    DecoderPreset(
        'detr',
        Detr('softmax'),
        'DETR, YOLOS',
        'logits, pred_boxes',
        DETR,
        transformers=('detr', 'table-transformer', 'yolos'),
        image_processors=('Detr', 'Yolos'),
    ),
)
