"""The steps from a model in its precision to an engine that was loaded and timed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import onnx

from trt_perception.building.engine.build import BuiltPlan
from trt_perception.building.engine.build import build_plan
from trt_perception.building.engine.release import TensorRt
from trt_perception.building.engine.release import uses_strong_typing
from trt_perception.building.engine.verify import Verified
from trt_perception.building.engine.verify import measure_latency
from trt_perception.building.engine.verify import runs_here
from trt_perception.building.engine.verify import verify_engine
from trt_perception.building.graph.dequantise import dequantised
from trt_perception.building.graph.onnx_model import OnnxSource
from trt_perception.building.graph.quantise_check import is_quantised
from trt_perception.building.precision.convert import convert_precision
from trt_perception.building.precision.prepare_precision import ConvertedModel
from trt_perception.building.prepare import check_readable
from trt_perception.building.report import Context
from trt_perception.gpu import Device
from trt_perception.model.model_file import ModelFile
from trt_perception.model.recognition.recognise import Recognised

__all__ = ['build', 'compare', 'verify']

_SHOWN: Final = 5


def build(
    context: Context,
    source: OnnxSource,
    recognised: Recognised,
    precise: ConvertedModel,
    tensorrt: TensorRt,
) -> BuiltPlan:
    """Let TensorRT build, and hold what it built to how it will be read."""
    with context.report.step('build', context.progress) as step:
        plan = build_plan(
            precise.model.SerializeToString(),
            context.options,
            tensorrt,
            fp32_nodes=precise.fp32_nodes,
            calibration=precise.feed,
            progress=context.progress,
        )
        context.report.warn(*plan.remarks)
        context.report.configuration['builder_flags'] = list(plan.flags)
        context.report.configuration['strongly_typed'] = plan.strongly_typed
        context.report.configuration['timing_cache'] = plan.timing_cache or None
        context.report.optimization['network_layers'] = plan.layers
        context.report.optimization['tensorrt_warnings'] = list(plan.warnings)
        context.report.performance |= {
            'build_seconds': plan.seconds,
            'size_bytes': len(plan.content),
        }
        check_readable(source, recognised, plan.inputs, plan.outputs)
        step.outcome = f'{len(plan.content) / 2**20:.1f} MiB'
        return plan


def verify(
    context: Context,
    engine: ModelFile,
    plan: BuiltPlan,
    precise: ConvertedModel,
    shapes: dict[str, tuple[int, ...]],
) -> Verified | None:
    """Load the engine where a GPU is, and hold it to the precision that was asked."""
    with context.report.step('verify', context.progress) as step:
        reason = runs_here(plan, context.options)
        if reason:
            step.skip(
                f'{reason}; on the target: inspect_engine --update-manifest {engine.path.name}'
            )
            return None
        shape = next(iter(shapes.values()))
        verified = verify_engine(
            engine, context.options, shape, precise.layer_nodes, precise.kept_nodes
        )
        context.report.optimization |= verified.as_dict()
        context.report.performance['latency_ms'] = verified.latency.as_dict()
        context.report.warn(_told(context.options.precision, verified.others))
        step.outcome = f'loaded, {len(verified.layers)} layers, {verified.latency.p50:.2f} ms'
        return verified


def _told(precision: str, others: Mapping[str, str]) -> str:
    """Return a warning that names layers which have not the precision asked for."""
    if not others:
        return ''
    shown = ', '.join(f'{name} ({kind})' for name, kind in list(others.items())[:_SHOWN])
    more = f' and {len(others) - _SHOWN} more' if len(others) > _SHOWN else ''
    return f'convolutions and matrix products that were not built in {precision}: {shown}{more}'


def compare(
    context: Context,
    slimmed: onnx.ModelProto,
    tensorrt: TensorRt,
    verified: Verified | None,
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    """Build FP16 too and say whether INT8 or FP8 is worth it: its size, on a GPU its time."""
    options = context.options
    if options.precision not in ('int8', 'fp8'):
        return
    with context.report.step('compare', context.progress) as step:
        if not options.compare_fp16:
            step.skip('not wanted (--no-compare-fp16)')
            return
        fp16 = options.model_copy(update={'precision': 'fp16', 'calibration_tool': 'onnxruntime'})
        converted = convert_precision(
            dequantised(slimmed) if is_quantised(slimmed) else slimmed,
            'fp16',
            keep_fp32=options.keep_fp32,
            strongly_typed=uses_strong_typing(tensorrt, fp16),
            input_shapes=shapes,
        )
        plan = build_plan(
            converted.model.SerializeToString(), fp16, tensorrt, progress=context.progress
        )
        found = context.report.performance
        found['fp16_size_bytes'] = len(plan.content)
        sizes = [size / 2**20 for size in (found['size_bytes'], len(plan.content))]
        step.outcome = f'{options.precision} {sizes[0]:.1f} MiB, fp16 {sizes[1]:.1f} MiB'
        if sizes[0] > sizes[1]:
            context.report.warn(
                f'{options.precision} is larger than fp16 ({sizes[0]:.1f} against {sizes[1]:.1f} '
                'MiB); take it only if it is faster on the target: benchmark_engine'
            )
        if verified is None:
            step.outcome += '; how fast they are only a GPU tells'
            return
        digest = hashlib.sha256(plan.content).hexdigest()
        other = ModelFile(options.engine_path(), plan.content, digest, None)
        shape = next(iter(shapes.values()))
        latency = measure_latency(other, Device(0), shape)
        found['fp16_latency_ms'] = latency.as_dict()
        step.outcome += (
            f'; {options.precision} {verified.latency.p50:.2f} ms, fp16 {latency.p50:.2f} ms'
        )
        if verified.latency.p50 >= latency.p50:
            context.report.warn(
                f'{options.precision} is not faster than fp16 on this GPU '
                f'({verified.latency.p50:.2f} against {latency.p50:.2f} ms): use --precision fp16'
            )
