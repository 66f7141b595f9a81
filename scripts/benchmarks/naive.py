"""Measure how many times faster the pipeline is than a simple program for the same job.

The simple program runs the same engine with an OpenCV letterbox, NumPy normalisation and blocking
copies between ordinary host memory and the GPU. It synchronises after each step and decodes the
whole output in NumPy. It allocates buffers once, and OpenCV uses its threads, so that the
comparison is fair.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import cv2
import numpy as np

from trt_perception.gpu import copy_async
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.offline.benchmarking.control import MeasurementControl
from trt_perception.offline.benchmarking.frames import load_frames
from trt_perception.offline.benchmarking.measure import TimeStatistics
from trt_perception.offline.benchmarking.model import measure_model
from trt_perception.offline.benchmarking.model_report import BenchmarkOptions
from trt_perception.offline.evaluation.metrics.agreement import compare_detections
from trt_perception.offline.tools.parts.arguments import integer_at_least
from trt_perception.offline.tools.parts.model_arguments import (
    add_model_arguments,
    values_from_options,
)
from trt_perception.pipelines.cuda.cuda_pipeline import CudaPipeline
from trt_perception.process.option_parser import OptionParser
from trt_perception.stages.decode import decode
from trt_perception.stages.host_preprocess import pixels_and_bgr_order, resize

EXAMPLES = """\
examples:
  python3 scripts/benchmarks/naive.py yolo.engine
  python3 scripts/benchmarks/naive.py yolo.engine --frames 500 --json naive.json
"""
PICTURES = 8


@dataclass(frozen=True)
class NaiveReport:
    """Figures of the simple program, which processes one frame after the other.

    Attributes:
        latency_ms: time from the frame to its detections.
        frames_per_s: frames per second without pauses.
        steps_ms: mean time of each step.
        cpu_ms: CPU time of all threads per frame.
    """

    latency_ms: TimeStatistics
    frames_per_s: float
    steps_ms: dict[str, float]
    cpu_ms: float


def main(arguments=None):
    options = parse_arguments(arguments)
    model = read_model_file(options.engine)
    frames = load_frames(options.image, None, 'bgr8', PICTURES)
    control = MeasurementControl(options.frames, warmup=min(100, options.frames))
    config = values_from_options(options, options.engine)
    wanted = BenchmarkOptions(
        count=options.frames,
        pipeline=config.pipeline_options(),
        thresholds=config.thresholds(()),
    )
    measured, expected = measure_model(model, frames, wanted, control)
    single = replace(wanted.pipeline, depth=1, use_cuda_graph=False)
    with closing(CudaPipeline(model, single)) as pipeline:
        naive, found = measure_naive(pipeline, frames, config, control)
    agreement = compare_detections(expected, found, ()).as_dict()
    over = {str(p.depth): p.frames_per_s / naive.frames_per_s for p in measured.pipelines}
    steps = ', '.join(f'{name} {mean:.3f}' for name, mean in naive.steps_ms.items())
    latency = naive.latency_ms
    print(f'naive: {naive.frames_per_s:.1f} frames/s, CPU {naive.cpu_ms:.3f} ms')
    print(f'latency, ms: p50 {latency.p50:.3f}, p99 {latency.p99:.3f}; steps: {steps}')
    for depth, ratio in over.items():
        print(f'depth {depth}: {ratio:.1f} times as many frames/s')
    print(f'agreement of the boxes: F1 {agreement["F1"]}, mean IoU {agreement["mean_IoU"]}')
    if options.json:
        content = {'naive': asdict(naive), 'agreement': agreement, 'throughput_over_naive': over}
        options.json.write_text(json.dumps(content, indent=2) + '\n', encoding='utf-8')
    return 0


def parse_arguments(arguments):
    parser = OptionParser('scripts/benchmarks/naive.py', __doc__, EXAMPLES)
    parser.add_argument('engine', metavar='ENGINE', help='an engine without bfloat16 tensors')
    parser.add_argument(
        '--frames', type=integer_at_least(1), default=1000, metavar='N', help='default: 1000'
    )
    parser.add_argument(
        '--image', default='', metavar='FILE', help="default: the demo's photographs with digits"
    )
    parser.add_argument('--json', type=Path, metavar='FILE', help='write all figures')
    add_model_arguments(parser)
    return parser.parse_args(arguments)


def measure_naive(pipeline, frames, config, control):
    """Time the simple program with a pipeline's engine, device buffers and stream.

    Returns:
        The figures, and the detections of each frame.
    """
    job = NaiveJob(pipeline, config)
    found = [job.run(frame)[1] for frame in frames]
    done = 0
    control.begin_warm_up()
    while control.must_continue(done, 0):
        job.run(frames[done % len(frames)])
        done += 1
    marks = []
    control.begin('the naive way')
    cpu = time.process_time()
    start = time.perf_counter()
    while control.must_continue(len(marks)):
        marks.append(job.run(frames[len(marks) % len(frames)])[0])
    wall_s = time.perf_counter() - start
    cpu_s = time.process_time() - cpu
    times = np.array(marks)
    means = np.diff(times, axis=1).mean(axis=0) * 1e3
    names = ('preprocess', 'upload', 'engine', 'download', 'decode')
    report = NaiveReport(
        latency_ms=TimeStatistics.of_seconds((times[:, -1] - times[:, 0]).tolist()),
        frames_per_s=len(marks) / wall_s,
        steps_ms={name: float(mean) for name, mean in zip(names, means, strict=True)},
        cpu_ms=cpu_s / len(marks) * 1e3,
    )
    return report, found


def naive_tensor(frame, preprocessing, letterbox):
    """Return a frame as the network's input, a new array of shape (1, 3, height, width)."""
    image, bgr_order = pixels_and_bgr_order(frame)
    if image.shape[2] != 3 or bgr_order != (0, 1, 2):
        image = np.ascontiguousarray(image[..., bgr_order])
    resized = resize(
        image,
        letterbox.resized_wh,
        antialias=preprocessing.antialias,
        round_pixels=preprocessing.round_pixels,
        filter=preprocessing.filter,
        window_xyxy=letterbox.visible_xyxy,
    )
    left, top, right, bottom = letterbox.image_xyxy
    sides = top, letterbox.network_wh[1] - bottom, left, letterbox.network_wh[0] - right
    pad_value = preprocessing.pad_value
    padded = resized
    if pad_value is not None:
        padded = cv2.copyMakeBorder(resized, *sides, cv2.BORDER_CONSTANT, value=(pad_value,) * 3)
    if preprocessing.color_order == 'rgb':
        padded = cv2.cvtColor(padded, cv2.COLOR_BGR2RGB)
    values = padded.astype(np.float32) * np.float32(preprocessing.scale)
    if any(preprocessing.mean) or set(preprocessing.std) != {1.0}:
        mean, std = np.array(preprocessing.mean, 'f4'), np.array(preprocessing.std, 'f4')
        values = (values - mean) / std
    if pad_value is None:
        values = cv2.copyMakeBorder(values, *sides, cv2.BORDER_CONSTANT, value=(0, 0, 0))
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None], np.dtype(preprocessing.dtype))


class NaiveJob:
    """The work for one frame. Only the output arrays are kept between frames."""

    def __init__(self, pipeline, config):
        self.slot = pipeline.slots[0]
        self.spec = pipeline.spec
        self.config = config
        self.thresholds = config.thresholds(self.spec.class_names)
        self.outputs = [np.zeros(each.shape, np.dtype(each.dtype)) for each in self.spec.outputs]

    def run(self, frame):
        """Return the times at the boundaries of the steps, and the detections."""
        slot, preprocessing = self.slot, self.spec.preprocessing
        marks = [time.perf_counter()]
        letterbox = preprocessing.letterbox((frame.width, frame.height))
        tensor = naive_tensor(frame, preprocessing, letterbox)
        marks.append(time.perf_counter())
        self.copy(slot.input, tensor.ctypes.data, tensor.nbytes)
        marks.append(time.perf_counter())
        slot.infer()
        slot.stream.synchronize()
        marks.append(time.perf_counter())
        for output, array in zip(self.spec.outputs, self.outputs, strict=True):
            self.copy(array.ctypes.data, slot.outputs[output.name], array.nbytes)
        marks.append(time.perf_counter())
        (detections,) = decode(
            self.outputs,
            self.spec,
            [letterbox],
            [self.thresholds],
            DecodingLimits(
                self.config.max_detections, class_agnostic=self.config.class_agnostic_nms
            ),
        )
        marks.append(time.perf_counter())
        return marks, detections

    def copy(self, destination, source, size):
        """Copy between GPU and ordinary host memory, blocking as cudaMemcpy does."""
        copy_async(destination, source, size, self.slot.stream)
        self.slot.stream.synchronize()


if __name__ == '__main__':
    sys.exit(main())
