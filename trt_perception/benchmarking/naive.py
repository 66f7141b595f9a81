"""The same job the way it is often written, on the same engine, to compare with.

OpenCV letterbox, normalising in NumPy, blocking copies between ordinary host memory and the GPU,
one synchronisation for each step, decoding of the whole output in NumPy. Buffers are allocated
once and OpenCV uses its threads: this is a fair simple program, not a bad one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.benchmarking.measure import Spread
from trt_perception.benchmarking.pace import Pace
from trt_perception.config import DetectorConfig
from trt_perception.config import Thresholds
from trt_perception.detections import Detections
from trt_perception.gpu import copy_async
from trt_perception.images.frame import Frame
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.pipelines.cuda_slot import CudaSlot
from trt_perception.stages.decoders.decode import decode
from trt_perception.stages.host_preprocess import channel_image
from trt_perception.stages.host_preprocess import resize

__all__ = ['NaiveReport', 'measure_naive', 'naive_tensor']


@dataclass(frozen=True)
class NaiveReport:
    """One frame after the other.

    Attributes:
        latency_ms: from the frame to its detections.
        frames_per_s: right behind each other.
        steps_ms: mean time of each step.
        cpu_ms: CPU time of all threads for a frame.
    """

    latency_ms: Spread
    frames_per_s: float
    steps_ms: dict[str, float]
    cpu_ms: float


def measure_naive(
    slot: CudaSlot,
    spec: ModelSpec,
    frames: Sequence[Frame],
    thresholds: Thresholds,
    config: DetectorConfig,
    pace: Pace,
) -> tuple[NaiveReport, list[Detections]]:
    """Time the naive way.

    Args:
        slot: gives the engine, its device buffers and its stream; nothing queued on it.
        spec: of the model; NumPy has no bfloat16.
        frames: taken in turn.
        thresholds: for all frames.
        config: as for the pipeline.
        pace: says when it ends.

    Returns:
        The times, and the detections of each frame.
    """
    job = _NaiveJob(slot, spec, thresholds, config)
    found = [job.run(frame)[1] for frame in frames]
    done = 0
    pace.begin_warm_up()
    while pace.more(done, 0):
        job.run(frames[done % len(frames)])
        done += 1
    marks: list[list[float]] = []
    pace.begin('the naive way')
    cpu = time.process_time()
    start = time.perf_counter()
    while pace.more(len(marks)):
        marks.append(job.run(frames[len(marks) % len(frames)])[0])
    wall_s = time.perf_counter() - start
    cpu_s = time.process_time() - cpu
    times = np.array(marks)
    means = np.diff(times, axis=1).mean(axis=0) * 1e3
    names = ('preprocess', 'upload', 'engine', 'download', 'decode')
    report = NaiveReport(
        latency_ms=Spread.of_seconds((times[:, -1] - times[:, 0]).tolist()),
        frames_per_s=len(marks) / wall_s,
        steps_ms={name: float(mean) for name, mean in zip(names, means, strict=True)},
        cpu_ms=cpu_s / len(marks) * 1e3,
    )
    return report, found


def naive_tensor(
    frame: Frame, preprocessing: Preprocessing, letterbox: Letterbox
) -> npt.NDArray[np.floating]:
    """Return a frame as the network's input, a new array: (1, 3, height, width)."""
    image, order = channel_image(frame)
    if image.shape[2] != 3 or order != (0, 1, 2):
        image = np.ascontiguousarray(image[..., order])
    size = letterbox.resized_wh
    resized = resize(image, size, antialias=preprocessing.antialias)
    right = letterbox.network_wh[0] - size[0] - letterbox.pad_left
    bottom = letterbox.network_wh[1] - size[1] - letterbox.pad_top
    grey = (preprocessing.pad_value,) * 3
    sides = letterbox.pad_top, bottom, letterbox.pad_left, right
    padded = cv2.copyMakeBorder(resized, *sides, cv2.BORDER_CONSTANT, value=grey)
    if preprocessing.color_order == 'rgb':
        padded = cv2.cvtColor(padded, cv2.COLOR_BGR2RGB)
    values = padded.astype(np.float32) * np.float32(preprocessing.scale)
    if any(preprocessing.mean) or set(preprocessing.std) != {1.0}:
        mean, std = np.array(preprocessing.mean, 'f4'), np.array(preprocessing.std, 'f4')
        values = (values - mean) / std
    tensor: npt.NDArray[np.floating] = np.ascontiguousarray(
        values.transpose(2, 0, 1)[None], np.dtype(preprocessing.dtype)
    )
    return tensor


class _NaiveJob:
    """What one frame takes; the only memory kept between frames is the outputs'."""

    def __init__(
        self, slot: CudaSlot, spec: ModelSpec, thresholds: Thresholds, config: DetectorConfig
    ) -> None:
        self._slot = slot
        self._spec = spec
        self._thresholds = thresholds
        self._config = config
        self._outputs = [np.zeros(each.shape, np.dtype(each.dtype)) for each in spec.outputs]

    def run(self, frame: Frame) -> tuple[list[float], Detections]:
        """Return the times before, between and after the steps, and the detections."""
        slot, preprocessing = self._slot, self._spec.preprocessing
        marks = [time.perf_counter()]
        letterbox = Letterbox.fit(
            (frame.width, frame.height), preprocessing.input_size, preprocessing.resize
        )
        tensor = naive_tensor(frame, preprocessing, letterbox)
        marks.append(time.perf_counter())
        self._copy(slot.input, tensor.ctypes.data, tensor.nbytes)
        marks.append(time.perf_counter())
        slot.infer()
        slot.stream.synchronize()
        marks.append(time.perf_counter())
        for told, array in zip(self._spec.outputs, self._outputs, strict=True):
            self._copy(array.ctypes.data, slot.outputs[told.name], array.nbytes)
        marks.append(time.perf_counter())
        (detections,) = decode(
            self._outputs,
            self._spec,
            [letterbox],
            self._thresholds,
            max_detections=self._config.max_detections,
            class_agnostic=self._config.class_agnostic_nms,
        )
        marks.append(time.perf_counter())
        return marks, detections

    def _copy(self, destination: int, source: int, size: int) -> None:
        """Copy as cudaMemcpy does: from or to ordinary memory, and wait for it."""
        copy_async(destination, source, size, self._slot.stream)
        self._slot.stream.synchronize()
