"""The last steps: what is known of an engine goes into its manifest, and both are written."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from trt_perception.building.engine.build import BuiltPlan
from trt_perception.building.engine_manifest import described
from trt_perception.building.engine_manifest import engine_manifest
from trt_perception.building.engine_manifest import identity
from trt_perception.building.graph.onnx_model import OnnxSource
from trt_perception.building.options.build_options import BuildOptions
from trt_perception.building.output_files import write_models
from trt_perception.building.precision.prepare_precision import ConvertedModel
from trt_perception.building.prepare import image_input
from trt_perception.building.report import Context
from trt_perception.model.build_record import CalibrationRecord
from trt_perception.model.manifest import Manifest
from trt_perception.model.manifest import manifest_path
from trt_perception.model.model_file import ModelFile
from trt_perception.model.recognition.recognise import Recognised

__all__ = ['describe', 'quantised_model', 'write']


def describe(
    context: Context,
    source: OnnxSource,
    recognised: Recognised,
    plan: BuiltPlan,
    calibration: CalibrationRecord | None,
) -> ModelFile:
    """Return the engine with its manifest, nothing written yet."""
    image = image_input(source).name
    manifest = engine_manifest(source, recognised, context.options, plan, image, calibration)
    path = context.options.engine_path()
    return ModelFile(path, plan.content, identity(path.name, plan.content).sha256, manifest)


def quantised_model(
    options: BuildOptions, source: OnnxSource, precise: ConvertedModel, recognised: Recognised
) -> ModelFile | None:
    """Return the model with Q/DQ nodes and its manifest, None where it is not wanted."""
    if options.qdq_onnx is None:
        return None
    content = precise.stand_in.SerializeToString()
    file = ModelFile(options.qdq_onnx, content, hashlib.sha256(content).hexdigest(), None)
    return described(file, recognised, source.inputs, source.outputs)


def write(context: Context, engine: ModelFile, quantised: ModelFile | None, replaces: str) -> None:
    """Write the engine, and the model with Q/DQ nodes where there is one, with manifests."""
    with context.report.step('write', context.progress) as step:
        assert engine.manifest is not None
        write_models([engine] if quantised is None else [engine, quantised])
        context.report.output_engine = _output_facts(engine.path, engine.manifest)
        if quantised is not None:
            context.report.output_engine['qdq_onnx'] = str(quantised.path)
        step.outcome = f'{replaces} {engine.path}'.strip()


def _output_facts(path: Path, manifest: Manifest) -> dict[str, Any]:
    assert manifest.engine is not None
    return {
        'file': str(path),
        'manifest': str(manifest_path(path)),
        'sha256': manifest.engine.sha256,
        'size_bytes': manifest.engine.size_bytes,
        'inputs': [dataclasses.asdict(tensor) for tensor in manifest.inputs],
        'outputs': [dataclasses.asdict(tensor) for tensor in manifest.outputs],
    }
