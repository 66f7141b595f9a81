"""From a model's outputs to detections, whatever its family: the one way in for pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.images.detections import Detections
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.candidates import Candidates, corners, places
from trt_perception.model.decoder_spec import DecoderSpec
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.output_layout import assign_outputs, layout
from trt_perception.model.pipeline_options import Limits
from trt_perception.model.tasks.pose import Pose
from trt_perception.model.tasks.task import Task
from trt_perception.parameters.frame import Thresholds
from trt_perception.stages.decoders.dense import dense_candidates
from trt_perception.stages.decoders.final_boxes import (
    counted_candidates,
    final_candidates,
    tensorflow_candidates,
)
from trt_perception.stages.decoders.onnx_nms import onnx_nms_candidates
from trt_perception.stages.decoders.queries import (
    detr_candidates,
    rtdetr_end_to_end_candidates,
    rtdetr_ultralytics_candidates,
)
from trt_perception.stages.decoders.yolox_raw import yolox_raw_candidates
from trt_perception.stages.selection import check_unit, passing, select

__all__ = ['bfloat16_to_float32', 'count_candidates', 'decode']

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Image:
    """What a family may need to know of the image whose outputs it reads."""

    index: int
    decoder: DecoderSpec
    network_wh: tuple[int, int]
    thresholds: Thresholds
    task: Task


# A network may say anything; what is no box leaves in a step of its own, not with a warning.
@np.errstate(over='ignore', under='ignore', divide='ignore', invalid='ignore')
def decode(
    outputs: Sequence[Array],
    spec: ModelSpec,
    letterboxes: Sequence[Letterbox],
    thresholds: Sequence[Thresholds],
    limits: Limits,
) -> list[Detections]:
    """Turn the outputs of a batch into detections, one for each image.

    Args:
        outputs: arrays in the order of ``spec.outputs``, with their final shapes; those of
            torchvision's family for each image in turn. float16 is converted here.
        spec: the model's.
        letterboxes: geometry of each image of the batch, in its order.
        thresholds: confidence, IoU and class filter of each image.
        limits: how many boxes go on, and which suppress each other.

    Raises:
        EngineError: the outputs are not what the decoder reads, final boxes are in another unit
            than it expects, or a class has no name.
    """
    family = spec.decoder.family
    found = []
    for candidates, letterbox, own in zip(
        _candidates(outputs, spec, thresholds), letterboxes, thresholds, strict=True
    ):
        if family not in _NEED_NMS:
            check_unit(
                candidates,
                spec.preprocessing.input_size,
                str(spec.decoder),
                normalised=family in _NORMALISED,
            )
        found.append(
            select(
                candidates,
                letterbox,
                own,
                limits,
                classes=len(spec.class_names),
                suppress=family in _NEED_NMS,
                labels=_LABELS.get(family, ''),
                task=spec.task,
            )
        )
    return found


@np.errstate(over='ignore', under='ignore', divide='ignore', invalid='ignore')
def count_candidates(outputs: Sequence[Array], spec: ModelSpec, thresholds: Thresholds) -> int:
    """Return how many boxes of one image are above the threshold and of a class asked for."""
    (found,) = _candidates(outputs, spec, [thresholds])
    return len(passing(found.scores, found.class_ids, thresholds))


def _candidates(
    outputs: Sequence[Array], spec: ModelSpec, thresholds: Sequence[Thresholds]
) -> list[Candidates]:
    """Return what the family reads off the outputs, for each image."""
    decoder, classes, task = spec.decoder, len(spec.class_names), spec.task
    assigned = assign_outputs(decoder, spec.outputs, classes, task=task)
    assert assigned is not None, 'checked when the model was opened'
    read = _FAMILIES[decoder.family]
    found = []
    for index, own in enumerate(thresholds):
        # torchvision's tensors have no axis for a batch: each image brings its own.
        first = index * len(spec.outputs) if decoder.family == 'torchvision' else 0
        arrays = [
            _plain(
                outputs[first + place][index] if role.shape[0] == 'B' else outputs[first + place]
            )
            for role, place in zip(layout(decoder, classes, task), assigned, strict=True)
        ]
        size = spec.preprocessing.input_size
        candidates = read(arrays, _Image(index, decoder, size, own, task))
        if task.has_masks:
            candidates = replace(candidates, prototypes=_mask_values(decoder.family, arrays))
        found.append(candidates)
    return found


def _mask_values(family: str, arrays: Sequence[Array]) -> Array:
    """Return prototypes, or each object's mask, above 0 within: float (m, rows, columns)."""
    if family == 'torchvision':  # probabilities
        return arrays[-1][:, 0] - np.float32(0.5)
    return arrays[-1]


def _torchvision(arrays: Sequence[Array], task: Task) -> Candidates:
    carried = None
    if task.has_masks:
        carried = places(len(arrays[0]))
    elif isinstance(task, Pose):
        carried = arrays[3].reshape(len(arrays[3]), -1)
    return final_candidates(arrays[0], arrays[2], arrays[1], carried=carried)


def bfloat16_to_float32(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Return the values of bfloat16 numbers, which are the upper halves of float32 ones."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _plain(array: Array) -> Array:
    """Return every float as float32."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


_LABELS: Final = {
    'torchvision': ' (label 0 is the background, and its name is the first of the class names)'
}
_NEED_NMS: Final = ('dense', 'yolox_raw')
_NORMALISED: Final = ('rtdetr_ultralytics', 'rtdetr_end_to_end', 'detr', 'tensorflow')
# The arrays are those of one image, in the order of the family's layout.
_FAMILIES: Final[Mapping[str, Callable[[Sequence[Array], _Image], Candidates]]] = {
    'dense': lambda arrays, image: dense_candidates(
        arrays[0], image.decoder, image.thresholds, image.task.row_values
    ),
    'yolox_raw': lambda arrays, image: yolox_raw_candidates(
        arrays[0], image.decoder.strides, image.network_wh, image.thresholds
    ),
    'end_to_end': lambda arrays, image: final_candidates(
        corners(arrays[0][:, :4]) if image.task.is_oriented else arrays[0][:, :4],
        arrays[0][:, 4],
        arrays[0][:, 5],
        carried=arrays[0][:, 6:] if image.task.row_values else None,
    ),
    'efficient_nms': lambda arrays, _: counted_candidates(
        arrays[0], arrays[1], arrays[2], arrays[3]
    ),
    'onnx_nms': lambda arrays, image: onnx_nms_candidates(
        arrays[0], arrays[1], arrays[2], image.index, image.decoder.box_format
    ),
    'rtdetr_ultralytics': lambda arrays, image: rtdetr_ultralytics_candidates(
        arrays[0], image.network_wh
    ),
    'rtdetr_end_to_end': lambda arrays, image: rtdetr_end_to_end_candidates(
        arrays[0], image.network_wh
    ),
    'detr': lambda arrays, image: detr_candidates(
        arrays[0],
        arrays[1],
        image.decoder.activation,
        image.network_wh,
        image.thresholds,
        with_places=image.task.has_masks,
    ),
    'labels_boxes_scores': lambda arrays, _: final_candidates(arrays[1], arrays[2], arrays[0]),
    'tensorflow': lambda arrays, image: tensorflow_candidates(
        arrays[0], arrays[1], arrays[2], arrays[3], image.network_wh
    ),
    'torchvision': lambda arrays, image: _torchvision(arrays, image.task),
}
