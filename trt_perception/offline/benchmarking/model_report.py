# SPDX-License-Identifier: Apache-2.0
"""Options and results of the measurements of one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trt_perception.images.frame import Frame
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.tensors import TensorSpec
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.benchmarking.measure import EncodingTime, PipelineReport, StageTime


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
        sha256: SHA-256 of the model file.
        runtime: module that runs the model, and its version; or ``Triton server``.
        output: the first output tensor.
        engine_ms: mean time of the network in consecutive runs; from a CUDA graph if possible.
        encodings: maps the name of an encoding to the times of the steps that depend on the
            encoding; empty if only one encoding was requested.
        candidates: number of boxes above the threshold before NMS, for each frame; empty if the
            task has no objects.
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
    def network(self) -> str:
        """Word for the network in tables and plots."""
        return 'model' if self.provider else 'engine'

    @property
    def used_gpu(self) -> bool:
        """Whether the model used a GPU that the CUDA bindings can open."""
        measured = (pipeline.device_memory_bytes is not None for pipeline in self.pipelines)
        return not self.provider or any(measured)
