# SPDX-License-Identifier: Apache-2.0
"""The messages of a request to a Triton server: tensors, and their places in shared memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ServerError
from trt_perception.files.plain_text import short_repr
from trt_perception.model.files.triton_address import TritonAddress
from trt_perception.model.tensors import BYTES_BY_DTYPE, MAX_TENSOR_VALUES, TensorSpec
from trt_perception.stages.triton.memory import MARK_BYTES, TritonRegion

# Limit for the answer of a model whose outputs have dynamic dimensions.
_MAX_DYNAMIC_ANSWER_BYTES: Final = 256 * 2**20
_ANSWER_OVERHEAD_BYTES: Final = 2**20
#: Maps Triton's names of data types to the names in TensorSpec.
TRITON_DTYPES: Final = {
    'FP32': 'float32',
    'FP16': 'float16',
    'INT64': 'int64',
    'INT32': 'int32',
    'INT8': 'int8',
    'UINT8': 'uint8',
    'BOOL': 'bool',
}
_DATATYPES: Final = {dtype: name for name, dtype in TRITON_DTYPES.items()}


class TritonMessages:
    """Writes requests and reads answers of one model.

    Args:
        library: the module ``service_pb2`` of tritonclient.
    """

    def __init__(
        self,
        library: Any,
        address: TritonAddress,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
    ) -> None:
        self._library = library
        self._address = address
        self._inputs = inputs
        self._outputs = outputs

    def request(self, tensors: Mapping[str, npt.NDArray[Any]], region: TritonRegion | None) -> Any:
        """Return a request. Copy the tensors into the request or into the region.

        Args:
            tensors: maps the name of each input to its array.
            region: has space for all inputs and outputs, in this order; None to send the tensors.
        """
        message = self._library.ModelInferRequest(
            model_name=self._address.model, model_version=self._address.version
        )
        for index, tensor in enumerate(self._inputs):
            array = tensors[tensor.name]
            sent = message.inputs.add(
                name=tensor.name, datatype=_DATATYPES[tensor.dtype], shape=array.shape
            )
            if region is None:
                message.raw_input_contents.append(array.tobytes())
            else:
                region.arrays[index][:] = array.reshape(region.arrays[index].shape)
                _add_place(sent, region, index)
        for index, tensor in enumerate(self._outputs, len(self._inputs)):
            wanted = message.outputs.add(name=tensor.name)
            # The protocol does not say whether the server wrote an output. Answers contain the
            # outputs that are too small for a mark.
            if region is not None and region.arrays[index].nbytes >= MARK_BYTES:
                region.mark(index)
                _add_place(wanted, region, index)
        return message

    def outputs(self, answer: Any, region: TritonRegion | None) -> list[npt.NDArray[Any]]:
        """Return the outputs of an answer: views of the region, or of the answer's bytes.

        Raises:
            ServerError: the outputs are not as the model's configuration describes them.
        """
        # With a region, the answer has empty contents.
        contents = dict(
            zip((each.name for each in answer.outputs), answer.raw_output_contents, strict=False)
        )
        found = {each.name: each for each in answer.outputs}
        arrays = []
        for index, tensor in enumerate(self._outputs, len(self._inputs)):
            if tensor.name not in found:
                raise self._invalid(f'no output {tensor.name!r}')
            shape, datatype = tuple(found[tensor.name].shape), found[tensor.name].datatype
            dtype = TRITON_DTYPES.get(datatype, short_repr(datatype))
            if dtype != tensor.dtype or not _fits(shape, tensor.shape):
                raise self._invalid(f'output {tensor.name!r} as {dtype}{list(shape)[:8]}')
            content = contents.get(tensor.name, b'')
            if (
                region is not None
                and not content
                and region.arrays[index].nbytes >= MARK_BYTES
                and math.prod(shape)
            ):
                in_region = region.arrays[index]
                if in_region.shape != shape or not region.is_written(index):
                    raise self._invalid(f'no values of output {tensor.name!r}, or only a part')
                arrays.append(in_region)
                continue
            if len(content) != math.prod(shape) * BYTES_BY_DTYPE[dtype]:
                raise self._invalid(f'output {tensor.name!r} with {len(content)} bytes')
            arrays.append(np.frombuffer(content, dtype).reshape(shape))
        return arrays

    def _invalid(self, found: str) -> ServerError:
        return ServerError(
            str(self._address),
            f'an answer with {found}',
            expected='outputs as in the configuration of the model',
        )


def _fits(shape: tuple[int, ...], described: tuple[int, ...]) -> bool:
    """Return whether the shape of an output is as described, and not too large."""
    return (
        len(shape) == len(described)
        and all(
            side >= 0 and wanted in (side, -1)
            for side, wanted in zip(shape, described, strict=True)
        )
        # Also bounds the other sides of an output with a side of 0.
        and math.prod(max(side, 1) for side in shape) <= MAX_TENSOR_VALUES
    )


def _add_place(tensor: Any, region: TritonRegion, index: int) -> None:
    """Write the place of a tensor in a region into a request."""
    tensor.parameters['shared_memory_region'].string_param = region.name
    tensor.parameters['shared_memory_byte_size'].int64_param = region.arrays[index].nbytes
    if region.offsets[index]:
        tensor.parameters['shared_memory_offset'].int64_param = region.offsets[index]


def with_batch(shape: tuple[int, ...], batch: int) -> tuple[int, ...]:
    """Return a shape whose first dimension is `batch` if it was dynamic."""
    return (batch, *shape[1:]) if shape and shape[0] < 0 else shape


def answer_limit_bytes(outputs: Sequence[TensorSpec]) -> int:
    """Return the number of bytes of the largest valid answer."""
    shapes = [with_batch(tensor.shape, 1) for tensor in outputs]
    if any(min(shape, default=1) < 0 for shape in shapes):
        return _MAX_DYNAMIC_ANSWER_BYTES
    sizes = (
        math.prod(shape) * BYTES_BY_DTYPE[tensor.dtype]
        for shape, tensor in zip(shapes, outputs, strict=True)
    )
    return min(sum(sizes), 4 * MAX_TENSOR_VALUES) + _ANSWER_OVERHEAD_BYTES
