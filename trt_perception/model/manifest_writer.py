"""Writing a manifest, so that reading it gives the same again; and the command it came from."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trt_perception.files.atomic_files import write_together
from trt_perception.model.manifest import SCHEMA
from trt_perception.model.manifest import Manifest

__all__ = ['manifest_text', 'rebuild_command', 'write_manifest']


def manifest_text(manifest: Manifest) -> bytes:
    """Return the JSON file that parse_manifest reads as this manifest, with all keys."""
    content: dict[str, Any] = {
        'schema': SCHEMA,
        'onnx': manifest.onnx and asdict(manifest.onnx),
        'engine': manifest.engine and asdict(manifest.engine),
        'inputs': [asdict(tensor) for tensor in manifest.inputs],
        'outputs': [asdict(tensor) for tensor in manifest.outputs],
        'preprocessing': asdict(manifest.preprocessing),
        'decoder': manifest.decoder.as_dict(),
        'class_names': list(manifest.class_names),
        'notes': dict(manifest.notes),
        'build': manifest.build and manifest.build.as_dict(),
    }
    return (json.dumps(content, indent=2) + '\n').encode()


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write a manifest file, whole or not at all.

    Raises:
        WriteError: it cannot be written.
    """
    write_together({path: manifest_text(manifest)})


def rebuild_command(manifest: Manifest | None, engine: Path) -> str:
    """Return the command that makes an engine again, as it was made if the manifest tells.

    The ONNX file is looked for beside the engine; where it is not, it is named as it was then.
    For an ONNX file it says what to do instead.
    """
    if engine.suffix == '.onnx':
        return 'for an ONNX file docs/manifest.md says how'
    words = ['ros2', 'run', 'trt_perception', 'build_engine', '--onnx']
    options = dict(manifest.build.options) if manifest and manifest.build else {}
    asked = str(options.pop('onnx', ''))
    name = manifest.onnx.file if manifest and manifest.onnx else engine.stem + '.onnx'
    beside = engine.with_name(name)
    words += [str(beside) if beside.is_file() or not asked else asked, '--output', str(engine)]
    for option, value in options.items():
        flag = option.replace('_', '-')
        if isinstance(value, bool):
            words.append(f'--{flag}' if value else f'--no-{flag}')
        elif value != ():
            values = value if isinstance(value, tuple) else (value,)
            words += [f'--{flag}', *(str(item) for item in values)]
    return shlex.join(words)
