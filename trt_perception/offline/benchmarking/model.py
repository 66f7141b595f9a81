# SPDX-License-Identifier: Apache-2.0
"""Measures one model: the network alone, single steps, and the whole pipeline."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from trt_perception.errors import CudaError
from trt_perception.gpu import Device
from trt_perception.images.frame import Frame
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.tasks.task import TaskResult
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.benchmarking.control import MeasurementControl
from trt_perception.offline.benchmarking.gpu_steps import (
    measure_encodings,
    measure_steps,
    run_and_count_candidates,
)
from trt_perception.offline.benchmarking.host_steps import measure_host_steps
from trt_perception.offline.benchmarking.measure import (
    EncodingTime,
    PipelineReport,
    StageTime,
    detect_all,
    measure_pipeline,
    measurement_name,
)
from trt_perception.offline.benchmarking.model_report import (
    BenchmarkOptions,
    BestSetting,
    EngineComparison,
    ModelReport,
)
from trt_perception.pipelines.cuda.cuda_pipeline import CudaPipeline
from trt_perception.pipelines.host.array_pipeline import ArrayPipeline
from trt_perception.pipelines.host.triton_pipeline import TritonPipeline
from trt_perception.pipelines.open_pipeline import open_onnx_pipeline
from trt_perception.pipelines.pipeline import Pipeline, collect_all
from trt_perception.pipelines.warm_up import copy_to_pipeline_memory


def measure_model(
    model: ModelFile,
    frames: Sequence[Frame],
    options: BenchmarkOptions,
    control: MeasurementControl,
    encodings: Sequence[Frame] = (),
) -> tuple[ModelReport, list[TaskResult]] | None:
    """Measure one model. After a stop, return the measurements that had begun.

    Args:
        frames: used in order, repeatedly; at least as many as the maximum in flight.
        control: ends each measurement.
        encodings: one frame of each encoding to compare; used only for engines.

    Returns:
        The report, and the results that ``detect_all`` kept, which are empty if no pipeline was
        measured. None if nothing was measured.

    Raises:
        EngineError: the model cannot be run.
        CudaError: a CUDA call failed.
    """
    first_wh = frames[0].width, frames[0].height
    pipeline = options.pipeline
    overrides = replace(pipeline.overrides, image_wh=first_wh)
    options = replace(options, pipeline=replace(pipeline, overrides=overrides))
    if model.is_onnx or model.address is not None:
        report = _measure_on_host(model, frames, options, control)
    else:
        report = _measure_on_gpu(model, frames, options, control, encodings)
    if report is None:
        return None
    # With `auto`, use the provider that worked.
    options = options.with_provider(report.provider or 'auto')
    pipelines, results, most = list[PipelineReport](), list[TaskResult](), 0
    for depth in options.depths[:1] and (1,) if model.is_onnx else options.depths:
        measured, found, most_at_once = _measure_at_depth(model, frames, options, depth, control)
        pipelines += measured
        results = found or results
        most = most_at_once or most
    singles = [pipeline for pipeline in pipelines if pipeline.batch == 1]
    report = replace(
        report,
        pipelines=tuple(pipelines),
        ratios=tuple(_compare_with_engine(pipeline, report.engine_ms) for pipeline in singles),
        most_at_once=most,
        left_out=tuple(batch for batch in options.batches if 0 < most < batch),
        best=_best_setting(pipelines, None),
        best_within_limit=_best_setting(pipelines, options.max_latency_ms)
        if options.max_latency_ms
        else None,
    )
    return report, results


def _best_setting(
    pipelines: Sequence[PipelineReport], limit_ms: float | None
) -> BestSetting | None:
    """Return the setting with the highest throughput within a latency limit."""
    every = [
        BestSetting(each.batch, each.depth, each.frames_per_s, each.busy_latency_ms.p99)
        for each in pipelines
    ]
    kept = [each for each in every if limit_ms is None or each.p99_ms <= limit_ms]
    return max(kept, key=lambda each: each.frames_per_s, default=None)


def _measure_on_gpu(
    model: ModelFile,
    frames: Sequence[Frame],
    options: BenchmarkOptions,
    control: MeasurementControl,
    encodings: Sequence[Frame],
) -> ModelReport | None:
    control.announce(f'{model.path.name}: engine and steps')
    single = replace(options.pipeline, depth=1, use_cuda_graph=False, max_batch=1)
    with closing(CudaPipeline(model, single)) as pipeline:
        if control.stopped:
            return None
        slot, spec = pipeline.slots[0], pipeline.spec
        thresholds = options.thresholds
        with copy_to_pipeline_memory(pipeline, frames) as frames_in_place:
            stages = measure_steps(slot, frames_in_place[0], thresholds, spec.task, control)
            candidates = [
                run_and_count_candidates(slot, frame, thresholds) for frame in frames_in_place
            ]
        with copy_to_pipeline_memory(pipeline, encodings) as frames_in_place:
            times = measure_encodings(slot, frames_in_place, thresholds, control)
        return _steps_report(
            model, spec, _with_version(pipeline.runtime), stages, candidates, times
        )


def _measure_on_host(
    model: ModelFile,
    frames: Sequence[Frame],
    options: BenchmarkOptions,
    control: MeasurementControl,
) -> ModelReport | None:
    control.announce(f'{model.path.name}: steps')
    pipeline: ArrayPipeline
    if model.address is not None:
        pipeline = TritonPipeline(model.address, replace(options.pipeline, depth=1))
        runtime, provider = 'Triton server', 'triton'
    else:
        pipeline = onnx = open_onnx_pipeline(model, options.pipeline)
        runtime, provider = _with_version('onnxruntime'), onnx.provider
    with closing(pipeline):
        if control.stopped:
            return None
        stages, candidates = measure_host_steps(pipeline, frames, options.thresholds, control)
        report = _steps_report(model, pipeline.spec, runtime, stages, candidates, {})
        return replace(report, provider=provider)


def _with_version(module: str) -> str:
    return f'{module} {sys.modules[module].__version__}'


def _steps_report(
    model: ModelFile,
    spec: ModelSpec,
    runtime: str,
    stages: dict[str, StageTime],
    candidates: Sequence[int],
    encodings: dict[str, EncodingTime],
) -> ModelReport:
    """Return the report of a model without results of pipelines."""
    engine = stages.get('engine_graph') or stages.get('engine_enqueue') or stages['inference']
    return ModelReport(
        file=model.path.name,
        sha256=model.sha256,
        runtime=runtime,
        input=spec.input,
        output=spec.outputs[0],
        engine_ms=engine.mean_ms,
        stages=stages,
        encodings=encodings,
        candidates=tuple(candidates) if spec.task.finds_objects else (),
    )


def _measure_at_depth(
    model: ModelFile,
    frames: Sequence[Frame],
    options: BenchmarkOptions,
    depth: int,
    control: MeasurementControl,
) -> tuple[list[PipelineReport], list[TaskResult], int]:
    """Measure each batch size at one depth, until a stop.

    Returns:
        A report for each measured batch size; the results of the frames at the first batch size;
        and the largest batch that the pipeline accepts. The last is 0 if the measurements
        were stopped before this call.
    """
    if control.stopped:
        return [], [], 0
    most = max(options.batches)
    at_depth = replace(options.pipeline, depth=depth, max_batch=most)
    device = _open_device(model, at_depth)
    free = device.memory()[0] if device else 0
    control.announce(f'{model.path.name}: {measurement_name(options.batches[0], depth)}')
    start = time.perf_counter()
    pipeline: Pipeline
    if model.address is not None:
        pipeline = TritonPipeline(model.address, at_depth)
    elif model.is_onnx:
        pipeline = open_onnx_pipeline(model, at_depth, open_batch=most)
    else:
        pipeline = CudaPipeline(model, at_depth)
    load_s = time.perf_counter() - start
    reports: list[PipelineReport] = []
    first: list[TaskResult] = []
    with closing(pipeline), copy_to_pipeline_memory(pipeline, frames) as frames_in_place:
        thresholds = options.thresholds
        for index, batch in enumerate(each for each in options.batches if each <= pipeline.batch):
            if index:
                control.announce(f'{model.path.name}: {measurement_name(batch, depth)}')
            whole = frames_in_place[: len(frames_in_place) // batch * batch]
            _allocate_for_largest(pipeline, whole, thresholds, batch)
            results = detect_all(pipeline, whole, thresholds, control, batch)
            if results is None:
                break
            memory_used = free - device.memory()[0] if device else None
            report = measure_pipeline(pipeline, whole, thresholds, results, control, batch)
            reports.append(replace(report, load_s=load_s, device_memory_bytes=memory_used))
            first = first or results
    return reports, first, pipeline.batch


def _open_device(model: ModelFile, options: PipelineOptions) -> Device | None:
    """Return the GPU whose memory is measured; None if none is used, or CUDA cannot open it."""
    if model.address is not None:
        return None
    if not model.is_onnx:
        return Device(options.device_id)
    if options.onnx_provider == 'cpu':
        return None
    with contextlib.suppress(CudaError):  # ONNX Runtime does not need the CUDA bindings
        return Device(options.device_id)
    return None


def _allocate_for_largest(
    pipeline: Pipeline, frames: Sequence[Frame], thresholds: Thresholds, batch: int
) -> None:
    """Run the largest frames in each slot, so that buffers do not grow during measurements."""
    largest = sorted(frames, key=lambda frame: frame.data.size, reverse=True)[:batch]
    for slot in range(pipeline.depth):
        pipeline.enqueue(slot, largest, [thresholds] * batch)
        collect_all(pipeline, slot)


def _compare_with_engine(report: PipelineReport, engine_ms: float) -> EngineComparison:
    latency = report.latency_ms
    return EngineComparison(
        depth=report.depth,
        throughput_x_engine=report.frames_per_s * engine_ms / 1e3,
        p50_minus_engine_ms=latency.p50 - engine_ms,
        p99_over_p50=latency.p99 / latency.p50,
    )
