"""One model measured whole: alone, step by step, and in the pipeline."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from trt_perception.benchmarking.control import MeasurementControl
from trt_perception.benchmarking.gpu_steps import measure_encodings, measure_steps, run_frame
from trt_perception.benchmarking.host_steps import measure_host_steps
from trt_perception.benchmarking.measure import (
    EncodingTime,
    PipelineReport,
    StageTime,
    detect_all,
    measure_pipeline,
    measurement_name,
)
from trt_perception.gpu import Device
from trt_perception.images.detections import Detections
from trt_perception.images.frame import Frame
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.tensors import TensorSpec
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.cuda_pipeline import CudaPipeline
from trt_perception.pipelines.host_pipeline import HostPipeline
from trt_perception.pipelines.pipeline import Pipeline, collect_all
from trt_perception.pipelines.warm_up import copy_to_pipeline_memory
from trt_perception.stages.onnx_runtime import CPU_PROVIDER

__all__ = ['BenchmarkOptions', 'BestSetting', 'ModelReport', 'TimeRatios', 'measure_model']


@dataclass(frozen=True)
class BenchmarkOptions:
    """What is measured.

    Attributes:
        depths: batches in flight, one measurement each; on the CPU there is always one. Empty: no
            pipeline is measured.
        count: frames of each measurement.
        warmup: frames before each that do not count.
        seconds: most time of each measurement, None where only the frames count.
        provider: ONNX Runtime's, for ONNX files.
        pipeline: how the models are run; ``depths`` and ``batches`` replace its depth and batch.
        thresholds: of all frames.
        batches: frames of each batch, one measurement each, as far as the model takes so many at
            once.
        max_latency_ms: what is best within this is looked for; None: without a limit only.
    """

    depths: tuple[int, ...] = (1, 2, 3, 4)
    count: int = 1000
    warmup: int = 100
    seconds: float | None = None
    provider: str = CPU_PROVIDER
    pipeline: PipelineOptions = field(default_factory=PipelineOptions)
    thresholds: Thresholds = field(default_factory=Thresholds)
    batches: tuple[int, ...] = (1,)
    max_latency_ms: float | None = None


@dataclass(frozen=True)
class TimeRatios:
    """The times compared with each other.

    Attributes:
        depth: of the pipeline.
        throughput_x_engine: frames/s times the engine's own time: 1 where the engine never waits.
        p50_minus_engine_ms: what a frame takes beyond the engine's own time.
        p99_over_p50: of the latency.
    """

    depth: int
    throughput_x_engine: float
    p50_minus_engine_ms: float
    p99_over_p50: float


@dataclass(frozen=True)
class BestSetting:
    """The batch and depth of most frames a second.

    Attributes:
        batch: frames of each batch.
        depth: batches in flight.
        frames_per_s: with frames always waiting.
        p99_ms: of the latency of a batch, with frames always waiting.
    """

    batch: int
    depth: int
    frames_per_s: float
    p99_ms: float


@dataclass(frozen=True)
class ModelReport:
    """All figures of one model.

    Attributes:
        file: its name.
        sha256: of its bytes.
        runtime: module and version that run it.
        input: the input tensor.
        output: the first output tensor.
        engine_ms: the network alone, for each of many right behind each other; from a CUDA graph
            where there is one.
        stages: single steps, by name.
        encodings: an engine's steps that depend on the encoding, by its name; empty where one
            encoding was asked for.
        candidates: boxes above the confidence threshold before NMS, for each image.
        pipelines: one entry for each depth and batch.
        ratios: one entry for each depth, of frames one by one.
        most_at_once: frames that the model takes at once, 0 where no pipeline was opened.
        left_out: batches that are more than that, and were not measured.
        best: None where nothing was measured.
        best_within_limit: with a latency that is asked for; None where there is no such limit, or
            nothing keeps it.
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
    ratios: tuple[TimeRatios, ...] = ()
    most_at_once: int = 0
    left_out: tuple[int, ...] = ()
    best: BestSetting | None = None
    best_within_limit: BestSetting | None = None


def measure_model(
    model: ModelFile,
    frames: Sequence[Frame],
    options: BenchmarkOptions,
    control: MeasurementControl,
    encodings: Sequence[Frame] = (),
) -> tuple[ModelReport, list[Detections]] | None:
    """Measure everything of one model, or as much as was begun before the control was stopped.

    Args:
        model: an engine or ONNX file.
        frames: taken in turn; as many as are in flight at most, or more.
        options: what is measured.
        control: says when each measurement ends.
        encodings: a frame of each encoding to be compared, for engines.

    Returns:
        The figures, and the detections of each frame, none where no pipeline was measured; None
        where nothing was.

    Raises:
        EngineError: the model cannot be run.
        CudaError: a CUDA call failed.
    """
    if model.is_onnx:
        report = _measure_on_host(model, frames, options, control)
    else:
        report = _measure_on_gpu(model, frames, options, control, encodings)
    if report is None:
        return None
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
        ratios=tuple(_time_ratios(pipeline, report.engine_ms) for pipeline in singles),
        most_at_once=most,
        left_out=tuple(batch for batch in options.batches if 0 < most < batch),
        best=_best(pipelines, None),
        best_within_limit=_best(pipelines, options.max_latency_ms)
        if options.max_latency_ms
        else None,
    )
    return report, detections


def _best(pipelines: Sequence[PipelineReport], limit_ms: float | None) -> BestSetting | None:
    """Return the one of most frames a second, of those that keep the limit."""
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
    control.step(f'{model.path.name}: engine and steps')
    single = replace(options.pipeline, depth=1, use_cuda_graph=False, max_batch=1)
    with closing(CudaPipeline(model, single)) as pipeline:
        if control.stopped:
            return None
        slot, spec = pipeline.slots[0], pipeline.spec
        thresholds = options.thresholds
        with copy_to_pipeline_memory(pipeline, frames) as frames_in_place:
            stages = measure_steps(slot, frames_in_place[0], thresholds, control)
            candidates = [run_frame(slot, frame, thresholds) for frame in frames_in_place]
        with copy_to_pipeline_memory(pipeline, encodings) as frames_in_place:
            times = measure_encodings(slot, frames_in_place, thresholds, control)
        return _steps_report(model, spec, pipeline.runtime, stages, candidates, times)


def _measure_on_host(
    model: ModelFile,
    frames: Sequence[Frame],
    options: BenchmarkOptions,
    control: MeasurementControl,
) -> ModelReport | None:
    control.step(f'{model.path.name}: steps')
    opened = HostPipeline(model, options.pipeline, provider=options.provider)
    with closing(opened) as pipeline:
        if control.stopped:
            return None
        stages, candidates = measure_host_steps(pipeline, frames, options.thresholds, control)
        return _steps_report(model, pipeline.spec, 'onnxruntime', stages, candidates, {})


def _steps_report(
    model: ModelFile,
    spec: ModelSpec,
    runtime: str,
    stages: dict[str, StageTime],
    candidates: Sequence[int],
    encodings: dict[str, EncodingTime],
) -> ModelReport:
    """Return what was measured without a pipeline."""
    engine = stages.get('engine_graph') or stages.get('engine_enqueue') or stages['inference']
    return ModelReport(
        file=model.path.name,
        sha256=model.sha256,
        runtime=f'{runtime} {sys.modules[runtime].__version__}',
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
    """Measure each batch at one depth, until the control is stopped.

    Returns:
        A report of each batch; what was found in each frame, in batches of the first; and how
        many frames the model takes at once, 0 where it was stopped before.
    """
    if control.stopped:
        return [], [], 0
    most = max(options.batches)
    at_depth = replace(options.pipeline, depth=depth, max_batch=most)
    device = None if model.is_onnx else Device(at_depth.device_id)
    free = device.memory()[0] if device else 0
    control.step(f'{model.path.name}: {measurement_name(options.batches[0], depth)}')
    start = time.perf_counter()
    pipeline: Pipeline = (
        HostPipeline(model, at_depth, provider=options.provider, open_batch=most)
        if model.is_onnx
        else CudaPipeline(model, at_depth)
    )
    load_s = time.perf_counter() - start
    reports: list[PipelineReport] = []
    first: list[Detections] = []
    with closing(pipeline), copy_to_pipeline_memory(pipeline, frames) as frames_in_place:
        thresholds = options.thresholds
        for index, batch in enumerate(each for each in options.batches if each <= pipeline.batch):
            if index:
                control.step(f'{model.path.name}: {measurement_name(batch, depth)}')
            whole = frames_in_place[: len(frames_in_place) // batch * batch]
            _allocate_for_largest(pipeline, whole, thresholds, batch)
            detections = detect_all(pipeline, whole, thresholds, control, batch)
            if control.stopped and len(detections) < len(whole):
                break
            taken = free - device.memory()[0] if device else None
            report = measure_pipeline(pipeline, whole, thresholds, detections, control, batch)
            reports.append(replace(report, load_s=load_s, device_memory_bytes=taken))
            first = first or detections
    return reports, first, pipeline.batch


def _allocate_for_largest(
    pipeline: Pipeline, frames: Sequence[Frame], thresholds: Thresholds, batch: int
) -> None:
    """Run the largest frames through each slot, which grows for them once."""
    largest = sorted(frames, key=lambda frame: frame.data.size, reverse=True)[:batch]
    for slot in range(pipeline.depth):
        pipeline.enqueue(slot, largest, [thresholds] * batch)
        collect_all(pipeline, slot)


def _time_ratios(report: PipelineReport, engine_ms: float) -> TimeRatios:
    latency = report.latency_ms
    return TimeRatios(
        depth=report.depth,
        throughput_x_engine=report.frames_per_s * engine_ms / 1e3,
        p50_minus_engine_ms=latency.p50 - engine_ms,
        p99_over_p50=latency.p99 / latency.p50,
    )
