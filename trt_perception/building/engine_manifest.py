"""The manifest of an engine that was just built: everything known of it, nothing guessed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from typing import Final

from trt_perception.building.engine.build import BuiltPlan
from trt_perception.building.graph.onnx_model import OnnxSource
from trt_perception.building.options.build_options import BuildOptions
from trt_perception.building.options.rows import OPTIONS
from trt_perception.model.build_record import AccuracyRecord
from trt_perception.model.build_record import AgreementRecord
from trt_perception.model.build_record import BuildRecord
from trt_perception.model.build_record import CalibrationRecord
from trt_perception.model.build_record import OptionValue
from trt_perception.model.build_record import PrecisionRecord
from trt_perception.model.build_record import ProfileRange
from trt_perception.model.manifest import FileIdentity
from trt_perception.model.manifest import Manifest
from trt_perception.model.model_file import ModelFile
from trt_perception.model.recognition.recognise import Recognised
from trt_perception.model.tensors import TensorSpec

__all__ = ['described', 'engine_manifest', 'identity', 'recorded_options', 'with_results']

#: Where things are put, not what is built.
NOT_RECORDED: Final = (
    *('output', 'json', 'store', 'store_keep_days', 'verbose', 'compare_fp16', 'qdq_onnx'),
    *('timing_cache', 'calibration_cache'),
)


def recorded_options(options: BuildOptions) -> dict[str, OptionValue]:
    """Return the options that make the engine what it is, without those at their default."""
    found: dict[str, OptionValue] = {}
    values = options.as_dict()
    for row in OPTIONS:
        value: Any = values[row.name]
        value = tuple(value) if isinstance(value, list) else value
        default = row.default if not isinstance(row.default, list) else tuple(row.default)
        if row.name not in NOT_RECORDED and value is not None and value != default:
            found[row.name] = value
    return found


def identity(name: str, content: bytes) -> FileIdentity:
    """Return what a manifest says of a file."""
    return FileIdentity(name, hashlib.sha256(content).hexdigest(), len(content))


def engine_manifest(
    source: OnnxSource,
    recognised: Recognised,
    options: BuildOptions,
    plan: BuiltPlan,
    image: str,
    calibration: CalibrationRecord | None,
) -> Manifest:
    """Return the manifest of an engine.

    Args:
        source: what it was built from.
        recognised: how it is fed and read.
        options: what was asked.
        plan: what came of it.
        image: name of the image input, which the profiles are of.
        calibration: that it was built with, None without one.
    """
    notes = dict(source.file.manifest.notes) if source.file.manifest else {}
    gpu = plan.gpu
    build = BuildRecord(
        flavour=plan.flavour,
        version=plan.version,
        gpu=(gpu.name, gpu.compute_capability) if gpu else None,
        cuda=(gpu.cuda['driver'], gpu.cuda['runtime']) if gpu else None,
        options=recorded_options(options),
        profiles=tuple({image: ProfileRange(p.min, p.opt, p.max)} for p in plan.profiles),
        precision=PrecisionRecord(options.precision, options.keep_fp32, None),
        calibration=calibration,
        accuracy=None,
        agreement=None,
    )
    return Manifest(
        onnx=FileIdentity(source.file.path.name, source.file.sha256, len(source.file.content)),
        engine=identity(options.engine_path().name, plan.content),
        inputs=plan.inputs,
        outputs=plan.outputs,
        preprocessing=recognised.preprocessing,
        decoder=recognised.decoder,
        class_names=recognised.class_names,
        notes=notes,
        build=build,
    )


def with_results(
    engine: ModelFile,
    layers: Mapping[str, int] | None,
    accuracy: AccuracyRecord | None,
    agreement: AgreementRecord,
) -> ModelFile:
    """Return an engine whose manifest holds what was measured on it.

    Args:
        engine: with its manifest.
        layers: how many compute in each type; None where it was not loaded.
        accuracy: on labelled images, None without them.
        agreement: with the detections of the original.
    """
    assert engine.manifest is not None
    assert engine.manifest.build is not None
    build = engine.manifest.build
    precision = replace(build.precision, as_built=layers)
    build = replace(build, precision=precision, accuracy=accuracy, agreement=agreement)
    return replace(engine, manifest=replace(engine.manifest, build=build))


def described(
    file: ModelFile,
    recognised: Recognised,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> ModelFile:
    """Return a model with a manifest that says what was recognised, whatever stands beside it."""
    manifest = Manifest(
        onnx=identity(file.path.name, file.content),
        engine=None,
        inputs=inputs,
        outputs=outputs,
        preprocessing=recognised.preprocessing,
        decoder=recognised.decoder,
        class_names=recognised.class_names,
        notes={},
    )
    return ModelFile(file.path, file.content, file.sha256, manifest)
