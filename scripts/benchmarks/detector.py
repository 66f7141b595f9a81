"""Latency and CPU time of the whole node with a real model, camera and detections over DDS.

A camera process publishes the same 1080p photograph-like image again and again, raw or as JPEG,
each with the time in its stamp; detector_node runs the model; a third process takes the
detections. Latency is from the camera's stamp to the arrival of the detections at the client's
middleware, as that stamps it; p50 in Python is to the callback of a client in Python, which says
what rclpy adds. CPU time is the node's process, all threads. All have the transport and allocator
settings of detect.launch.py. Rounds alternate, the figures are medians over the rounds. With
--look-at masks (or debug_image) each round is run a second time, while a fourth process takes
these images.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import cv2
import numpy as np
import rclpy
from common import SHARE, Child, launch_environment, quality, save
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import CompressedImage, Image
from vision_msgs.msg import Detection2DArray

from trt_perception.ros.wire.unlocked_publish import publish_unlocked, serialize_with_room

WARM_UP = 60
# A serialised message: four bytes of encapsulation, then the stamp's seconds and nanoseconds.
STAMP_AT = slice(4, 12)
NODE = SHARE.parents[1] / 'lib' / 'trt_perception' / 'detector_node'
CLOCK_TICKS = os.sysconf('SC_CLK_TCK')


def picture(width, height):
    """Return uint8 (height, width, 3) with detail at all scales, as a photograph has it.

    1080p at quality 95 is 370 KB, as a photograph is.
    """
    random = np.random.default_rng(5)
    total = np.zeros((height, width, 3), np.float32)
    for cells in (4, 16, 64, 256, 960):
        coarse = random.normal(0, 100 / cells**0.55, (cells * 9 // 16 + 1, cells, 3))
        total += cv2.resize(coarse.astype(np.float32), (width, height))
    return np.clip(total + 128, 0, 255).astype(np.uint8)


def serialized_picture(options):
    """Return the type of a camera's messages, their topic, and one of them, serialised."""
    bgr = picture(*map(int, options.size.split('x')))
    if options.kind == 'jpeg':
        data = cv2.imencode('.jpg', bgr, [cv2.IMWRITE_JPEG_QUALITY, options.quality])[1]
        empty, topic = CompressedImage(format='jpeg'), 'image/compressed'
    else:
        height, width, _ = bgr.shape
        empty = Image(width=width, height=height, encoding='bgr8', step=3 * width)
        data, topic = bgr.reshape(-1), 'image'
    message, place = serialize_with_room(empty, data.size)
    place[:] = data.reshape(-1)
    return type(empty), topic, message


def run_camera(options):
    """Publish until the process is ended, each image with the time at which it is sent."""
    rclpy.init()
    node = Node('camera')
    kind, topic, message = serialized_picture(options)
    publisher = node.create_publisher(kind, topic, quality('reliable'))
    period_s = 1 / options.rate
    due = time.monotonic()
    while True:
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)
        message[STAMP_AT] = np.frombuffer(struct.pack('=iI', seconds, nanoseconds), np.uint8)
        publish_unlocked(publisher, message)
        due = max(due + period_s, time.monotonic() - period_s)
        time.sleep(max(0.0, due - time.monotonic()))


def run_client(options):
    """Take detections for some seconds; print latencies, rate and the node's CPU time."""
    rclpy.init()
    node = Node('client')
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    latencies = []

    def receive(message, info):
        now_ns = time.time_ns()
        seconds, nanoseconds = struct.unpack('=iI', message[STAMP_AT])
        stamp_ns = seconds * 10**9 + nanoseconds
        latencies.append((info['received_timestamp'] - stamp_ns, now_ns - stamp_ns))

    # As bytes: rclpy takes 10 ms and more to make objects of 300 boxes.
    node.create_subscription(Detection2DArray, 'detections', receive, 10, raw=True)
    while len(latencies) < WARM_UP:
        executor.spin_once()
    latencies.clear()
    cpu_s, begun = cpu_seconds(options.node), time.monotonic()
    while time.monotonic() < begun + options.seconds:
        executor.spin_once(0.05)
    elapsed_s, cpu_s = time.monotonic() - begun, cpu_seconds(options.node) - cpu_s
    arrived, called = np.array(latencies).T * 1e-6
    result = {
        'rate_hz': len(latencies) / elapsed_s,
        'p50_ms': np.percentile(arrived, 50),
        'p99_ms': np.percentile(arrived, 99),
        'p50_in_python_ms': np.percentile(called, 50),
        'cpu_ms': 1e3 * cpu_s / len(latencies),
    }
    print(json.dumps(result), flush=True)


def run_looker(options):
    """Take images of a topic of the node until the process is ended."""
    rclpy.init()
    node = Node('looker')
    node.create_subscription(Image, options.look_at, lambda _: None, quality('reliable'), raw=True)
    rclpy.spin(node)


def cpu_seconds(process):
    """Return the CPU time of a process so far, user and system, of all its threads."""
    fields = Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def main():
    parser = argparse.ArgumentParser(prog='scripts/bench detector', description=__doc__)
    parser.add_argument('engine', help='engine or ONNX file')
    parser.add_argument(
        '--image', nargs='+', choices=['raw', 'jpeg'], default=['raw', 'jpeg'], help='default both'
    )
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--seconds', type=float, default=10.0, help='measured in each round')
    parser.add_argument('--rate', type=float, default=30.0, metavar='HZ', help="the camera's rate")
    parser.add_argument('--size', default='1920x1080', metavar='WxH')
    parser.add_argument('--quality', type=int, default=95, help='of the JPEG (default 95)')
    parser.add_argument(
        '--parameter', action='append', default=[], metavar='NAME:=VALUE', help="of the node's"
    )
    parser.add_argument('--look-at', metavar='TOPIC', help='measure with a subscriber, too')
    parser.add_argument('--role', choices=['camera', 'client', 'looker'], help=argparse.SUPPRESS)
    parser.add_argument('--kind', help=argparse.SUPPRESS)
    parser.add_argument('--node', help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == 'camera':
        run_camera(options)
    elif options.role == 'client':
        run_client(options)
    elif options.role == 'looker':
        run_looker(options)
    else:
        compare(options)
    return 0


def compare(options):
    """Alternate raw and JPEG, each without and with a look, and print the medians."""
    environment = launch_environment()
    cases = {kind: (kind, None) for kind in options.image}
    if options.look_at:
        cases |= {f'{kind}, {options.look_at}': (kind, options.look_at) for kind in options.image}
    results = {name: [] for name in cases}
    print(f'{"":20}{"frames/s":>10}{"p50 ms":>9}{"p99 ms":>9}{"in Python":>11}{"CPU ms":>9}')
    for _ in range(options.rounds):
        for name, case in cases.items():
            results[name].append(run_round(options, *case, environment))
            print_row(name, results[name][-1])
    medians = {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        for name, rows in results.items()
    }
    print('medians')
    for name, row in medians.items():
        print_row(name, row)
    save('detector', {'rounds': results, 'medians': medians, 'settings': environment})


def run_round(options, kind, look_at, environment):
    """Run camera, node, client and perhaps a looker once; return what the client measured."""
    parameters = {
        'engine_path': str(Path(options.engine).resolve()),
        'autostart': 'true',
        'image_transport': 'compressed' if kind == 'jpeg' else 'raw',
    }
    node = ['--ros-args', '--log-level', 'warn']
    for parameter in (*(f'{n}:={v}' for n, v in parameters.items()), *options.parameter):
        node += ['-p', parameter]
    camera = ('--kind', kind, '--rate', options.rate, '--size', options.size)
    with ExitStack() as processes:

        def start(*arguments):
            return processes.enter_context(Child(*arguments, environment=environment))

        def start_role(role, *arguments):
            return start(__file__, options.engine, '--role', role, *arguments)

        detector = start(NODE, *node)
        start_role('camera', *camera, '--quality', options.quality)
        if look_at:
            start_role('looker', '--look-at', look_at)
        client = start_role('client', '--node', detector.pid, '--seconds', options.seconds)
        return client.result(120 + options.seconds)


def print_row(name, row):
    print(
        f'{name:20}{row["rate_hz"]:>10.1f}{row["p50_ms"]:>9.2f}{row["p99_ms"]:>9.2f}'
        f'{row["p50_in_python_ms"]:>11.2f}{row["cpu_ms"]:>9.2f}'
    )


if __name__ == '__main__':
    sys.exit(main())
