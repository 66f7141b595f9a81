"""Reading an ONNX model for building: whole, checked, and with the reason where it cannot be used.

Guarantees: external weights, wherever in the model, come from the model's own folder only and are
part of the hash; what is built from refers to no file any more; every node has a name of its own,
so that patterns and messages can point at it. Non-guarantee: that TensorRT knows every operator;
its parser reports that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import onnx
from onnx import TensorProto

from trt_perception.building.graph.graph_index import iterate_messages, name_nodes, opset_version
from trt_perception.building.graph.graph_repair import convert_float64, sort_nodes
from trt_perception.errors import EngineError
from trt_perception.files.checked_files import read_checked
from trt_perception.files.plain_text import join_first, to_one_line
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.files.onnx_external import find_external_weights
from trt_perception.model.tensors import TensorSpec

__all__ = [
    *('OnnxSource', 'check_model', 'input_specs', 'load_onnx', 'unknown_operators'),
]

#: Protocol buffers end here, and so does what TensorRT's parser takes in one piece.
_MOST_BYTES: Final = 2 * 1024**3 - 1
_OWN: Final = ('', 'ai.onnx')
_PLUGINS: Final = 'trt.plugins'
#: What people name .onnx by mistake, by its first bytes.
_OTHERS: Final = {
    b'version https://git-lfs': ('is a Git LFS pointer, not the model', 'run git lfs pull'),
    b'PK\x03\x04': ('is a zip archive, as PyTorch saves .pt files', 'export it to ONNX first'),
    b'ftrt': ('is a TensorRT engine already', 'build from the ONNX model'),
    b'vtrt': ('is a TensorRT-RTX engine already', 'build from the ONNX model'),
    b'<': ('is text, probably a web page', 'download the file itself'),
}
_DTYPES: Final[Mapping[int, str]] = {
    TensorProto.FLOAT: 'float32',
    TensorProto.FLOAT16: 'float16',
    TensorProto.BFLOAT16: 'bfloat16',
}


@dataclass(frozen=True)
class OnnxSource:
    """An ONNX model as it was found.

    Attributes:
        file: the ONNX file, with its manifest where one is next to it.
        model: weights within, all nodes named.
        sha256: of the file and its external weights, lower-case hex.
        external: names of the files of external weights.
        inputs: those that are no weights; -1 for a side that may vary.
        outputs: likewise.
        metadata: what the file says of itself.
        repairs: what was made right in the model, a few words each.
    """

    file: ModelFile
    model: onnx.ModelProto
    sha256: str
    external: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    metadata: Mapping[str, str]
    repairs: tuple[str, ...]


def load_onnx(file: ModelFile) -> OnnxSource:
    """Understand a file and take in its external weights.

    Raises:
        EngineError: it is not an ONNX model, cut off, too new, too large, or lacks its weights.
    """
    model = _parse(file)
    _check_versions(file.path, model)
    digest = hashlib.sha256(file.sha256.encode())
    external = _take_external(file, model, digest)
    name_nodes(model)
    repairs = (
        'nodes put in topological order' if sort_nodes(model) else '',
        'float64 becomes float32, in which TensorRT computes' if convert_float64(model) else '',
    )
    return OnnxSource(
        file,
        model,
        digest.hexdigest() if external else file.sha256,
        external,
        input_specs(model),
        tuple(_spec(value) for value in model.graph.output),
        {entry.key: entry.value for entry in model.metadata_props},
        tuple(filter(None, repairs)),
    )


def input_specs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """Return the inputs that are no weights; -1 for a side that may vary."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return tuple(_spec(value) for value in model.graph.input if value.name not in weights)


def _parse(file: ModelFile) -> onnx.ModelProto:
    name, content = file.path, file.content
    for start, (found, fix) in _OTHERS.items():
        if content.lstrip(b'\xef\xbb\xbf \t\r\n').startswith(start):
            raise EngineError(str(name), found, fix=fix)
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's DecodeError, which has no stubs
        raise EngineError(
            str(name),
            f'is not an ONNX model, or is cut off after {len(content)} bytes ({error})',
            fix='compare its size with where it came from, or export it again',
        ) from error
    if not model.HasField('graph') or not model.graph.node:
        raise EngineError(
            str(name),
            f'{len(content)} bytes without any',
            expected='an ONNX model with nodes',
            fix='it may be cut off: export it again',
        )
    return model


def _check_versions(name: Path, model: onnx.ModelProto) -> None:
    version, known = opset_version(model, unset=0), onnx.defs.onnx_opset_version()
    if model.ir_version > onnx.IR_VERSION or version > known:
        raise EngineError(
            str(name),
            f'ONNX IR version {model.ir_version} and opset {version}',
            expected=f'at most {onnx.IR_VERSION} and {known}, which ONNX {onnx.__version__} knows',
            fix='export it with opset 19, or install a newer onnx',
        )
    if version < 1:
        raise EngineError(
            str(name), 'does not say which ONNX opset it uses', fix='export it again'
        )


def _take_external(file: ModelFile, model: onnx.ModelProto, digest: Any) -> tuple[str, ...]:
    """Put external weights into the model; return their files' names."""
    name = file.path
    # Refuses what this reader of protocol buffers and the next may understand differently.
    if not find_external_weights(file.content, str(name)):
        return ()
    tensors = [
        t for t in iterate_messages(model, TensorProto) if t.data_location == TensorProto.EXTERNAL
    ]
    files: dict[str, bytes] = {}
    total, held = model.ByteSize(), 0
    for tensor in tensors:
        where = {entry.key: entry.value for entry in tensor.external_data}
        location = where.get('location', '')
        if location not in files:
            files[location] = _read_external(name, location)
            digest.update(hashlib.sha256(files[location]).digest())
            held += len(files[location])
        size = len(files[location])
        try:
            start = int(where.get('offset', 0))
            length = int(where.get('length', size - start))
        except ValueError as error:
            raise EngineError(f'{name}: weights {tensor.name!r}', str(error)) from error
        if not 0 <= start <= start + length <= size:
            raise EngineError(
                f'{name}: weights {tensor.name!r}',
                f'bytes {start} to {start + length} of {location}, which has {size}',
                fix='it is cut off or belongs to another model: export both again',
            )
        total += length
        if max(total, held) > _MOST_BYTES:
            raise EngineError(
                str(name), 'more', expected=f'at most {_MOST_BYTES} bytes with its weights'
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
            f'keeps weights in {location!r}, outside its own folder, which is not read',
            fix='put the file next to the model and export it with its bare name',
        )
    path = name.parent / location
    if not path.exists():
        raise EngineError(
            str(name),
            f'its weights are in {location}, which is not next to it',
            fix='copy that file too',
        )
    content, resolved = read_checked(path, _MOST_BYTES)
    # A link may lead to where the model itself is, as in the cache of a model hub.
    homes = {name.parent.resolve(), name.resolve().parent}
    if not any(resolved.is_relative_to(home) for home in homes):
        raise EngineError(
            str(name),
            f"{location} is a link to {resolved}, outside the model's folder",
            fix='copy the file itself',
        )
    return content


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    shape = tuple(
        side.dim_value if side.HasField('dim_value') and side.dim_value > 0 else -1
        for side in tensor.shape.dim
    )
    kind = TensorProto.DataType.Name(tensor.elem_type).lower()
    return TensorSpec(value.name, shape, _DTYPES.get(tensor.elem_type, kind))


def unknown_operators(model: onnx.ModelProto) -> dict[str, list[str]]:
    """Return operators that are not ONNX's own at the model's opset, with their nodes' names."""
    found: dict[str, list[str]] = {}
    for node in _unknown_nodes(model):
        kind = f'{node.domain}.{node.op_type}' if node.domain else node.op_type
        found.setdefault(kind, []).append(node.name or f'node that makes {node.output[0]}')
    return found


def _unknown_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    version = opset_version(model)
    functions = {(function.domain, function.name) for function in model.functions}
    return [
        node
        for graph in iterate_messages(model.graph, onnx.GraphProto)
        for node in graph.node
        if (node.domain, node.op_type) not in functions
        and (node.domain not in _OWN or not onnx.defs.has(node.op_type, version, ''))
    ]


def check_model(source: OnnxSource) -> tuple[str, ...]:
    """Let ONNX's own checker look, and return warnings.

    Operators that ONNX does not know move to a domain of their own, so that its tools leave them
    alone; TensorRT finds plugins by their name only.

    Raises:
        EngineError: the model breaks ONNX's rules.
    """
    name = source.file.path.name
    unknown = unknown_operators(source.model)
    if unknown:
        _set_apart(source.model)
        where = '; '.join(f'{kind} at {join_first(nodes)}' for kind, nodes in unknown.items())
        return (
            f"operators that are not ONNX's own: {where}. TensorRT must know them or have "
            'their plugin (--plugins)',
        )
    try:
        onnx.checker.check_model(source.model)
    except onnx.checker.ValidationError as error:
        raise EngineError(
            str(name), f'breaks the rules of ONNX: {to_one_line(error)}', fix='export it again'
        ) from error
    return ()


def _set_apart(model: onnx.ModelProto) -> None:
    for node in _unknown_nodes(model):
        if node.domain in _OWN:
            node.domain = _PLUGINS
    if all(entry.domain != _PLUGINS for entry in model.opset_import):
        model.opset_import.add(domain=_PLUGINS, version=1)
