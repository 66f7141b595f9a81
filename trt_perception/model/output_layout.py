"""Which output tensor is what: the shapes and dtypes of each family, and fitting tensors to them.

A dimension that is a letter takes any size, the same wherever the letter stands; B is the batch.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trt_perception.model.decoder_spec import DecoderSpec
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.pose import Pose
from trt_perception.model.tasks.task import Task
from trt_perception.model.tensors import FLOAT_DTYPES, INDEX_DTYPES, TensorSpec

__all__ = ['Role', 'assign_outputs', 'layout', 'layout_text']


@dataclass(frozen=True)
class Role:
    """One output that a family reads.

    Attributes:
        name: what it holds.
        shape: a number for each fixed dimension, a letter for each other one.
        dtypes: allowed ones.
        tensor_names: what exporters call it; where one of these is there and fits, it is that one.
        by_name: it must have one of these names; the shape alone does not tell.
    """

    name: str
    shape: tuple[int | str, ...]
    dtypes: tuple[str, ...] = FLOAT_DTYPES
    tensor_names: tuple[str, ...] = ()
    by_name: bool = False


def layout(decoder: DecoderSpec, classes: int | None, task: Task = DETECT) -> tuple[Role, ...]:
    """Return the outputs that a decoder reads, in the order in which it takes them.

    Args:
        decoder: family and constants.
        classes: how many class names there are, None where nobody said.
        task: what the outputs say of each object; a family that says nothing of the kind has no
            layout of it.
    """
    if task != DETECT:
        return _of_task(decoder, classes, task)
    fixed = _FIXED.get(decoder.family)
    return _LAYOUTS[decoder.family](decoder, classes) if fixed is None else fixed


def layout_text(
    decoder: DecoderSpec, classes: int | None, batch: int = 1, task: Task = DETECT
) -> str:
    """Return the outputs for messages: ``output float32/float16 (1, 84, N)``."""
    return ', '.join(
        f'{role.name} {"/".join(role.dtypes)} ({", ".join(map(str, role.shape))})'
        for role in layout(decoder, classes, task)
    ).replace('(B, ', f'({batch}, ')


@functools.lru_cache(maxsize=64)
def assign_outputs(
    decoder: DecoderSpec,
    outputs: tuple[TensorSpec, ...],
    classes: int | None,
    *,
    task: Task = DETECT,
    open_fits: bool = True,
) -> tuple[int, ...] | None:
    """Tell which output is what.

    Args:
        decoder: family and constants.
        outputs: in the model's order, -1 for an open dimension.
        classes: how many class names there are, None where nobody said.
        task: what the outputs say of each object.
        open_fits: an open dimension may be where the layout has a number.

    Returns:
        For each output that the decoder reads its index; None where they do not fit or where more
        than one way of reading them does.
    """
    roles = layout(decoder, classes, task)
    if not roles or len(outputs) < len(roles):
        return None
    # A name helps where shapes leave a choice; where they contradict it, it means something else.
    return _assigned(roles, outputs, open_fits, by_name=True) or _assigned(
        roles, outputs, open_fits, by_name=False
    )


def _assigned(
    roles: Sequence[Role], outputs: Sequence[TensorSpec], open_fits: bool, *, by_name: bool
) -> tuple[int, ...] | None:
    choices = [_choices(role, outputs, by_name) for role in roles]
    found = [
        picked
        for picked in itertools.islice(itertools.product(*choices), 10_000)
        if len(set(picked)) == len(picked)
        and _consistent(roles, [outputs[index] for index in picked], open_fits)
    ]
    named = all(
        len(choice) == 1 and _named(role, outputs[choice[0]])
        for role, choice in zip(roles, choices, strict=True)
    )
    # An output that nobody reads is fine next to outputs that are known by name, not else.
    if len(found) != 1 or (len(outputs) != len(roles) and not named):
        return None
    return found[0]


def _choices(role: Role, outputs: Sequence[TensorSpec], by_name: bool) -> list[int]:
    fitting = [
        index
        for index, tensor in enumerate(outputs)
        if tensor.dtype in role.dtypes and len(tensor.shape) == len(role.shape)
    ]
    named = [index for index in fitting if _named(role, outputs[index])]
    return named if role.by_name or (named and by_name) else fitting


def _named(role: Role, tensor: TensorSpec) -> bool:
    return tensor.name.removesuffix(':0') in role.tensor_names


def _consistent(roles: Sequence[Role], tensors: Sequence[TensorSpec], open_fits: bool) -> bool:
    """Whether every letter has one size and every number is met; -1 may be any size."""
    sizes: dict[str, int] = {}
    for role, tensor in zip(roles, tensors, strict=True):
        for wanted, side in zip(role.shape, tensor.shape, strict=True):
            if side == -1:
                if isinstance(wanted, int) and not open_fits:
                    return False
                continue
            expected = wanted if isinstance(wanted, int) else sizes.setdefault(wanted, side)
            if side != expected:
                return False
    return True


def _rows(classes: int | None, before: int) -> int | str:
    """Return the size of an axis that holds the classes behind some other values."""
    if classes is None:
        return f'{before} + C' if before else 'C'
    return before + classes


def _of_task(decoder: DecoderSpec, classes: int | None, task: Task) -> tuple[Role, ...]:
    if not task.row_values or decoder.family == 'torchvision':
        return _own_outputs(decoder, classes, task)
    if decoder.family == 'dense':
        rows = _dense(decoder, classes, task.row_values)
    elif decoder.family == 'end_to_end':
        rows = (Role('output', ('B', 'K', 6 + task.row_values)),)
    else:
        return ()
    if not task.prototypes:
        return rows
    return (*rows, Role('prototypes', ('B', task.prototypes, 'height', 'width')))


def _own_outputs(decoder: DecoderSpec, classes: int | None, task: Task) -> tuple[Role, ...]:
    """Return the outputs of a family that has an output of its own for what the task says."""
    family = decoder.family
    boxes = layout(decoder, classes)
    if family == 'detr' and task.has_masks:
        masks = Role('masks', ('B', 'Q', 'height', 'width'), tensor_names=('masks', 'pred_masks'))
        return (*boxes, masks)
    if family == 'torchvision' and task.has_masks and not task.prototypes:
        return (*boxes, Role('masks', ('M', 1, 'height', 'width'), tensor_names=('masks',)))
    if family == 'torchvision' and isinstance(task, Pose) and task.keypoints.values == 3:
        count = len(task.keypoints.names)
        names = 'keypoint_scores', 'keypoints_scores'
        return (
            *boxes,
            Role('keypoints', ('M', count, 3), tensor_names=('keypoints',)),
            Role('keypoint scores', ('M', count), tensor_names=names),
        )
    return ()


def _dense(decoder: DecoderSpec, classes: int | None, row_values: int = 0) -> tuple[Role, ...]:
    rows = _rows(classes, (5 if decoder.objectness else 4) + row_values)
    shape = ('B', 'N', rows) if decoder.transposed else ('B', rows, 'N')
    return (Role('output', shape),)


def _detr(decoder: DecoderSpec, classes: int | None) -> tuple[Role, ...]:
    names = ('logits', 'pred_logits', 'labels')
    width: int | str = 'C' if classes is None else classes
    if decoder.activation == 'softmax':  # the last one says that there is no object
        width = 'C + 1' if isinstance(width, str) else width + 1
    return (
        Role('logits', ('B', 'Q', width), tensor_names=names),
        Role('boxes', ('B', 'Q', 4), tensor_names=('pred_boxes', 'dets')),
    )


_NUMBER: Final = ('num_detections', 'num_dets', 'num')
_BOXES: Final = ('detection_boxes', 'det_boxes', 'boxes')
_SCORES: Final = ('detection_scores', 'det_scores', 'scores')
_CLASSES: Final = ('detection_classes', 'det_classes', 'classes', 'labels')
#: Layouts that depend on neither constants nor the number of classes.
_FIXED: Final[Mapping[str, tuple[Role, ...]]] = {
    'end_to_end': (Role('output', ('B', 'K', 6)),),
    'rtdetr_end_to_end': (Role('output', ('B', 'K', 6)),),
    'efficient_nms': (
        Role('number', ('B', 1), INDEX_DTYPES, _NUMBER),
        Role('boxes', ('B', 'K', 4), tensor_names=_BOXES),
        Role('scores', ('B', 'K'), tensor_names=_SCORES),
        Role('classes', ('B', 'K'), INDEX_DTYPES, _CLASSES),
    ),
    'labels_boxes_scores': (
        Role('labels', ('B', 'K'), INDEX_DTYPES, ('labels',)),
        Role('boxes', ('B', 'K', 4), tensor_names=('boxes',)),
        Role('scores', ('B', 'K'), tensor_names=('scores',)),
    ),
    'tensorflow': (
        Role('boxes', ('B', 'K', 4), tensor_names=_BOXES[:1], by_name=True),
        Role('classes', ('B', 'K'), tensor_names=_CLASSES[:1], by_name=True),
        Role('scores', ('B', 'K'), tensor_names=_SCORES[:1], by_name=True),
        Role('number', ('B',), tensor_names=_NUMBER[:1], by_name=True),
    ),
    'torchvision': (
        Role('boxes', ('M', 4), tensor_names=('boxes',)),
        Role('labels', ('M',), INDEX_DTYPES, ('labels',)),
        Role('scores', ('M',), tensor_names=('scores',)),
    ),
}


_LAYOUTS: Final[Mapping[str, Callable[[DecoderSpec, int | None], tuple[Role, ...]]]] = {
    'dense': _dense,
    'yolox_raw': lambda _, classes: (Role('output', ('B', 'N', _rows(classes, 5))),),
    'onnx_nms': lambda _, classes: (
        Role('boxes', ('B', 'N', 4), tensor_names=_BOXES),
        Role('scores', ('B', _rows(classes, 0), 'N'), tensor_names=_SCORES),
        Role('selected', ('M', 3), INDEX_DTYPES, ('selected_indices', 'selected')),
    ),
    'rtdetr_ultralytics': lambda _, classes: (Role('output', ('B', 'Q', _rows(classes, 4))),),
    'detr': _detr,
}
