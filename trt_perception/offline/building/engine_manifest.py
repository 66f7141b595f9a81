# SPDX-License-Identifier: Apache-2.0
"""Makes the manifest of an engine from values that its build recorded."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from trt_perception.model.build_record import (
    MAX_RECORDED_NODES,
    AccuracyRecord,
    AgreementRecord,
    BuildRecord,
    CalibrationRecord,
    CudaRecord,
    GpuRecord,
    OptionValue,
    PrecisionRecord,
    ProfileRange,
    TensorRtRecord,
)
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.tensors import TensorSpec
from trt_perception.offline.building.build_inputs import BuildInputs
from trt_perception.offline.building.engine.build import BuiltPlan
from trt_perception.offline.building.engine.verify import EngineCheck
from trt_perception.offline.building.options.build_options import OPTIONS, BuildOptions


def recorded_options(options: BuildOptions) -> dict[str, OptionValue]:
    """Return the options that affect the engine and differ from their defaults, by name."""
    found: dict[str, OptionValue] = {}
    values = options.as_dict()
    for row in OPTIONS:
        value: Any = values[row.name]
        value = tuple(value) if isinstance(value, list) else value
        if row.affects == 'engine' and value not in (None, row.default):
            found[row.name] = value
    return found


def model_file_in_memory(path: Path, content: bytes) -> ModelFile:
    """Return a model file that exists only in memory. ``path`` is where it will be written."""
    return ModelFile(path, content, hashlib.sha256(content).hexdigest(), None)


def with_description(
    file: ModelFile,
    spec: ModelSpec,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> ModelFile:
    """Return a copy of the model file whose manifest is made from the description.

    An existing manifest is replaced.
    """
    return replace(file, manifest=spec.manifest(inputs, outputs, onnx=file.identity))


def engine_with_manifest(
    inputs: BuildInputs,
    spec: ModelSpec,
    calibration: CalibrationRecord | None,
    plan: BuiltPlan,
) -> ModelFile:
    """Return the engine with its manifest. ``with_measurements`` adds measurements later.

    Args:
        calibration: record of the calibration; None if the build did not calibrate.
    """
    options, source, gpu = inputs.options, inputs.source.file, plan.gpu
    source_model = inputs.source.model
    nodes = source_model.graph.node if len(source_model.graph.node) <= MAX_RECORDED_NODES else ()
    build = BuildRecord(
        tensorrt=TensorRtRecord(plan.flavour, plan.version),
        gpu=GpuRecord(gpu.name, gpu.compute_capability) if gpu else None,
        cuda=CudaRecord(**gpu.cuda) if gpu else None,
        options=recorded_options(options),
        profiles=tuple(
            {spec.input.name: ProfileRange(p.min, p.opt, p.max)} for p in plan.profiles
        ),
        precision=PrecisionRecord(options.precision, options.keep_fp32),
        calibration=calibration,
        plugins=plan.plugins,
        nodes={node.name: node.op_type for node in nodes},
    )
    file = model_file_in_memory(options.engine_path(), plan.content)
    engine = with_description(file, spec, plan.inputs, plan.outputs)
    assert engine.manifest is not None
    manifest = replace(
        engine.manifest,
        onnx=source.identity,
        engine=file.identity,
        notes=dict(source.manifest.notes) if source.manifest else {},
        build=build,
    )
    return replace(engine, manifest=manifest)


def with_measurements(
    engine: ModelFile,
    verified: EngineCheck | None,
    accuracy: AccuracyRecord | None,
    agreement: AgreementRecord,
) -> ModelFile:
    """Return the engine with measurements in its manifest.

    Args:
        engine: the engine from ``engine_with_manifest``.
        verified: results of the engine's check, including the precision of its layers; None if
            this machine cannot run the engine.
        accuracy: accuracy on the images of --validate; None without this option.
    """
    manifest = engine.manifest
    assert manifest is not None
    assert manifest.build is not None
    layers = verified.precisions if verified else None
    precision = replace(manifest.build.precision, as_built=layers)
    build = replace(manifest.build, precision=precision, accuracy=accuracy, agreement=agreement)
    return replace(engine, manifest=replace(manifest, build=build))
