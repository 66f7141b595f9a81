# SPDX-License-Identifier: Apache-2.0
"""Compare the CPU time per 1080p frame of the node with a bare subscriber's.

The node has an empty pipeline, which compares samples of the pixels with the sent image and
returns ten fixed boxes. The node publishes them. The bare rclpy subscriber only copies the pixels.
Both use the transport and allocator settings of detect.launch.py, unless --default-transport is
given. Both run at the same time and receive frames in turn, so that other load affects both. The
result is the median ratio of the rounds.

A second figure is the CPU time of the node's own threads. The benchmark subtracts the time within
the middleware's wait and take, which do not hold Python's lock. (rclpy's take holds the lock.)
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import threading
import time

import gate
import numpy as np
import rclpy
from children import Child
from common import (
    HEIGHT,
    WIDTH,
    launch_environment,
    number_of,
    quality,
    run_camera,
    save,
    spin_until,
)
from rclpy.impl.implementation_singleton import rclpy_implementation as _rclpy
from rclpy.node import Node
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image

from trt_perception.images.detections import Detections
from trt_perception.images.memory import NumpyMemory
from trt_perception.model.decoders.anchors import Dense
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tensors import TensorSpec
from trt_perception.pipelines.pipeline import Result
from trt_perception.process.standard_streams import guarded_streams
from trt_perception.ros.detector_node import DetectorNode
from trt_perception.ros.wire import rcl

WARM_UP = 30
BARE_TOPIC = 'image_bare'


class Meter:
    """Reads CPU times once a frame. ``finished`` becomes True after enough frames."""

    def __init__(self, frames):
        self._frames = frames
        self._seen = 0
        self.finished = False
        self.results = {}

    def frame(self):
        self._seen += 1
        if self._seen == WARM_UP:
            self._begun = self._clocks()
        if self._seen == WARM_UP + self._frames:
            spent = {name: at - self._begun.get(name, 0) for name, at in self._clocks().items()}
            self.results = {'rate_hz': self._frames / spent.pop('wall')}
            for name, seconds in spent.items():
                self.results[f'{name}_ms'] = 1e3 * seconds / self._frames
            self.finished = True

    def _clocks(self):
        return {'cpu': time.process_time(), 'wall': time.perf_counter()}


# Names of the node's threads, and their names in the output.
THREADS = {'MainThread': 'executor', 'intake': 'intake', 'detector': 'worker'}


class ThreadClocks:
    """Reads CPU clocks of this process's threads, without the middleware's wait and take.

    Wait and take do not hold Python's lock. The constructor replaces both functions, so a process
    can have only one object of this class.
    """

    def __init__(self):
        self._away_s = {}
        self._adding = threading.Lock()
        _rclpy.WaitSet.wait = self._left_out(_rclpy.WaitSet.wait)
        slow = rcl.load_rcl().releases_gil
        for name in ('rcl_wait', 'rcl_take_serialized_message'):
            setattr(slow, name, self._left_out(getattr(slow, name)))

    def _left_out(self, call):
        """Return the call, wrapped to record the CPU time that its thread spends in it."""

        def timed(*args):
            begun = time.thread_time()
            try:
                return call(*args)
            finally:
                name, away_s = threading.current_thread().name, time.thread_time() - begun
                with self._adding:  # several threads may have the same name
                    self._away_s[name] = self._away_s.get(name, 0.0) + away_s

        return timed

    def spent_s(self):
        """Return the seconds spent by Python threads, by thread name."""
        spent_s = {name: -away_s for name, away_s in self._away_s.items()}
        for thread in threading.enumerate():
            clock_s = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            spent_s[thread.name] = spent_s.get(thread.name, 0.0) + clock_s
        return spent_s


class ThreadMeter(Meter):
    """A meter that also reads the CPU clocks of the node's threads, without wait and take."""

    def __init__(self, frames):
        super().__init__(frames)
        self._threads = ThreadClocks()

    def _clocks(self):
        spent_s = self._threads.spent_s()
        named = {ours: spent_s[name] for name, ours in THREADS.items() if name in spent_s}
        return super()._clocks() | named


class EmptyPipeline:
    """A pipeline that checks samples of the pixels and returns ten fixed boxes."""

    depth = max_in_flight = 1
    opening_reason = ''
    batch = 1
    decodes_jpeg = False
    diagnostic_values = ()
    allocate = NumpyMemory

    def __init__(self, meter):
        self._meter = meter
        self._number = 0
        tensors = (
            TensorSpec('images', (1, 3, 640, 640), 'float32'),
            TensorSpec('output0', (1, 84, 8400), 'float32'),
        )
        names = tuple(f'class {index}' for index in range(80))
        self.spec = ModelSpec(
            tensors[0], tensors[1:], Preprocessing((640, 640)), Dense(), names, True
        )
        left_top = np.linspace(0, 900, 10, dtype=np.float32)[:, None] + np.zeros(2, np.float32)
        boxes = np.hstack([left_top, left_top + 100])
        self._detections = Detections(
            boxes, np.linspace(1, 0.5, 10, dtype=np.float32), np.arange(10, dtype=np.int32)
        )

    def enqueue(self, slot, frames, thresholds):
        (frame,) = frames
        self._frame = frame
        if frame.width != WIDTH:
            return  # a frame of the warm-up has no number
        number = number_of(frame.data)
        if number <= self._number:
            raise ValueError(f'image {number} came after image {self._number}')
        self._number = number

    def is_done(self, slot):
        return True

    def collect(self, slot):
        self._meter.frame()
        return [Result(self._detections, 0.0, self._frame)]

    def close(self):
        pass


def run_node(frames, intake):
    """Run the real node with the empty pipeline; print the CPU times per frame."""
    rclpy.init()
    meter = ThreadMeter(frames)
    node = DetectorNode(
        open_pipeline=lambda *_: EmptyPipeline(meter),
        parameter_overrides=[
            Parameter('autostart', value=True),
            Parameter('image_intake', value=intake),
        ],
    )
    spin_until(node, lambda: meter.finished)
    node.close()
    print(json.dumps(meter.results), flush=True)
    rclpy.shutdown()


def run_bare(frames):
    """Run a subscriber that only copies; print the CPU time per frame."""
    rclpy.init()
    meter = Meter(frames)
    buffer = np.empty(3 * WIDTH * HEIGHT, np.uint8)
    node = Node('bare')

    def copy(message):
        data = np.frombuffer(message.data, np.uint8)
        buffer[: data.size] = data
        meter.frame()

    node.create_subscription(Image, BARE_TOPIC, copy, quality('reliable'))
    spin_until(node, lambda: meter.finished)
    node.destroy_node()
    print(json.dumps(meter.results), flush=True)
    rclpy.shutdown()


def main():
    parser = argparse.ArgumentParser(prog='scripts/bench frame_path', description=__doc__)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--frames', type=int, default=150, help='frames measured in each round')
    parser.add_argument('--rate', type=float, default=15.0, metavar='HZ', help="the camera's rate")
    parser.add_argument(
        '--default-transport', action='store_true', help='without profile and allocator settings'
    )
    parser.add_argument(
        '--intake', choices=['auto', 'rclpy'], default='auto', help="the node's image_intake"
    )
    gate.add_option(parser)
    parser.add_argument('--role', choices=['camera', 'node', 'bare'], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == 'camera':
        run_camera(options.rate, 'reliable', ('image', BARE_TOPIC))
    elif options.role == 'node':
        run_node(options.frames, options.intake)
    elif options.role == 'bare':
        run_bare(options.frames)
    else:
        return compare(options)
    return 0


def compare(options):
    """Run node and bare subscriber on one camera for some rounds; return the exit code."""
    environment = {} if options.default_transport else launch_environment()
    limit_s = 30 + 3 * (WARM_UP + options.frames) / options.rate
    figures = {'node': [], 'bare': []}
    ratios = []
    with Child(__file__, '--role', 'camera', '--rate', options.rate, environment=environment):
        for index in range(options.rounds):
            with contextlib.ExitStack() as stack:
                children = {
                    role: stack.enter_context(
                        Child(
                            *(__file__, '--role', role, '--frames', options.frames),
                            *('--intake', options.intake),
                            environment=environment,
                        )
                    )
                    for role in figures
                }
                for role, child in children.items():
                    figures[role].append(child.result(limit_s))
            node, bare = (figures[role][-1]['cpu_ms'] for role in figures)
            ratios.append(node / bare)
            print(
                f'round {index + 1}/{options.rounds}: node {node:.2f} ms, bare {bare:.2f} ms, '
                f'ratio {ratios[-1]:.2f}; {threads_of(figures["node"][-1:])}'
            )
    ratio = statistics.median(ratios)
    print(f'threads of the node, medians: {threads_of(figures["node"])}')
    save('frame_path', {'figures': figures, 'ratio': ratio, 'transport': environment})
    if options.default_transport or options.intake == 'rclpy':
        print(f'CPU time per 1080p frame, node / bare subscriber: median {ratio:.3f}')
        return 0  # the stored baseline has other settings
    name = 'CPU time, node / bare subscriber'
    return gate.gate('frame_path', {name: ratio}, store=options.store_baseline)


def threads_of(rounds):
    """Return a text with the CPU time of the node's threads: medians without wait and take."""
    intake, worker, executor = (
        statistics.median(figures.get(f'{name}_ms', 0.0) for figures in rounds)
        for name in ('intake', 'worker', 'executor')
    )
    return (
        f'intake and worker {intake + worker:.2f} ms ({intake:.2f} + {worker:.2f}), '
        f'executor {executor:.2f} ms'
    )


if __name__ == '__main__':
    with guarded_streams():
        sys.exit(main())
