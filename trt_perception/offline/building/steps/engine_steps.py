# SPDX-License-Identifier: Apache-2.0
"""Steps that build an engine from a converted model, and load and time the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx

from trt_perception.files.plain_text import counted, join_first_items, size_text
from trt_perception.gpu import Device
from trt_perception.model.build_record import QUANTISED_PRECISIONS
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.model_spec import ModelSpec
from trt_perception.offline.building.build_inputs import BuildInputs
from trt_perception.offline.building.engine.build import build_plan
from trt_perception.offline.building.engine.release import uses_strong_typing
from trt_perception.offline.building.engine.verify import (
    EngineCheck,
    measure_latency,
    verify_engine,
    why_not_loadable,
)
from trt_perception.offline.building.engine_manifest import (
    engine_with_manifest,
    model_file_in_memory,
    with_description,
)
from trt_perception.offline.building.graph.dequantise import dequantise
from trt_perception.offline.building.inspection.inspector import time_layers
from trt_perception.offline.building.precision.convert import convert_precision
from trt_perception.offline.building.precision.prepare_precision import ConvertedModel
from trt_perception.offline.building.precision.quantise_check import is_quantised
from trt_perception.offline.building.report import BuildLog
from trt_perception.offline.building.steps.prepare import check_loadable


def build(
    inputs: BuildInputs, spec: ModelSpec, converted: ConvertedModel, log: BuildLog
) -> ModelFile:
    """Build the engine with TensorRT, and check that the package can load the result."""
    report = log.report
    with log.step('build') as step:
        plan = build_plan(
            converted.model.SerializeToString(),
            inputs.options,
            inputs.tensorrt,
            fp32_nodes=converted.fp32_nodes,
            calibration=converted.calibration_data,
            progress=log.progress,
        )
        report.warn(*plan.remarks)
        report.configuration |= {
            'builder_flags': list(plan.flags),
            'strongly_typed': plan.strongly_typed,
            'timing_cache': plan.timing_cache or None,
        }
        report.optimization |= {
            'network_layers': plan.layer_count,
            'tensorrt_warnings': list(plan.warnings),
        }
        report.performance |= {'build_seconds': plan.build_s, 'size_bytes': len(plan.content)}
        engine = engine_with_manifest(inputs, spec, converted.calibration, plan)
        check_loadable(engine)
        step.outcome = size_text(len(plan.content))
    return engine


def quantised_model(
    inputs: BuildInputs, spec: ModelSpec, converted: ConvertedModel
) -> ModelFile | None:
    """Return the model with Q/DQ nodes and its manifest, or None without --qdq-onnx."""
    path, source = inputs.options.qdq_onnx, inputs.source
    if path is None:
        return None
    file = model_file_in_memory(path, converted.quantised.SerializeToString())
    return with_description(file, spec, source.inputs, source.outputs)


def verify(
    inputs: BuildInputs,
    spec: ModelSpec,
    converted: ConvertedModel,
    engine: ModelFile,
    log: BuildLog,
) -> EngineCheck | None:
    """Load the engine, and check its precision. Return None if no GPU here can run the engine."""
    options, report = inputs.options, log.report
    with log.step('verify') as step:
        if reason := why_not_loadable(inputs.tensorrt.gpu, options):
            name = engine.path.name
            step.skip(f'{reason}; on the target: inspect_engine --update-manifest {name}')
            return None
        verified = verify_engine(
            engine, options, spec.input.shape, converted.layer_nodes, converted.kept_nodes
        )
        report.optimization |= verified.as_dict()
        report.performance['latency_ms'] = verified.latency.as_dict()
        if options.report is not None:
            report.optimization['layer_times'] = _layer_times(engine, log)
        if verified.deviations:
            others = [f'{name} ({kind})' for name, kind in verified.deviations.items()]
            report.warn(
                'convolutions and matrix products that were not built in '
                f'{options.precision}: {join_first_items(others)}'
            )
        step.outcome = (
            f'loaded, {counted(len(verified.layers), "layer")}, {verified.latency.p50:.2f} ms'
        )
    return verified


def _layer_times(engine: ModelFile, log: BuildLog) -> list[dict[str, Any]]:
    """Return the time of each layer, slowest first, as inspect_engine does."""
    times = time_layers(
        engine, Device(0), progress=lambda done, total: log.progress('timing layers', done, total)
    )
    return [{'name': row.layer.name, 'ms': row.ms, 'share': row.share} for row in times]


def compare_with_fp16(
    inputs: BuildInputs,
    spec: ModelSpec,
    slimmed: onnx.ModelProto,
    engine: ModelFile,
    verified: EngineCheck | None,
    log: BuildLog,
) -> None:
    """Also build an FP16 engine, and report its size and latency. Latency needs a GPU."""
    if inputs.options.precision not in QUANTISED_PRECISIONS:
        return
    with log.step('compare') as step:
        if not inputs.options.compare_fp16:
            step.skip('switched off (--no-compare-fp16)')
            return
        fp16 = _fp16_engine(inputs, spec, slimmed, log)
        precision = inputs.options.precision
        log.report.performance['fp16_size_bytes'] = len(fp16.content)
        size, fp16_size = size_text(len(engine.content)), size_text(len(fp16.content))
        step.outcome = f'{precision} {size}, fp16 {fp16_size}'
        if len(engine.content) > len(fp16.content):
            log.report.warn(
                f'{precision} is larger than fp16 ({size} against {fp16_size}); use it only '
                'if benchmark_engine shows that it is faster on the target'
            )
        if verified is None:
            step.outcome += '; comparing the speed needs a GPU'
            return
        latency = measure_latency(fp16, Device(0), spec.input.shape)
        log.report.performance['fp16_latency_ms'] = latency.as_dict()
        ours, others = verified.latency.p50, latency.p50
        step.outcome += f'; {precision} {ours:.2f} ms, fp16 {others:.2f} ms'
        if ours >= others:
            log.report.warn(
                f'{precision} is not faster than fp16 on this GPU '
                f'({ours:.2f} against {others:.2f} ms): use --precision fp16'
            )


def _fp16_engine(
    inputs: BuildInputs, spec: ModelSpec, slimmed: onnx.ModelProto, log: BuildLog
) -> ModelFile:
    """Return an engine of the same model in FP16."""
    options = replace(
        inputs.options, precision='fp16', calibration_tool='onnxruntime', qdq_onnx=None
    )
    converted = convert_precision(
        dequantise(slimmed) if is_quantised(slimmed) else slimmed,
        'fp16',
        keep_fp32=options.keep_fp32,
        strongly_typed=uses_strong_typing(inputs.tensorrt, options),
        input_shapes=spec.input_shapes,
    )
    content = converted.model.SerializeToString()
    plan = build_plan(content, options, inputs.tensorrt, progress=log.progress)
    return model_file_in_memory(options.engine_path(), plan.content)
