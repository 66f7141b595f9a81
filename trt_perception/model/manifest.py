"""The manifest: how to feed a model and how to read it, in a JSON file next to it.

A manifest also says by which command build_engine made an engine.

Page: docs/manifest.md.

Guarantees: a Manifest that exists is complete and consistent in itself; a key that this reader
does not know is an error, so nothing in a file is ever ignored; what is written is read as the
same. Non-guarantee: a manifest is not signed. It proves that a file was not changed by accident,
not that nobody replaced both.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from trt_perception.errors import ManifestError
from trt_perception.files.json_records import (
    integer_reader,
    mapping_reader,
    optional_reader,
    read_record,
    to_json,
)
from trt_perception.files.json_section import JsonSection, read_json
from trt_perception.files.plain_text import MAX_PATH_LENGTH, Fault, name_fault, names_fault
from trt_perception.model.build_record import BuildRecord
from trt_perception.model.decoder import Decoder
from trt_perception.model.decoders.table import families_for_task, read_decoder
from trt_perception.model.preprocessing import Preprocessing, pixels_fault
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.table import TASK_KEYS, TASKS, read_task, write_task
from trt_perception.model.tasks.task import Task
from trt_perception.model.tensors import TensorSpec

__all__ = [
    *('MANIFEST_MAX_BYTES', 'FileIdentity', 'Manifest', 'manifest_path', 'serialise_manifest'),
    *('parse_manifest', 'rebuild_command'),
]

_SCHEMA: Final = 2
#: Keys that schema 1, of detectors of boxes alone, does not have.
_KEYS_SINCE_SCHEMA_2: Final = ('task', *TASK_KEYS)
MANIFEST_MAX_BYTES: Final = 4 * 1024 * 1024


def _read_file_name(section: JsonSection, key: str) -> str:
    name = section.text(key)
    if Path(name).name != name or name in ('', '.', '..'):
        raise section.refusal(key, name, 'a bare file name')
    return name


def _read_sha256(section: JsonSection, key: str) -> str:
    digest = section.text(key)
    if not re.fullmatch('[0-9a-f]{64}', digest):
        raise section.refusal(key, digest, '64 lower-case hex digits')
    return digest


@dataclass(frozen=True)
class FileIdentity:
    """Which file a manifest speaks of: its name, SHA-256 (lower-case hex) and size in bytes."""

    file: Annotated[str, _read_file_name]
    sha256: Annotated[str, _read_sha256]
    size_bytes: Annotated[int, integer_reader(1)]


def _read_preprocessing(section: JsonSection, key: str) -> Preprocessing:
    found = read_record(Preprocessing, section.section(key))
    return section.check_value(key, found, pixels_fault)


def _read_class_names(section: JsonSection, key: str) -> tuple[str, ...]:
    return section.check_value(key, tuple(section.items(key)), _class_names_fault)


def _class_names_fault(names: Sequence[object]) -> Fault | None:
    return names_fault(names) if names else Fault(found='none', expected='at least one name')


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A whole manifest; ``build`` is None for a model that build_engine did not make."""

    task: Annotated[Task, read_task, write_task] = DETECT
    onnx: FileIdentity | None
    engine: FileIdentity | None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    preprocessing: Annotated[Preprocessing, _read_preprocessing]
    decoder: Annotated[Decoder, read_decoder, Decoder.as_dict]
    class_names: Annotated[tuple[str, ...], _read_class_names]
    notes: Annotated[
        Mapping[str, str], optional_reader(mapping_reader(JsonSection.text), missing={})
    ]
    build: BuildRecord | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the content of the JSON file, but for the schema."""
        content = to_json(self)
        return {**content.pop('task'), **content}


def manifest_path(model: Path) -> Path:
    """Return where a model's manifest is: ``digits.onnx`` has ``digits.onnx.json``."""
    return model.with_name(model.name + '.json')


def serialise_manifest(manifest: Manifest) -> bytes:
    """Return the JSON file that parse_manifest reads as this manifest, with all keys."""
    content = {'schema': _SCHEMA, **manifest.as_dict()}
    return (json.dumps(content, indent=2) + '\n').encode()


def parse_manifest(text: bytes, origin: str) -> Manifest:
    """Read a manifest.

    Args:
        text: the JSON file's bytes.
        origin: its name, for messages.

    Raises:
        ManifestError: it is not JSON, a key is missing, unknown or of the wrong type, or a value
            is out of range.
    """
    if len(text) > MANIFEST_MAX_BYTES:
        raise ManifestError(
            origin, f'{len(text)}', expected=f'a manifest of at most {MANIFEST_MAX_BYTES} bytes'
        )
    top = read_json(text, origin)
    schema = top.integer('schema')
    if schema not in (1, _SCHEMA):
        fix = 'rebuild the model with this version'
        raise ManifestError(origin, str(schema), expected=f'schema 1 or {_SCHEMA}', fix=fix)
    if schema == 1 and (
        early := [key for key in _KEYS_SINCE_SCHEMA_2 if key in top.unread_keys()]
    ):
        raise ManifestError(
            origin,
            f'"{early[0]}" in schema 1',
            expected=f'it in schema {_SCHEMA} only',
            fix=f'write "schema": {_SCHEMA}',
        )
    if schema == _SCHEMA and not top.has('task'):
        raise ManifestError(origin, "'task' is missing", fix=f'add one of {", ".join(TASKS)}')
    for name in filter(
        None, top.unread_texts(except_key='notes')
    ):  # only these may have several lines
        if fault := name_fault(name, MAX_PATH_LENGTH):
            raise ManifestError(f'{origin}: a text outside "notes"', **fault)
    manifest = read_record(Manifest, top)
    _check_task(manifest, origin)
    if manifest.onnx is None and manifest.engine is None:
        raise ManifestError(
            origin, 'neither', expected='one of "onnx" and "engine" to identify the file'
        )
    if not manifest.inputs or not manifest.outputs:
        raise ManifestError(
            origin, 'none', expected='at least one tensor in each of "inputs" and "outputs"'
        )
    return manifest


def _check_task(manifest: Manifest, origin: str) -> None:
    """Check that the manifest's keys of the task and the decoder's family fit the task."""
    task, family = manifest.task, manifest.decoder.family
    if fault := task.manifest_fault(
        family, has_own_outputs=task.name in manifest.decoder.tasks_with_own_outputs
    ):
        raise ManifestError(origin, **fault)
    families = families_for_task(task.name)
    if task != DETECT and family not in families:
        raise ManifestError(
            f"{origin}: decoder: 'family'",
            f'"{family}"',
            expected=f'one of {", ".join(families)} with task "{task.name}"',
        )


def rebuild_command(manifest: Manifest | None, engine: Path) -> str:
    """Return the command that makes an engine again, as it was made if the manifest tells.

    The ONNX file is looked for next to the engine; where it is not, it is named as it was then.
    For an ONNX file it says what to do instead.
    """
    if engine.suffix == '.onnx':
        return 'for an ONNX file docs/manifest.md says how'
    words = ['ros2', 'run', 'trt_perception', 'build_engine', '--onnx']
    options = dict(manifest.build.options) if manifest and manifest.build else {}
    asked = str(options.pop('onnx', ''))
    name = manifest.onnx.file if manifest and manifest.onnx else engine.stem + '.onnx'
    near = engine.with_name(name)
    words += [str(near) if near.is_file() or not asked else asked, '--output', str(engine)]
    for option, value in options.items():
        flag = option.replace('_', '-')
        if isinstance(value, bool):
            words.append(f'--{flag}' if value else f'--no-{flag}')
        elif value != ():
            values = value if isinstance(value, tuple) else (value,)
            words += [f'--{flag}', *(str(item) for item in values)]
    return shlex.join(words)
