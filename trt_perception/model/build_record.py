# SPDX-License-Identifier: Apache-2.0
"""The manifest's ``build`` section: how build_engine built an engine.

The reader refuses unknown keys, and the writer writes all keys.

Page: docs/manifest.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from trt_perception.errors import ManifestError
from trt_perception.files.json_records import (
    choice_reader,
    integer_reader,
    list_reader,
    mapping_reader,
    optional_reader,
    read_record,
    to_json,
)
from trt_perception.files.json_section import JsonSection, short_json

FLAVOURS: Final = ('tensorrt', 'tensorrt_rtx')
Precision = Literal['fp32', 'tf32', 'fp16', 'bf16', 'int8', 'fp8']
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
#: Precisions that need a quantised model: a calibrated model, or a model with Q/DQ nodes.
QUANTISED_PRECISIONS: Final[tuple[Precision, ...]] = ('int8', 'fp8')
#: Possible purposes of the images on which an engine was compared with the original model.
IMAGE_ORIGINS: Final = ('validation', 'calibration', 'none')
#: With more nodes, a manifest would become too large.
MAX_RECORDED_NODES: Final = 5000
#: Replaces the precisions of the layers if the engine could not be inspected after the build.
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
    """The smallest, usual and largest shape of one input in an optimisation profile.

    TensorRT chooses kernels for the shape ``opt``.
    """

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
        raise section.wrong_value_error(name, shapes, 'min <= opt <= max, of equal length')
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
    """The requested precision, and the precisions of the built layers.

    Attributes:
        asked: the requested precision, one of PRECISIONS.
        keep_fp32: name patterns of the layers that stay in FP32.
        as_built: number of layers by the data type of their computation, from TensorRT's engine
            inspector; None if the engine was not inspected.
    """

    asked: Annotated[str, choice_reader(*PRECISIONS)]
    keep_fp32: Annotated[tuple[str, ...], _LIST_OF_STRINGS] = ()
    as_built: Annotated[Mapping[str, int] | None, _read_layers, _layers_content] = None


@dataclass(frozen=True)
class CalibrationRecord:
    """The calibration that measured the INT8 ranges.

    Attributes:
        tool: ``onnxruntime`` or ``tensorrt``; ``modelopt`` in manifests of earlier releases.
        method: ``entropy``, ``percentile`` or ``minmax``.
        images_sha256: SHA-256 of the files' contents in calibration order, lower-case hex.
    """

    tool: str
    method: str
    images: Annotated[int, integer_reader(1)]
    images_sha256: str


@dataclass(frozen=True)
class AccuracyRecord:
    """The main figures of the validation. The build report has all figures.

    Attributes:
        measure: name of the measure. With labels, the name is ``mAP50`` for the task detect, and
            ``mAP50 of masks``, ``… of keypoints`` or ``… of oriented boxes`` for other objects.
            For tasks that describe the whole image: ``top1``, ``mIoU`` or ``delta1``.
            Without labels, the name is ``agreement``: the reference is the original model.
        reference: the measure of the original model in FP32, 0…1.
        built: the measure of the built engine, 0…1.
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
    """The agreement of the built engine with the original model.

    Attributes:
        f1: F1 score of the detections of both models, paired at IoU 0.5 within a class, 0…1; for
            tasks that describe the whole image, the mean agreement of the images, at most 1. None
            if the agreement was not measured.
        reference_detections: number of detections of the original model; 0 for other tasks.
        images_of: purpose of these images, one of IMAGE_ORIGINS.
        runtime: the library that ran the built engine; empty if the engine did not run.
        warning: a problem and its remedy; empty if the agreement is good.
    """

    f1: Annotated[float | None, _read_share]
    reference_detections: int
    images: int
    images_of: Annotated[str, choice_reader(*IMAGE_ORIGINS)]
    runtime: str
    warning: str

    @property
    def statement(self) -> str:
        """The agreement in words; empty if it was not measured."""
        if self.f1 is None:
            return ''
        what = 'of the detections agree' if self.reference_detections else 'agreement'
        return f'{self.f1:.1%} {what} with the original'


def _read_file_name(section: JsonSection, key: str) -> str:
    name = section.text(key)
    if Path(name).name != name or name in ('', '.', '..'):
        raise section.wrong_value_error(key, name, 'a bare file name')
    return name


def _read_sha256(section: JsonSection, key: str) -> str:
    digest = section.text(key)
    if not re.fullmatch('[0-9a-f]{64}', digest):
        raise section.wrong_value_error(key, digest, '64 lower-case hex digits')
    return digest


@dataclass(frozen=True)
class FileIdentity:
    """Name, SHA-256 (lower-case hex) and size in bytes of a file."""

    file: Annotated[str, _read_file_name]
    sha256: Annotated[str, _read_sha256]
    size_bytes: Annotated[int, integer_reader(1)]


@dataclass(frozen=True)
class TensorRtRecord:
    """The flavour (one of FLAVOURS) and version of the TensorRT that built an engine."""

    flavour: Annotated[str, choice_reader(*FLAVOURS)]
    version: str


@dataclass(frozen=True)
class GpuRecord:
    """Name and compute capability (``8.6``) of the GPU on which an engine was built."""

    name: str
    compute_capability: str


@dataclass(frozen=True)
class CudaRecord:
    """The versions of the CUDA driver and the CUDA runtime."""

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


def _read_plugins(section: JsonSection, key: str) -> tuple[FileIdentity, ...]:
    libraries = section.sections(key) if section.has(key) else ()
    return tuple(read_record(FileIdentity, library) for library in libraries)


def _read_operator(section: JsonSection, node: str) -> str:
    operator: str = section.take(node, 'the name of an operator', (str,))
    return operator


@dataclass(frozen=True)
class BuildRecord:
    """How build_engine built an engine.

    Attributes:
        gpu: the GPU on which the engine was built; None if the machine had no GPU.
        cuda: the versions of driver and runtime; None if the machine had no GPU.
        options: maps an option of build_engine to its value. Default values are left out.
        profiles: for each optimisation profile, maps an input's name to its range.
        calibration: the calibration of INT8 ranges; None if the build had no calibration.
        accuracy: the result of the validation; None if the build had no validation.
        agreement: the agreement with the original model; None in manifests of releases that did
            not compare the models.
        plugins: the plugin libraries that the engine needs; empty in manifests of older releases.
        nodes: maps the name of each node of the user's ONNX file to its operator; empty in
            manifests of older releases, and if the file has more than MAX_RECORDED_NODES.
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
    plugins: Annotated[tuple[FileIdentity, ...], _read_plugins] = ()
    nodes: Annotated[
        Mapping[str, str], optional_reader(mapping_reader(_read_operator), missing={})
    ] = field(default_factory=dict)
