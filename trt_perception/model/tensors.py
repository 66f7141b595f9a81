"""Inputs and outputs of a model: names, shapes, data types."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from trt_perception.errors import EngineError
from trt_perception.files.json_records import choice_reader, list_reader
from trt_perception.files.json_section import JsonSection
from trt_perception.files.plain_text import MAX_PATH_LENGTH, Fault, name_fault

__all__ = [
    *(
        'FLOAT_DTYPES',
        'INDEX_DTYPES',
        'INPUT_DTYPES',
        'TENSOR_DTYPES',
        'ModelInfo',
        'TensorSpec',
    ),
    *('parse_tensorrt_dtype', 'tensors_text'),
]

#: Bytes of one value, by the name of its type, as NumPy has it (and bfloat16).
TENSOR_DTYPES: Final = {
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
_TENSORRT_DTYPES: Final = {'FLOAT': 'float32', 'HALF': 'float16', 'BF16': 'bfloat16'}
_SHAPE: Final = list_reader(
    lambda side: type(side) is int and side >= -1, 'a list of whole numbers, -1 where it may vary'
)


def _name_fault(name: str) -> Fault | None:
    return name_fault(name, MAX_PATH_LENGTH)


def _read_name(section: JsonSection, key: str) -> str:
    return section.check_value(key, section.text(key), _name_fault)


@dataclass(frozen=True)
class TensorSpec:
    """An input or output tensor; -1 in the shape is a dimension that may vary.

    Raises:
        EngineError: the name has control characters, or thousands of others.
    """

    name: Annotated[str, _read_name]
    shape: Annotated[tuple[int, ...], _SHAPE]
    dtype: Annotated[str, choice_reader(*TENSOR_DTYPES)]

    def __post_init__(self) -> None:
        if fault := _name_fault(self.name):
            raise EngineError('name of an input or output of the model', **fault)

    @property
    def size_bytes(self) -> int:
        """The size of the tensor, which has no open dimensions."""
        return math.prod(self.shape) * TENSOR_DTYPES[self.dtype]


@dataclass(frozen=True)
class ModelInfo:
    """What a model shows of itself once a runtime has loaded it.

    Attributes:
        name: the file's name, for messages.
        inputs: as the runtime reports them, -1 for an open dimension.
        outputs: likewise.
        metadata: the ONNX file's own, or what stands in front of an engine's plan.
        config: of a config.json next to the file, None where there is none.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None


def parse_tensorrt_dtype(name: str) -> str:
    """Return the name here of a type that TensorRT names, such as ``HALF``."""
    return _TENSORRT_DTYPES.get(name, name.lower())


def tensors_text(tensors: Sequence[TensorSpec]) -> str:
    """Return tensors for messages: ``images float32[1, 3, 640, 640]``."""
    listed = (f'{tensor.name} {tensor.dtype}{list(tensor.shape)}' for tensor in tensors)
    return ', '.join(listed) or 'none'
