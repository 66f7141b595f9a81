"""The manifest of an engine that was just built: everything known of it, nothing guessed."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from trt_perception.building.build_state import BuildState
from trt_perception.building.options.build_options import OPTIONS, BuildOptions
from trt_perception.model.build_record import (
    AccuracyRecord,
    AgreementRecord,
    BuildRecord,
    CudaRecord,
    GpuRecord,
    OptionValue,
    PrecisionRecord,
    ProfileRange,
    TensorRtRecord,
)
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.manifest import FileIdentity, Manifest
from trt_perception.model.recognition.recognise import Recognised
from trt_perception.model.tensors import TensorSpec

__all__ = [
    'describe_engine',
    'described',
    'identity',
    'in_memory',
    'recorded_options',
    'with_results',
]


def recorded_options(options: BuildOptions) -> dict[str, OptionValue]:
    """Return the options that make the engine what it is, without those at their default."""
    found: dict[str, OptionValue] = {}
    values = options.as_dict()
    for row in OPTIONS:
        value: Any = values[row.name]
        value = tuple(value) if isinstance(value, list) else value
        if row.affects == 'engine' and value not in (None, row.default):
            found[row.name] = value
    return found


def in_memory(path: Path, content: bytes) -> ModelFile:
    """Return a model that was just made, nothing written yet."""
    return ModelFile(path, content, hashlib.sha256(content).hexdigest(), None)


def identity(file: ModelFile) -> FileIdentity:
    """Return what a manifest says of a file."""
    return FileIdentity(file.path.name, file.sha256, len(file.content))


def described(
    file: ModelFile,
    recognised: Recognised,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> ModelFile:
    """Return a model with a manifest that says what was recognised, whatever its own says."""
    manifest = Manifest(
        task=recognised.task,
        onnx=identity(file),
        engine=None,
        inputs=inputs,
        outputs=outputs,
        preprocessing=recognised.preprocessing,
        decoder=recognised.decoder,
        class_names=recognised.class_names,
        notes={},
    )
    return replace(file, manifest=manifest)


def describe_engine(state: BuildState) -> ModelFile:
    """Return the engine that was built with its manifest; what is measured on it comes later."""
    plan, options, source = state.plan, state.options, state.source.file
    calibration, gpu = state.converted.calibration, plan.gpu
    image = next(iter(state.shapes))  # which the profiles are of
    build = BuildRecord(
        tensorrt=TensorRtRecord(plan.flavour, plan.version),
        gpu=GpuRecord(gpu.name, gpu.compute_capability) if gpu else None,
        cuda=CudaRecord(**gpu.cuda) if gpu else None,
        options=recorded_options(options),
        profiles=tuple({image: ProfileRange(p.min, p.opt, p.max)} for p in plan.profiles),
        precision=PrecisionRecord(options.precision, options.keep_fp32),
        calibration=calibration,
    )
    file = in_memory(options.engine_path(), plan.content)
    engine = described(file, state.recognised, plan.inputs, plan.outputs)
    assert engine.manifest is not None
    manifest = replace(
        engine.manifest,
        onnx=identity(source),
        engine=identity(file),
        notes=dict(source.manifest.notes) if source.manifest else {},
        build=build,
    )
    return replace(engine, manifest=manifest)


def with_results(
    state: BuildState, accuracy: AccuracyRecord | None, agreement: AgreementRecord
) -> ModelFile:
    """Return the engine with a manifest that holds what was measured on it.

    Args:
        state: of the build; ``verified`` has the precision of the layers.
        accuracy: on the images of --validate, None without them.
        agreement: with the detections of the original.
    """
    manifest = state.engine.manifest
    assert manifest is not None
    assert manifest.build is not None
    layers = state.verified.precisions if state.verified else None
    precision = replace(manifest.build.precision, as_built=layers)
    build = replace(manifest.build, precision=precision, accuracy=accuracy, agreement=agreement)
    return replace(state.engine, manifest=replace(manifest, build=build))
