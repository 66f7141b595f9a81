"""CPU time per 1080p frame: the node with an empty pipeline, against a bare subscriber.

The empty pipeline copies the pixels and returns ten fixed boxes, which the node publishes; the
bare subscriber only copies the pixels. The difference is what the node adds to receiving an image.
Both use the transport and allocator settings of detect.launch.py unless --default-transport is
given. Rounds alternate; the figure is the median ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import gate
import numpy as np
import rclpy
from common import HEIGHT
from common import WIDTH
from common import Child
from common import launch_environment
from common import quality
from common import run_camera
from common import save
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image

from trt_perception.detections import Detections
from trt_perception.manifest import DecoderSpec
from trt_perception.manifest import Preprocessing
from trt_perception.manifest import TensorSpec
from trt_perception.model_spec import ModelSpec
from trt_perception.pipelines.pipeline import Result
from trt_perception.ros.detector_node import DetectorNode

WARM_UP = 30


class Meter:
    """Takes the process's CPU time once a frame, and knows when enough frames have come."""

    def __init__(self, frames):
        self._frames = frames
        self._seen = 0
        self.finished = False

    def frame(self):
        self._seen += 1
        if self._seen == WARM_UP:
            self._cpu, self._wall = time.process_time(), time.perf_counter()
        if self._seen == WARM_UP + self._frames:
            self.finished = True
            self.cpu_ms = 1e3 * (time.process_time() - self._cpu) / self._frames
            self.rate_hz = self._frames / (time.perf_counter() - self._wall)


class EmptyPipeline:
    """Copies the pixels and returns ten fixed boxes."""

    depth = 1

    def __init__(self, meter):
        self._meter = meter
        self._buffer = np.empty(3 * WIDTH * HEIGHT, np.uint8)
        tensors = (
            TensorSpec('images', (1, 3, 640, 640), 'float32'),
            TensorSpec('output0', (1, 84, 8400), 'float32'),
        )
        names = tuple(f'class {index}' for index in range(80))
        self.spec = ModelSpec(
            tensors[0], tensors[1:], Preprocessing((640, 640)), DecoderSpec('dense'), names, True
        )
        left_top = np.linspace(0, 900, 10, dtype=np.float32)[:, None] + np.zeros(2, np.float32)
        boxes = np.hstack([left_top, left_top + 100])
        self._detections = Detections(
            boxes, np.linspace(1, 0.5, 10, dtype=np.float32), np.arange(10, dtype=np.int32)
        )

    def enqueue(self, slot, frame, thresholds):
        self._buffer[: frame.data.size] = frame.data

    def done(self, slot):
        return True

    def collect(self, slot):
        self._meter.frame()
        return Result(self._detections, 0.0)

    def close(self):
        pass


def run_node(frames):
    """Run the real node with the empty pipeline; print its CPU time per frame."""
    rclpy.init()
    meter = Meter(frames)
    node = DetectorNode(
        open_pipeline=lambda config: EmptyPipeline(meter),
        parameter_overrides=[Parameter('autostart', value=True)],
    )
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    while not meter.finished:
        executor.spin_once()
    node.close()
    print(json.dumps({'cpu_ms': meter.cpu_ms, 'rate_hz': meter.rate_hz}), flush=True)
    rclpy.shutdown()


def run_bare(frames):
    """Run a subscriber that only copies; print its CPU time per frame."""
    rclpy.init()
    meter = Meter(frames)
    buffer = np.empty(3 * WIDTH * HEIGHT, np.uint8)
    node = Node('bare')

    def copy(message):
        data = np.frombuffer(message.data, np.uint8)
        buffer[: data.size] = data
        meter.frame()

    node.create_subscription(Image, 'image', copy, quality('reliable'))
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    while not meter.finished:
        executor.spin_once()
    node.destroy_node()
    print(json.dumps({'cpu_ms': meter.cpu_ms, 'rate_hz': meter.rate_hz}), flush=True)
    rclpy.shutdown()


def main():
    parser = argparse.ArgumentParser(prog='scripts/bench frame_path', description=__doc__)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--frames', type=int, default=150, help='frames measured in each round')
    parser.add_argument('--rate', type=float, default=15.0, metavar='HZ', help="the camera's rate")
    parser.add_argument(
        '--default-transport', action='store_true', help='without profile and allocator settings'
    )
    gate.add_option(parser)
    parser.add_argument('--role', choices=['camera', 'node', 'bare'], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == 'camera':
        run_camera(options.rate, 'reliable')
    elif options.role:
        {'node': run_node, 'bare': run_bare}[options.role](options.frames)
    else:
        return compare(options)
    return 0


def compare(options):
    """Alternate node and bare subscriber on one camera; return the exit code."""
    environment = {} if options.default_transport else launch_environment()
    limit_s = 30 + 3 * (WARM_UP + options.frames) / options.rate
    figures = {'node': [], 'bare': []}
    with Child(__file__, '--role', 'camera', '--rate', options.rate, environment=environment):
        for index in range(options.rounds):
            for role, values in figures.items():
                arguments = ('--role', role, '--frames', options.frames)
                with Child(__file__, *arguments, environment=environment) as child:
                    values.append(child.result(limit_s))
            ratio = figures['node'][-1]['cpu_ms'] / figures['bare'][-1]['cpu_ms']
            print(
                f'round {index + 1}/{options.rounds}: node {figures["node"][-1]["cpu_ms"]:.2f} '
                'ms, '
                f'bare {figures["bare"][-1]["cpu_ms"]:.2f} ms, ratio {ratio:.2f}'
            )
    ratios = [
        node['cpu_ms'] / bare['cpu_ms'] for node, bare in zip(*figures.values(), strict=True)
    ]
    print(
        f'CPU time per 1080p frame, node / bare subscriber: median {statistics.median(ratios):.3f}'
    )
    save(
        'frame_path',
        {'figures': figures, 'ratio': statistics.median(ratios), 'transport': environment},
    )
    if options.default_transport:
        return 0  # another figure than the baseline's
    node, bare = (min(round_['cpu_ms'] for round_ in rounds) for rounds in figures.values())
    ratio = {'least CPU time, node / bare subscriber': node / bare}
    return gate.gate('frame_path', ratio, store=options.store_baseline)


if __name__ == '__main__':
    sys.exit(main())
