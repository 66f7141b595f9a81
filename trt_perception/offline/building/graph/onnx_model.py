# SPDX-License-Identifier: Apache-2.0
"""Reads an ONNX model for building, and refuses unusable models with a reason.

External weights are read only from the model's own folder, and are part of the hash. The returned
model refers to no other file, and each node has a unique name for patterns and messages. TensorRT
may still lack an operator, which its parser reports.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import onnx
from onnx import TensorProto

from trt_perception.errors import EngineError
from trt_perception.files.checked_files import read_checked
from trt_perception.files.plain_text import join_first_items, to_one_line
from trt_perception.files.regular_files import real_path
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.files.onnx_external import find_external_weights
from trt_perception.model.tensors import TensorSpec
from trt_perception.offline.building.graph.graph_index import (
    iterate_messages,
    name_nodes,
    opset_version,
)
from trt_perception.offline.building.graph.graph_repair import convert_float64, sort_nodes

#: Size limit of protobuf messages, and of models that TensorRT's parser accepts in one piece.
_MAX_BYTES: Final = 2 * 1024**3 - 1
_ONNX_DOMAINS: Final = ('', 'ai.onnx')
_PLUGIN_DOMAIN: Final = 'trt.plugins'
_DTYPE_NAMES: Final[Mapping[int, str]] = {
    TensorProto.FLOAT: 'float32',
    TensorProto.FLOAT16: 'float16',
    TensorProto.BFLOAT16: 'bfloat16',
}


@dataclass(frozen=True)
class OnnxSource:
    """An ONNX model, read from a file.

    Attributes:
        file: the ONNX file, with its manifest if there is one.
        model: model with embedded weights; all nodes have unique names.
        sha256: hash of the file and its external weights, lower-case hex.
        inputs: inputs without weights; a dynamic dimension is -1.
        outputs: outputs; a dynamic dimension is -1.
        repairs: description of each repair of the model.
    """

    file: ModelFile
    model: onnx.ModelProto
    sha256: str
    external_files: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    metadata: Mapping[str, str]
    repairs: tuple[str, ...]


def load_onnx(file: ModelFile) -> OnnxSource:
    """Parse an ONNX file, embed its external weights, and repair known faults of exporters.

    Raises:
        EngineError: the file is not an ONNX model, is cut off, too large, too new for the
            installed onnx, or lacks its weights.
    """
    model = _parse(file)
    _check_versions(file.path, model)
    digest = hashlib.sha256(file.sha256.encode())
    external_files = _embed_external_weights(file, model, digest)
    name_nodes(model)
    repairs = (
        'nodes sorted in topological order' if sort_nodes(model) else '',
        'float64 converted to float32, because TensorRT has no float64'
        if convert_float64(model)
        else '',
    )
    return OnnxSource(
        file,
        model,
        digest.hexdigest() if external_files else file.sha256,
        external_files,
        input_specs(model),
        tuple(_tensor_spec(value) for value in model.graph.output),
        {entry.key: entry.value for entry in model.metadata_props},
        tuple(filter(None, repairs)),
    )


def input_specs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """Return the inputs without weights. A dynamic dimension is -1."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return tuple(_tensor_spec(value) for value in model.graph.input if value.name not in weights)


def _parse(file: ModelFile) -> onnx.ModelProto:
    name, content = file.path, file.content
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # DecodeError of protobuf has no type stubs
        raise EngineError(
            str(name),
            f'is not an ONNX model, or is cut off after {len(content)} bytes ({error})',
            fix='compare its size with the original file, or export it again',
        ) from error
    if not model.HasField('graph') or not model.graph.node:
        raise EngineError(
            str(name),
            f'{len(content)} bytes without a node',
            expected='an ONNX model with nodes',
            fix='export it again, because the file may be cut off',
        )
    return model


def _check_versions(name: Path, model: onnx.ModelProto) -> None:
    version, known = opset_version(model, default=0), onnx.defs.onnx_opset_version()
    if model.ir_version > onnx.IR_VERSION or version > known:
        raise EngineError(
            str(name),
            f'ONNX IR version {model.ir_version} and opset {version}',
            expected=f'at most IR version {onnx.IR_VERSION} and opset {known}, which onnx '
            f'{onnx.__version__} supports',
            fix='export it with opset 19, or install a newer onnx',
        )
    if version < 1:
        raise EngineError(str(name), 'does not name its ONNX opset', fix='export it again')


def _embed_external_weights(
    file: ModelFile, model: onnx.ModelProto, digest: Any
) -> tuple[str, ...]:
    """Embed external weights into the model, add them to the hash, and return their file names."""
    name = file.path
    # This check also refuses files that two protobuf readers may read differently.
    if not find_external_weights(file.content, str(name)):
        return ()
    tensors = [
        t for t in iterate_messages(model, TensorProto) if t.data_location == TensorProto.EXTERNAL
    ]
    files: dict[str, bytes] = {}
    model_bytes, file_bytes = model.ByteSize(), 0
    for tensor in tensors:
        where = {entry.key: entry.value for entry in tensor.external_data}
        location = where.get('location', '')
        if location not in files:
            files[location] = _read_external(name, location)
            digest.update(hashlib.sha256(files[location]).digest())
            file_bytes += len(files[location])
        size = len(files[location])
        try:
            start = int(where.get('offset', 0))
            length = int(where.get('length', size - start))
        except ValueError as error:
            raise EngineError(f'{name}: weights {tensor.name!r}', str(error)) from error
        if not 0 <= start <= start + length <= size:
            raise EngineError(
                f'{name}: weights {tensor.name!r}',
                f'bytes {start} to {start + length} of {location}, which has {size} bytes',
                fix='export both files again, because one is cut off or belongs to another model',
            )
        model_bytes += length
        if max(model_bytes, file_bytes) > _MAX_BYTES:
            raise EngineError(
                str(name), 'a larger model', expected=f'at most {_MAX_BYTES} bytes with weights'
            )
        tensor.raw_data = files[location][start : start + length]
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
    return tuple(files)


def _read_external(name: Path, location: str) -> bytes:
    parts = PurePosixPath(location).parts
    if not parts or location.startswith('/') or '..' in parts or '\\' in location:
        raise EngineError(
            str(name),
            f'refers to weights in {location!r}, outside the folder of the model',
            fix='export the model with its weights in its own folder',
        )
    path = name.parent / location
    if not path.exists():
        raise EngineError(
            str(name),
            f'its file of weights, {location}, is missing in the folder of the model',
            fix='copy that file too',
        )
    content, resolved = read_checked(path, _MAX_BYTES)
    # The model may be a link itself, as in the cache of a model hub.
    homes = {real_path(name.parent), real_path(name).parent}
    if not any(resolved.is_relative_to(home) for home in homes):
        raise EngineError(
            str(name),
            f"{location} is a link to {resolved}, outside the model's folder",
            fix='replace the link by the file itself',
        )
    return content


def _tensor_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    shape = tuple(
        side.dim_value if side.HasField('dim_value') and side.dim_value > 0 else -1
        for side in tensor.shape.dim
    )
    kind = TensorProto.DataType.Name(tensor.elem_type).lower()
    return TensorSpec(value.name, shape, _DTYPE_NAMES.get(tensor.elem_type, kind))


def unknown_operators(model: onnx.ModelProto) -> dict[str, list[str]]:
    """Return operators outside ONNX at the model's opset, each with the names of its nodes."""
    found: dict[str, list[str]] = {}
    for node in _unknown_nodes(model):
        kind = f'{node.domain}.{node.op_type}' if node.domain else node.op_type
        found.setdefault(kind, []).append(node.name or f'node with the output {node.output[0]}')
    return found


def _unknown_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    version = opset_version(model)
    functions = {(function.domain, function.name) for function in model.functions}
    return [
        node
        for graph in iterate_messages(model.graph, onnx.GraphProto)
        for node in graph.node
        if (node.domain, node.op_type) not in functions
        and (node.domain not in _ONNX_DOMAINS or not onnx.defs.has(node.op_type, version, ''))
    ]


def check_model(source: OnnxSource) -> tuple[str, ...]:
    """Check a model with ONNX's checker, and return warnings.

    The checker cannot check a model with unknown operators. Then their nodes move to a domain for
    plugins, so that ONNX's tools ignore them. TensorRT finds a plugin by the operator's name only.

    Raises:
        EngineError: the model violates ONNX's rules.
    """
    name = source.file.path.name
    unknown = unknown_operators(source.model)
    if unknown:
        _move_to_plugin_domain(source.model)
        where = '; '.join(
            f'{kind} at {join_first_items(nodes)}' for kind, nodes in unknown.items()
        )
        return (
            f'operators that ONNX does not define: {where}. TensorRT must support them, or load '
            'their plugins (--plugins). TensorRT-RTX has no plugins',
        )
    try:
        onnx.checker.check_model(source.model)
    except onnx.checker.ValidationError as error:
        raise EngineError(
            str(name), f'violates the rules of ONNX: {to_one_line(error)}', fix='export it again'
        ) from error
    return ()


def _move_to_plugin_domain(model: onnx.ModelProto) -> None:
    for node in _unknown_nodes(model):
        if node.domain in _ONNX_DOMAINS:
            node.domain = _PLUGIN_DOMAIN
    if all(entry.domain != _PLUGIN_DOMAIN for entry in model.opset_import):
        model.opset_import.add(domain=_PLUGIN_DOMAIN, version=1)
