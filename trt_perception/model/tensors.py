"""Inputs and outputs of a model: names, shapes, data types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trt_perception.errors import EngineError
from trt_perception.plain_text import MAX_PATH_LENGTH
from trt_perception.plain_text import name_fault

__all__ = ['INPUT_DTYPES', 'TENSOR_DTYPES', 'TensorSpec']

TENSOR_DTYPES: Final = (
    'float32',
    'float16',
    'bfloat16',
    'int64',
    'int32',
    'int8',
    'uint8',
    'bool',
)
INPUT_DTYPES: Final = ('float32', 'float16', 'bfloat16', 'uint8')


@dataclass(frozen=True)
class TensorSpec:
    """An input or output tensor; -1 in the shape is a dimension that may vary.

    Raises:
        EngineError: the name has control characters, or thousands of others.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if fault := name_fault(self.name, MAX_PATH_LENGTH):
            raise EngineError(
                'name of an input or output of the model',
                fault,
                fix='export the model again, with plain names',
            )
