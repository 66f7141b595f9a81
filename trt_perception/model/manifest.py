"""The manifest: how to feed a model and how to read it, in a JSON file beside it.

Page: docs/manifest.md.

Guarantees: a Manifest that exists is complete and consistent in itself; a key that this reader
    does not know is an error, so
nothing in a file is ever ignored. Non-guarantee: a manifest is not signed. It proves that a file
was not changed by accident, not that nobody replaced both.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from typing import Final
from typing import cast

from trt_perception.errors import ManifestError
from trt_perception.files.json_section import JsonSection
from trt_perception.files.json_section import read_json
from trt_perception.images.letterbox import ResizeMode
from trt_perception.model.build_record import BuildRecord
from trt_perception.model.build_record import read_build_record
from trt_perception.model.decoder_spec import ACTIVATIONS
from trt_perception.model.decoder_spec import BOX_FORMATS
from trt_perception.model.decoder_spec import DECODERS
from trt_perception.model.decoder_spec import FAMILIES
from trt_perception.model.decoder_spec import DecoderSpec
from trt_perception.model.preprocessing import COLOR_ORDERS
from trt_perception.model.preprocessing import LAYOUTS
from trt_perception.model.preprocessing import RESIZE_MODES
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.preprocessing import size_fault
from trt_perception.model.tensors import INPUT_DTYPES
from trt_perception.model.tensors import TENSOR_DTYPES
from trt_perception.model.tensors import TensorSpec
from trt_perception.plain_text import MAX_PATH_LENGTH
from trt_perception.plain_text import name_fault
from trt_perception.plain_text import names_fault
from trt_perception.plain_text import shown

__all__ = [
    'DECODERS',
    'MAX_BYTES',
    'SCHEMA',
    'DecoderSpec',
    'FileIdentity',
    'Manifest',
    'manifest_path',
    'number_fault',
    'parse_manifest',
]

SCHEMA: Final = 1
MAX_BYTES: Final = 4 * 1024 * 1024
_NUMBERS: Final = {'scale': (1e-6, 1e3), 'mean': (-1e6, 1e6), 'std': (1e-6, 1e6)}


@dataclass(frozen=True)
class FileIdentity:
    """Which file a manifest speaks of: its name, SHA-256 (lower-case hex) and size in bytes."""

    file: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Manifest:
    """A whole manifest, schema 1; ``build`` is None for a model that build_engine did not make."""

    onnx: FileIdentity | None
    engine: FileIdentity | None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    preprocessing: Preprocessing
    decoder: DecoderSpec
    class_names: tuple[str, ...]
    notes: Mapping[str, str]
    build: BuildRecord | None = None


def number_fault(key: str, values: Sequence[float]) -> str:
    """Return what is wrong with ``scale``, ``mean`` or ``std``, as in 'must be …'; '' for nothing.

    Within these ranges every factor and every input value is one that float32 holds.
    """
    low, high = _NUMBERS[key]
    for value in values:
        if not low <= value <= high:  # also refuses NaN
            return f'must be from {low:g} to {high:g} (got {shown(value)})'
    return ''


def manifest_path(model: Path) -> Path:
    """Return where a model's manifest stands: ``digits.onnx`` has ``digits.onnx.json``."""
    return model.with_name(model.name + '.json')


def parse_manifest(text: bytes, origin: str) -> Manifest:
    """Read a manifest.

    Args:
        text: the JSON file's bytes.
        origin: its name, for messages.

    Raises:
        ManifestError: it is not JSON, a key is missing, unknown or of the wrong type, or a value
            is out of range.
    """
    if len(text) > MAX_BYTES:
        raise ManifestError(
            origin, f'{len(text)}', expected=f'a manifest of at most {MAX_BYTES} bytes'
        )
    top = read_json(text, origin)
    schema = top.integer('schema')
    if schema != SCHEMA:
        raise ManifestError(
            origin,
            str(schema),
            expected=f'schema {SCHEMA}',
            fix='rebuild the model with this version',
        )
    notes = _notes(top.section('notes', optional=True))  # only these may have several lines
    for name in filter(None, top.texts()):
        if fault := name_fault(name, MAX_PATH_LENGTH):
            raise ManifestError(origin, f'every text but "notes" {fault}')
    build = top.section('build', optional=True)
    manifest = Manifest(
        onnx=_identity(top.section('onnx', optional=True)),
        engine=_identity(top.section('engine', optional=True)),
        inputs=tuple(_tensor(item) for item in top.sections('inputs')),
        outputs=tuple(_tensor(item) for item in top.sections('outputs')),
        preprocessing=_preprocessing(top.required_section('preprocessing')),
        decoder=_decoder(top.required_section('decoder')),
        class_names=_class_names(top),
        notes=notes,
        build=None if build is None else read_build_record(build),
    )
    top.finish()
    if manifest.onnx is None and manifest.engine is None:
        raise ManifestError(
            origin, 'neither', expected='one of "onnx" and "engine" to identify the file'
        )
    if not manifest.inputs or not manifest.outputs:
        raise ManifestError(
            origin, 'none', expected='at least one tensor in each of "inputs" and "outputs"'
        )
    return manifest


def _identity(section: JsonSection | None) -> FileIdentity | None:
    if section is None:
        return None
    identity = FileIdentity(
        section.text('file'), section.text('sha256'), section.integer('size_bytes', 1)
    )
    section.finish()
    if Path(identity.file).name != identity.file or identity.file in ('', '.', '..'):
        raise section.refusal('file', identity.file, 'a bare file name')
    if len(identity.sha256) != 64 or set(identity.sha256) - set('0123456789abcdef'):
        raise section.refusal('sha256', identity.sha256, '64 lower-case hex digits')
    return identity


def _tensor(section: JsonSection) -> TensorSpec:
    shape = section.items('shape')
    if not all(
        isinstance(side, int) and not isinstance(side, bool) and side >= -1 for side in shape
    ):
        raise section.refusal('shape', shape, 'a list of whole numbers, -1 where it may vary')
    tensor = TensorSpec(section.text('name'), tuple(shape), section.text('dtype', TENSOR_DTYPES))
    section.finish()
    return tensor


def _preprocessing(section: JsonSection) -> Preprocessing:
    def numbers(key: str, count: int) -> list[float]:
        values = section.items(key)
        if len(values) != count:
            raise section.refusal(key, values, f'{count} numbers')
        return [section.finite(value, key) for value in values]

    size = numbers('input_size', 2)
    if fault := size_fault(size):
        raise ManifestError(f'{section.where}: "input_size"', fault)
    std = numbers('std', 3)
    mean = numbers('mean', 3)
    scale = section.number('scale')
    for key, values in (('scale', [scale]), ('mean', mean), ('std', std)):
        if fault := number_fault(key, values):
            raise ManifestError(f'{section.where}: "{key}"', fault)
    preprocessing = Preprocessing(
        input_size=(int(size[0]), int(size[1])),
        resize=cast('ResizeMode', section.text('resize', RESIZE_MODES)),
        pad_value=section.integer('pad_value', 0, 255),
        color_order=section.text('color_order', COLOR_ORDERS),
        scale=scale,
        mean=(mean[0], mean[1], mean[2]),
        std=(std[0], std[1], std[2]),
        layout=section.text('layout', LAYOUTS),
        dtype=section.text('dtype', INPUT_DTYPES),
        # Manifests from before there was a choice lack it.
        antialias='antialias' in section.names() and section.boolean('antialias'),
    )
    section.finish()
    plain = preprocessing.scale, preprocessing.mean, preprocessing.std
    if preprocessing.dtype == 'uint8' and plain != (1, (0, 0, 0), (1, 1, 1)):
        raise ManifestError(
            section.where,
            ', '.join(map(str, plain)),
            expected='"scale" 1, "mean" 0 and "std" 1, because a uint8 input takes pixels as '
            'they are',
        )
    return preprocessing


def _decoder(section: JsonSection) -> DecoderSpec:
    family = section.text('family', tuple(FAMILIES))
    readers: dict[str, Callable[[], Any]] = {
        'objectness': lambda: section.boolean('objectness'),
        'transposed': lambda: section.boolean('transposed'),
        'strides': lambda: _strides(section),
        'activation': lambda: section.text('activation', ACTIVATIONS),
        'box_format': lambda: section.text('box_format', BOX_FORMATS),
    }
    decoder = DecoderSpec(family, **{name: readers[name]() for name in FAMILIES[family]})
    section.finish()
    return decoder


def _strides(section: JsonSection) -> tuple[int, ...]:
    strides = section.items('strides')
    whole = all(isinstance(side, int) and not isinstance(side, bool) for side in strides)
    if not whole or not 1 <= len(strides) <= 8 or not all(1 <= s <= 1024 for s in strides):
        raise section.refusal('strides', strides, '1 to 8 whole numbers from 1 to 1024')
    return tuple(strides)


def _class_names(top: JsonSection) -> tuple[str, ...]:
    names = top.items('class_names')
    fault = names_fault(names) if names else 'must have at least one name'
    if fault:
        raise ManifestError(f'{top.where}: "class_names"', fault)
    return tuple(names)


def _notes(section: JsonSection | None) -> dict[str, str]:
    return {} if section is None else {key: section.text(key) for key in section.names()}
