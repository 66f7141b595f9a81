"""How an engine was made: the manifest's ``build`` section, read strictly and written in full.

Page: docs/manifest.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, get_args

from trt_perception.errors import ManifestError
from trt_perception.files.json_records import (
    choice_reader,
    integer_reader,
    list_reader,
    mapping_reader,
    read_record,
    to_json,
)
from trt_perception.files.json_section import JsonSection, short_json

__all__ = [
    *('FLAVOURS', 'IMAGE_ORIGINS', 'PRECISIONS', 'QUANTISED', 'UNVERIFIED', 'AccuracyRecord'),
    *('AgreementRecord', 'BuildRecord', 'CalibrationRecord', 'CudaRecord', 'GpuRecord'),
    *('OptionValue', 'Precision', 'PrecisionRecord', 'ProfileRange', 'TensorRtRecord'),
]

FLAVOURS: Final = ('tensorrt', 'tensorrt_rtx')
Precision = Literal['fp32', 'tf32', 'fp16', 'bf16', 'int8', 'fp8']
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
#: Those that need a quantised model: calibrated, or with Q/DQ nodes.
QUANTISED: Final[tuple[Precision, ...]] = ('int8', 'fp8')
#: What the images were given for on which an engine was compared with its original.
IMAGE_ORIGINS: Final = ('validation', 'calibration', 'none')
#: In place of the layers' precision, where the engine could not be loaded when it was built.
UNVERIFIED: Final = 'unverified'

OptionValue = str | int | float | bool | tuple[str | int | float, ...]

_OPTION_NAME: Final = re.compile(r'[a-z][a-z0-9_]{0,63}')
_LIST_OF_STRINGS: Final = list_reader(lambda item: isinstance(item, str), 'a list of strings')
_Shape = Annotated[
    tuple[int, ...],
    list_reader(lambda side: type(side) is int and side > 0, 'a list of whole numbers above 0'),
]


@dataclass(frozen=True)
class ProfileRange:
    """The shapes of one input that an optimisation profile takes, and the one it is tuned for."""

    min: _Shape
    opt: _Shape
    max: _Shape


def _read_profiles(section: JsonSection, key: str) -> tuple[dict[str, ProfileRange], ...]:
    return tuple(
        {name: _read_profile_range(profile, name) for name in profile.unread_keys()}
        for profile in section.sections(key)
    )


def _read_profile_range(section: JsonSection, name: str) -> ProfileRange:
    found = read_record(ProfileRange, section.section(name))
    if not len(found.min) == len(found.opt) == len(found.max) or not all(
        low <= best <= high
        for low, best, high in zip(found.min, found.opt, found.max, strict=True)
    ):
        shapes = to_json(found)
        raise section.refusal(name, shapes, 'min <= opt <= max, of equal length')
    return found


def _read_layers(section: JsonSection, key: str) -> dict[str, int] | None:
    built = section.take(key, f'{UNVERIFIED!r} or an object', (str, dict))
    if built == UNVERIFIED:
        return None
    as_built = JsonSection(built, f'{section.location}: {key}')
    layers: dict[str, int] = mapping_reader(integer_reader(0))(as_built, 'layers')
    as_built.finish()
    return layers


def _layers_content(layers: Mapping[str, int] | None) -> str | dict[str, Any]:
    return UNVERIFIED if layers is None else {'layers': dict(layers)}


@dataclass(frozen=True)
class PrecisionRecord:
    """What was asked and what came of it.

    Attributes:
        asked: one of PRECISIONS.
        keep_fp32: patterns of the layers that were to stay in FP32.
        as_built: number of layers of the engine by the type they compute in, as TensorRT's
            inspector reports; None means nobody has looked yet.
    """

    asked: Annotated[str, choice_reader(*PRECISIONS)]
    keep_fp32: Annotated[tuple[str, ...], _LIST_OF_STRINGS] = ()
    as_built: Annotated[Mapping[str, int] | None, _read_layers, _layers_content] = None


@dataclass(frozen=True)
class CalibrationRecord:
    """How ranges for INT8 were found.

    Attributes:
        tool: ``onnxruntime`` or ``tensorrt``; ``modelopt`` in manifests of earlier releases.
        method: ``entropy``, ``percentile`` or ``minmax``.
        images: how many were used.
        images_sha256: over their contents in their order, lower-case hex.
    """

    tool: str
    method: str
    images: Annotated[int, integer_reader(1)]
    images_sha256: str


@dataclass(frozen=True)
class AccuracyRecord:
    """What the validation found, in short; the report has the rest.

    Attributes:
        images: how many.
        measure: ``mAP50`` with labels, of other tasks than detect ``mAP50 of masks``, ``… of
            keypoints`` or ``… of oriented boxes``; else ``agreement`` with the reference's
            detections.
        reference: what the original model in FP32 reaches, 0…1.
        built: what was built reaches, 0…1.
        runtime: what ran that which was built.
    """

    images: Annotated[int, integer_reader(1)]
    measure: str
    reference: float
    built: float
    runtime: str


def _read_share(section: JsonSection, key: str) -> float | None:
    value = section.take(key, 'a number or null', (int, float, type(None)))
    return None if value is None else section.finite(value, key)


@dataclass(frozen=True)
class AgreementRecord:
    """How far what was built finds the objects that the original finds.

    Attributes:
        f1: share of the detections of both that pair up at IoU 0.5 within a class, 0…1; None
            where it was not measured.
        reference_detections: how many the original has.
        images: how many were looked at.
        images_of: one of IMAGE_ORIGINS.
        runtime: what ran that which was built, empty where nothing did.
        warning: what there is to worry about and what to do, empty where there is nothing.
    """

    f1: Annotated[float | None, _read_share]
    reference_detections: int
    images: int
    images_of: Annotated[str, choice_reader(*IMAGE_ORIGINS)]
    runtime: str
    warning: str


@dataclass(frozen=True)
class TensorRtRecord:
    """The TensorRT that built an engine: one of FLAVOURS, and its version."""

    flavour: Annotated[str, choice_reader(*FLAVOURS)]
    version: str


@dataclass(frozen=True)
class GpuRecord:
    """The GPU an engine was built on: its name and compute capability (``8.6``)."""

    name: str
    compute_capability: str


@dataclass(frozen=True)
class CudaRecord:
    """The versions of CUDA's driver and runtime."""

    driver: str
    runtime: str


def _read_option(section: JsonSection, name: str) -> OptionValue:
    if not _OPTION_NAME.fullmatch(name):
        raise ManifestError(section.location, f'{short_json(name)} is not the name of an option')
    value: Any = section.take(
        name, 'text, a number, true, false or a list', (str, int, float, bool, list)
    )
    for item in value if isinstance(value, list) else () if isinstance(value, bool) else (value,):
        if not isinstance(item, str):
            section.finite(item, name)
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class BuildRecord:
    """How an engine was made.

    Attributes:
        tensorrt: what built it.
        gpu: the GPU it was built on; None without one.
        cuda: None without a GPU.
        options: what build_engine was given, by name; defaults are left out.
        profiles: for each optimisation profile the ranges of the inputs by name.
        precision: asked and as built.
        calibration: None where nothing was calibrated.
        accuracy: None where nothing was validated.
        agreement: None in manifests of releases that did not look.
    """

    tensorrt: TensorRtRecord
    gpu: GpuRecord | None
    cuda: CudaRecord | None
    options: Annotated[Mapping[str, OptionValue], mapping_reader(_read_option)]
    profiles: Annotated[tuple[Mapping[str, ProfileRange], ...], _read_profiles]
    precision: PrecisionRecord
    calibration: CalibrationRecord | None = None
    accuracy: AccuracyRecord | None = None
    agreement: AgreementRecord | None = None
