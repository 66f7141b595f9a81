# SPDX-License-Identifier: Apache-2.0
"""Finds the decoders that fit the names and shapes of a model's outputs."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from trt_perception.errors import EngineError
from trt_perception.files.plain_text import counted, join_alternatives
from trt_perception.model.decoder import DecoderPreset
from trt_perception.model.decoders.table import INSTALLED_NAMES, PRESETS
from trt_perception.model.grids import cell_count, count_anchors_per_cell
from trt_perception.model.input_layout import has_size_input, split_inputs
from trt_perception.model.other_networks import possible_networks
from trt_perception.model.output_tensor import (
    OutputTensor,
    assign_outputs,
    possible_assignments,
)
from trt_perception.model.recognition.exporter_info import ExporterInfo
from trt_perception.model.recognition.image_tasks import (
    advice_for_a_depth,
    is_map,
    may_be_semantic,
)
from trt_perception.model.recognition.manifest_command import manifest_advice
from trt_perception.model.recognition.parameter_syntax import ParameterSyntax
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.pose import COCO_KEYPOINTS, MAX_KEYPOINTS, KeypointSpec, Pose
from trt_perception.model.tasks.segment import Segment
from trt_perception.model.tasks.task import Task
from trt_perception.model.tensors import INDEX_DTYPES, ModelInfo, TensorSpec, tensors_text

# Words in the names of outputs that belong to another task than boxes.
_NAMES_OF_OTHER_TASKS: Final = re.compile(r'mask|proto|keypoint', re.IGNORECASE)
_GRID_STRIDES: Final = (4, 8, 16, 32, 64, 128)
# Maximum number of queries and final boxes. A coarse grid may have fewer anchors than this.
_MAX_QUERIES: Final = 1000


def find_decoders(
    model: ModelInfo,
    input_size: tuple[int, int] | None,
    classes: int | None,
    info: ExporterInfo,
    syntax: ParameterSyntax,
    names_source: str = '',
) -> tuple[str, ...]:
    """Return the names of all decoders that fit a model.

    Args:
        input_size: width and height in pixels; None if dynamic.
        classes: number of class names; None if unknown.
        info: information from metadata or config.json.
        syntax: how the user sets parameters, for messages.
        names_source: where the class names are from, for messages.

    Raises:
        EngineError: the outputs belong to another kind of network.
    """
    outputs = model.outputs
    if info.exporter == 'yolov5' and _has_one_anchor_per_cell(outputs, input_size):
        # Other programs also write names and stride. YOLOv5 has three anchors in each cell.
        info = replace(info, decoder_candidates=())
    # A dynamic dimension matches any size, so allow dynamic matches only if no decoder fits
    # otherwise.
    for allow_dynamic in (False, True):
        decoders = find_decoders_by_shape(
            model,
            classes,
            info.task,
            allow_dynamic=allow_dynamic,
            known=info.known_decoders,
        )
        if _max_row_count(outputs) > _MAX_QUERIES:
            decoders = [name for name in decoders if not _has_query_rows(_box_outputs(name))]
        left = _filter_by_exporter(decoders, outputs, info)
        may_be_anchors = not info.decoder_candidates and info.task.finds_objects
        if may_be_anchors and len(outputs) == 1 and len(outputs[0].shape) == 3:
            left = _filter_by_anchor_count(left, outputs[0].shape, input_size)
        # A model is read in the same way if a further package is installed.
        left = [name for name in left if name not in INSTALLED_NAMES] or left
        if left:
            break
    if not info.task.has_masks and info.task.finds_objects:
        given = f'{names_source} has {counted(classes, "name")}' if classes else ''
        _check_is_box_detector(model, input_size, syntax, left, given)
    if not info.decoder_candidates:
        _check_query_count(model, left, syntax)
    if (
        classes is not None
        and info.task == DETECT
        and left in ([], ['dense_objectness'])
        and not info.decoder_candidates
    ):
        _check_channel_count(model, classes, syntax, names_source)
    return tuple(left)


def _has_one_anchor_per_cell(
    outputs: Sequence[TensorSpec], input_size: tuple[int, int] | None
) -> bool:
    sides = [side for tensor in outputs if len(tensor.shape) == 3 for side in tensor.shape[1:]]
    return any(count_anchors_per_cell(side, input_size) == 1 for side in sides)


def find_decoders_by_shape(
    model: ModelInfo,
    classes: int | None,
    task: Task = DETECT,
    *,
    allow_dynamic: bool = True,
    known: Collection[str] = (),
) -> list[str]:
    """Return the names of the decoders that the shapes allow.

    Names decide which outputs a decoder reads. Shapes decide too, if an exporter is known to write
    outputs for the decoder, or if the decoder reads all outputs.

    Args:
        classes: number of class names; None if unknown.
        task: the model's task, such as ``detect`` or ``pose``.
        allow_dynamic: see ``assign_outputs``.
        known: decoders whose outputs the exporter of the model writes.
    """
    _, auxiliary_inputs = split_inputs(model.name, model.inputs)
    counts = [
        tensor.shape[1 if len(tensor.shape) == 4 else -1]
        for tensor in model.outputs
        if tensor.shape
    ]
    class_count = max(counts, default=0)
    return [
        name
        for name, preset in PRESETS.items()
        if not preset.decoder.has_constant_scores(classes or class_count)
        and assign_outputs(
            preset.decoder.for_outputs(model.outputs).outputs(classes, task),
            model.outputs,
            allow_dynamic=allow_dynamic,
            shapes_decide=name in known,
        )
        is not None
        and (not preset.decoder.needs_size_input or has_size_input(auxiliary_inputs))
    ]


def _box_outputs(name: str) -> tuple[OutputTensor, ...]:
    """Return a preset's outputs with letters in their shapes, such as Q for queries."""
    return PRESETS[name].decoder.outputs(None)


def _has_query_rows(outputs: Sequence[OutputTensor]) -> bool:
    """Return whether a single output holds one row per query."""
    return len(outputs) == 1 and 'Q' in outputs[0].shape


def add_task_of_outputs(
    model: ModelInfo, info: ExporterInfo, class_names: tuple[str, ...]
) -> ExporterInfo:
    """Return the information with the task, if outputs besides the boxes prove the task.

    The masks of RF-DETR are recognised by the names of outputs or by config.json. The masks and
    keypoints of torchvision are recognised by shapes that only this exporter writes. 17 keypoints
    are the keypoints of COCO if a class is named ``person``. The metadata of Ultralytics name the
    task.
    """
    if info.is_yolo_export:
        return replace(info, task=info.task.complete_from_outputs(model))
    if info.task != DETECT:
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
        sentence = f'{tensors_text(masks)} -> one mask per object'
        return replace(info, task=Segment(), evidence=(*info.evidence, sentence))
    if labelled and len(points) == 1 and 1 <= points[0].shape[1] <= MAX_KEYPOINTS:
        count = points[0].shape[1]
        spec = KeypointSpec(tuple(map(str, range(count))), 3)
        if count == len(COCO_KEYPOINTS.names) and 'person' in class_names:
            spec = COCO_KEYPOINTS
        sentence = f'{tensors_text(points)} -> {counted(count, "keypoint")}'
        return replace(info, task=Pose(spec), evidence=(*info.evidence, sentence))
    return info


def _filter_by_exporter(
    decoders: list[str], outputs: tuple[TensorSpec, ...], info: ExporterInfo
) -> list[str]:
    """Return the decoders whose outputs the exporter of the model writes."""
    sets = info.decoder_candidates
    names = {tensor.name for tensor in outputs}
    if not sets:
        sets = tuple((name,) for name, preset in PRESETS.items() if names in preset.tensor_names)
    for allowed in sets:
        if left := [decoder for decoder in decoders if decoder in allowed]:
            return left
    return [] if sets else decoders


def _check_is_box_detector(
    model: ModelInfo,
    input_size: tuple[int, int] | None,
    syntax: ParameterSyntax,
    decoders: Sequence[str],
    names: str,
) -> None:
    """Refuse outputs of other networks than detectors of boxes, and name the network.

    Args:
        model: the loaded model.
        input_size: width and height in pixels; None if dynamic.
        syntax: how the user sets parameters, for messages.
        decoders: the decoders that fit, and leave some outputs unused.
        names: the source and number of class names, for messages; empty without class names.

    Raises:
        EngineError: the outputs include masks, keypoints or undecoded grids.
    """
    outputs = model.outputs
    if decoders and not any(_NAMES_OF_OTHER_TASKS.search(tensor.name) for tensor in outputs):
        return
    masks = tuple(tensor for tensor in outputs if len(tensor.shape) == 4)
    if masks and any(0 < len(tensor.shape) < 4 for tensor in outputs):
        if any(tensor.name == 'keypoints' for tensor in masks):
            raise EngineError(
                model.name,
                f"{tensors_text(masks)} besides the boxes, as RF-DETR's keypoints",
                fix='export a model whose keypoints are supported (docs/decoders.md)',
            )
        raise _masks_error(model, masks, decoders, syntax)
    image, _ = split_inputs(model.name, model.inputs)
    if may_be_semantic(model, input_size):
        channels = max(outputs[0].shape[1], 0) or 'C'
        but = f' (but {names})' if names else ''
        values: dict[str, object] = {'task': 'semantic'}
        if input_size is None:
            values['input_size'] = ['WIDTH', 'HEIGHT']
        meanings = (
            f'semantic segmentation with {channels} classes',
            'an undecoded grid of a detector head',
            *possible_networks(outputs, image),
        )
        raise EngineError(
            model.name,
            f'{tensors_text(outputs)}, which may be {join_alternatives(meanings)}',
            fix=f'for semantic segmentation, add {syntax.arguments(values)} and the '
            f'names of {channels} classes{but}; export a detector with decoding inside; no task '
            'reads the others',
        )
    if len(masks) == len(outputs) == 2 and masks[0].shape == masks[1].shape:
        raise EngineError(
            model.name,
            f'two outputs of one shape, as DeepLabV3 with aux_loss: {tensors_text(outputs)}',
            expected='one output, or the names "out" and "aux"',
            fix='export only the output "out", or give the outputs these names',
        )
    if outputs and len(masks) == len(outputs):
        _check_maps(model, input_size, syntax)
    if outputs and all(len(tensor.shape) in (4, 5) for tensor in outputs):
        other = possible_networks(outputs, image)
        raise EngineError(
            model.name,
            f'{join_alternatives(("undecoded grids of a detector head", *other))}: '
            f'{tensors_text(outputs)}',
            expected='one decoded output, such as (1, N, 5 + C)',
            fix='export a detector with decoding inside (YOLOv7: --grid)',
        )


def _masks_error(
    model: ModelInfo,
    masks: Sequence[TensorSpec],
    decoders: Sequence[str],
    syntax: ParameterSyntax,
) -> EngineError:
    """Return the error for outputs with masks, if the task is unknown.

    A decoder of queries reads the boxes of a model such as DetrForSegmentation, but not its masks:
    these are neither prototypes nor the masks of RF-DETR.

    Args:
        masks: the outputs with four axes.
        decoders: the decoders that fit, and leave some outputs unused.
    """
    names = {tensor.name for tensor in model.outputs}
    # Without a file, the model may be RF-DETR, whose masks are read.
    if decoders and 'rfdetr' not in decoders and {'pred_boxes', 'pred_masks'} <= names:
        ways = ' or '.join(syntax.arguments({'decoder': name}) for name in decoders)
        return EngineError(
            model.name,
            f'{tensors_text(masks)} besides the boxes of queries, as of DetrForSegmentation',
            expected='masks of RF-DETR, or a detector of boxes',
            fix=f'for the boxes alone, add {ways}: the masks then stay unused',
        )
    return EngineError(
        model.name,
        f'{tensors_text(masks)} besides the boxes, as in instance segmentation',
        expected='a detector of boxes',
        fix=f'export a detector, or add {syntax.arguments({"task": "segment"})}, or '
        + manifest_advice(model, 'segment'),
    )


def _check_maps(
    model: ModelInfo, input_size: tuple[int, int] | None, syntax: ParameterSyntax
) -> None:
    """Refuse outputs with four axes that are no grids of a detector.

    Raises:
        EngineError: the outputs have one channel, or the shape of no detector's grids.
    """
    outputs = model.outputs
    if all(tensor.shape[1] == 1 and is_map(tensor, input_size) for tensor in outputs):
        count = len(outputs)
        several = f' in each of {count} outputs, as of U-2-Net' if count > 1 else ''
        raise EngineError(
            model.name,
            f'one value for each pixel{several}, which may be a depth, a mask, a matte or a map '
            f'of text: {tensors_text(outputs)}',
            expected='outputs that docs/decoders.md lists',
            fix=advice_for_a_depth(outputs, input_size, syntax),
        )
    if input_size and not all(_may_be_grid(tensor, input_size) for tensor in outputs):
        raise EngineError(
            model.name,
            f'outputs that no task reads: {tensors_text(outputs)}',
            expected='outputs that docs/decoders.md lists',
            fix='export a model of a task in docs/decoders.md',
        )


def _may_be_grid(tensor: TensorSpec, input_size: tuple[int, int]) -> bool:
    """Return whether an output may be a grid of a detector, with channels before or after it."""
    return any(
        all(
            cells in (-1, math.ceil(side / stride))
            for cells, side in zip(tensor.shape[first : first + 2], input_size[::-1], strict=True)
        )
        for first in (1, 2)
        for stride in _GRID_STRIDES
    )


def _check_query_count(model: ModelInfo, decoders: list[str], syntax: ParameterSyntax) -> None:
    """Refuse boxes and scores of anchors, which look like a transformer's queries.

    Raises:
        EngineError: only transformers fit the shapes, but there are too many rows for queries.
    """
    row_counts = [_query_row_count(model, name) for name in decoders]
    if row_counts and min(row_counts) > _MAX_QUERIES:
        raise EngineError(
            model.name,
            f'{min(row_counts)} boxes and their scores in {tensors_text(model.outputs)}, as in '
            'SSD, YOLO-NAS and others without NMS, which are unsupported. Their outputs do not '
            'show whether boxes are decoded, and in which unit. Transformers have at most '
            f'{_MAX_QUERIES} queries',
            fix='export the model with decoding and NMS inside; if the rows are queries, add '
            + ' or '.join(syntax.arguments({'decoder': name}) for name in decoders),
        )


def _query_row_count(model: ModelInfo, name: str) -> int:
    """Return the number of queries that a decoder would read; 0 if it reads no queries."""
    wanted = _box_outputs(name)
    for indices in possible_assignments(wanted, model.outputs):
        for output, index in zip(wanted, indices, strict=True):
            if 'Q' in output.shape:
                return model.outputs[index].shape[output.shape.index('Q')]
    return 0


def decoders_of_a_part(
    model: ModelInfo, input_size: tuple[int, int] | None, classes: int | None, task: Task
) -> dict[str, tuple[TensorSpec, ...]]:
    """Return the decoders that fit if some outputs stay unused, each with the unused outputs.

    See ``find_decoders`` for the arguments.
    """
    found: dict[str, tuple[TensorSpec, ...]] = {}
    for name in find_decoders_by_shape(model, classes, task, known=PRESETS):
        wanted = PRESETS[name].decoder.for_outputs(model.outputs).outputs(classes, task)
        indices = assign_outputs(wanted, model.outputs) or ()
        is_row_of_objects = task.finds_objects and len(indices) == 1
        if is_row_of_objects and len(model.outputs[indices[0]].shape) == 3:
            shape = model.outputs[indices[0]].shape
            rows_fit = not _has_query_rows(_box_outputs(name)) or shape[1] <= _MAX_QUERIES
            if not rows_fit or not _filter_by_anchor_count([name], shape, input_size):
                continue
        unused = [tensor for place, tensor in enumerate(model.outputs) if place not in indices]
        if 0 <= _query_row_count(model, name) <= _MAX_QUERIES and unused:
            found[name] = tuple(unused)
    return found


def _max_row_count(outputs: tuple[TensorSpec, ...]) -> int:
    return max((tensor.shape[1] for tensor in outputs if len(tensor.shape) == 3), default=0)


def _check_channel_count(
    model: ModelInfo, classes: int, syntax: ParameterSyntax, names_source: str
) -> None:
    """Refuse an output with more channels than box and classes, and list possible meanings.

    Raises:
        EngineError: the output has additional channels.
    """
    outputs = model.outputs
    if len(outputs) != 1 or len(outputs[0].shape) != 3 or min(outputs[0].shape[1:]) < 0:
        return
    _, rows, columns = outputs[0].shape
    surpluses, meanings = [], []
    if 6 < columns < rows <= _MAX_QUERIES and (row_meanings := _possible_meanings(columns - 6)):
        surpluses.append(f'{columns - 6} more channels than box, score and class')
        meanings += row_meanings
    extra = min(rows, columns) - 4 - classes
    if extra > 0:
        known = f'{counted(classes, "class", "classes")} of {names_source}'
        surpluses.append(f'{extra} more channels than a box (4) and {known}')
        meanings += _possible_meanings(extra)
        if extra == 1:
            decoder = syntax.arguments({'decoder': 'dense_objectness'})
            meanings.append(f'objectness (add {decoder})')
        fewer = classes + extra - 1
        meanings.append(
            f'scores of more classes (set {fewer + 1} class names, or {fewer} with objectness)'
        )
    if surpluses:
        raise EngineError(
            model.name,
            f'{tensors_text(outputs)} with {", or ".join(surpluses)}. Possible meanings: '
            f'{", or ".join(meanings)}',
            expected='a detector of boxes',
            fix=f'for another task, add {syntax.arguments({"task": "TASK"})}, or '
            + manifest_advice(model, 'TASK'),
        )


def _possible_meanings(extra: int) -> list[str]:
    """Return possible meanings of additional channels in other networks.

    Args:
        extra: number of channels that a detector does not have.
    """
    kinds = {
        1: 'the angle of oriented boxes (task obb)',
        32: 'mask coefficients of instance segmentation (task segment)',
    }
    each = [f'{extra // values} times {values}' for values in (3, 2) if extra % values == 0]
    if each:
        kinds.setdefault(extra, f'keypoints ({" or ".join(each)}; task pose)')
    return [kinds[extra]] if extra in kinds else []


def _filter_by_anchor_count(
    decoders: list[str], shape: tuple[int, ...], input_size: tuple[int, int] | None
) -> list[str]:
    """Return the decoders that the number of anchors allows.

    The anchors may be along the last or the middle axis. A decoder whose shape contains N needs
    one row for each anchor. Other decoders do not fit such rows. A decoder with strides needs as
    many anchors as its grids have cells.

    Args:
        shape: shape of the output, with three axes.
        input_size: width and height in pixels; None if dynamic.
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

    return [name for name in decoders if fits(PRESETS[name])]
