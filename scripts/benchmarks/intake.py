"""Taking images of several cameras in one process: by rclpy's subscriptions, and by the intake.

Cameras of 1080p images, four in a process, publish raw (bgr8, 6.2 MB) or compressed
images (380 KB) at a steady rate, one after the other. The receiver reads the header of each and
drops it: rclpy's way hands it a message object, the intake a view of the serialised message.
Both ways take turns in one run, with the transport and allocator settings of detect.launch.py;
the figures are medians of the rounds.

With --of-a-thread the ways are the intake with other numbers of threads, instead of rclpy's.

taken: share of what was sent. latency: from just before it is published until its header is read.
CPU: of the receiver's process, for each image taken. with the lock: what of that its Python
threads spend outside the middleware's wait and take; rclpy's take counts, because it holds the
interpreter's lock.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import struct
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import rclpy
from common import HEIGHT, WIDTH, Child, launch_environment, quality, save
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import CompressedImage, Image
from thread_clocks import ThreadClocks

from trt_perception.process.option_parser import OptionParser
from trt_perception.ros.intake.buffers import MessageBuffers
from trt_perception.ros.intake.shared import CAMERAS_OF_A_THREAD, SharedIntake
from trt_perception.ros.intake.subscriptions import EVENTS, Images
from trt_perception.ros.wire.cdr import read_compressed, read_image
from trt_perception.ros.wire.unlocked_publish import publish_unlocked, serialize_with_room

EXAMPLES = """\
examples:
  scripts/bench intake
  scripts/bench intake --cameras 1,4,16 --kinds compressed --rate 30
  scripts/bench intake --cameras 2 --rounds 5 --json intake.json
  scripts/bench intake --cameras 16 --kinds raw --rate 30 --of-a-thread 16,8,4,2
"""
KINDS = {'raw': (Image, read_image), 'compressed': (CompressedImage, read_compressed)}
WAYS = ('rclpy', 'intake')
COMPRESSED_BYTES = 380_000
OF_A_PROCESS = 4  # cameras
WARM_UP = 20  # images of each camera
STAMP = struct.Struct('=iI')
STAMP_AT = 4


def topics(cameras, first=0):
    return [f'camera_{first + number}/image' for number in range(cameras)]


def run_cameras(kind, cameras, rate_hz, first):
    """Publish until the process is ended, a stamp of the moment in each image."""
    rclpy.init()
    node = Node('cameras')
    if kind == 'raw':
        empty = Image(height=HEIGHT, width=WIDTH, encoding='bgr8', step=3 * WIDTH)
        size = 3 * WIDTH * HEIGHT
    else:
        empty, size = CompressedImage(format='jpeg'), COMPRESSED_BYTES
    message, data = serialize_with_room(empty, size)
    data[:] = np.frombuffer(os.urandom(size), np.uint8)
    publishers = [
        node.create_publisher(type(empty), topic, quality('reliable'))
        for topic in topics(cameras, first)
    ]
    due_s = time.monotonic()
    for publisher in itertools.cycle(publishers):
        due_s = max(due_s + 1 / (cameras * rate_hz), time.monotonic() - 0.1)
        time.sleep(max(0.0, due_s - time.monotonic()))
        STAMP.pack_into(message, STAMP_AT, *divmod(time.time_ns(), 10**9))
        publish_unlocked(publisher, message)


class Meter:
    """Takes latencies and numbers of what is taken, from when all cameras have been heard of."""

    def __init__(self, cameras):
        self._cameras = cameras
        self._clocks = ThreadClocks()
        self._heard = dict.fromkeys(topics(cameras), 0)
        self.begun = None

    def take(self, topic, header, number):
        """Take the header of an image, and its number at its publisher."""
        stamp = header.stamp
        age_s = time.time() - stamp.sec - stamp.nanosec * 1e-9
        if self.begun is not None:
            self._ages_s.append(age_s)
            self._numbers.setdefault(topic, []).append(number)
            return
        self._heard[topic] += 1
        if min(self._heard.values()) >= WARM_UP:
            self._ages_s, self._numbers = [], {}
            self._before = self._now()
            self.begun = time.monotonic()

    def _now(self):
        return time.process_time(), sum(self._clocks.spent_s().values())

    def result(self):
        cpu_s, locked_s = (
            now - before for now, before in zip(self._now(), self._before, strict=True)
        )
        taken = len(self._ages_s)
        sent = sum(each[-1] - each[0] + 1 for each in self._numbers.values())
        return {
            'rate_hz': taken / (time.monotonic() - self.begun),
            'taken': taken / sent,
            'p50_ms': 1e3 * float(np.percentile(self._ages_s, 50)),
            'p99_ms': 1e3 * float(np.percentile(self._ages_s, 99)),
            'cpu_ms': 1e3 * cpu_s / taken,
            'locked_ms': 1e3 * locked_s / taken,
        }


def run_receiver(way, kind, cameras, seconds):
    """Take images of all cameras for some seconds; print the figures."""
    rclpy.init()
    node = Node('receiver')
    meter = Meter(cameras)
    with ExitStack() as made:
        shared = SharedIntake(
            node,
            MessageBuffers(),
            typed=way == 'rclpy',
            faulted=print,
            cameras=int(way.partition('/')[2] or CAMERAS_OF_A_THREAD),
        )
        for topic in topics(cameras):
            made.callback(shared.subscribe(images_of(node, kind, topic, meter)).close)
        if way == 'rclpy':
            executor = SingleThreadedExecutor()
            executor.add_node(node)
            wait = executor.spin_once
        else:
            wait = time.sleep
        while meter.begun is None or time.monotonic() < meter.begun + seconds:
            wait(0.05)
        print(json.dumps(meter.result()), flush=True)
    node.destroy_node()
    rclpy.shutdown()


def images_of(node, kind, topic, meter):
    """Return what to subscribe to; events as the node has them."""
    message_kind, read = KINDS[kind]

    def receive(message, number):
        if not isinstance(message, message_kind):
            message = read(message.data)
        meter.take(topic, message.header, number)

    return Images(
        node, message_kind, topic, quality('reliable'), receive, print, dict.fromkeys(EVENTS, id)
    )


def main():
    parser = OptionParser('scripts/bench intake', __doc__, EXAMPLES)
    parser.add_argument(
        '--cameras', type=numbers, default=(1, 2), metavar='N[,N...]', help='default 1,2'
    )
    parser.add_argument(
        '--kinds', type=kinds, default=tuple(KINDS), metavar='KIND[,KIND]', help=', '.join(KINDS)
    )
    parser.add_argument('--rate', type=float, default=15.0, metavar='HZ', help='of each camera')
    parser.add_argument(
        '--of-a-thread',
        type=numbers,
        metavar='N[,N...]',
        help='cameras whose images a thread of the intake takes at most, to compare; else '
        f'{CAMERAS_OF_A_THREAD}',
    )
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--seconds', type=float, default=6.0, help='measured in each round')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write the result there, too')
    parser.add_argument('--role', help=argparse.SUPPRESS)
    parser.add_argument('--first', type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == 'cameras':
        run_cameras(options.kinds[0], options.cameras[0], options.rate, options.first)
    elif options.role:
        run_receiver(options.role, options.kinds[0], options.cameras[0], options.seconds)
    else:
        compare(options)


def numbers(text):
    values = tuple(int(part) for part in text.split(','))
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f'expected numbers of 1 and more (got {text})')
    return values


def kinds(text):
    values = tuple(text.split(','))
    if unknown := set(values) - set(KINDS):
        raise argparse.ArgumentTypeError(f'expected {", ".join(KINDS)} (got {", ".join(unknown)})')
    return values


def compare(options):
    """Let all ways take turns; print a table of medians."""
    ways = [f'intake/{share}' for share in options.of_a_thread or ()] or WAYS
    cases = [
        (kind, cameras, way)
        for kind in options.kinds
        for cameras in options.cameras
        for way in ways
    ]
    rounds = {case: [] for case in cases}
    for number in range(1, options.rounds + 1):
        for case in cases:
            kind, cameras, way = case
            what = f'{kind}, {cameras} at {options.rate:g} Hz, {way}'
            print(f'round {number}/{options.rounds}: {what}', file=sys.stderr)
            rounds[case].append(run(options, kind, cameras, way))
    content = {
        'rate_hz': options.rate,
        'seconds': options.seconds,
        'cases': [
            {'kind': kind, 'cameras': cameras, 'way': way, 'median': median(rows), 'rounds': rows}
            for (kind, cameras, way), rows in rounds.items()
        ],
        'transport': launch_environment(),
    }
    show(content['cases'])
    save('intake', content)
    if options.json is not None:
        options.json.write_bytes(Path('benchmark_output/intake.json').read_bytes())


def run(options, kind, cameras, way):
    environment = launch_environment()

    def child(role, count, *arguments):
        """Start a process that has to do with so many cameras."""
        common = ('--role', role, '--kinds', kind, '--cameras', count)
        return running.enter_context(Child(__file__, *common, *arguments, environment=environment))

    with ExitStack() as running:
        for first in range(0, cameras, OF_A_PROCESS):
            count = min(OF_A_PROCESS, cameras - first)
            child('cameras', count, '--rate', options.rate, '--first', first)
        receiver = child(way, cameras, '--seconds', options.seconds)
        return receiver.result(60 + 3 * options.seconds)


def median(rows):
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def show(cases):
    print(
        f'{"images":11}{"cameras":>8}  {"way":9}{"taken":>7}{"p50 ms":>8}{"p99 ms":>8}'
        f'{"CPU ms":>8}{"with the lock ms":>18}'
    )
    for case in cases:
        row = case['median']
        print(
            f'{case["kind"]:11}{case["cameras"]:>8}  {case["way"]:9}{row["taken"]:>7.0%}'
            f'{row["p50_ms"]:>8.2f}{row["p99_ms"]:>8.2f}{row["cpu_ms"]:>8.2f}'
            f'{row["locked_ms"]:>18.2f}'
        )


if __name__ == '__main__':
    main()
