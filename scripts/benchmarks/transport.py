# SPDX-License-Identifier: Apache-2.0
"""Measure latency and CPU time of 1080p images between two processes.

The benchmark compares the default transport with the settings of detect.launch.py. A camera
publishes at a steady rate. A bare subscriber copies each image and measures its age by the stamp.
Both processes have the same settings. Rounds alternate, and figures are medians over the rounds.
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
from children import Child
from common import HEIGHT, WIDTH, launch_environment, quality, run_camera, save
from rclpy.node import Node
from sensor_msgs.msg import Image

from trt_perception.process.standard_streams import guarded_streams

WARM_UP_S = 2.0


def run_subscriber(seconds, reliability):
    """Receive for some seconds; print latency, CPU time and the share of images received."""
    rclpy.init()
    node = Node('subscriber')
    buffer = np.empty(3 * WIDTH * HEIGHT, np.uint8)
    latencies, numbers = [], []

    def receive(message, info):
        data = np.frombuffer(message.data, np.uint8)
        buffer[: data.size] = data
        stamp = message.header.stamp
        latencies.append(time.time() - stamp.sec - stamp.nanosec * 1e-9)
        numbers.append(info['publication_sequence_number'])

    node.create_subscription(Image, 'image', receive, quality(reliability))
    spin(node, WARM_UP_S)
    latencies.clear()
    numbers.clear()
    cpu = time.process_time()
    spin(node, seconds)
    cpu_ms = 1e3 * (time.process_time() - cpu) / max(1, len(numbers))
    sent = numbers[-1] - numbers[0] + 1 if numbers else 0
    print(
        json.dumps(
            {
                'received': len(numbers),
                'arrived': len(numbers) / sent if sent else 0.0,
                'p50_ms': 1e3 * float(np.percentile(latencies, 50)) if latencies else None,
                'p99_ms': 1e3 * float(np.percentile(latencies, 99)) if latencies else None,
                'cpu_ms': cpu_ms if numbers else None,
            }
        ),
        flush=True,
    )
    rclpy.shutdown()


def spin(node, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        rclpy.spin_once(node, timeout_sec=0.05)


def main():
    parser = argparse.ArgumentParser(prog='scripts/bench transport', description=__doc__)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--seconds', type=float, default=6.0, help='duration of each round')
    parser.add_argument('--rate', type=float, default=30.0, metavar='HZ', help="the camera's rate")
    gate.add_option(parser)
    parser.add_argument('--role', choices=['camera', 'subscriber'], help=argparse.SUPPRESS)
    parser.add_argument('--reliability', default='reliable', help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == 'camera':
        run_camera(options.rate, options.reliability)
    elif options.role == 'subscriber':
        run_subscriber(options.seconds, options.reliability)
    else:
        return compare(options)
    return 0


def compare(options):
    """Alternate the settings, with reliable and best-effort QoS; return the exit code."""
    cases = {
        f'{name}, {reliability}': (environment, reliability)
        for reliability in ('reliable', 'best_effort')
        for name, environment in (('default', {}), ('profile', launch_environment()))
    }
    results = {name: [] for name in cases}
    print(f'{"":24}{"arrived":>9}{"p50 ms":>9}{"p99 ms":>9}{"CPU ms":>9}')
    for _ in range(options.rounds):
        for name, (environment, reliability) in cases.items():
            common = ('--reliability', reliability)
            camera = ('--role', 'camera', '--rate', options.rate, *common)
            subscriber = ('--role', 'subscriber', '--seconds', options.seconds, *common)
            with (
                Child(__file__, *camera, environment=environment),
                Child(__file__, *subscriber, environment=environment) as child,
            ):
                results[name].append(child.result(60 + options.seconds))
            print_row(name, results[name][-1])
    medians = {name: median(rows) for name, rows in results.items()}
    print('medians')
    for name, row in medians.items():
        print_row(name, row)
    slow, fast = medians['default, reliable'], medians['profile, reliable']
    print(
        f'profile / default, reliable QoS: latency {fast["p50_ms"] / slow["p50_ms"]:.2f}, '
        f'CPU time {fast["cpu_ms"] / slow["cpu_ms"]:.2f}'
    )
    save('transport', {'rounds': results, 'medians': medians, 'settings': launch_environment()})
    ratios = {
        f'least {what}, profile / default': least(results['profile, reliable'], key)
        / least(results['default, reliable'], key)
        for what, key in (('latency', 'p50_ms'), ('CPU time', 'cpu_ms'))
    }
    return gate.gate('transport', ratios, store=options.store_baseline)


def median(rows):
    return {
        key: statistics.median(values)
        if (values := [row[key] for row in rows if row[key] is not None])
        else None
        for key in rows[0]
    }


def least(rows, key):
    return min(row[key] for row in rows if row[key] is not None)


def print_row(name, row):
    cells = (
        None if row[key] is None else f'{row[key]:.1f}' for key in ('p50_ms', 'p99_ms', 'cpu_ms')
    )
    print(f'{name:24}{row["arrived"]:>8.0%} ' + ''.join(f'{cell or "-":>9}' for cell in cells))


if __name__ == '__main__':
    with guarded_streams():
        sys.exit(main())
