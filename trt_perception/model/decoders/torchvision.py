"""Decodes torchvision detectors, whose outputs have no batch axis.

The outputs of an image are boxes (M, 4) as left, top, right, bottom in network pixels, labels
int64 (M,), and scores (M,). M varies from image to image. Label 0 is the background, which is also
the first class name in torchvision's lists. Mask R-CNN adds masks (M, 1, height, width). Keypoint
R-CNN adds keypoints (M, K, 3), whose third value is always 1, and their scores (M, K). A score is
the logit of the heatmap at the keypoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from trt_perception.model.candidates import (
    Candidates,
    Floats,
    candidates_from_final_boxes,
    mask_indices,
)
from trt_perception.model.decoder import DecoderPreset, ImageContext, ObjectDecoder, OutputArray
from trt_perception.model.decoders.usual_preprocessing import RGB_0_TO_1
from trt_perception.model.output_tensor import OutputTensor
from trt_perception.model.tasks.pose import Pose
from trt_perception.model.tasks.task import Task
from trt_perception.model.tensors import INDEX_DTYPES

__all__ = ['PRESETS', 'Torchvision']

_KEYPOINT_SCORE_OUTPUT_NAMES: Final = ('keypoint_scores', 'keypoints_scores')


@dataclass(frozen=True)
class Torchvision(ObjectDecoder):
    """The decoder of a variable number of final boxes."""

    family: ClassVar[str] = 'torchvision'
    documented_outputs: ClassVar[str] = 'boxes (M, 4), labels int64 (M), scores (M)'
    documented_boxes: ClassVar[str] = 'left, top, right, bottom in network pixels'
    documented_scores: ClassVar[str] = (
        'probabilities; label 0 and the first of `class_names` are the background'
    )
    is_background_first: ClassVar[bool] = True
    tasks_with_own_outputs: ClassVar[tuple[str, ...]] = ('segment', 'pose')
    tensors: ClassVar[tuple[OutputTensor, ...]] = (
        OutputTensor('boxes', ('M', 4), tensor_names=('boxes',)),
        OutputTensor('labels', ('M',), INDEX_DTYPES, ('labels',)),
        OutputTensor('scores', ('M',), tensor_names=('scores',)),
    )

    def task_outputs(self, task: Task) -> tuple[OutputTensor, ...]:
        """Return the masks, or the keypoints with their scores."""
        if task.has_masks and not task.prototype_count:
            return (OutputTensor('masks', ('M', 1, 'height', 'width'), tensor_names=('masks',)),)
        if not isinstance(task, Pose) or task.keypoints.values != 3:
            return ()
        count = len(task.keypoints.names)
        return (
            OutputTensor('keypoints', ('M', count, 3), tensor_names=('keypoints',)),
            OutputTensor(
                'keypoint scores', ('M', count), tensor_names=_KEYPOINT_SCORE_OUTPUT_NAMES
            ),
        )

    def candidates(self, arrays: Sequence[OutputArray], image: ImageContext) -> Candidates:
        """See ObjectDecoder."""
        boxes, labels, scores, *further = arrays
        task_values = prototypes = None
        if image.task.has_masks:  # values above 0 are inside a mask
            task_values, prototypes = mask_indices(len(boxes)), further[0][:, 0] - np.float32(0.5)
        elif isinstance(image.task, Pose):
            keypoints, logits = further
            found = np.concatenate([keypoints[..., :2], _sigmoid(logits)[..., None]], axis=2)
            task_values = found.reshape(len(found), -1)
        return candidates_from_final_boxes(
            boxes, scores, labels, task_values=task_values, prototypes=prototypes
        )


def _sigmoid(logits: Floats) -> Floats:
    return np.float32(1) / (np.float32(1) + np.exp(-logits))


PRESETS: Final = (
    DecoderPreset(
        'torchvision',
        Torchvision(),
        'SSD, RetinaNet, Faster R-CNN, Mask R-CNN, Keypoint R-CNN; host pipeline only',
        'boxes, labels, scores, of variable length; also masks, or keypoints and their scores',
        # The model contains the normalisation and another resize.
        {**RGB_0_TO_1, 'resize': 'letterbox_top_left', 'pad_value': 116},
        background='Label 0 of torchvision is the background and stands first in the class names',
    ),
)
