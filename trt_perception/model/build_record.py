"""How an engine was made: the manifest's ``build`` section, read strictly and written in full.

Page: docs/manifest.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from typing import Final

from trt_perception.errors import ManifestError
from trt_perception.files.json_section import JsonSection
from trt_perception.files.json_section import found

__all__ = [
    'FLAVOURS',
    'PICTURES',
    'PRECISIONS',
    'UNVERIFIED',
    'AccuracyRecord',
    'AgreementRecord',
    'BuildRecord',
    'CalibrationRecord',
    'OptionValue',
    'PrecisionRecord',
    'ProfileRange',
    'read_build_record',
]

FLAVOURS: Final = ('tensorrt', 'tensorrt_rtx')
PRECISIONS: Final = ('fp32', 'tf32', 'fp16', 'bf16', 'int8', 'fp8')
#: What the pictures were given for on which an engine was compared with its original.
PICTURES: Final = ('validation', 'calibration', 'none')
#: In place of the layers' precision, where the engine could not be loaded when it was built.
UNVERIFIED: Final = 'unverified'

OptionValue = str | int | float | bool | tuple[str | int | float, ...]

_NAME: Final = re.compile(r'[a-z][a-z0-9_]{0,63}')


@dataclass(frozen=True)
class ProfileRange:
    """The shapes of one input that an optimisation profile takes, and the one it is tuned for."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


@dataclass(frozen=True)
class PrecisionRecord:
    """What was asked and what came of it.

    Attributes:
        asked: one of PRECISIONS.
        keep_fp32: patterns of the layers that were to stay in FP32.
        as_built: number of layers of the engine by the type they compute in, as TensorRT's
            inspector tells; None means nobody has looked yet.
    """

    asked: str
    keep_fp32: tuple[str, ...] = ()
    as_built: Mapping[str, int] | None = None


@dataclass(frozen=True)
class CalibrationRecord:
    """How ranges for INT8 were found.

    Attributes:
        tool: ``onnxruntime``, ``modelopt`` or ``tensorrt``.
        method: ``entropy``, ``percentile`` or ``minmax``.
        images: how many were used.
        images_sha256: over their contents in their order, lower-case hex.
    """

    tool: str
    method: str
    images: int
    images_sha256: str


@dataclass(frozen=True)
class AccuracyRecord:
    """What the validation found, in short; the report has the rest.

    Attributes:
        images: how many.
        measure: ``mAP50`` with labels, else ``agreement`` with the reference's detections.
        reference: what the original model in FP32 reaches, 0…1.
        built: what was built reaches, 0…1.
        runtime: what ran that which was built.
    """

    images: int
    measure: str
    reference: float
    built: float
    runtime: str


@dataclass(frozen=True)
class AgreementRecord:
    """How far what was built finds the objects that the original finds.

    Attributes:
        f1: share of the detections of both that pair up at IoU 0.5 within a class, 0…1; None
            where it was not measured.
        reference_detections: how many the original has.
        images: how many were looked at.
        images_of: one of PICTURES.
        runtime: what ran that which was built, empty where nothing did.
        warning: what there is to worry about and what to do, empty where there is nothing.
    """

    f1: float | None
    reference_detections: int
    images: int
    images_of: str
    runtime: str
    warning: str


@dataclass(frozen=True)
class BuildRecord:
    """How an engine was made.

    Attributes:
        flavour: one of FLAVOURS.
        version: of that TensorRT.
        gpu: name and compute capability (``8.6``) of the GPU it was built on; None without one.
        cuda: driver and runtime version; None without a GPU.
        options: what build_engine was told, by name; defaults are left out.
        profiles: for each optimisation profile the ranges of the inputs by name.
        precision: asked and as built.
        calibration: None where nothing was calibrated.
        accuracy: None where nothing was validated.
        agreement: None in manifests of releases that did not look.
    """

    flavour: str
    version: str
    gpu: tuple[str, str] | None
    cuda: tuple[str, str] | None
    options: Mapping[str, OptionValue]
    profiles: tuple[Mapping[str, ProfileRange], ...]
    precision: PrecisionRecord
    calibration: CalibrationRecord | None = None
    accuracy: AccuracyRecord | None = None
    agreement: AgreementRecord | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as the manifest has it, in values that JSON has."""
        precision, calibration, accuracy = self.precision, self.calibration, self.accuracy
        built = precision.as_built
        return {
            'tensorrt': {'flavour': self.flavour, 'version': self.version},
            'gpu': self.gpu and {'name': self.gpu[0], 'compute_capability': self.gpu[1]},
            'cuda': self.cuda and {'driver': self.cuda[0], 'runtime': self.cuda[1]},
            'options': {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in self.options.items()
            },
            'profiles': [
                {
                    name: {'min': list(s.min), 'opt': list(s.opt), 'max': list(s.max)}
                    for name, s in profile.items()
                }
                for profile in self.profiles
            ],
            'precision': {
                'asked': precision.asked,
                'keep_fp32': list(precision.keep_fp32),
                'as_built': UNVERIFIED if built is None else {'layers': dict(built)},
            },
            'calibration': calibration and dict(vars(calibration)),
            'accuracy': accuracy and dict(vars(accuracy)),
            'agreement': self.agreement and dict(vars(self.agreement)),
        }


def read_build_record(section: JsonSection) -> BuildRecord:
    """Read the ``build`` section.

    Raises:
        ManifestError: a key is missing, unknown or of the wrong type, or a value is out of range.
    """
    tensorrt = section.required_section('tensorrt')
    flavour, version = tensorrt.text('flavour', FLAVOURS), tensorrt.text('version')
    tensorrt.finish()
    options = section.required_section('options')
    record = BuildRecord(
        flavour=flavour,
        version=version,
        gpu=_pair(section.section('gpu', optional=True), 'name', 'compute_capability'),
        cuda=_pair(section.section('cuda', optional=True), 'driver', 'runtime'),
        options={name: _option(options, name) for name in options.names()},
        profiles=tuple(_profile(item) for item in section.sections('profiles')),
        precision=_precision(section.required_section('precision')),
        calibration=_maybe(section.section('calibration', optional=True), _calibration),
        accuracy=_maybe(section.section('accuracy', optional=True), _accuracy),
        agreement=_maybe(section.section('agreement', optional=True), _agreement),
    )
    section.finish()
    return record


def _maybe(section: JsonSection | None, read: Callable[[JsonSection], Any]) -> Any:
    return None if section is None else read(section)


def _pair(section: JsonSection | None, first: str, second: str) -> tuple[str, str] | None:
    if section is None:
        return None
    pair = section.text(first), section.text(second)
    section.finish()
    return pair


def _option(section: JsonSection, name: str) -> OptionValue:
    if not _NAME.fullmatch(name):
        raise ManifestError(section.where, f'{found(name)} is not the name of an option')
    value = section.take(
        name, 'text, a number, true, false or a list', (str, int, float, bool, list)
    )
    if isinstance(value, list):
        if not all(isinstance(item, str) or _is_number(section, name, item) for item in value):
            raise AssertionError  # _is_number raises
        return tuple(value)
    if not isinstance(value, str | bool):
        section.finite(value, name)
    result: OptionValue = value
    return result


def _is_number(section: JsonSection, name: str, value: object) -> bool:
    section.finite(value, name)
    return True


def _profile(section: JsonSection) -> dict[str, ProfileRange]:
    ranges = {}
    for name in section.names():
        sides = section.required_section(name)
        shapes = [_shape(sides, key) for key in ('min', 'opt', 'max')]
        sides.finish()
        low, best, high = shapes
        if not len(low) == len(best) == len(high) or not all(
            a <= b <= c for a, b, c in zip(low, best, high, strict=True)
        ):
            raise ManifestError(
                sides.where, found(shapes), expected='min <= opt <= max, of equal length'
            )
        ranges[name] = ProfileRange(low, best, high)
    return ranges


def _shape(section: JsonSection, key: str) -> tuple[int, ...]:
    shape = section.items(key)
    if not all(
        isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in shape
    ):
        raise section.refusal(key, shape, 'a list of whole numbers above 0')
    return tuple(shape)


def _precision(section: JsonSection) -> PrecisionRecord:
    asked = section.text('asked', PRECISIONS)
    patterns = section.items('keep_fp32')
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise section.refusal('keep_fp32', patterns, 'a list of strings')
    built = section.take('as_built', f'{UNVERIFIED!r} or an object', (str, dict))
    section.finish()
    if built == UNVERIFIED:
        return PrecisionRecord(asked, tuple(patterns), None)
    as_built = JsonSection(built, f'{section.where}: as_built')
    layers = as_built.required_section('layers')
    counts = {name: layers.integer(name) for name in layers.names()}
    as_built.finish()
    return PrecisionRecord(asked, tuple(patterns), counts)


def _calibration(section: JsonSection) -> CalibrationRecord:
    record = CalibrationRecord(
        section.text('tool'),
        section.text('method'),
        section.integer('images', 1),
        section.text('images_sha256'),
    )
    section.finish()
    return record


def _accuracy(section: JsonSection) -> AccuracyRecord:
    record = AccuracyRecord(
        section.integer('images', 1),
        section.text('measure'),
        section.number('reference'),
        section.number('built'),
        section.text('runtime'),
    )
    section.finish()
    return record


def _agreement(section: JsonSection) -> AgreementRecord:
    f1 = section.take('f1', 'a number or null', (int, float, type(None)))
    record = AgreementRecord(
        None if f1 is None else section.finite(f1, 'f1'),
        section.integer('reference_detections'),
        section.integer('images'),
        section.text('images_of', PICTURES),
        section.text('runtime'),
        section.text('warning'),
    )
    section.finish()
    return record
