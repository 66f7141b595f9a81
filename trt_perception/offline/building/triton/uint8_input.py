# SPDX-License-Identifier: Apache-2.0
"""Moves scale, mean and standard deviation of a model's preprocessing into its graph.

The input then takes pixels as bytes: a quarter of the bytes of float32.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from trt_perception.errors import EngineError
from trt_perception.model.input_layout import split_inputs
from trt_perception.model.manifest import Manifest
from trt_perception.model.preprocessing import Preprocessing, pad_value_text
from trt_perception.model.tensors import TensorSpec
from trt_perception.offline.building.graph.graph_index import iterate_messages

_ONNX_TYPES: Final = {
    'float32': TensorProto.FLOAT,
    'float16': TensorProto.FLOAT16,
    'bfloat16': TensorProto.BFLOAT16,
}


def with_uint8_input(
    model: onnx.ModelProto, manifest: Manifest, name: str
) -> tuple[onnx.ModelProto, Manifest]:
    """Return a model whose image input is uint8, and its manifest. The outputs stay the same.

    Args:
        model: the model; not changed.

    Raises:
        EngineError: bytes cannot represent the input that the preprocessing makes.
    """
    preprocessing = manifest.preprocessing
    if preprocessing.dtype == 'uint8':
        return model, manifest
    plain = replace(
        preprocessing,
        pad_value=_byte_of_padding(preprocessing, name),
        scale=1.0,
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        dtype='uint8',
    )
    if not preprocessing.round_pixels:
        raise EngineError(
            name,
            'its preprocessing does not round resized pixels, and bytes are rounded',
            fix='leave out --input uint8, or set "round_pixels" of its manifest to true',
        )
    image, _ = split_inputs(name, manifest.inputs)
    changed = copy.deepcopy(model)
    given = _unused_name(changed, f'{image.name}_uint8')
    # The input gets the new name, so that the nodes and subgraphs that read it stay the same.
    (entry,) = [each for each in changed.graph.input if each.name == image.name]
    entry.name = given
    entry.type.tensor_type.elem_type = TensorProto.UINT8
    nodes = list(_conversion(preprocessing, image, given))
    others = list(changed.graph.node)
    del changed.graph.node[:]
    changed.graph.node.extend([*nodes, *others])
    inputs = tuple(
        TensorSpec(given, each.shape, 'uint8') if each == image else each
        for each in manifest.inputs
    )
    return changed, replace(manifest, inputs=inputs, preprocessing=plain)


def _byte_of_padding(preprocessing: Preprocessing, name: str) -> int | None:
    """Return the pixel value of the padding. Raises EngineError if no byte has its value."""
    value = preprocessing.pad_value
    if value is not None or preprocessing.resize == 'stretch':
        return value
    gain, bias = preprocessing.gain_and_bias()
    pixels = set(np.round(-bias / gain, 3).tolist())
    pixel = pixels.pop()
    if pixels or pixel not in range(256):
        raise EngineError(
            name,
            f'its padding is {pad_value_text(None)}, which no byte becomes',
            fix='leave out --input uint8, or set "pad_value" of its manifest to a number',
        )
    return int(pixel)


def _conversion(
    preprocessing: Preprocessing, image: TensorSpec, given: str
) -> Iterator[onnx.NodeProto]:
    """Yield the nodes that turn bytes into the old input, with the arithmetic of the pipelines."""
    gain, bias = preprocessing.gain_and_bias()
    # Channels are the last axis, or they precede rows and columns.
    shape = (3,) if preprocessing.layout == 'nhwc' else (3, 1, 1)
    steps: list[tuple[str, npt.NDArray[Any] | None]] = [('Cast', None)]
    steps += [('Mul', gain)] if (gain != 1).any() else []
    steps += [('Add', bias)] if bias.any() else []
    types = [TensorProto.FLOAT, _ONNX_TYPES[image.dtype]]
    steps += [('Cast', None)] if image.dtype != 'float32' else []
    before = given
    for number, (operator, values) in enumerate(steps):
        after = image.name if number == len(steps) - 1 else f'{given}_{number}'
        if values is None:
            yield helper.make_node('Cast', [before], [after], f'{after}_cast', to=types.pop(0))
        else:
            constant = f'{after}_by'
            # A node, because an initializer would also be an input before IR version 4.
            tensor = numpy_helper.from_array(values.reshape(shape), constant)
            yield helper.make_node('Constant', [], [constant], constant, value=tensor)
            yield helper.make_node(operator, [before, constant], [after], f'{after}_computed')
        before = after


def _unused_name(model: onnx.ModelProto, name: str) -> str:
    """Return a name with which no name in the graph starts, by adding underscores."""
    taken = {each.name for each in model.graph.input}
    for node in iterate_messages(model.graph, onnx.NodeProto):
        taken |= {node.name, *node.input, *node.output}
    while any(each.startswith(name) for each in taken):
        name += '_'
    return name
