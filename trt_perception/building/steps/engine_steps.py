"""The steps from a model in its precision to an engine that was loaded and timed."""

from __future__ import annotations

from dataclasses import replace

from trt_perception.building.build_state import BuildState
from trt_perception.building.engine.build import build_plan
from trt_perception.building.engine.release import uses_strong_typing
from trt_perception.building.engine.verify import measure_latency, runs_here, verify_engine
from trt_perception.building.engine_manifest import describe_engine, described, in_memory
from trt_perception.building.graph.dequantise import dequantised
from trt_perception.building.precision.convert import convert_precision
from trt_perception.building.precision.quantise_check import is_quantised
from trt_perception.building.steps.prepare import check_readable
from trt_perception.files.plain_text import listed
from trt_perception.gpu import Device
from trt_perception.model.build_record import QUANTISED

__all__ = ['build', 'compare', 'verify']


def build(state: BuildState) -> None:
    """Let TensorRT build, and hold what it built to how it will be read."""
    options, report, converted = state.options, state.report, state.converted
    with state.step('build') as step:
        plan = state.plan = build_plan(
            converted.model.SerializeToString(),
            options,
            state.tensorrt,
            fp32_nodes=converted.fp32_nodes,
            calibration=converted.calibration_data,
            progress=state.progress,
        )
        report.warn(*plan.remarks)
        report.configuration |= {
            'builder_flags': list(plan.flags),
            'strongly_typed': plan.strongly_typed,
            'timing_cache': plan.timing_cache or None,
        }
        report.optimization |= {
            'network_layers': plan.layers,
            'tensorrt_warnings': list(plan.warnings),
        }
        report.performance |= {'build_seconds': plan.seconds, 'size_bytes': len(plan.content)}
        state.engine = describe_engine(state)
        check_readable(state.engine)
        step.outcome = f'{len(plan.content) / 2**20:.1f} MiB'
    if options.qdq_onnx is not None:
        file = in_memory(options.qdq_onnx, converted.quantised.SerializeToString())
        state.quantised = described(
            file, state.recognised, state.source.inputs, state.source.outputs
        )


def verify(state: BuildState) -> None:
    """Load the engine where a GPU is, and hold it to the precision that was asked."""
    options, report, converted = state.options, state.report, state.converted
    with state.step('verify') as step:
        state.verified = None
        if reason := runs_here(state.plan, options):
            name = state.engine.path.name
            step.skip(f'{reason}; on the target: inspect_engine --update-manifest {name}')
            return
        verified = state.verified = verify_engine(
            state.engine, options, state.image_shape, converted.layer_nodes, converted.kept_nodes
        )
        report.optimization |= verified.as_dict()
        report.performance['latency_ms'] = verified.latency.as_dict()
        if verified.others:
            others = [f'{name} ({kind})' for name, kind in verified.others.items()]
            report.warn(
                'convolutions and matrix products that were not built in '
                f'{options.precision}: {listed(others)}'
            )
        step.outcome = f'loaded, {len(verified.layers)} layers, {verified.latency.p50:.2f} ms'


def compare(state: BuildState) -> None:
    """Build FP16 too and say whether INT8 or FP8 is worth it: its size, on a GPU its time."""
    options, report = state.options, state.report
    if options.precision not in QUANTISED:
        return
    with state.step('compare') as step:
        if not options.compare_fp16:
            step.skip('not wanted (--no-compare-fp16)')
            return
        fp16 = replace(options, precision='fp16', calibration_tool='onnxruntime', qdq_onnx=None)
        slimmed = state.slimmed
        converted = convert_precision(
            dequantised(slimmed) if is_quantised(slimmed) else slimmed,
            'fp16',
            keep_fp32=options.keep_fp32,
            strongly_typed=uses_strong_typing(state.tensorrt, fp16),
            input_shapes=state.shapes,
        )
        content = build_plan(
            converted.model.SerializeToString(), fp16, state.tensorrt, progress=state.progress
        ).content
        report.performance['fp16_size_bytes'] = len(content)
        ours, others = len(state.plan.content) / 2**20, len(content) / 2**20
        step.outcome = f'{options.precision} {ours:.1f} MiB, fp16 {others:.1f} MiB'
        if ours > others:
            report.warn(
                f'{options.precision} is larger than fp16 ({ours:.1f} against {others:.1f} '
                'MiB); take it only if it is faster on the target: benchmark_engine'
            )
        if state.verified is None:
            step.outcome += '; their speed is known on a GPU only'
            return
        engine = in_memory(options.engine_path(), content)
        latency = measure_latency(engine, Device(0), state.image_shape)
        report.performance['fp16_latency_ms'] = latency.as_dict()
        ours, others = state.verified.latency.p50, latency.p50
        step.outcome += f'; {options.precision} {ours:.2f} ms, fp16 {others:.2f} ms'
        if ours >= others:
            report.warn(
                f'{options.precision} is not faster than fp16 on this GPU '
                f'({ours:.2f} against {others:.2f} ms): use --precision fp16'
            )
