"""Which input is the image, how it lies in memory, and what the inputs beside it are told.

The inputs beside it are the same for each frame:

    orig_target_sizes   (B, 2): the size to which boxes are scaled. It is told the network's own
                        size, so that boxes come in network pixels as from any other model.
    pixel_mask          (B, H, W): 1 where the input is image. All of it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import EngineError
from trt_perception.model.tensors import TensorSpec

__all__ = [
    *('closed_image', 'constant_inputs', 'has_size_input', 'image_shape', 'image_size'),
    *('shapes_beside', 'split_inputs'),
]

_BESIDE: Final = ('orig_target_sizes', 'pixel_mask')
_WHOLE: Final = ('int64', 'int32')


def split_inputs(
    name: str, inputs: Sequence[TensorSpec]
) -> tuple[TensorSpec, tuple[TensorSpec, ...]]:
    """Return the image and the inputs beside it.

    Args:
        name: the model's file name, for messages.
        inputs: as the runtime reports them.

    Raises:
        EngineError: there is no single image of three channels, or an input that nothing is known
            about.
    """
    auxiliary_inputs = tuple(tensor for tensor in inputs if _is_beside(tensor))
    images = [tensor for tensor in inputs if tensor not in auxiliary_inputs]
    if len(images) != 1 or len(images[0].shape) not in (3, 4):
        listed = ', '.join(f'{each.name} {each.dtype}{list(each.shape)}' for each in inputs)
        raise EngineError(
            name,
            listed or 'none',
            expected='one image input of shape (1, 3, height, width)',
            fix='export the detector with a single image input (others may be '
            f'{" and ".join(_BESIDE)})',
        )
    image = images[0]
    channels = image.shape[
        1 if image_shape(image) == 'nchw' else 0 if len(image.shape) == 3 else 3
    ]
    if channels not in (3, -1):
        raise EngineError(
            name,
            f'{image.name} {image.dtype}{list(image.shape)}',
            expected='an image of 3 channels, (1, 3, height, width) or (1, height, width, 3)',
            fix='export the detector for colour images',
        )
    return image, auxiliary_inputs


def _is_beside(tensor: TensorSpec) -> bool:
    if tensor.name not in _BESIDE:
        # The size has a form that no image has.
        return len(tensor.shape) == 2 and tensor.shape[1] == 2 and tensor.dtype in _WHOLE
    return len(tensor.shape) == (2 if tensor.name == 'orig_target_sizes' else 3)


def image_shape(tensor: TensorSpec) -> str:
    """Return how the image lies: ``nchw``, ``nhwc``, or ``chw`` without an axis for the batch."""
    if len(tensor.shape) == 3:
        return 'chw'
    return 'nhwc' if tensor.shape[3] == 3 and tensor.shape[1] != 3 else 'nchw'


def image_size(tensor: TensorSpec) -> tuple[int, int] | None:
    """Return width and height of the image, None where one of them is open."""
    rows = {'nchw': 2, 'nhwc': 1, 'chw': 1}[image_shape(tensor)]
    height, width = tensor.shape[rows : rows + 2]
    return (width, height) if min(width, height) > 0 else None


def closed_image(tensor: TensorSpec, network_wh: tuple[int, int]) -> TensorSpec:
    """Return the image without open sides: one image of this width and height."""
    width, height = network_wh
    own = {
        'nchw': (1, 3, height, width),
        'nhwc': (1, height, width, 3),
        'chw': (3, height, width),
    }[image_shape(tensor)]
    shape = tuple(side if side > 0 else one for side, one in zip(tensor.shape, own, strict=True))
    return replace(tensor, shape=shape)


def has_size_input(auxiliary_inputs: Sequence[TensorSpec]) -> bool:
    """Whether one of the inputs beside the image is told the size that boxes are scaled to."""
    return any(len(tensor.shape) == 2 for tensor in auxiliary_inputs)


def constant_inputs(
    auxiliary_inputs: Sequence[TensorSpec], network_wh: tuple[int, int], batch: int = 1
) -> dict[str, npt.NDArray[Any]]:
    """Return what the inputs beside the image are told, by name; open sides are closed."""
    width, height = network_wh
    constants: dict[str, npt.NDArray[Any]] = {}
    for tensor in auxiliary_inputs:
        dtype = np.dtype(tensor.dtype)
        if len(tensor.shape) == 2:
            constants[tensor.name] = np.array([[width, height]] * batch, dtype)
        else:
            whole = (batch, height, width)
            shape = [
                side if side > 0 else own for side, own in zip(tensor.shape, whole, strict=True)
            ]
            constants[tensor.name] = np.ones(shape, dtype)
    return constants


def shapes_beside(
    image: TensorSpec, auxiliary_inputs: Sequence[TensorSpec]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs beside an image without open sides, by name."""
    size = image_size(image)
    assert size is not None
    batch = image.shape[0] if len(image.shape) == 4 else 1
    return {
        name: value.shape for name, value in constant_inputs(auxiliary_inputs, size, batch).items()
    }
