# SPDX-License-Identifier: Apache-2.0
"""Recognises tasks that describe the whole image by the shape of the output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trt_perception.files.plain_text import join_alternatives
from trt_perception.model.decoder import ImageDecoder
from trt_perception.model.decoders.table import PRESETS, presets_for_task
from trt_perception.model.decoders.whole_image import DEPTH_NAMES, DepthDecoder
from trt_perception.model.input_layout import batch_size, split_inputs
from trt_perception.model.output_tensor import assign_outputs
from trt_perception.model.recognition.parameter_syntax import ParameterSyntax
from trt_perception.model.tasks.classify import Classify
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tasks.semantic import Semantic
from trt_perception.model.tasks.table import TASKS
from trt_perception.model.tasks.task import Task
from trt_perception.model.tensors import FLOAT_DTYPES, INDEX_DTYPES, ModelInfo, TensorSpec

#: A value of a map stands for at most this many network pixels on each axis. Logits of semantic
#: segmentation are such maps. The grids of detectors have the same shape, so only class names
#: distinguish them.
MAX_CELL: Final = 16
#: What a map of one channel may be, besides a depth.
OTHER_MAPS: Final = 'no task reads a mask, a matte, a saliency map or a map of text'


def task_of_preset(preset: str) -> Task | None:
    """Return the task of a preset for the whole image; None if its decoder reads objects."""
    decoder = PRESETS[preset].decoder if preset else None
    if isinstance(decoder, ImageDecoder):
        return TASKS[decoder.tasks_with_own_outputs[0]]()
    return None


def image_task(
    model: ModelInfo, input_size: tuple[int, int] | None, class_count: int
) -> Task | None:
    """Return the whole-image task that follows from the outputs; None if no task follows.

    A single output (B, C) is a classifier, also with one class. Whole numbers (B, rows, columns)
    are class ids of semantic segmentation. Floats (B, C, rows, columns) are its logits only if C
    is the number of class names, because undecoded grids of detectors have the same shape. Floats
    (B, rows, columns) may be a depth if the output is as large as the input, and floats (B, 1,
    rows, columns) if a cell is at most 16 pixels wide. Some exporters are known by the names of
    their outputs.

    Args:
        input_size: width and height in pixels; None if dynamic.
        class_count: number of class names; 0 if unknown.
    """
    names = {tensor.name for tensor in model.outputs}
    for preset in PRESETS.values():
        if names in preset.tensor_names and (task := task_of_preset(preset.name)):
            return task
    output = _image_output(model)
    if output is None or not _has_batch_of_input(model, output):
        return None
    is_float, dimensions = output.dtype in FLOAT_DTYPES, len(output.shape)
    if is_float and dimensions == 2 and output.shape[1] != 0:
        return Classify()
    if (
        output.dtype in ('uint8', *INDEX_DTYPES)
        and dimensions == 3
        and _is_grid(output.shape[1:], input_size)
    ):
        return Semantic()
    if may_be_semantic(model, input_size) and output.shape[1] == class_count:
        return Semantic()
    if is_float and _may_be_depth(output, input_size):
        return Depth()
    return None


def _may_be_depth(output: TensorSpec, input_size: tuple[int, int] | None) -> bool:
    if len(output.shape) == 4:
        return output.shape[1] == 1 and is_map(output, input_size)
    if len(output.shape) == 3 and output.name in DEPTH_NAMES:
        return True
    return input_size is not None and output.shape[1:] == (input_size[1], input_size[0])


def is_map(output: TensorSpec, input_size: tuple[int, int] | None) -> bool:
    """Return whether an output (B, C, rows, columns) may have values for the pixels of an image.

    Args:
        input_size: width and height in pixels; None if dynamic.
    """
    rows, columns = output.shape[2:]
    if input_size is None or min(rows, columns) < 0:
        return True
    width, height = input_size
    return rows * width == columns * height and width <= MAX_CELL * columns


def meanings_text(presets: Sequence[str]) -> str:
    """Return presets that fit the same outputs, each with its meaning."""
    texts = [
        f'{name} ({PRESETS[name].meaning})' if PRESETS[name].meaning else name for name in presets
    ]
    return join_alternatives(texts)


def advice_for_a_depth(
    outputs: Sequence[TensorSpec], input_size: tuple[int, int] | None, syntax: ParameterSyntax
) -> str:
    """Return what to set if a map of one channel is a depth, and what else such a map may be.

    Args:
        outputs: maps of one channel, (B, rows, columns) or (B, 1, rows, columns).
        input_size: width and height in pixels; None if dynamic.
    """
    values: dict[str, object] = {'task': Depth.name, 'decoder': 'DECODER'}
    if input_size is None:
        values['input_size'] = ['WIDTH', 'HEIGHT']
    read = tuple(outputs[:1])
    fitting = []
    for name in presets_for_task(Depth()):
        decoder = PRESETS[name].decoder.for_outputs(read)
        if isinstance(decoder, DepthDecoder) and assign_outputs(decoder.family_outputs(), read):
            fitting.append(name)
    what = 'if it is a depth,'
    if len(outputs) > 1:
        what = 'if one of them is a depth, export only this output, and'
    arguments = syntax.arguments(values)
    choices = meanings_text(fitting)
    return f'{what} set {arguments}, where DECODER is {choices}; {OTHER_MAPS}'


def may_be_semantic(model: ModelInfo, input_size: tuple[int, int] | None) -> bool:
    """Return whether the output may be logits of semantic segmentation, (B, C, rows, columns)."""
    output = _image_output(model)
    return (
        output is not None
        and output.dtype in FLOAT_DTYPES
        and len(output.shape) == 4
        and output.shape[1] not in (0, 1)
        and _is_grid(output.shape[2:], input_size)
    )


def _image_output(model: ModelInfo) -> TensorSpec | None:
    """Return the output that describes the image; None if there are several candidates.

    The segmentation models of torchvision also output logits for training, with the name "aux".
    """
    outputs = model.outputs
    if {tensor.name for tensor in outputs} == {'out', 'aux'}:
        outputs = tuple(tensor for tensor in outputs if tensor.name == 'out')
    return outputs[0] if len(outputs) == 1 else None


def _has_batch_of_input(model: ModelInfo, output: TensorSpec) -> bool:
    """Return whether the first axis may be the batch. The rows of final boxes are dynamic."""
    image, _ = split_inputs(model.name, model.inputs)
    batch = batch_size(image)
    return bool(output.shape) and output.shape[0] in ((batch,) if batch > 0 else (-1, 1))


def _is_grid(rows_columns: tuple[int, ...], input_size: tuple[int, int] | None) -> bool:
    """Return whether the cells of a grid have a whole number of network pixels, at most 16."""
    if input_size is None:
        return True
    return all(
        cells < 0 or (cells > 0 and side % cells == 0 and side // cells <= MAX_CELL)
        for cells, side in zip(rows_columns, reversed(input_size), strict=True)
    )
