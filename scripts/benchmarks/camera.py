# SPDX-License-Identifier: Apache-2.0
"""Measure the node's CPU time per image of one camera, split by activity.

A camera publishes 1080p images at a steady rate, raw (bgr8, 6.2 MB) or as JPEG (about 380 KB). The
real node runs an empty pipeline, which returns ten boxes, and publishes these boxes.
The benchmark measures image_intake auto and rclpy, with the settings of detect.launch.py. --svg
draws the picture of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import struct
import sys
import threading
import time
from pathlib import Path

import cv2
import numpy as np
import rclpy
from children import Child
from common import HEIGHT, WIDTH, launch_environment, quality, save, spin_until
from frame_path import EmptyPipeline
from rclpy.impl.implementation_singleton import rclpy_implementation as _rclpy
from rclpy.node import Node
from rclpy.parameter import Parameter
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header

from trt_perception.images import compressed
from trt_perception.process.standard_streams import guarded_streams
from trt_perception.ros.detector_node import DetectorNode
from trt_perception.ros.wire import rcl
from trt_perception.ros.wire.unlocked_publish import publish_unlocked
from trt_perception.wire.image_message import (
    compressed_message_start,
    image_message_start,
    serialize_with_room,
)

WARM_UP = 30
JPEG_BYTES = 380_000
SCENE = Path(__file__).resolve().parents[2] / 'demo' / 'scenes' / 'scene_053.jpg'
KIND_LABELS = {'raw': 'raw, 6.2 MB', 'compressed': 'JPEG, 0.4 MB'}
INTAKE_NAMES = {'auto': 'intake', 'rclpy': 'rclpy'}
#: Maps an activity to label, colour, and whether the activity holds Python's lock (GIL).
PARTS = {
    'middleware': ('middleware receives', '#9aa5b1', False),
    'copied': ('intake copies', '#5b8fc7', False),
    'decoded': ('the CPU decodes', '#8fb8a8', False),
    'taken': ('rclpy takes', '#b5482f', True),
    'intake': ("intake's own", '#d9822b', True),
    'worker': ('worker', '#e8a95a', True),
    'executor': ('executor', '#f3d19c', True),
}
LONG_CALLS = {
    'copied': (lambda: rcl.load_rcl().releases_gil, 'rcl_take_serialized_message'),
    'waited': (lambda: rcl.load_rcl().releases_gil, 'rcl_wait'),
    'slept': (lambda: _rclpy.WaitSet, 'wait'),
    'taken': (lambda: _rclpy.Subscription, 'take_message'),
    'decoded': (lambda: compressed, 'decode_jpeg'),
}


def run_camera(kind, rate_hz):
    """Publish images until the process is ended."""
    rclpy.init()
    node = Node('camera')
    if kind == 'raw':
        topic, data = 'image', os.urandom(3 * WIDTH * HEIGHT)
        message_type = Image
        start = image_message_start(Header(), (WIDTH, HEIGHT), 'bgr8', 3)
    else:
        topic, data = 'image/compressed', jpeg()
        message_type = CompressedImage
        start = compressed_message_start(Header(), 'jpeg', len(data))
    message, room = serialize_with_room(start)
    room[:] = np.frombuffer(data, np.uint8)
    publisher = node.create_publisher(message_type, topic, quality('reliable'))
    due_s = time.monotonic()
    while True:
        due_s = max(due_s + 1 / rate_hz, time.monotonic() - 0.1)
        time.sleep(max(0.0, due_s - time.monotonic()))
        struct.pack_into('=iI', message, 4, *divmod(time.time_ns(), 10**9))
        publish_unlocked(publisher, message)


def jpeg():
    """Return a 1080p JPEG of at most JPEG_BYTES: a demo scene with sensor noise."""
    scene = cv2.resize(cv2.imread(str(SCENE)), (WIDTH, HEIGHT)).astype(np.int16)
    scene += np.random.default_rng(0).integers(-6, 7, scene.shape, np.int16)
    for percent in itertools.count(95, -1):
        data = cv2.imencode('.jpg', scene.clip(0, 255), [cv2.IMWRITE_JPEG_QUALITY, percent])[1]
        if data.size <= JPEG_BYTES:
            return data.tobytes()
    raise AssertionError


class Meter:
    """Reads the CPU times of all threads, and of some calls, once a frame."""

    def __init__(self, frames):
        self._frames = frames
        self._seen = 0
        self._within_s = dict.fromkeys(LONG_CALLS, 0.0)
        for name, (owner, call) in LONG_CALLS.items():
            setattr(owner(), call, self._timed(name, getattr(owner(), call)))
        self.parts_ms = None

    def _timed(self, name, call):
        def timed(*args):
            begun = time.thread_time()
            try:
                return call(*args)
            finally:
                self._within_s[name] += time.thread_time() - begun

        return timed

    def frame(self):
        self._seen += 1
        if self._seen == WARM_UP:
            self._before = self._now()
        if self._seen == WARM_UP + self._frames:
            now = self._now()
            self.parts_ms = {
                name: 1e3 * (now[name] - self._before[name]) / self._frames for name in PARTS
            }

    def _now(self):
        within = self._within_s
        threads = {
            thread.name: time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            for thread in threading.enumerate()
        }
        intake_s = threads.get('intake', 0.0)
        return {
            'middleware': time.process_time()
            - sum(threads.values())
            + within['waited']
            + within['slept'],
            'copied': within['copied'],
            'decoded': within['decoded'],
            'taken': within['taken'],
            'intake': intake_s - within['copied'] - within['waited'],
            'worker': threads['detector'] - within['decoded'],
            'executor': threads['MainThread'] - within['taken'] - within['slept'],
        }


class NoPipeline(EmptyPipeline):
    """A pipeline that does not read its images."""

    def enqueue(self, slot, frames, thresholds):
        (self._frame,) = frames


def run_node(kind, way, frames):
    """Run the node for a number of frames; print the CPU time by activity."""
    rclpy.init()
    meter = Meter(frames)
    parameters = {'autostart': True, 'image_transport': kind, 'image_intake': way}
    node = DetectorNode(
        open_pipeline=lambda *_: NoPipeline(meter),
        parameter_overrides=[Parameter(name, value=value) for name, value in parameters.items()],
    )
    spin_until(node, lambda: meter.parts_ms is not None)
    node.close()
    print(json.dumps(meter.parts_ms), flush=True)
    rclpy.shutdown()


def main():
    parser = argparse.ArgumentParser(prog='scripts/bench camera', description=__doc__)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--frames', type=int, default=120, help='frames measured in each round')
    parser.add_argument('--rate', type=float, default=15.0, metavar='HZ', help="the camera's rate")
    parser.add_argument('--svg', type=Path, metavar='FILE', help='draw the picture')
    parser.add_argument('--role', choices=['camera', 'node'], help=argparse.SUPPRESS)
    parser.add_argument('--case', nargs=2, default=('raw', 'auto'), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == 'camera':
        run_camera(options.case[0], options.rate)
    elif options.role == 'node':
        run_node(*options.case, options.frames)
    else:
        measure(options)


def measure(options):
    """Alternate image kinds and intakes; print, save and draw the medians."""
    environment = launch_environment()
    rounds = {case: [] for case in itertools.product(KIND_LABELS, INTAKE_NAMES)}
    for number in range(1, options.rounds + 1):
        for case, results in rounds.items():
            print(f'round {number}/{options.rounds}: {", ".join(case)}', file=sys.stderr)
            camera = ('--role', 'camera', '--rate', options.rate, '--case', *case)
            node = ('--role', 'node', '--frames', options.frames, '--case', *case)
            with (
                Child(__file__, *camera, environment=environment),
                Child(__file__, *node, environment=environment) as child,
            ):
                results.append(child.result(60 + 3 * options.frames / options.rate))
    medians = [
        {
            'kind': kind,
            'way': INTAKE_NAMES[way],
            'parts_ms': {part: statistics.median(row[part] for row in results) for part in PARTS},
        }
        for (kind, way), results in rounds.items()
    ]
    print(f'{"":22}' + ''.join(f'{case["kind"] + ", " + case["way"]:>20}' for case in medians))
    for part, (words, *_) in PARTS.items():
        print(f'{words:22}' + ''.join(f'{case["parts_ms"][part]:>17.2f} ms' for case in medians))
    save('camera', {'rate_hz': options.rate, 'cases': medians})
    if options.svg is not None:
        options.svg.write_text(svg_chart(medians), encoding='utf-8')


def svg_chart(cases):
    """Return an SVG picture: one bar per case. Parts without Python's lock are on the left."""
    left, width, height, gap = 210, 760, 34, 14
    most_ms = max(sum(case['parts_ms'].values()) for case in cases)
    scale = width / most_ms
    lines = []
    for row, case in enumerate(cases):
        top = 36 + row * (height + gap)
        kind = KIND_LABELS[case['kind']]
        label = f'{kind}, by {"the " * (case["way"] == "intake")}{case["way"]}'
        lines.append(f'<text x="{left - 10}" y="{top + 22}" text-anchor="end">{label}</text>')
        x = left
        for part, (_, colour, _) in PARTS.items():
            part_ms = case['parts_ms'][part]
            if part_ms < 0.005:
                continue
            lines.append(
                f'<rect x="{x:.1f}" y="{top}" width="{part_ms * scale:.1f}" height="{height}" '
                f'fill="{colour}"/>'
            )
            if part_ms * scale > 34:
                lines.append(
                    f'<text class="small" x="{x + part_ms * scale / 2:.1f}" y="{top + 21}" '
                    f'text-anchor="middle">{part_ms:.2f}</text>'
                )
            x += part_ms * scale
        total_ms = sum(case['parts_ms'].values())
        lines.append(
            f'<text class="small" x="{x + 6:.1f}" y="{top + 21}">{total_ms:.2f} ms</text>'
        )
    top = 36 + len(cases) * (height + gap) + 12
    for row, locked in enumerate((False, True)):
        words = 'with the lock:' if locked else 'without the lock:'
        lines.append(
            f'<text x="{left - 10}" y="{top + 12 + 26 * row}" text-anchor="end">{words}</text>'
        )
        named = [(name, colour) for name, colour, holds in PARTS.values() if holds is locked]
        for column, (name, colour) in enumerate(named):
            x = left + 165 * column
            lines.append(
                f'<rect x="{x}" y="{top + 26 * row}" width="14" height="14" fill="{colour}"/>'
            )
            lines.append(f'<text x="{x + 20}" y="{top + 12 + 26 * row}">{name}</text>')
    body = '\n  '.join(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1050 {top + 56}" '
        'font-family="DejaVu Sans, Verdana, Arial, sans-serif" font-size="13">\n'
        '  <title>CPU time of the node for each image of a 1080p camera</title>\n'
        '  <style> text { fill: #111; } .small { font-size: 11px; } </style>\n'
        f'  <rect width="1050" height="{top + 56}" fill="#ffffff"/>\n'
        f'  <text x="{left}" y="22">CPU time of the node for each 1080p image, no network</text>\n'
        f'  {body}\n'
        '</svg>\n'
    )


if __name__ == '__main__':
    with guarded_streams():
        main()
