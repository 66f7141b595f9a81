# SPDX-License-Identifier: Apache-2.0
"""Measure CPU time and delay of detections_3d over DDS: 640 x 480 at 30 Hz, 20 objects.

    scripts/run scripts/benchmarks/boxes_3d_dds.py --seconds 60 --json boxes_3d_dds.json

One process publishes depth, calibration and detections of equal stamps, in random order, and
receives the boxes. The delay is from the publication of the later message to the reception.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import time
from pathlib import Path

import numpy as np
import rclpy
from ament_index_python.packages import get_package_prefix
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CameraInfo, Image
from vision_msgs.msg import (
    Detection2D,
    Detection2DArray,
    Detection3DArray,
    ObjectHypothesisWithPose,
)

WIDTH, HEIGHT, OBJECTS, RATE_HZ = 640, 480, 20, 30
TICKS_PER_S = os.sysconf('SC_CLK_TCK')


def scene(generator):
    """Return depth in millimetres, the boxes (left, top, right, bottom), and their numbers."""
    depth = np.full((HEIGHT, WIDTH), 6000.0)
    numbers = np.zeros((HEIGHT, WIDTH), np.uint16)
    boxes = []
    for number in range(1, OBJECTS + 1):
        width, height = generator.integers(40, 160), generator.integers(60, 220)
        left, top = generator.integers(0, WIDTH - width), generator.integers(0, HEIGHT - height)
        part = slice(top, top + height), slice(left, left + width)
        depth[part], numbers[part] = generator.uniform(1000, 5000), number
        boxes.append((left, top, left + width, top + height))
    depth += generator.normal(0, 1, depth.shape) * 1.5e-6 * depth**2
    depth[generator.random(depth.shape) < 0.05] = 0
    return depth.astype(np.uint16), boxes, numbers


def image(values, encoding):
    height, width = values.shape
    return Image(
        height=height, width=width, encoding=encoding, step=2 * width, data=values.tobytes()
    )


def detections(boxes):
    message = Detection2DArray()
    for index, (left, top, right, bottom) in enumerate(boxes):
        found = Detection2D(id=str(index))
        result = ObjectHypothesisWithPose()
        result.hypothesis.class_id, result.hypothesis.score = 'person', 0.9
        found.results.append(result)
        center = found.bbox.center.position
        center.x, center.y = (left + right) / 2.0, (top + bottom) / 2.0
        found.bbox.size_x, found.bbox.size_y = float(right - left), float(bottom - top)
        message.detections.append(found)
    return message


def cpu_s(pid):
    """Return user and system time of a process in seconds."""
    fields = Path(f'/proc/{pid}/stat').read_text(encoding='utf-8').rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def measure(seconds, *, masks):
    """Return the figures of one run."""
    executable = Path(get_package_prefix('trt_perception'), 'lib/trt_perception/detections_3d')
    node = rclpy.create_node('bench')
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    namespace = f'/bench_{os.getpid()}_{int(masks)}'
    reliable = QoSProfile(depth=10)
    kinds = {'detections': Detection2DArray, 'depth': Image, 'camera_info': CameraInfo}
    if masks:
        kinds['masks'] = Image
    publishers = {
        name: node.create_publisher(kind, f'{namespace}/{name}', reliable)
        for name, kind in kinds.items()
    }
    published_s, delays_ms, statuses = {}, [], []

    def on_boxes(message):
        delays_ms.append(1e3 * (time.monotonic() - published_s[message.header.stamp.sec]))

    node.create_subscription(Detection3DArray, f'{namespace}/detections_3d', on_boxes, reliable)
    node.create_subscription(DiagnosticArray, '/diagnostics', statuses.append, reliable)
    process = subprocess.Popen(
        [executable, '--ros-args', '-r', f'__ns:={namespace}', '-p', 'autostart:=true'],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    depth, boxes, numbers = scene(np.random.default_rng(1))
    info = CameraInfo(width=WIDTH, height=HEIGHT)
    info.k[:] = [525, 0, 319.5, 0, 525, 239.5, 0, 0, 1]
    messages = {
        'depth': image(depth, '16UC1'),
        'camera_info': info,
        'detections': detections(boxes),
        'masks': image(numbers, 'mono16'),
    }
    order = random.Random(1)

    def send(number):
        names = list(publishers)
        order.shuffle(names)
        for name in names:
            messages[name].header.frame_id = 'optical'
            messages[name].header.stamp.sec = number
            published_s[number] = time.monotonic()
            publishers[name].publish(messages[name])

    def run(first, count):
        start = time.monotonic()
        for index in range(count):
            while (left := start + index / RATE_HZ - time.monotonic()) > 0:
                executor.spin_once(timeout_sec=left)
            send(first + index)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            executor.spin_once(timeout_sec=0.1)

    try:
        for second in range(30):  # discovery
            run(1 + second * RATE_HZ, RATE_HZ)
            if len(delays_ms) >= RATE_HZ:
                break
        before = counts(statuses, namespace)
        delays_ms.clear()
        cpu = cpu_s(process.pid)
        sent = int(seconds * RATE_HZ)
        run(10_000, sent)
        cpu = cpu_s(process.pid) - cpu
        after = counts(statuses, namespace)
    finally:
        process.terminate()
        process.wait(20)
        node.destroy_node()
    assert len(boxes) == OBJECTS
    return {
        'pairs': sent,
        'received_boxes': len(delays_ms),
        'cpu_ms_per_pair': round(1e3 * cpu / sent, 2),
        'p50_ms': round(float(np.percentile(delays_ms, 50)), 1),
        'p99_ms': round(float(np.percentile(delays_ms, 99)), 1),
        'counts': {key: after[key] - before[key] for key in after},
    }


def counts(statuses, namespace):
    """Return the counts of the last status of a node."""
    values = {}
    for message in statuses:
        for status in message.status:
            if status.name.startswith(namespace):
                values = {pair.key: pair.value for pair in status.values}
    keys = 'received', 'published', 'no_depth', 'no_valid_depth', 'no_camera_info', 'replaced'
    return {key: int(values[key]) for key in keys}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--json', type=Path, default=Path('boxes_3d_dds.json'))
    parser.add_argument('--seconds', type=float, default=30)
    options = parser.parse_args()
    rclpy.init()
    record = {
        'machine': {'processor': platform.machine(), 'cores': os.cpu_count()},
        'load_average': [round(load, 1) for load in os.getloadavg()[:2]],
        'size': [WIDTH, HEIGHT],
        'rate_hz': RATE_HZ,
        'objects': OBJECTS,
        'runs': {
            'boxes_only': measure(options.seconds, masks=False),
            'with_masks': measure(options.seconds, masks=True),
        },
    }
    options.json.write_text(json.dumps(record, indent=2) + '\n', encoding='utf-8')
    print(options.json.read_text(encoding='utf-8'))
    rclpy.shutdown()


if __name__ == '__main__':
    main()
