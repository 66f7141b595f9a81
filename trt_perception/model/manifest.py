# SPDX-License-Identifier: Apache-2.0
"""The manifest: a JSON file next to a model that describes its inputs and outputs.

The manifest of an engine also holds the options of build_engine.

Page: docs/manifest.md.

Guarantees: a Manifest object is complete and consistent. Unknown keys are errors, so the reader
ignores nothing. A manifest that was written reads back as an equal object. Limitation: a
manifest is not signed. Its hash detects accidental changes of the model. Somebody who replaces
both files stays undetected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from trt_perception.errors import ManifestError
from trt_perception.files.json_records import (
    mapping_reader,
    optional_reader,
    read_record,
    to_json,
)
from trt_perception.files.json_section import JsonSection, read_json
from trt_perception.files.plain_text import MAX_PATH_LENGTH, Mistake, name_mistake, names_mistake
from trt_perception.model.build_record import BuildRecord, FileIdentity
from trt_perception.model.decoder import Decoder
from trt_perception.model.decoders.table import families_for_task, read_decoder
from trt_perception.model.preprocessing import Preprocessing, uint8_input_mistake
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.table import TASK_KEYS, TASKS, read_task, write_task
from trt_perception.model.tasks.task import Task
from trt_perception.model.tensors import TensorSpec
from trt_perception.process.tool_command import tool_command

_SCHEMA_VERSION: Final = 2
#: Keys that schema 1 lacks. Schema 1 supports only detectors of boxes.
_KEYS_SINCE_SCHEMA_2: Final = ('task', *TASK_KEYS)
_REQUIRED_KEYS: Final = ('schema', 'inputs', 'outputs', 'preprocessing', 'decoder', 'class_names')
MANIFEST_MAX_BYTES: Final = 4 * 1024 * 1024


def _read_preprocessing(section: JsonSection, key: str) -> Preprocessing:
    found = read_record(Preprocessing, section.section(key))
    return section.check_value(key, found, uint8_input_mistake)


def _read_class_names(section: JsonSection, key: str) -> tuple[str, ...]:
    return section.check_value(key, tuple(section.items(key)), _class_names_mistake)


def _class_names_mistake(names: Sequence[object]) -> Mistake | None:
    return names_mistake(names) if names else None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of a manifest.

    Attributes:
        task: the model's task, such as ``detect`` or ``pose``.
        onnx: the ONNX file; None if unknown.
        engine: the engine file; None for the manifest of an ONNX file.
        inputs: all inputs, with -1 for a dynamic dimension.
        outputs: all outputs, with -1 for a dynamic dimension.
        preprocessing: how pixels become the input.
        class_names: names of the classes, in the order of the network's outputs.
        build: None if build_engine did not build the model.
    """

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
        """Return the content of the JSON file, without the schema."""
        content = to_json(self)
        return {**content.pop('task'), **content}


def manifest_path(model: Path) -> Path:
    """Return the path of a model's manifest: ``digits.onnx.json`` for ``digits.onnx``."""
    return Path(f'{model}.json')  # `with_name` refuses paths without a name, such as /


def serialise_manifest(manifest: Manifest) -> bytes:
    """Return the JSON file of a manifest, with all keys. ``parse_manifest`` is the inverse."""
    content = {'schema': _SCHEMA_VERSION, **manifest.as_dict()}
    return (json.dumps(content, indent=2) + '\n').encode()


def parse_manifest(text: bytes, origin: str) -> Manifest:
    """Read and check a manifest.

    Raises:
        ManifestError: the text is not JSON or too long, a key is missing, unknown or of the wrong
            type, or a value is out of range.
    """
    if len(text) > MANIFEST_MAX_BYTES:
        raise ManifestError(
            origin, f'{len(text)}', expected=f'a manifest of at most {MANIFEST_MAX_BYTES} bytes'
        )
    top = read_json(text, origin)
    # Only a file with all keys of a manifest is quoted in errors. Another file may hold secrets.
    if missing := [key for key in _REQUIRED_KEYS if key not in top.unread_keys()]:
        raise ManifestError(
            origin,
            f'no {missing[0]!r}',
            expected=f'a manifest with the keys {", ".join(_REQUIRED_KEYS)}',
            fix='see docs/manifest.md',
        )
    schema = top.integer('schema')
    if schema not in (1, _SCHEMA_VERSION):
        fix = 'rebuild the model with this version'
        raise ManifestError(
            origin, str(schema), expected=f'schema 1 or {_SCHEMA_VERSION}', fix=fix
        )
    if schema == 1 and (
        too_new := [key for key in _KEYS_SINCE_SCHEMA_2 if key in top.unread_keys()]
    ):
        raise ManifestError(
            origin,
            f'"{too_new[0]}" in schema 1',
            expected=f'this key only in schema {_SCHEMA_VERSION}',
            fix=f'write "schema": {_SCHEMA_VERSION}',
        )
    if schema == _SCHEMA_VERSION and not top.has('task'):
        raise ManifestError(origin, "'task' is missing", fix=f'add one of {", ".join(TASKS)}')
    # Only notes may have several lines.
    for name in filter(None, top.unread_texts(except_key='notes')):
        if mistake := name_mistake(name, MAX_PATH_LENGTH):
            raise ManifestError(f'{origin}: a text outside "notes"', **mistake)
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
    """Check that the per-object keys and the decoder's family fit the task."""
    task, family = manifest.task, manifest.decoder.family
    if mistake := task.manifest_mistake(
        family, has_own_outputs=task.name in manifest.decoder.tasks_with_own_outputs
    ):
        raise ManifestError(origin, **mistake)
    if task.has_classes and not manifest.class_names:
        raise ManifestError(
            f"{origin}: 'class_names'",
            'none',
            expected=f'at least one name with task "{task.name}"',
        )
    families = families_for_task(task)
    if task != DETECT and family not in families:
        raise ManifestError(
            f"{origin}: decoder: 'family'",
            f'"{family}"',
            expected=f'one of {", ".join(families)} with task "{task.name}"',
        )


def rebuild_command(manifest: Manifest | None, engine: Path) -> str:
    """Return the command that builds an engine again, with the options of the manifest.

    The command names the ONNX file next to the engine. If this file is missing, the command has
    the path of the first build. For an ONNX file, the result is a sentence that names the docs.

    Args:
        manifest: manifest of the engine; None if unknown.
    """
    if engine.suffix == '.onnx':
        return 'see docs/manifest.md for the manifest of an ONNX file'
    options = dict(manifest.build.options) if manifest and manifest.build else {}
    first_path = str(options.pop('onnx', ''))
    options.pop('refit', None)  # earlier versions had this option
    name = manifest.onnx.file if manifest and manifest.onnx else engine.stem + '.onnx'
    sibling = engine.with_name(name)
    words = [
        str(sibling) if sibling.is_file() or not first_path else first_path,
        '--output',
        str(engine),
    ]
    for option, value in options.items():
        flag = option.replace('_', '-')
        if isinstance(value, bool):
            words.append(f'--{flag}' if value else f'--no-{flag}')
        elif value != ():
            values = value if isinstance(value, tuple) else (value,)
            words += [f'--{flag}', *(str(item) for item in values)]
    return tool_command('build_engine', *words)
