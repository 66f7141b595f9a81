# SPDX-License-Identifier: Apache-2.0
"""Reads and checks an engine or ONNX file together with the manifest next to it.

Guarantees: the returned bytes are the checked bytes, because the file is opened once. They come
from a regular file (after links are resolved) that root or this user owns and that other users
cannot write. If the file has a manifest, size and SHA-256 match the manifest. Limitation: a
user who can write the file can also write its manifest. Neither file is signed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trt_perception.errors import EngineError, ManifestError
from trt_perception.files.checked_files import (
    MODEL_MAX_BYTES,
    ONNX_MAX_BYTES,
    open_checked,
    read_checked,
    read_exactly,
)
from trt_perception.files.json_section import is_nested_deeper, parse_json
from trt_perception.model.build_record import FileIdentity
from trt_perception.model.files.other_formats import check_file_format
from trt_perception.model.files.triton_address import (
    TritonAddress,
    is_triton_address,
    parse_triton_address,
)
from trt_perception.model.manifest import (
    MANIFEST_MAX_BYTES,
    Manifest,
    manifest_path,
    parse_manifest,
    rebuild_command,
)

_LOG: Final = logging.getLogger(__name__)
ONNX_SUFFIX: Final = '.onnx'
ENGINE_SUFFIXES: Final = ('.engine', '.plan', '.trt')
# The start of an address with another scheme, or with a scheme in capitals. A path may have been
# through pathlib, which writes // as /.
_URL: Final = re.compile(r'[A-Za-z][A-Za-z0-9+.-]+:/')
# Suffixes of PyTorch's files.
_PYTORCH_SUFFIXES: Final = ('.pt', '.pth')
#: The first bytes of a TensorRT plan and of a TensorRT-RTX plan.
_PLAN_MAGICS: Final = (b'ftrt', b'vtrt')
# A config.json with deeper nesting is ignored, because later code recurses to write the content.
_MAX_CONFIG_DEPTH: Final = 32
# A config.json of transformers or timm has all keys of one of these sets.
_CONFIG_KEYS: Final = (
    {'id2label'},
    {'model_type'},
    {'architecture', 'pretrained_cfg'},
    {'architecture', 'input_size'},
)


@dataclass(frozen=True)
class ModelFile:
    """The content of a model file, with its manifest or other descriptions.

    Attributes:
        path: path of the file, with links unresolved.
        content: content of the file. For an engine, only the plan.
        sha256: SHA-256 of the whole file, lower-case hex.
        manifest: the manifest next to the file; None if the model has no manifest.
        config: content of the config.json that transformers or timm wrote, next to a model without
            manifest. The key ``preprocessor_config`` has the content of preprocessor_config.json.
            None if the file is missing.
        metadata: maps keys to texts, which the exporter of Ultralytics writes before an engine's
            plan. Empty for ONNX files, because their metadata are part of the content.
        address: address of a model on a Triton server, which has no content; None for a file.
    """

    path: Path
    content: bytes
    sha256: str
    manifest: Manifest | None
    config: Mapping[str, Any] | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    address: TritonAddress | None = None

    @property
    def identity(self) -> FileIdentity:
        """Name, SHA-256 and size of the file, as manifests record them."""
        return FileIdentity(self.path.name, self.sha256, len(self.content))

    @property
    def is_onnx(self) -> bool:
        """Whether the suffix is ``.onnx``. Other files are TensorRT engines."""
        return is_onnx(self.path)


def is_onnx(path: str | Path) -> bool:
    """Return whether a file name has the suffix of ONNX files, which ONNX Runtime runs."""
    return Path(path).suffix == ONNX_SUFFIX


def read_model_file(path: str | Path, *, accepts_server: bool = False) -> ModelFile:
    """Read an engine or ONNX file and its manifest, and compare them.

    Args:
        path: path of the file.
        accepts_server: whether the path may be the address of a model on a Triton server.

    Raises:
        ConfigError: the address of a server is malformed.
        EngineError: the file is missing, unreadable or writable for other users, has an unknown
            suffix, or starts like a file of another format.
        ManifestError: the manifest is malformed, or describes another file.
    """
    if not str(path):
        raise EngineError('model', "''", expected='the path of an engine or ONNX file')
    if is_triton_address(path):
        address = parse_triton_address(path)
        if not accepts_server:
            raise EngineError(str(address), 'a model on a server', expected='a model file')
        return ModelFile(Path(path), b'', '', None, address=address)
    if accepts_server and _URL.match(str(path)) and not os.path.lexists(path):
        parse_triton_address(path)  # raises an error that states the right form
    try:
        model_path = Path(path).expanduser()
    except RuntimeError as error:
        raise EngineError(str(path), str(error)) from error
    suffixes = (ONNX_SUFFIX, *ENGINE_SUFFIXES)
    if model_path.suffix not in suffixes:
        expected = f'one of the suffixes {", ".join(suffixes)}'
        fix = (
            'export it to ONNX: docs/own_model.md'
            if model_path.suffix in _PYTORCH_SUFFIXES
            else ''
        )
        raise EngineError(str(model_path), repr(model_path.suffix), expected=expected, fix=fix)
    limit = ONNX_MAX_BYTES if is_onnx(model_path) else MODEL_MAX_BYTES
    file, size, resolved = open_checked(model_path, limit)
    with file:
        # Look next to the given path first, then next to the file behind a link. A broken link
        # counts as a manifest, and read_checked refuses it.
        manifest_files = manifest_path(model_path), manifest_path(resolved)
        manifest_file = next(
            (manifest_file for manifest_file in manifest_files if os.path.lexists(manifest_file)),
            None,
        )
        manifest = config = None
        if manifest_file is not None:
            manifest = parse_manifest(
                read_checked(manifest_file, MANIFEST_MAX_BYTES)[0], str(manifest_file)
            )
            # Compare the size before reading gigabytes of a wrong file.
            _check_identity(manifest, manifest_file, model_path, size)
        content = read_exactly(file, size, model_path)
    check_file_format(str(model_path), content, is_onnx=is_onnx(model_path))
    digest = hashlib.sha256(content).hexdigest()
    if manifest is not None and manifest_file is not None:
        _check_identity(manifest, manifest_file, model_path, size, digest)
    else:
        config = _read_huggingface_config(model_path, resolved)
    content, metadata = _split_metadata_from_plan(content)
    return ModelFile(model_path, content, digest, manifest, config, metadata)


def _check_identity(
    manifest: Manifest, manifest_file: Path, path: Path, size: int, digest: str = ''
) -> None:
    """Compare a file with its manifest: the size, and the SHA-256 unless ``digest`` is empty."""
    kind = 'onnx' if path.suffix == ONNX_SUFFIX else 'engine'
    identity = manifest.onnx if kind == 'onnx' else manifest.engine
    if identity is None:
        raise ManifestError(str(manifest_file), f'no "{kind}" entry for {path.name}')
    if identity.size_bytes == size and digest in ('', identity.sha256):
        return
    command = rebuild_command(manifest, path)
    raise ManifestError(
        f'{path} is not the file that {manifest_file.name} describes',
        f'{size} bytes, {digest[:16]}…' if digest else f'{size} bytes',
        expected=f'{identity.size_bytes} bytes with SHA-256 {identity.sha256[:16]}…',
        fix=f'copy model and manifest together, or build both again: {command}',
    )


def _split_metadata_from_plan(content: bytes) -> tuple[bytes, dict[str, str]]:
    """Return the plan, and the metadata that the exporter of Ultralytics writes before the plan.

    The file starts with the length of a JSON object, as a little-endian number of four bytes. The
    object and the plan follow. A file with another form is returned unchanged.
    """
    end = 4 + int.from_bytes(content[:4], 'little')
    # An ONNX file never has a plan at this position.
    if not 4 < end <= MANIFEST_MAX_BYTES or content[end : end + 4] not in _PLAN_MAGICS:
        return content, {}
    try:
        metadata = parse_json(content[4:end])
        if not isinstance(metadata, dict):
            return content, {}
        # The metadata of ONNX files have the same form: Python literals, and texts without quotes.
        return content[end:], {
            key: value if isinstance(value, str) else repr(value)
            for key, value in metadata.items()
        }
    except (ValueError, RecursionError):
        return content, {}


def _read_huggingface_config(model_path: Path, resolved: Path) -> dict[str, Any] | None:
    """Return the Hugging Face files next to the model, or in the parent of its folder ``onnx``."""
    folders = [model_path.parent, resolved.parent]
    folders += [folder.parent for folder in folders if folder.name == 'onnx']
    for folder in dict.fromkeys(folders):
        config = _read_optional_json_object(folder / 'config.json')
        # Other programs also write files of this name, without these keys.
        if config is not None and any(keys <= config.keys() for keys in _CONFIG_KEYS):
            processor = _read_optional_json_object(folder / 'preprocessor_config.json')
            return {**config, 'preprocessor_config': processor or {}}
    return None


def _read_optional_json_object(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if missing, damaged, or not an object."""
    if not os.path.lexists(path):
        return None
    try:
        content = parse_json(read_checked(path, MANIFEST_MAX_BYTES)[0])
        if is_nested_deeper(content, _MAX_CONFIG_DEPTH):
            raise ValueError('lists or objects are nested too deep')
    except ValueError as error:
        _LOG.warning('%s is not read: not JSON: %s', path, error)
        return None
    return content if isinstance(content, dict) else None
