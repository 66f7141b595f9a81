# SPDX-License-Identifier: Apache-2.0
"""Finds the image input of a model, and its layout in memory. Computes the auxiliary inputs.

The auxiliary inputs are:

    orig_target_sizes   (B, 2): the size to which the model scales boxes. The value is the size of
                        the network's input, so boxes are in network pixels.
    pixel_mask          (B, H, W): 1 for image pixels, 0 for padding, which depends on the frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import EngineError
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.other_networks import check_inputs_fit_a_task
from trt_perception.model.preprocessing import input_size_mistake
from trt_perception.model.tensors import INDEX_DTYPES, TensorSpec, check_tensor_sizes, tensors_text

#: The largest number of images in a batch.
MAX_BATCH: Final = 64

_AUXILIARY_INPUT_NAMES: Final = ('orig_target_sizes', 'pixel_mask')


def split_inputs(
    name: str, inputs: Sequence[TensorSpec]
) -> tuple[TensorSpec, tuple[TensorSpec, ...]]:
    """Return the image input and the auxiliary inputs.

    Raises:
        EngineError: the model has no image input with three channels, or several other inputs, or
            an input is too large.
    """
    check_tensor_sizes(name, inputs)
    auxiliary_inputs = tuple(tensor for tensor in inputs if _is_auxiliary(tensor))
    images = [tensor for tensor in inputs if tensor not in auxiliary_inputs]
    if len(images) != 1 or len(images[0].shape) not in (3, 4):
        check_inputs_fit_a_task(name, inputs)
        raise EngineError(
            name,
            tensors_text(inputs),
            expected='one image input of shape (1, 3, height, width)',
            fix='export the model with a single image input (others may be '
            f'{" and ".join(_AUXILIARY_INPUT_NAMES)})',
        )
    image = images[0]
    channels = image.shape[{'nchw': 1, 'nhwc': 3, 'chw': 0}[image_layout(image)]]
    if channels not in (3, -1):
        check_inputs_fit_a_task(name, inputs)
        raise EngineError(
            name,
            tensors_text(images),
            expected='an image of 3 channels, (1, 3, height, width) or (1, height, width, 3)',
            fix='export the model for colour images',
        )
    _check_image(name, image)
    return image, auxiliary_inputs


def _check_image(name: str, image: TensorSpec) -> None:
    """Check the size and number of an input's images. Raises EngineError outside the limits."""
    size = image_size(image)
    if size is not None and (mistake := input_size_mistake(size)):
        raise EngineError(f'{name}: size of the image input', **mistake)
    if batch_size(image) > MAX_BATCH:
        raise EngineError(
            name,
            f'a batch of {batch_size(image)} images',
            expected=f'at most {MAX_BATCH}',
            fix='export the model, or build the engine, for smaller batches',
        )


def _is_auxiliary(tensor: TensorSpec) -> bool:
    if tensor.name not in _AUXILIARY_INPUT_NAMES:
        # An integer input of shape (B, 2) must be the size, because an image has more axes.
        return len(tensor.shape) == 2 and tensor.shape[1] == 2 and tensor.dtype in INDEX_DTYPES
    return len(tensor.shape) == (2 if tensor.name == 'orig_target_sizes' else 3)


def image_layout(tensor: TensorSpec) -> str:
    """Return the layout of the image: ``nchw``, ``nhwc``, or ``chw`` without a batch axis."""
    if len(tensor.shape) == 3:
        return 'chw'
    return 'nhwc' if tensor.shape[3] == 3 and tensor.shape[1] != 3 else 'nchw'


def image_size(tensor: TensorSpec) -> tuple[int, int] | None:
    """Return width and height of the image in pixels; None if a side is dynamic."""
    rows = {'nchw': 2, 'nhwc': 1, 'chw': 1}[image_layout(tensor)]
    height, width = tensor.shape[rows : rows + 2]
    return (width, height) if min(width, height) > 0 else None


def with_fixed_size(tensor: TensorSpec, network_wh: tuple[int, int]) -> TensorSpec:
    """Return the image input with fixed dimensions.

    Args:
        network_wh: width and height in pixels, for dynamic sides. A dynamic batch becomes 1.
    """
    width, height = network_wh
    fixed_shape = {
        'nchw': (1, 3, height, width),
        'nhwc': (1, height, width, 3),
        'chw': (3, height, width),
    }[image_layout(tensor)]
    return replace(tensor, shape=_fill_dynamic_sides(tensor.shape, fixed_shape))


def _fill_dynamic_sides(shape: tuple[int, ...], fixed_shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(side if side > 0 else one for side, one in zip(shape, fixed_shape, strict=True))


def batch_size(image: TensorSpec) -> int:
    """Return the batch size of an image input; -1 if the batch is dynamic."""
    return image.shape[0] if len(image.shape) == 4 else 1


def has_size_input(auxiliary_inputs: Sequence[TensorSpec]) -> bool:
    """Return whether one of the auxiliary inputs is the size to which the model scales boxes."""
    return any(len(tensor.shape) == 2 for tensor in auxiliary_inputs)


def pixel_mask_input(auxiliary_inputs: Sequence[TensorSpec]) -> TensorSpec | None:
    """Return the auxiliary input ``pixel_mask``; None if the model has no such input."""
    return next((tensor for tensor in auxiliary_inputs if len(tensor.shape) == 3), None)


def image_mask(letterbox: Letterbox, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """Return the pixels of a ``pixel_mask`` that belong to the image: bool (rows, columns).

    Args:
        shape: rows and columns of the mask. A mask may be smaller than the network's input. Then
            each of its pixels stands for the first network pixel that it covers.
    """
    (rows, columns), (width, height) = shape, letterbox.network_wh
    y = np.arange(rows) * height // rows - letterbox.pad_top
    x = np.arange(columns) * width // columns - letterbox.pad_left
    resized_width, resized_height = letterbox.resized_wh
    in_rows, in_columns = (y >= 0) & (y < resized_height), (x >= 0) & (x < resized_width)
    mask: npt.NDArray[np.bool_] = in_rows[:, None] & in_columns
    return mask


def constant_inputs(
    auxiliary_inputs: Sequence[TensorSpec], network_wh: tuple[int, int], batch: int = 1
) -> dict[str, npt.NDArray[Any]]:
    """Map the name of each auxiliary input to its value for images without padding.

    Args:
        auxiliary_inputs: the inputs besides the image. They may have dynamic dimensions.
        network_wh: width and height of the network's input in pixels.

    Raises:
        EngineError: an input would have more values than ``MAX_VALUES``.
    """
    width, height = network_wh
    constants: dict[str, npt.NDArray[Any]] = {}
    for tensor in auxiliary_inputs:
        dtype = np.dtype(tensor.dtype)
        if len(tensor.shape) == 2:
            constants[tensor.name] = np.array([[width, height]] * batch, dtype)
        else:
            shape = _fill_dynamic_sides(tensor.shape, (batch, height, width))
            check_tensor_sizes('the model', (replace(tensor, shape=shape),))
            constants[tensor.name] = np.ones(shape, dtype)
    return constants


def auxiliary_shapes(
    image: TensorSpec, auxiliary_inputs: Sequence[TensorSpec]
) -> dict[str, tuple[int, ...]]:
    """Map the name of each auxiliary input to its fixed shape.

    Args:
        image: the image input. Its dimensions must be fixed.
        auxiliary_inputs: the inputs besides the image. They may have dynamic dimensions.
    """
    size = image_size(image)
    assert size is not None
    constants = constant_inputs(auxiliary_inputs, size, batch_size(image))
    return {name: value.shape for name, value in constants.items()}
