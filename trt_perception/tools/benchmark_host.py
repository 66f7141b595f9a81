"""Measuring an ONNX model on the CPU, step by step."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trt_perception.config import DetectorConfig
from trt_perception.frame import Frame
from trt_perception.manifest import DecoderSpec
from trt_perception.model_file import ModelFile
from trt_perception.model_spec import ModelSpec
from trt_perception.model_spec import resolve_model_spec
from trt_perception.stages.decoders.dense import decode_dense
from trt_perception.stages.host_preprocess import HostPreprocessor
from trt_perception.stages.onnx_runtime import CPU
from trt_perception.stages.onnx_runtime import OnnxModel
from trt_perception.tools.benchmark_measure import Spread
from trt_perception.tools.benchmark_measure import StageTime

__all__ = ['measure_host_steps']


def measure_host_steps(
    model: ModelFile,
    config: DetectorConfig,
    frames: Sequence[Frame],
    *,
    count: int,
    warmup: int,
    provider: str = CPU,
) -> tuple[ModelSpec, dict[str, StageTime], list[int]]:
    """Time preprocessing, inference and decoding, one after the other, frame by frame.

    Returns:
        The model's spec; ``preprocess``, ``inference`` and ``decode``; and for each frame how many
        boxes were above the threshold before NMS.

    Raises:
        EngineError: the model cannot be loaded, or it is not known how to use it.
    """
    onnx = OnnxModel(model, config.resolved_cpu_threads(), provider)
    spec = resolve_model_spec(
        model.path.name,
        model.manifest,
        onnx.inputs,
        onnx.outputs,
        config,
        metadata=onnx.metadata,
        model_config=model.config,
    )
    thresholds = config.thresholds(spec.class_names)
    preprocess = HostPreprocessor(spec.preprocessing)
    marks, candidates = [], []
    for index in range(-max(warmup, len(frames)), count):
        before = time.perf_counter()
        tensor, letterbox = preprocess(frames[index % len(frames)])
        preprocessed = time.perf_counter()
        output = onnx.run({spec.input.name: tensor})[0]
        inferred = time.perf_counter()
        decode_dense(
            output,
            spec.decoder,
            letterbox,
            thresholds,
            max_detections=config.max_detections,
            class_agnostic=config.class_agnostic_nms,
        )
        if index >= 0:
            marks.append((before, preprocessed, inferred, time.perf_counter()))
        elif index >= -len(frames):
            candidates.append(_passed(output, spec.decoder, thresholds.confidence))
    times = np.diff(np.array(marks), axis=1).T
    names = ('preprocess', 'inference', 'decode')
    spreads = [Spread.of_seconds(row.tolist()) for row in times]
    stages = {
        name: StageTime(spread.mean, spread) for name, spread in zip(names, spreads, strict=True)
    }
    return spec, stages, candidates


def _passed(output: npt.NDArray[np.floating], decoder: DecoderSpec, confidence: float) -> int:
    """Count the anchors whose best score is above the threshold."""
    rows = output[0].T if decoder.transposed else output[0]
    scores = rows[5 if decoder.objectness else 4 :].max(axis=0)
    if decoder.objectness:
        scores = scores * rows[4]
    return int((scores > confidence).sum())
