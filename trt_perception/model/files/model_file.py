"""Opening an engine or ONNX file once, safely, with the manifest next to it.

Guarantees: the bytes returned are the bytes that were checked; they come from a regular file
(after links are resolved) that root or this user owns and that not everybody may write; where a
manifest stands next to it, size and SHA-256 are its. Non-guarantee: whoever may write the file may
write its manifest too; neither is signed.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trt_perception.errors import EngineError, ManifestError
from trt_perception.files.checked_files import (
    MODEL_MAX_BYTES,
    open_checked,
    read_checked,
    read_exactly,
)
from trt_perception.files.json_section import is_nested_deeper, parse_json
from trt_perception.model.manifest import (
    MANIFEST_MAX_BYTES,
    Manifest,
    manifest_path,
    parse_manifest,
    rebuild_command,
)

__all__ = [
    *('ENGINE_SUFFIXES', 'ONNX_SUFFIX'),
    *('ModelFile', 'is_onnx', 'read_model_file'),
]

_LOG: Final = logging.getLogger(__name__)
ONNX_SUFFIX: Final = '.onnx'
ENGINE_SUFFIXES: Final = ('.engine', '.plan', '.trt')
#: What a plan starts with: TensorRT's, TensorRT-RTX's.
_PLAN_MAGICS: Final = (b'ftrt', b'vtrt')
# Of a config.json: others write it out again, and go as deep as it does.
_MAX_CONFIG_DEPTH: Final = 32


@dataclass(frozen=True)
class ModelFile:
    """A model's bytes and what is known of them.

    Attributes:
        path: the file as it was named.
        content: its bytes.
        sha256: of those bytes, lower-case hex.
        manifest: the manifest next to it, None where there is none.
        config: content of a Hugging Face config.json next to a model without manifest, with that
            of preprocessor_config.json under that key; None where there is none.
        metadata: what Ultralytics' exporter writes before an engine's plan, texts by key; ONNX
            files hold theirs inside. ``content`` is the plan alone.
    """

    path: Path
    content: bytes
    sha256: str
    manifest: Manifest | None
    config: Mapping[str, Any] | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_onnx(self) -> bool:
        """Whether the suffix says ONNX; otherwise it is a TensorRT engine."""
        return is_onnx(self.path)


def is_onnx(path: str | Path) -> bool:
    """Return whether a file's name says that it is ONNX, which ONNX Runtime runs."""
    return Path(path).suffix == ONNX_SUFFIX


def read_model_file(path: str | Path) -> ModelFile:
    """Read an engine or ONNX file and its manifest, and check one against the other.

    Raises:
        EngineError: the file is missing, unreadable, of unknown kind, or open to others.
        ManifestError: the manifest is malformed or speaks of other bytes.
    """
    if not str(path):
        raise EngineError('model', "''", expected='the path of an engine or ONNX file')
    try:
        model_path = Path(path).expanduser()
    except RuntimeError as error:
        raise EngineError(str(path), str(error)) from error
    known = (ONNX_SUFFIX, *ENGINE_SUFFIXES)
    if model_path.suffix not in known:
        expected = f'a suffix that says what the file is, one of {", ".join(known)}'
        raise EngineError(str(model_path), repr(model_path.suffix), expected=expected)
    file, size, resolved = open_checked(model_path, MODEL_MAX_BYTES)
    with file:
        # Next to the path that was given, else next to the file that it links to. A link that
        # leads nowhere stands there too, and is refused below.
        places = manifest_path(model_path), manifest_path(resolved)
        place = next((place for place in places if os.path.lexists(place)), None)
        manifest = config = None
        if place is not None:
            manifest = parse_manifest(read_checked(place, MANIFEST_MAX_BYTES)[0], str(place))
            # Before gigabytes are read that nobody vouches for.
            _check_identity(manifest, place, model_path, size)
        content = read_exactly(file, size, model_path)
    digest = hashlib.sha256(content).hexdigest()
    if manifest is not None and place is not None:
        _check_identity(manifest, place, model_path, size, digest)
    else:
        config = _read_huggingface_config(model_path, resolved)
    content, metadata = _split_metadata_from_plan(content)
    return ModelFile(model_path, content, digest, manifest, config, metadata)


def _check_identity(
    manifest: Manifest, place: Path, path: Path, size: int, digest: str = ''
) -> None:
    """Hold size and, once it is known, SHA-256 of a file to its manifest."""
    kind = 'onnx' if path.suffix == ONNX_SUFFIX else 'engine'
    identity = manifest.onnx if kind == 'onnx' else manifest.engine
    if identity is None:
        raise ManifestError(str(place), f'has no "{kind}" entry for {path.name}')
    if identity.size_bytes == size and digest in ('', identity.sha256):
        return
    again = rebuild_command(manifest, path)
    raise ManifestError(
        f'{path} is not the file that {place.name} describes',
        f'{size} bytes, {digest[:16]}…' if digest else f'{size} bytes',
        expected=f'{identity.size_bytes} bytes with SHA-256 {identity.sha256[:16]}…',
        fix=f'copy model and manifest together, or make both again: {again}',
    )


def _split_metadata_from_plan(content: bytes) -> tuple[bytes, dict[str, str]]:
    """Return the plan, and the metadata that Ultralytics' exporter writes in front of it.

    Four bytes hold the length, lowest first, of a JSON object; the plan follows. Whatever looks
    otherwise is left as it is.
    """
    end = 4 + int.from_bytes(content[:4], 'little')
    # No ONNX file holds a plan.
    if not 4 < end <= MANIFEST_MAX_BYTES or content[end : end + 4] not in _PLAN_MAGICS:
        return content, {}
    try:
        metadata = parse_json(content[4:end])
        if not isinstance(metadata, dict):
            return content, {}
        # As its ONNX files say it: every value as a Python literal, texts as they are.
        return content[end:], {
            key: value if isinstance(value, str) else repr(value)
            for key, value in metadata.items()
        }
    except (ValueError, RecursionError):
        return content, {}


def _read_huggingface_config(model_path: Path, resolved: Path) -> dict[str, Any] | None:
    """Return what Hugging Face's files next to the model say, or in its parent of ``onnx/``."""
    folders = [model_path.parent, resolved.parent]
    folders += [folder.parent for folder in folders if folder.name == 'onnx']
    for folder in dict.fromkeys(folders):
        config = _read_json_object(folder / 'config.json')
        # Other programs call their files so too.
        if config is not None and ('id2label' in config or 'model_type' in config):
            processor = _read_json_object(folder / 'preprocessor_config.json')
            return {**config, 'preprocessor_config': processor or {}}
    return None


def _read_json_object(path: Path) -> dict[str, Any] | None:
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
