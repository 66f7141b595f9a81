# SPDX-License-Identifier: Apache-2.0
"""Answers questions about an ONNX graph: producers and consumers of tensors, constants, names.

Only ``name_nodes`` changes a model. GraphIndex ignores nodes inside subgraphs (If, Loop, Scan),
but knows the tensors that these nodes read from the outer graph.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import closest_words

_Message = TypeVar('_Message')
_Number = TypeVar('_Number', bound=np.generic)
#: Operators that do most of a network's arithmetic. They can be quantised if their weights are
#: constant.
LAYER_TYPES = ('Conv', 'ConvTranspose', 'Gemm', 'MatMul')


class GraphIndex:
    """Look-up tables of one graph. A change of the graph makes them invalid.

    Attributes:
        producer: maps a tensor's name to the node that computes the tensor.
        consumers: maps a tensor's name to the nodes that read the tensor. A node also reads the
            outer tensors of its subgraphs.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.producer = {name: node for node in graph.node for name in node.output if name}
        self.consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in dict.fromkeys([*node.input, *tensors_read_by_subgraphs(node)]):
                if name:
                    self.consumers.setdefault(name, []).append(node)
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}

    def constant(self, name: str) -> npt.NDArray[np.generic] | None:
        """Return the value of a constant tensor; None if the tensor is not constant."""
        stored = self.stored_constant(name)
        return None if stored is None else numpy_helper.to_array(stored)

    def stored_constant(self, name: str) -> onnx.TensorProto | None:
        """Return a constant tensor with its ONNX type; None if the tensor is not constant."""
        stored: onnx.TensorProto | None = self.initializers.get(name)
        if stored is not None:
            return stored
        node = self.producer.get(name)
        if node is not None and node.op_type == 'Identity':
            return self.stored_constant(node.input[0])
        attributes = node.attribute if node is not None and node.op_type == 'Constant' else ()
        return next((each.t for each in attributes if each.name == 'value'), None)

    def is_constant(self, name: str) -> bool:
        """Return whether a tensor is constant, also after quantising, dequantising or a cast."""
        node = self.producer.get(name)
        if node is None:
            return name in self.initializers
        if node.op_type in ('DequantizeLinear', 'QuantizeLinear', 'Identity', 'Cast'):
            return self.is_constant(node.input[0])
        return bool(node.op_type == 'Constant')

    def is_layer(self, node: onnx.NodeProto) -> bool:
        """Return whether a node multiplies data by constant weights."""
        return (
            node.op_type in LAYER_TYPES
            and node.domain in ('', 'ai.onnx')
            and len(node.input) > 1
            and self.is_constant(node.input[1])
            and not self.is_constant(node.input[0])
        )


def channel_axis(node: onnx.NodeProto, dimensions: int) -> int:
    """Return the channel axis of a Q or DQ node whose data has this number of dimensions."""
    axis = next((attribute.i for attribute in node.attribute if attribute.name == 'axis'), 1)
    return int(axis) % max(dimensions, 1)


def broadcast_scale(
    scale: npt.NDArray[_Number], axis: int, dimensions: int
) -> npt.NDArray[_Number]:
    """Return scales in a shape that broadcasts with the data.

    Args:
        scale: one scale for all data, which is returned unchanged, or one scale for each channel.
    """
    if not scale.ndim:
        return scale
    return scale.reshape([-1 if place == axis else 1 for place in range(dimensions)])


def tensor_types(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto.Tensor]:
    """Map the name of each declared tensor to its type and shape; weights are left out."""
    declared = (*graph.input, *graph.value_info, *graph.output)
    return {entry.name: entry.type.tensor_type for entry in declared}


def tensors_read_by_subgraphs(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the tensors that a node's subgraphs read, including the subgraphs' own tensors."""
    for attribute in node.attribute:
        graphs = [attribute.g, *attribute.graphs] if attribute.HasField('g') else attribute.graphs
        for graph in graphs:
            yield from (output.name for output in graph.output)
            for inner in graph.node:
                yield from inner.input
                yield from tensors_read_by_subgraphs(inner)


def iterate_messages(message: Any, *kinds: type[_Message]) -> Iterator[_Message]:
    """Yield all protobuf messages of some types in a message, at any depth."""
    if isinstance(message, kinds):
        yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in [value] if hasattr(value, 'ListFields') else value:
                yield from iterate_messages(inner, *kinds)


def opset_version(model: onnx.ModelProto, default: int = 1) -> int:
    """Return the opset version of ONNX's own domain; ``default`` if the model names none."""
    versions = [entry.version for entry in model.opset_import if entry.domain in ('', 'ai.onnx')]
    return max(versions, default=default)


def name_nodes(model: onnx.ModelProto) -> None:
    """Give each node of the graph a unique name, in place. Unique names are kept."""
    taken = {node.name for node in model.graph.node}
    seen: set[str] = set()
    for index, node in enumerate(model.graph.node):
        if not node.name or node.name in seen:
            name = f'{node.name or node.op_type}_{index}'
            while name in taken:
                name += '_'
            node.name = name
            taken.add(name)
        seen.add(node.name)


def match_nodes(model: onnx.ModelProto, patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the nodes that match any pattern, in graph order.

    Args:
        model: model whose nodes have unique names.
        patterns: case-sensitive shell patterns for node names, such as ``*/cv3.*/Conv``. A full
            node name always matches itself, even if the name has brackets.

    Raises:
        ConfigError: a pattern matches no node.
    """
    names = [node.name for node in model.graph.node]
    matched: set[str] = set()
    for pattern in patterns:
        hits = {name for name in names if name == pattern or fnmatch.fnmatchcase(name, pattern)}
        if not hits:
            near = closest_words(pattern, names, count=4, cutoff=0.3) or names[:4]
            raise ConfigError(
                f'the pattern {pattern!r}',
                f'matches none of the {len(names)} nodes in the graph',
                fix=f'close names: {", ".join(near)}',
            )
        matched |= hits
    return tuple(name for name in names if name in matched)
