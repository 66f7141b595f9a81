# SPDX-License-Identifier: Apache-2.0
"""Compare trt_perception's node with rclpy nodes around other ways to run a YOLO model, over DDS.

Each camera is a process that sends one 1080p picture of the demo again and again, as in
`scripts/bench cameras`. The sides are measured in turn in each round:

- ours: one detector_node for all cameras.
- ultralytics, onnxruntime: an rclpy node for each camera (scripts/benchmarks/peers/ros_node.py).

All have the same transport profile, thresholds, and a queue of one image. p50 to p99: milliseconds
from the image's stamp to the arrival of its Detection2DArray at a subscriber in another process.
lost: images without detections. CPU ms: of the nodes, for each image with detections. A side that
fails is reported, and the others go on.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / 'peers'
sys.path.append(str(FOLDER))

import gpus  # noqa: E402
from cameras import parse_counts  # noqa: E402
from cameras_side import Case, measure, start_node  # noqa: E402
from common import launch_environment  # noqa: E402
from dds_report import print_table, summary  # noqa: E402
from frames import picture_files  # noqa: E402
from host import host_settings  # noqa: E402
from side import CONFIDENCE, IOU, MAX_BOXES  # noqa: E402

from trt_perception.offline.tools.parts.arguments import integer_at_least  # noqa: E402
from trt_perception.process.option_parser import OptionParser  # noqa: E402
from trt_perception.process.standard_streams import guarded_streams  # noqa: E402

EXAMPLES = """\
examples:
  scripts/bench peers_dds yolo11n.onnx --engine yolo11n_fp16.engine --weights yolo11n.pt
  scripts/bench peers_dds yolo11n.onnx --weights yolo11n.pt --device cpu --rate 2 --count 1
"""
SIDES = 'ours', 'ultralytics', 'onnxruntime'


def start_nodes(children, options, case, side, _):
    """Start the nodes of a side. Return their Children."""
    if side == 'ours':
        return [start_node(children, options, case, side, case.cameras)]
    model = options.weights if side == 'ultralytics' else options.onnx
    return [
        children.start(
            *(FOLDER / 'ros_node.py', side, model, camera, '--device', options.device),
            environment=launch_environment(),
            answers=False,
        )
        for camera in case.cameras
    ]


def compare(options, case, record):
    """Measure all sides of a case in turn; add the figures to the record."""
    sides = {side: {'model': file.name, 'rounds': []} for side, file in models(options).items()}
    found = {'count': case.count, 'sides': sides, 'failures': {}, 'medians': {}}
    record['cases'].append(found)
    for number in range(options.rounds):
        names = [side for side in sides if side not in found['failures']]
        # Each round begins with another side.
        first = number % max(1, len(names))
        for side in names[first:] + names[:first]:
            try:
                figures = measure(options, case, side, number, start_nodes)
            except (SystemExit, RuntimeError) as error:  # the other sides go on
                found['failures'][side] = str(error)
                print(f'{side} failed: {error}', file=sys.stderr, flush=True)
            else:
                sides[side]['rounds'].append(figures)
                print(f'{case}, {side}, round {number + 1}', file=sys.stderr, flush=True)
            found['medians'] = summary(found)
            save(options.json, record)


def models(options):
    """Return the file of each side to measure."""
    files = {
        'ours': options.model,
        'ultralytics': options.weights,
        'onnxruntime': options.onnx,
    }
    return {side: files[side] for side in options.sides if files[side]}


def save(path, record):
    """Write the record, also of an unfinished run."""
    if path:
        path.write_text(json.dumps(record, indent=1) + '\n', encoding='utf-8')


def parse_arguments(arguments):
    parser = OptionParser('scripts/bench peers_dds', __doc__, EXAMPLES)
    parser.add_argument('onnx', type=Path, metavar='MODEL.onnx', help='the model for ONNX Runtime')
    parser.add_argument(
        '--engine', type=Path, metavar='FILE', help='of the same model; default: ours on CPU'
    )
    parser.add_argument(
        '--weights', type=Path, metavar='FILE', help='the same model for Ultralytics (.pt)'
    )
    parser.add_argument(
        '--count', type=parse_counts, default=[1, 4], metavar='N,…', help='cameras; default: 1,4'
    )
    parser.add_argument('--rounds', type=integer_at_least(1), default=3, help='default: 3')
    parser.add_argument('--seconds', type=float, default=6.0, help='of a round; default: 6')
    parser.add_argument('--warm-up', type=float, default=2.0, help='seconds; default: 2')
    parser.add_argument('--rate', type=float, default=30.0, help='of each camera; default: 30 Hz')
    parser.add_argument(
        '--device',
        choices=('cuda', 'cpu'),
        default='cuda' if gpus.names() else 'cpu',
        help='default: cuda if this machine has a GPU',
    )
    parser.add_argument('--sides', nargs='+', choices=SIDES, default=SIDES, help='default: all')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write all figures')
    options = parser.parse_args(arguments)
    options.model = options.engine or options.onnx
    options.size, options.topic, options.view = '1920x1080', 'detections', None
    options.pictures = picture_files()
    limits = {
        'confidence_threshold': CONFIDENCE,
        'iou_threshold': IOU,
        'max_detections': MAX_BOXES,
        'image_qos.depth': 1,
    }
    options.parameter = [f'{name}:={value}' for name, value in limits.items()]
    return options


def main(arguments=None):
    options = parse_arguments(arguments)
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    record = {
        'host': host_settings(launch_environment()),
        'settings': {
            'confidence_threshold': CONFIDENCE,
            'iou_threshold': IOU,
            'max_detections': MAX_BOXES,
            'size': options.size,
            'rate_hz': options.rate,
            'warm_up_s': options.warm_up,
            'seconds_per_round': options.seconds,
            'device': options.device,
        },
        'cases': [],
    }
    try:
        for count in options.count:
            compare(options, Case('raw', count, 'random'), record)
    except KeyboardInterrupt:
        return 130
    print_table(record)
    return int(any(case['failures'] for case in record['cases']))


if __name__ == '__main__':
    with guarded_streams():
        sys.exit(main())
