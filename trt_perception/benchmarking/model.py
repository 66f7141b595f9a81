"""Measures one model: the network alone, single steps, and the whole pipeline."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from trt_perception.benchmarking.control import MeasurementControl
from trt_perception.benchmarking.gpu_steps import (
    measure_encodings,
    measure_steps,
    run_and_count_candidates,
)
from trt_perception.benchmarking.host_steps import measure_host_steps
from trt_perception.benchmarking.measure import (
    EncodingTime,
    PipelineReport,
    StageTime,
    detect_all,
    measure_pipeline,
    measurement_name,
)
from trt_perception.errors import CudaError
from trt_perception.gpu import Device
from trt_perception.images.detections import Detections
from trt_perception.images.frame import Frame
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.tensors import TensorSpec
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.cuda_pipeline import CudaPipeline
from trt_perception.pipelines.host.array_pipeline import ArrayPipeline
from trt_perception.pipelines.host.triton_pipeline import TritonPipeline
from trt_perception.pipelines.open_pipeline import open_onnx_pipeline
from trt_perception.pipelines.pipeline import Pipeline, collect_all
from trt_perception.pipelines.warm_up import copy_to_pipeline_memory

__all__ = ['BenchmarkOptions', 'BestSetting', 'EngineComparison', 'ModelReport', 'measure_model']


@dataclass(frozen=True)
class BenchmarkOptions:
    """Options of the measurements.

    Attributes:
        depths: numbers of batches in flight, with one measurement for each. An ONNX model is
            measured at depth 1 only. If empty, no pipeline is measured.
        count: maximum frames of each measurement.
        warmup: frames before each measurement that are not counted.
        seconds: maximum seconds of each measurement; None sets no limit.
        pipeline: options of the pipeline. ``depths`` and ``batches`` replace its depth and batch.
        thresholds: thresholds of all frames.
        batches: numbers of frames per batch, with one measurement for each. Batches above the
            model's maximum are not measured.
        max_latency_ms: latency limit for ``best_within_limit``; None sets no limit.
    """

    depths: tuple[int, ...] = (1, 2, 3, 4)
    count: int = 1000
    warmup: int = 100
    seconds: float | None = None
    pipeline: PipelineOptions = field(default_factory=PipelineOptions)
    thresholds: Thresholds = field(default_factory=Thresholds)
    batches: tuple[int, ...] = (1,)
    max_latency_ms: float | None = None

    def with_provider(self, provider: str) -> BenchmarkOptions:
        """Return the same options with another value of `onnx_provider`."""
        return replace(self, pipeline=replace(self.pipeline, onnx_provider=provider))

    def ignored(self, models: Sequence[ModelFile], encodings: Sequence[Frame]) -> list[str]:
        """Return a sentence for each option of the command line that some models ignore."""
        onnx = list(dict.fromkeys(model.path.name for model in models if model.is_onnx))
        served = [model.path.name for model in models if model.address is not None]
        sentences = []
        if onnx and self.depths not in ((), (1,), BenchmarkOptions.depths):
            sentences.append(f'--depth: ONNX files run at depth 1 only: {", ".join(onnx)}')
        if encodings and (onnx or served):
            names = ', '.join(onnx + served)
            first = encodings[0].format.name
            found = f'only engines are timed for each, others with {first}: {names}'
            sentences.append(f'--encoding: {found}')
        return sentences


@dataclass(frozen=True)
class EngineComparison:
    """Compares a pipeline with its engine alone.

    Attributes:
        depth: batches in flight.
        throughput_x_engine: frames/s times the engine's time; 1 if the engine never waits.
        p50_minus_engine_ms: median latency minus the engine's time.
        p99_over_p50: 99th percentile of the latency divided by its median.
    """

    depth: int
    throughput_x_engine: float
    p50_minus_engine_ms: float
    p99_over_p50: float


@dataclass(frozen=True)
class BestSetting:
    """The combination of batch and depth with the highest throughput.

    Attributes:
        batch: frames per batch.
        depth: batches in flight.
        frames_per_s: frames per second at full load.
        p99_ms: 99th percentile of a batch's latency at full load.
    """

    batch: int
    depth: int
    frames_per_s: float
    p99_ms: float


@dataclass(frozen=True)
class ModelReport:
    """All results of one model.

    Attributes:
        file: name of the model file.
        sha256: SHA-256 of the model file.
        runtime: module that runs the model, and its version; or ``Triton server``.
        input: the input tensor.
        output: the first output tensor.
        engine_ms: mean time of the network in consecutive runs; from a CUDA graph if possible.
        stages: maps the name of a step to its times.
        encodings: maps the name of an encoding to the times of the steps that depend on the
            encoding; empty if only one encoding was requested.
        candidates: number of boxes above the threshold before NMS, for each frame.
        pipelines: one entry for each depth and batch.
        ratios: one comparison with the engine for each depth, for batches of one frame.
        most_at_once: largest batch that the pipelines accepted, which is the model's maximum if
            batches were left out; 0 if no pipeline was opened.
        left_out: requested batches above ``most_at_once``, which were not measured.
        best: setting with the highest throughput; None if no pipeline was measured.
        best_within_limit: best setting within the latency limit; None without a limit, or if no
            setting meets the limit.
        provider: execution provider of an ONNX file; ``triton`` for a served model; empty for an
            engine.
    """

    file: str
    sha256: str
    runtime: str
    input: TensorSpec
    output: TensorSpec
    engine_ms: float
    stages: dict[str, StageTime]
    encodings: dict[str, EncodingTime]
    candidates: tuple[int, ...]
    pipelines: tuple[PipelineReport, ...] = ()
    ratios: tuple[EngineComparison, ...] = ()
    most_at_once: int = 0
    left_out: tuple[int, ...] = ()
    best: BestSetting | None = None
    best_within_limit: BestSetting | None = None
    provider: str = ''

    @property
    def name(self) -> str:
        """Name of the file, with the provider of an ONNX file."""
        return f'{self.file} ({self.provider})' if self.provider else self.file

    @property
    def used_gpu(self) -> bool:
        """Whether the model used a GPU that the CUDA bindings can open."""
        measured = (pipeline.device_memory_bytes is not None for pipeline in self.pipelines)
        return not self.provider or any(measured)


def measure_model(
    model: ModelFile,
    frames: Sequence[Frame],
    options: BenchmarkOptions,
    control: MeasurementControl,
    encodings: Sequence[Frame] = (),
) -> tuple[ModelReport, list[Detections]] | None:
    """Measure one model. After a stop, return the measurements that had begun.

    Args:
        model: engine, ONNX file or served model.
        frames: used in order, repeatedly; at least as many as the maximum in flight.
        options: options of the measurements.
        control: ends each measurement.
        encodings: one frame of each encoding to compare; used only for engines.

    Returns:
        The results, and the detections of each frame, which are empty if no pipeline was measured.
        None if nothing was measured.

    Raises:
        EngineError: the model cannot be run.
        CudaError: a CUDA call failed.
    """
    if model.is_onnx or model.address is not None:
        report = _measure_on_host(model, frames, options, control)
    else:
        report = _measure_on_gpu(model, frames, options, control, encodings)
    if report is None:
        return None
    # With `auto`, use the provider that worked.
    options = options.with_provider(report.provider or 'auto')
    pipelines, detections, most = list[PipelineReport](), list[Detections](), 0
    for depth in options.depths[:1] and (1,) if model.is_onnx else options.depths:
        measured, found, most_at_once = _measure_at_depth(model, frames, options, depth, control)
        pipelines += measured
        detections = found or detections
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
    return report, detections


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
            stages = measure_steps(slot, frames_in_place[0], thresholds, control)
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
        candidates=tuple(candidates),
    )


def _measure_at_depth(
    model: ModelFile,
    frames: Sequence[Frame],
    options: BenchmarkOptions,
    depth: int,
    control: MeasurementControl,
) -> tuple[list[PipelineReport], list[Detections], int]:
    """Measure each batch size at one depth, until a stop.

    Returns:
        A report for each measured batch size; the detections of each frame at the first batch
        size; and the largest batch that the pipeline accepts. The last is 0 if the measurements
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
    first: list[Detections] = []
    with closing(pipeline), copy_to_pipeline_memory(pipeline, frames) as frames_in_place:
        thresholds = options.thresholds
        for index, batch in enumerate(each for each in options.batches if each <= pipeline.batch):
            if index:
                control.announce(f'{model.path.name}: {measurement_name(batch, depth)}')
            whole = frames_in_place[: len(frames_in_place) // batch * batch]
            _allocate_for_largest(pipeline, whole, thresholds, batch)
            detections = detect_all(pipeline, whole, thresholds, control, batch)
            if control.stopped and len(detections) < len(whole):
                break
            memory_used = free - device.memory()[0] if device else None
            report = measure_pipeline(pipeline, whole, thresholds, detections, control, batch)
            reports.append(replace(report, load_s=load_s, device_memory_bytes=memory_used))
            first = first or detections
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
