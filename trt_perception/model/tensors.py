# SPDX-License-Identifier: Apache-2.0
"""Names, shapes and data types of a model's inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from trt_perception.errors import EngineError
from trt_perception.files.json_records import choice_reader, list_reader
from trt_perception.files.json_section import JsonSection
from trt_perception.files.plain_text import MAX_PATH_LENGTH, Mistake, name_mistake
from trt_perception.model.files.triton_address import is_triton_address

#: Maps the name of each data type to the bytes of one value. Names are NumPy's, except bfloat16.
BYTES_BY_DTYPE: Final = {
    'float32': 4,
    'float16': 2,
    'bfloat16': 2,
    'int64': 8,
    'int32': 4,
    'int8': 1,
    'uint8': 1,
    'bool': 1,
}
FLOAT_DTYPES: Final = ('float32', 'float16', 'bfloat16')
INDEX_DTYPES: Final = ('int64', 'int32')
INPUT_DTYPES: Final = (*FLOAT_DTYPES, 'uint8')
#: Largest number of values in an input or output, with all images of a batch: 0.8 GB as float32.
MAX_TENSOR_VALUES: Final = 3 * 2**26
_TENSORRT_DTYPES: Final = {'FLOAT': 'float32', 'HALF': 'float16', 'BF16': 'bfloat16'}
_SHAPE_READER: Final = list_reader(
    lambda side: type(side) is int and side >= -1,
    'a list of whole numbers, with -1 for a dynamic dimension',
)


def _name_mistake(name: str) -> Mistake | None:
    return name_mistake(name, MAX_PATH_LENGTH)


def _read_tensor_name(section: JsonSection, key: str) -> str:
    return section.check_value(key, section.text(key), _name_mistake)


@dataclass(frozen=True)
class TensorSpec:
    """An input or output tensor. -1 in the shape is a dynamic dimension.

    Raises:
        EngineError: the name has control characters or is longer than MAX_PATH_LENGTH.
    """

    name: Annotated[str, _read_tensor_name]
    shape: Annotated[tuple[int, ...], _SHAPE_READER]
    dtype: Annotated[str, choice_reader(*BYTES_BY_DTYPE)]

    def __post_init__(self) -> None:
        if mistake := _name_mistake(self.name):
            raise EngineError('name of an input or output of the model', **mistake)

    @property
    def size_bytes(self) -> int:
        """The size of the tensor in bytes. All dimensions must be fixed."""
        return math.prod(self.shape) * BYTES_BY_DTYPE[self.dtype]


@dataclass(frozen=True)
class ModelInfo:
    """Inputs, outputs and metadata of a model, as read after a runtime loaded the model.

    Attributes:
        inputs: all inputs, as the runtime reports them, with -1 for a dynamic dimension.
        outputs: all outputs, as the runtime reports them, with -1 for a dynamic dimension.
        metadata: metadata of the ONNX file, or the metadata in front of an engine's plan.
        config: content of the config.json next to the file; None if the file is missing.
        path: path or address of the model, for commands in messages. If empty, commands contain
            the name.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    path: str = ''

    @property
    def is_served(self) -> bool:
        """Whether the model is on a server, so that no file of this machine describes it."""
        return is_triton_address(self.path)


def parse_tensorrt_dtype(name: str) -> str:
    """Return the data type, as in BYTES_BY_DTYPE, for TensorRT's name, such as ``HALF``."""
    return _TENSORRT_DTYPES.get(name, name.lower())


def check_tensor_sizes(name: str, tensors: Sequence[TensorSpec]) -> None:
    """Check that each tensor has at most ``MAX_TENSOR_VALUES`` values.

    Args:
        tensors: inputs or outputs. A dynamic dimension counts as 1.

    Raises:
        EngineError: a tensor is larger.
    """
    if mistake := tensor_sizes_mistake(tensors):
        raise EngineError(
            name,
            **mistake,
            fix='export the model for smaller images, or for fewer images in a batch',
        )


def tensor_sizes_mistake(tensors: Sequence[TensorSpec]) -> Mistake | None:
    """Return which tensor has more than ``MAX_TENSOR_VALUES`` values; None if all are smaller."""
    for tensor in tensors:
        if math.prod(map(abs, tensor.shape)) > MAX_TENSOR_VALUES:
            expected = f'at most {MAX_TENSOR_VALUES} values in an input or output'
            return Mistake(found=tensors_text((tensor,)), expected=expected)
    return None


def tensors_text(tensors: Sequence[TensorSpec]) -> str:
    """Describe tensors for messages, such as ``images float32[1, 3, 640, 640]``."""
    listed = (f'{tensor.name} {tensor.dtype}{list(tensor.shape)}' for tensor in tensors)
    return ', '.join(listed) or 'none'
