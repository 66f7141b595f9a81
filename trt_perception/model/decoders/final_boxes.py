# SPDX-License-Identifier: Apache-2.0
"""Families whose outputs are final boxes, so that no NMS follows.

Most families only describe their tensors, the format of a box and the first label.
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
    candidates_from_final_boxes,
    cxcywh_to_xyxy,
    mask_indices,
)
from trt_perception.model.decoder import ImageContext, ObjectDecoder, OutputArray
from trt_perception.model.output_tensor import Axis, OutputTensor
from trt_perception.model.tasks.pose import Pose
from trt_perception.model.tasks.task import Task
from trt_perception.model.tensors import INDEX_DTYPES

_COUNT_OUTPUT_NAMES: Final = ('num_detections', 'num_dets', 'num')
_BOX_OUTPUT_NAMES: Final = ('detection_boxes', 'det_boxes', 'boxes')
_SCORE_OUTPUT_NAMES: Final = ('detection_scores', 'det_scores', 'scores')
_CLASS_OUTPUT_NAMES: Final = ('detection_classes', 'det_classes', 'classes', 'labels')
_SELECTION_OUTPUT_NAMES: Final = ('selected_indices', 'selected')
_KEYPOINT_SCORE_OUTPUT_NAMES: Final = ('keypoint_scores', 'keypoints_scores')


@dataclass(frozen=True)
class FinalBoxes(ObjectDecoder):
    """Final boxes in several tensors, which ``candidates`` finds by their names in ``tensors``.

    The tensors ``boxes``, ``scores``, and ``labels`` or ``classes`` have one value or box for each
    object. ``number`` is optional: the number of valid boxes, which come first.

    Attributes:
        box_format: ``xyxy``, ``yxyx`` or ``cxcywh``.
        first_label: the label of the first class name.
    """

    box_format: ClassVar[str] = 'xyxy'
    first_label: ClassVar[int] = 0

    def candidates(self, arrays: Sequence[OutputArray], image: ImageContext) -> Candidates:
        """See ObjectDecoder. Outputs of the task may follow those in ``tensors``."""
        names = (tensor.name for tensor in self.tensors)
        found = dict(zip(names, arrays, strict=False))
        count = _box_count(found['number'], len(found['scores'])) if 'number' in found else None
        labels = found['labels' if 'labels' in found else 'classes'][:count]
        boxes = _to_xyxy(found['boxes'][:count], self.box_format)
        return self._final_candidates(boxes, found['scores'][:count], labels, image)

    def _final_candidates(
        self, xyxy: Floats, scores: Floats, labels: OutputArray, image: ImageContext
    ) -> Candidates:
        """Return candidates for boxes in the unit of the family."""
        if self.has_normalised_boxes:
            xyxy = xyxy * np.array(image.network_wh * 2, np.float32)
        return candidates_from_final_boxes(xyxy, scores, labels, self.first_label)


@dataclass(frozen=True)
class FinalBoxRows(FinalBoxes):
    """Final boxes in one tensor, with rows of box, score, label and task values."""

    def candidates(self, arrays: Sequence[OutputArray], image: ImageContext) -> Candidates:
        """See ObjectDecoder. Oriented boxes are centre x, centre y, width, height."""
        rows, task = arrays[0], image.task
        boxes = _to_xyxy(rows[:, :4], 'cxcywh' if task.is_oriented else self.box_format)
        found = self._final_candidates(boxes, rows[:, 4], rows[:, 5], image)
        if not task.task_value_count:
            return found
        prototypes = arrays[1] if task.has_masks else None
        return replace(found, task_values=rows[:, 6:], prototypes=prototypes)


def _box_count(number: npt.NDArray[np.generic], available: int) -> int:
    """Return how many boxes are valid: none if ``number``, with one value, is not finite."""
    value = float(number.reshape(-1)[0])
    return int(np.clip(value, 0, available)) if np.isfinite(value) else 0


def _to_xyxy(boxes: Floats, box_format: str) -> Floats:
    """Return left, top, right, bottom of each box, (n, 4), in the same unit."""
    if box_format == 'cxcywh':
        return cxcywh_to_xyxy(boxes)
    return boxes[:, [1, 0, 3, 2]] if box_format == 'yxyx' else boxes


@dataclass(frozen=True)
class EndToEnd(FinalBoxRows):
    """Rows of final boxes: YOLOv10, YOLO26, and Ultralytics exports with nms=True.

    Unused rows have the score 0. Task values (keypoints, an angle or mask coefficients) follow the
    class. Oriented boxes are centre x, centre y, width, height.
    """

    family = 'end_to_end'
    documented_outputs = 'K rows: box, score, class from 0'
    documented_boxes = 'left, top, right, bottom in network pixels'
    allows_task_values = True
    # LibreYOLO's nms=True adds a second output with all boxes.
    tensors = (
        OutputTensor(
            'output',
            ('B', 'K', Axis(6, has_classes=False, has_task_values=True)),
            tensor_names=('output',),
        ),
    )


@dataclass(frozen=True)
class RtdetrEndToEnd(FinalBoxRows):
    """RT-DETR by Ultralytics from 8.4.47. The rows are the K best pairs of query and class."""

    family = 'rtdetr_end_to_end'
    documented_outputs = 'K rows: box, score, class from 0; a query may give several rows'
    documented_boxes = 'centre x, centre y, width, height in 0…1'
    box_format = 'cxcywh'
    has_normalised_boxes = True
    is_transformer = True
    tensors = (OutputTensor('output', ('B', 'K', 6)),)


@dataclass(frozen=True)
class EfficientNms(FinalBoxes):
    """The outputs of TensorRT's plugin EfficientNMS_TRT."""

    family = 'efficient_nms'
    documented_outputs = (
        'number int32 (B, 1), boxes (B, K, 4), scores (B, K), classes int32 (B, K) from 0'
    )
    documented_boxes = 'left, top, right, bottom in network pixels'
    tensors = (
        OutputTensor('number', ('B', 1), INDEX_DTYPES, _COUNT_OUTPUT_NAMES),
        OutputTensor('boxes', ('B', 'K', 4), tensor_names=_BOX_OUTPUT_NAMES),
        OutputTensor('scores', ('B', 'K'), tensor_names=_SCORE_OUTPUT_NAMES),
        OutputTensor('classes', ('B', 'K'), INDEX_DTYPES, _CLASS_OUTPUT_NAMES),
    )


@dataclass(frozen=True)
class LabelsBoxesScores(FinalBoxes):
    """RT-DETR, D-FINE and related models, exported by their own repositories.

    Pipelines set the second input orig_target_sizes to the size of the network's input, so boxes
    are in network pixels.
    """

    family = 'labels_boxes_scores'
    documented_outputs = 'labels int64 (B, K) from 0, boxes (B, K, 4), scores (B, K)'
    documented_boxes = (
        'left, top, right, bottom in units of `orig_target_sizes`, here in network pixels'
    )
    is_transformer = True
    needs_size_input = True
    tensors = (
        OutputTensor('labels', ('B', 'K'), INDEX_DTYPES, ('labels',)),
        OutputTensor('boxes', ('B', 'K', 4), tensor_names=('boxes',)),
        OutputTensor('scores', ('B', 'K'), tensor_names=('scores',)),
    )


@dataclass(frozen=True)
class Tensorflow(FinalBoxes):
    """Models of the TensorFlow Object Detection API."""

    family = 'tensorflow'
    documented_outputs = 'boxes (B, K, 4), classes float (B, K) from 1, scores (B, K), number (B)'
    documented_boxes = 'top, left, bottom, right in 0…1'
    box_format = 'yxyx'
    first_label = 1
    has_normalised_boxes = True
    tensors = tuple(
        OutputTensor(name, shape, tensor_names=(tensor,), must_match_name=True)
        for name, shape, tensor in (
            ('boxes', ('B', 'K', 4), 'detection_boxes'),
            ('classes', ('B', 'K'), 'detection_classes'),
            ('scores', ('B', 'K'), 'detection_scores'),
            ('number', ('B',), 'num_detections'),
        )
    )


@dataclass(frozen=True)
class Torchvision(FinalBoxes):
    """torchvision's detectors, whose outputs have no batch axis, and M boxes for each image.

    Label 0 is the background, which is also the first class name in torchvision's lists. Mask
    R-CNN adds masks. Keypoint R-CNN adds keypoints, whose third value is always 1, and their
    scores. A score is the logit of the heatmap at the keypoint.
    """

    family = 'torchvision'
    documented_outputs = 'boxes (M, 4), labels int64 (M), scores (M)'
    documented_boxes = 'left, top, right, bottom in network pixels'
    documented_scores = 'probabilities; label 0 and the first of `class_names` are the background'
    is_background_first = True
    tasks_with_own_outputs = ('segment', 'pose')
    tensors = (
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
        found = super().candidates(arrays, image)
        if image.task.has_masks:
            masks = arrays[3][:, 0] - np.float32(0.5)  # values above 0 are inside a mask
            indices = mask_indices(len(found.scores))
            return replace(found, task_values=indices, prototypes=masks)
        if isinstance(image.task, Pose):
            keypoints, logits = arrays[3:]
            values = np.concatenate([keypoints[..., :2], _sigmoid(logits)[..., None]], axis=2)
            rows = values.reshape(len(values), image.task.task_value_count)
            return replace(found, task_values=rows)
        return found


def _sigmoid(logits: Floats) -> Floats:
    return np.float32(1) / (np.float32(1) + np.exp(-logits))


@dataclass(frozen=True)
class OnnxNms(ObjectDecoder):
    """The two inputs and the output of ONNX's operator NonMaxSuppression.

    The selected indices are image, class and box. The operator may select one box for several
    classes. Source: onnx.ai, Operators.md, NonMaxSuppression.

    Attributes:
        box_format: ``xyxy`` or ``yxyx`` for any two opposite corners, or ``cxcywh``. The
            operator's attribute center_point_box decides, and no output shows it.
    """

    family = 'onnx_nms'
    documented_outputs = 'boxes (B, N, 4), scores (B, C, N), selected_indices int64 (M, 3)'
    documented_boxes = '`box_format`, in network pixels'
    tensors = (
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
        xyxy = _to_xyxy(boxes[indices], self.box_format)
        if self.box_format != 'cxcywh':  # the operator accepts any two opposite corners
            least = np.minimum(xyxy[:, :2], xyxy[:, 2:])
            most = np.maximum(xyxy[:, :2], xyxy[:, 2:])
            xyxy = np.concatenate([least, most], axis=1)
        return Candidates(xyxy, scores[ids, indices], ids)
