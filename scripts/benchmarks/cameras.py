"""Compare one node of N cameras with N nodes of one camera, over DDS, with a model, in one run.

Camera processes publish the same photograph-like image repeatedly, raw or as JPEG. Each stamp is
the time of sending. detector_node runs the model, and client processes receive the detections as
bytes. The benchmark alternates one node and N nodes, with the transport and allocator settings of
detect.launch.py. Figures are medians over the rounds.

frames/s: of the slowest camera. p50, p95, p99: from the image's stamp to the arrival of its
detections at the client's middleware, over all cameras. CPU: of all detector_nodes together; 100 %
is one core. CPU ms: per image. MiB: the memory of the nodes, where a shared page is divided among
its processes (PSS). GPU MiB: the increase since before the nodes started, by NVML.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import select
import statistics
import struct
import sys
import time
from pathlib import Path

import numpy as np
import rclpy
from common import (
    NODE,
    SHARE,
    STAMP_AT,
    Child,
    cpu_seconds,
    launch_environment,
    quality,
    save,
    serialized_photograph,
)
from diagnostic_msgs.msg import DiagnosticArray
from gpu_memory import used_mib
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

from trt_perception.process.option_parser import OptionParser
from trt_perception.ros.runtime.arguments import number_between, text_matching
from trt_perception.ros.wire.unlocked_publish import publish_unlocked
from trt_perception.tools.arguments import add_file_option

EXAMPLES = """\
examples:
  scripts/bench cameras                                the digits on the CPU, 1, 2 and 4 cameras
  scripts/bench cameras yolo.engine --count 1,4,16 --size 1920x1080 --rate 30
  scripts/bench cameras yolo.engine --count 1 --nodes one --size 1920x1080 --rate 30
  scripts/bench cameras yolo-seg.engine --count 1 --nodes one --image raw --view masks
  scripts/bench cameras yolo.engine --count 64 --image jpeg --nodes one --size 1920x1080
  scripts/bench cameras yolo.engine --count 16 --parameter device_ids:=[0,1] --json two_gpus.json
"""
KINDS = ('raw', 'jpeg')
WAYS = {'one': 'one node', 'many': 'a node each'}
#: Number of detections that each camera must have before the measurement begins.
WARM_UP = 30
START_S = 300.0
#: Detections per second for each client. More would make the client the bottleneck.
CLIENT_HZ = 250.0


def names(first, count):
    return [f'camera_{number}' for number in range(first, first + count)]


def run_camera(options):
    """Publish the images of some cameras in turn until the process is ended."""
    rclpy.init()
    node = Node('cameras')
    kind, topic, message = serialized_photograph(options.kind, options.size, options.quality)
    cameras = names(options.first, options.cameras)
    publishers = [
        node.create_publisher(kind, f'/{name}/{topic}', quality('reliable')) for name in cameras
    ]
    apart_s = 0.0 if options.together else 1 / (options.rate * len(cameras))
    due_s = time.monotonic()
    while True:
        for index, publisher in enumerate(publishers):
            time.sleep(max(0.0, due_s + index * apart_s - time.monotonic()))
            now = struct.pack('=iI', *divmod(time.time_ns(), 10**9))
            message[STAMP_AT] = np.frombuffer(now, np.uint8)
            publish_unlocked(publisher, message)
        due_s = max(due_s + 1 / options.rate, time.monotonic() - 0.5 / options.rate)


class Client(Node):
    """Receives the newest diagnostics, and measures the ages of some cameras' detections."""

    def __init__(self, cameras):
        super().__init__('client')
        self.ages_s = {name: [] for name in cameras}
        self.statuses = {}
        for name in cameras:
            # Receive bytes, because rclpy needs at least 10 ms to convert 300 boxes to objects.
            self.create_subscription(
                Detection2DArray,
                f'/{name}/detections',
                functools.partial(self._on_detections, name),
                10,
                raw=True,
            )
        if cameras[0] == 'camera_0':
            self.create_subscription(DiagnosticArray, '/diagnostics', self._on_diagnostics, 100)

    def _on_detections(self, camera, message, info):
        seconds, nanoseconds = struct.unpack('=iI', message[STAMP_AT])
        age_s = (info['received_timestamp'] - nanoseconds) * 1e-9 - seconds
        self.ages_s[camera].append(age_s)

    def _on_diagnostics(self, message):
        for status in message.status:
            values = {entry.key: entry.value for entry in status.values}
            self.statuses[status.name] = {'message': status.message, **values}


def run_client(options):
    """Print a line when all cameras have sent detections; then measure on request."""
    rclpy.init()
    client = Client(names(options.first, options.cameras))
    executor = SingleThreadedExecutor()
    executor.add_node(client)
    end = time.monotonic() + START_S
    while min(map(len, client.ages_s.values())) < WARM_UP:
        executor.spin_once(0.1)
        if time.monotonic() > end:
            few = [name for name, ages_s in client.ages_s.items() if len(ages_s) < WARM_UP]
            raise SystemExit(f'too few detections of {", ".join(few)} in {START_S:.0f} s')
    print('ready', flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        executor.spin_once(0.02)
    for ages_s in client.ages_s.values():
        ages_s.clear()
    begun = time.monotonic()
    while time.monotonic() < begun + options.seconds:
        executor.spin_once(0.05)
    elapsed_s = time.monotonic() - begun
    print(
        json.dumps(
            {
                'rates_hz': {name: len(a) / elapsed_s for name, a in client.ages_s.items()},
                'ages_ms': [round(1e3 * age, 3) for a in client.ages_s.values() for age in a],
                'statuses': client.statuses,
            }
        ),
        flush=True,
    )


def run_viewer(options):
    """Receive the images of one topic of each camera until the process is ended."""
    rclpy.init()
    node = Node('viewer')
    for name in names(options.first, options.cameras):
        topic = f'/{name}/{options.view}'
        node.create_subscription(Image, topic, lambda _: None, quality('reliable'), raw=True)
    rclpy.spin(node)


def pss_mib(process):
    """Return the memory of a process in MiB. A shared page is divided among its processes."""
    for line in Path(f'/proc/{process}/smaps_rollup').read_text().splitlines():
        if line.startswith('Pss:'):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f'process {process} is gone')


def node_arguments(options, kind, way, count):
    """Return the command-line arguments of each detector_node."""
    parameters = {
        'engine_path': str(options.model.resolve()),
        'autostart': 'true',
        'image_transport': 'compressed' if kind == 'jpeg' else 'raw',
    }
    common = ['--ros-args', '--log-level', 'warn']
    for parameter in (*(f'{n}:={v}' for n, v in parameters.items()), *options.parameter):
        common += ['-p', parameter]
    if way == 'one':
        return [[*common, '-p', f'cameras:=[{",".join(names(0, count))}]']]
    return [[*common, '-r', f'__ns:=/{name}'] for name in names(0, count)]


def groups(count, most):
    """Yield (first, size) of groups of nearly equal size, each at most ``most`` cameras."""
    number = -(-count // most)
    bounds = [count * index // number for index in range(number + 1)]
    for first, end in itertools.pairwise(bounds):
        yield first, end - first


def run_round(options, kind, way, count, environment):
    """Run cameras, nodes and clients once; return the measured figures."""
    before_mib = used_mib()
    with contextlib.ExitStack() as stack:

        def child(*arguments):
            return stack.enter_context(Child(*arguments, environment=environment))

        def role(role, first, cameras, *more):
            which = ('--first', first, '--cameras', cameras, '--rate', options.rate)
            return child(__file__, '--role', role, '--kind', kind, *which, *more)

        nodes = [child(NODE, *words) for words in node_arguments(options, kind, way, count)]
        more = (
            '--size',
            options.size,
            '--quality',
            options.quality,
            *['--together'] * options.together,
        )
        for first, cameras in groups(count, options.per_process):
            role('camera', first, cameras, *more)
        if options.view:
            role('viewer', 0, count, '--view', options.view)
        most = max(1, int(CLIENT_HZ / options.rate))
        seconds = ('--seconds', options.seconds)
        clients = [role('client', *group, *seconds) for group in groups(count, most)]
        for client in clients:
            client.wait_for('ready', START_S)
        time.sleep(1)  # lets the load of the last node's start end
        for client in clients:
            client.tell('go')
        begun, cpu_s = time.monotonic(), sum(cpu_seconds(node.pid) for node in nodes)
        time.sleep(options.seconds / 2)
        memory_mib = sum(pss_mib(node.pid) for node in nodes)
        gpu_mib = None if before_mib is None else used_mib() - before_mib
        time.sleep(max(0.0, begun + options.seconds - time.monotonic()))
        cpu_s = sum(cpu_seconds(node.pid) for node in nodes) - cpu_s
        cores = cpu_s / (time.monotonic() - begun)
        results = [client.result(60) for client in clients]
    return summary(results, cores, memory_mib, gpu_mib)


def summary(results, cores, memory_mib, gpu_mib):
    """Return the figures of a round."""
    rates_hz = {name: rate for result in results for name, rate in result['rates_hz'].items()}
    ages_ms = [age for result in results for age in result['ages_ms']]
    p50, p95, p99 = np.percentile(ages_ms or [float('nan')], (50, 95, 99)).tolist()
    total_hz = sum(rates_hz.values())
    return {
        'least_hz': min(rates_hz.values()),
        'most_hz': max(rates_hz.values()),
        'total_hz': total_hz,
        'p50_ms': p50,
        'p95_ms': p95,
        'p99_ms': p99,
        'cpu_percent': 100 * cores,
        'cpu_ms': 1e3 * cores / total_hz if total_hz else float('nan'),
        'memory_mib': memory_mib,
        'gpu_mib': gpu_mib,
        'statuses': results[0]['statuses'],
    }


COLUMNS = {
    'least_hz': ('frames/s', '{:.1f}'),
    'p50_ms': ('p50 ms', '{:.2f}'),
    'p95_ms': ('p95 ms', '{:.2f}'),
    'p99_ms': ('p99 ms', '{:.2f}'),
    'cpu_percent': ('CPU %', '{:.0f}'),
    'cpu_ms': ('CPU ms', '{:.2f}'),
    'memory_mib': ('MiB', '{:.0f}'),
    'gpu_mib': ('GPU MiB', '{:.0f}'),
}


def row(name, figures, all_forms=''):
    """Return a row of the table; '-' stands for a missing figure."""
    cells = [
        '-' if figures.get(key) is None else (all_forms or form).format(figures[key])
        for key, (_, form) in COLUMNS.items()
    ]
    return f'{name:28}' + ''.join(f'{cell:>10}' for cell in cells)


def median(rounds):
    """Return the median of each figure over the rounds."""
    return {
        key: None if rounds[0][key] is None else statistics.median(one[key] for one in rounds)
        for key in COLUMNS
    }


def compare(options):
    """Alternate one node and N nodes for each kind and count; print and save the medians."""
    environment = launch_environment()
    cases = []
    print(f'{"":28}' + ''.join(f'{title:>10}' for title, _ in COLUMNS.values()), flush=True)
    for kind, count in itertools.product(options.image, options.count):
        rounds = {way: [] for way in options.nodes}
        for number in range(1, options.rounds + 1):
            for way, results in rounds.items():
                what = f'{kind}, {count} cameras, {WAYS[way]}'
                print(f'round {number}/{options.rounds}: {what}', file=sys.stderr, flush=True)
                results.append(run_round(options, kind, way, count, environment))
        for way, results in rounds.items():
            case = {'kind': kind, 'cameras': count, 'nodes': way}
            cases.append({**case, 'median': median(results), 'rounds': results})
            name = f'{kind}, {count}, {WAYS[way]}'
            print(row(name, cases[-1]['median']), flush=True)
        if len(rounds) == 2:
            one, many = (cases[-2]['median'], cases[-1]['median'])
            shares = {k: one[k] / many[k] if one[k] and many[k] else None for k in COLUMNS}
            print(row('  one node / a node each', shares, '{:.2f}'), flush=True)
    content = {
        'model': options.model.name,
        'rate_hz': options.rate,
        'size': options.size,
        'together': options.together,
        'seconds': options.seconds,
        'settings': environment,
        'cases': cases,
    }
    save('cameras', content, options.json)


def counts(text):
    """Return the numbers of a text such as 1,4,16."""
    found = [int(part) for part in text.split(',') if part.isdecimal()]
    if len(found) != text.count(',') + 1 or not all(1 <= count <= 64 for count in found):
        raise argparse.ArgumentTypeError(
            f'expected numbers from 1 to 64, such as 1,4,16 (got {text})'
        )
    return found


def add_own_arguments(parser):
    """Add the arguments that the benchmark passes to the processes that it starts."""
    parser.add_argument('--role', choices=['camera', 'client', 'viewer'], help=argparse.SUPPRESS)
    parser.add_argument('--kind', default='raw', help=argparse.SUPPRESS)
    parser.add_argument('--first', type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument('--cameras', type=int, default=1, help=argparse.SUPPRESS)


def parse_arguments():
    parser = OptionParser('scripts/bench cameras', __doc__, EXAMPLES)
    parser.add_argument(
        'model',
        nargs='?',
        type=Path,
        default=SHARE / 'models' / 'digits.onnx',
        help='engine or ONNX file (default: the digits model)',
    )
    parser.add_argument(
        '--count', type=counts, default=[1, 2, 4], metavar='N,…', help='cameras (default 1,2,4)'
    )
    parser.add_argument(
        '--nodes', nargs='+', choices=list(WAYS), default=list(WAYS), help='default both'
    )
    parser.add_argument(
        '--image', nargs='+', choices=KINDS, default=list(KINDS), help='default both'
    )
    parser.add_argument(
        '--rate',
        type=number_between(0.1, 1000.0),
        default=5.0,
        metavar='HZ',
        help='of each camera (default 5)',
    )
    parser.add_argument(
        '--size',
        type=text_matching(r'[1-9]\d{1,3}x[1-9]\d{1,3}', 'a size as 1920x1080'),
        default='640x480',
        metavar='WxH',
        help='default 640x480',
    )
    parser.add_argument('--quality', type=int, default=95, help='of the JPEG (default 95)')
    parser.add_argument(
        '--together', action='store_true', help='all cameras of a process send at the same moment'
    )
    parser.add_argument(
        '--per-process',
        type=number_between(1, 64),
        default=4,
        metavar='N',
        help='cameras (default 4)',
    )
    parser.add_argument('--rounds', type=number_between(1, 100), default=1)
    parser.add_argument(
        '--seconds',
        type=number_between(0.5, 3600.0),
        default=10.0,
        help='seconds measured in each round (default 10)',
    )
    parser.add_argument(
        '--parameter', action='append', default=[], metavar='NAME:=VALUE', help="of the nodes'"
    )
    parser.add_argument('--view', metavar='TOPIC', help='also subscribe to masks or debug_image')
    add_file_option(parser, '--json', 'default benchmark_output/cameras.json')
    add_own_arguments(parser)
    options = parser.parse_args()
    if not options.model.is_file():
        parser.error(f'{options.model} does not exist')
    return options


def main():
    options = parse_arguments()
    roles = {'camera': run_camera, 'client': run_client, 'viewer': run_viewer}
    roles.get(options.role, compare)(options)
    return 0


if __name__ == '__main__':
    sys.exit(main())
