"""Finds the decoders that fit the names and shapes of a model's outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from trt_perception.errors import EngineError
from trt_perception.model.decoder import DecoderPreset
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.grids import cell_count
from trt_perception.model.input_layout import has_size_input, split_inputs
from trt_perception.model.output_tensor import OutputTensor, assign_outputs
from trt_perception.model.recognition.exporter_info import ExporterInfo
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.pose import COCO_KEYPOINTS, MAX_KEYPOINTS, KeypointSpec, Pose
from trt_perception.model.tasks.segment import Segment
from trt_perception.model.tasks.task import Task
from trt_perception.model.tensors import INDEX_DTYPES, ModelInfo, TensorSpec, tensors_text

__all__ = [
    'add_task_of_outputs',
    'count_anchors_per_cell',
    'find_decoders',
    'find_decoders_by_shape',
]

# Detectors of boxes have grids of such strides, some of them two or four.
_STRIDE_SETS: Final = (
    (8, 16, 32),
    (8, 16, 32, 64),
    (4, 8, 16, 32),
    (4, 8, 16),
    (8, 16),
    (16, 32),
    (8,),
    (16,),
)
# Queries and final boxes are no more than that; as few rows may be a coarse grid too.
_MAX_QUERIES: Final = 1000


def count_anchors_per_cell(anchors: int, input_size: tuple[int, int] | None) -> int | None:
    """Return how many anchors a cell has in grids whose cells sum up to all anchors.

    Returns:
        1 (YOLOv8, YOLOX), 3 (YOLOv5, 7), 0 where no grids explain the number, None where the
        number or the size of the input is open.
    """
    if input_size is None or anchors < 0:
        return None
    for per_cell in (1, 3):
        for strides in _STRIDE_SETS:
            if anchors == per_cell * cell_count(strides, input_size):
                return per_cell
    return 0


def find_decoders(
    model: ModelInfo,
    input_size: tuple[int, int] | None,
    classes: int | None,
    info: ExporterInfo,
    parameter_name: Callable[[str], str],
) -> tuple[str, ...]:
    """Return the names of the decoders that fit: one where there is no doubt.

    Args:
        model: what it shows of itself.
        input_size: width and height, None where open.
        classes: how many class names there are, None where nobody said.
        info: what metadata and config.json say.
        parameter_name: makes of a parameter's name, without ``model.``, what the user must write.

    Raises:
        EngineError: the outputs are those of something else than a detector of boxes.
    """
    outputs = model.outputs
    if not info.task.has_masks:
        _refuse_other_networks(model)
    # A dynamic dimension fits any size. Allow this only if no decoder fits without it.
    for allow_dynamic in (False, True):
        fitting = find_decoders_by_shape(model, classes, info.task, allow_dynamic=allow_dynamic)
        if _max_row_count(outputs) > _MAX_QUERIES:
            fitting = [name for name in fitting if not _has_query_rows(_box_outputs(name))]
        left = _filter_by_exporter(fitting, outputs, info)
        if not info.decoder_candidates and len(outputs) == 1 and len(outputs[0].shape) == 3:
            left = _filter_by_anchor_count(left, outputs[0].shape, input_size)
        if left:
            break
    if not info.decoder_candidates:
        _refuse_anchor_outputs(model, left, parameter_name)
    if classes is not None and info.task == DETECT and left in ([], ['dense_objectness']):
        _refuse_extra_channels(model, classes, parameter_name)
    return tuple(left)


def find_decoders_by_shape(
    model: ModelInfo, classes: int | None, task: Task = DETECT, *, allow_dynamic: bool = True
) -> list[str]:
    """Return what the shapes alone allow; see ``assign_outputs``."""
    _, auxiliary_inputs = split_inputs(model.name, model.inputs)
    return [
        name
        for name, preset in PRESETS.items()
        if assign_outputs(
            preset.decoder.outputs(classes, task), model.outputs, allow_dynamic=allow_dynamic
        )
        is not None
        and (not preset.decoder.needs_size_input or has_size_input(auxiliary_inputs))
    ]


def _box_outputs(name: str) -> tuple[OutputTensor, ...]:
    """Return the outputs of a preset's boxes; the letters of their shapes say what rows are."""
    return PRESETS[name].decoder.outputs(None)


def _has_query_rows(outputs: Sequence[OutputTensor]) -> bool:
    """Whether one output holds all of each query."""
    return len(outputs) == 1 and 'Q' in outputs[0].shape


def add_task_of_outputs(
    model: ModelInfo, info: ExporterInfo, class_names: tuple[str, ...]
) -> ExporterInfo:
    """Return the info with the task that further outputs show beyond doubt.

    RF-DETR's masks, by the names that its exporter gives or by its config.json; torchvision's
    masks and keypoints, by shapes that no other exporter gives. Seventeen keypoints are COCO's
    where a class is ``person``.
    """
    if info.task != DETECT or info.is_yolo_export:
        return info
    outputs = model.outputs
    names = {tensor.name for tensor in outputs}
    is_rfdetr = {'dets', 'labels', 'masks'} == names or (
        info.decoder_candidates == (('rfdetr',),)
        and {'logits', 'pred_boxes', 'pred_masks'} <= names
    )
    labelled = any(tensor.dtype in INDEX_DTYPES and len(tensor.shape) == 1 for tensor in outputs)
    masks = [tensor for tensor in outputs if len(tensor.shape) == 4]
    points = [tensor for tensor in outputs if len(tensor.shape) == 3 and tensor.shape[2] == 3]
    if len(masks) == 1 and (is_rfdetr or (labelled and masks[0].shape[1] == 1)):
        sentence = f'{tensors_text(masks)} -> a mask for each object'
        return replace(info, task=Segment(), evidence=(*info.evidence, sentence))
    if labelled and len(points) == 1 and 1 <= points[0].shape[1] <= MAX_KEYPOINTS:
        count = points[0].shape[1]
        spec = KeypointSpec(tuple(map(str, range(count))), 3)
        if count == len(COCO_KEYPOINTS.names) and 'person' in class_names:
            spec = COCO_KEYPOINTS
        sentence = f'{tensors_text(points)} -> {count} keypoints'
        return replace(info, task=Pose(spec), evidence=(*info.evidence, sentence))
    return info


def _filter_by_exporter(
    fitting: list[str], outputs: tuple[TensorSpec, ...], info: ExporterInfo
) -> list[str]:
    """Return those that the exporter writes, of what fits."""
    sets = info.decoder_candidates
    names = {tensor.name for tensor in outputs}
    if not sets:
        sets = tuple((name,) for name, preset in PRESETS.items() if names in preset.tensor_names)
    for decoders in sets:
        if left := [decoder for decoder in fitting if decoder in decoders]:
            return left
    return [] if sets else fitting


def _refuse_other_networks(model: ModelInfo) -> None:
    """Refuse what has more or other outputs than boxes, and say what it is."""
    outputs = model.outputs
    masks = tuple(tensor for tensor in outputs if len(tensor.shape) == 4)
    if masks and any(0 < len(tensor.shape) < 4 for tensor in outputs):
        if any(tensor.name == 'keypoints' for tensor in masks):
            raise EngineError(
                model.name,
                f"{tensors_text(masks)} next to the boxes, as RF-DETR's keypoints, which are not "
                'supported',
                fix='docs/decoders.md lists the models whose keypoints are read',
            )
        raise EngineError(
            model.name,
            f'{tensors_text(masks)} next to the boxes, as of instance segmentation',
            expected='a detector of boxes',
            fix='export one, or say the task in a manifest (docs/manifest.md)',
        )
    if outputs and all(len(tensor.shape) in (4, 5) for tensor in outputs):
        raise EngineError(
            model.name,
            f'the raw grids of a detector head: {tensors_text(outputs)}',
            expected='outputs decoded and joined, as (1, N, 5 + C)',
            fix='export with that inside (YOLOv7: --grid)',
        )


def _refuse_anchor_outputs(
    model: ModelInfo, fitting: list[str], parameter_name: Callable[[str], str]
) -> None:
    """Refuse boxes and scores of anchors, whose shapes fit a transformer's but for the number."""
    most = _max_row_count(model.outputs)
    queries = [name for name in fitting if any('Q' in one.shape for one in _box_outputs(name))]
    if most > _MAX_QUERIES and fitting and queries == fitting:
        raise EngineError(
            model.name,
            f'{tensors_text(model.outputs)} are {most} boxes and their scores, as YOLO-NAS '
            'outputs them without its NMS, which is not supported; transformers have up to '
            f'{_MAX_QUERIES}',
            fix='export it with its NMS inside; if these are queries, set '
            f'{parameter_name("decoder")} to one of {", ".join(fitting)}',
        )


def _max_row_count(outputs: tuple[TensorSpec, ...]) -> int:
    return max((tensor.shape[1] for tensor in outputs if len(tensor.shape) == 3), default=0)


def _refuse_extra_channels(
    model: ModelInfo, classes: int, parameter_name: Callable[[str], str]
) -> None:
    """Refuse what has more channels than boxes and classes, and say what they look like."""
    outputs = model.outputs
    if len(outputs) != 1 or len(outputs[0].shape) != 3 or min(outputs[0].shape[1:]) < 0:
        return
    _, rows, columns = outputs[0].shape
    has, could = [], []
    if 6 < columns < rows <= _MAX_QUERIES and (looks := _possible_meanings(columns - 6)):
        has.append(f'{columns - 6} more channels than box, score and class')
        could += looks
    extra = min(rows, columns) - 4 - classes
    if extra > 0:
        has.append(f'{extra} more channels than 4 of a box and {classes} classes')
        could += _possible_meanings(extra)
        if extra == 1:
            could.append(f'objectness: then set {parameter_name("decoder")} to dense_objectness')
        fewer = classes + extra - 1
        could.append(
            f'of {fewer + 1} classes or, with objectness, {fewer}: then correct the class names'
        )
    if has:
        raise EngineError(
            model.name,
            f'{tensors_text(outputs)} has {", or ".join(has)}; they may be {", or ".join(could)}',
            expected='a detector of boxes',
        )


def _possible_meanings(extra: int) -> list[str]:
    """Return what so many channels more than a detector has are in other networks."""
    kinds = {1: 'the angle of oriented boxes', 32: 'mask coefficients of instance segmentation'}
    each = [f'{extra // values} times {values}' for values in (3, 2) if extra % values == 0]
    if each:
        kinds.setdefault(extra, f'keypoints of pose estimation ({" or ".join(each)})')
    said = 'which is read where metadata or a manifest says the task'
    return [f'{kinds[extra]}, {said}'] if extra in kinds else []


def _filter_by_anchor_count(
    fitting: list[str], shape: tuple[int, ...], input_size: tuple[int, int] | None
) -> list[str]:
    """Leave out what the number of anchors excludes, read along the last or the middle axis.

    A decoder of anchors (N) has a row for each anchor of each cell, and others have no such rows.
    A decoder of grids needs as many anchors as these have cells.
    """
    last, middle = (count_anchors_per_cell(side, input_size) for side in (shape[2], shape[1]))
    only_last, only_middle = last and not middle, middle and not last

    def fits(preset: DecoderPreset) -> bool:
        (output,) = preset.decoder.outputs(None)
        axis = output.shape.index('N') if 'N' in output.shape else None
        if only_last:
            return axis == 2
        strides = preset.decoder.grid_strides()
        if strides and input_size and 0 <= shape[1] != cell_count(strides, input_size):
            return False
        if axis == 1:
            return middle != 0 and (not only_middle or middle in preset.anchors_per_cell)
        return not only_middle or (axis is None and shape[1] <= _MAX_QUERIES)

    return [name for name in fitting if fits(PRESETS[name])]
