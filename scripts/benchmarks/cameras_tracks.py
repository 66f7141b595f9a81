# SPDX-License-Identifier: Apache-2.0
"""Measure the tracker in the node, over DDS: its cost, and the identity switches of a scene.

load: the node with `tracker.type` none and bytetrack in turn. Cameras send a photograph, and the
model finds the same objects in each image, at most --objects (max_detections). A round is one run
of each side, with the same phases of the cameras. Every second round has the opposite order.

crossing: one camera and a scene of track_scenes.py, with 20 crossing objects. The boxes are pixels
of the picture, which the model turns into detections. Only every second image of a 30 Hz scene is
sent. A switch is an object whose id differs from its last id. Each seed is another scene.
switches.py counts them in one process, also with `trackers`.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import rclpy
from cameras_report import header, row
from cameras_side import NODE, Case, measure
from children import ROOT, Children
from common import launch_environment, quality, save
from host import host_settings
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from track_scenes import HEIGHT, OBJECTS, RATE_HZ, SCENES, WIDTH, SwitchCount
from vision_msgs.msg import Detection2DArray

from trt_perception.images.detections import Detections
from trt_perception.offline.tools.parts.arguments import add_file_option, parse_path
from trt_perception.process.option_parser import OptionParser
from trt_perception.process.standard_streams import guarded_streams

sys.path[:0] = [str(ROOT / 'test')]
from support.models.written_manifest import write_manifest  # noqa: E402
from trt_perception.model.decoders.anchors import Dense  # noqa: E402

EXAMPLES = """\
examples:
  scripts/bench cameras_tracks load yolo.engine --count 16 --objects 30
  scripts/bench cameras_tracks crossing --scene crowded
"""
SIDES = {'off': ['tracker.type:=none'], 'on': ['tracker.type:=bytetrack']}
#: Bytes of a row of the picture: two for each of centre x, centre y, width and height; the score.
ROW_BYTES = 9
_DISCOVERY_S = 240.0
_ANSWER_S = 30.0


def measure_load(options):
    """Return the figures of all rounds of both sides, and their differences."""
    case = Case('raw', options.count, 'random')
    rounds = {side: [] for side in SIDES}
    print(header(), flush=True)
    for number in range(1, options.rounds + 1):
        for side in list(SIDES)[:: 1 if number % 2 else -1]:
            parameters = [*options.parameter, f'max_detections:={options.objects}', *SIDES[side]]
            own = SimpleNamespace(**{**vars(options), 'parameter': parameters})
            rounds[side].append(measure(own, case, 'one', number))
            print(row(f'tracker {side}, round {number}', rounds[side][-1]), flush=True)
    differences = {
        name: [
            None if None in (on[name], off[name]) else on[name] - off[name]
            for on, off in zip(rounds['on'], rounds['off'], strict=True)
        ]
        for name in ('p50_ms', 'p99_ms', 'cpu_ms')
    }
    return {
        'cameras': options.count,
        'objects': options.objects,
        'rate_hz': options.rate,
        'seconds': options.seconds,
        'rounds': rounds,
        'least_frames_per_s': {
            side: min(
                camera['received'] / options.seconds
                for figures in found
                for camera in figures['cameras'].values()
            )
            for side, found in rounds.items()
        },
        'differences_ms': differences,
        'median_differences_ms': {
            name: None if None in values else statistics.median(values)
            for name, values in differences.items()
        },
    }


def write_box_model(path):
    """Write an ONNX model whose output is the boxes in the first rows of the picture."""
    from onnx import TensorProto, helper, numpy_helper

    rows = 2 * OBJECTS
    # A coordinate has a high and a low byte. Pixels arrive as 0 to 1.
    weights = np.zeros((ROW_BYTES, 5), np.float32)
    for index in range(4):
        weights[2 * index, index], weights[2 * index + 1, index] = 255 * 256 / 64, 255 / 64
    weights[8, 4] = 1
    constants = {
        'starts': np.array([0, 0, 0, 0], np.int64),
        'ends': np.array([1, 1, rows, ROW_BYTES], np.int64),
        'shape': np.array([rows, ROW_BYTES], np.int64),
        'weights': weights,
        'output_shape': np.array([1, 5, rows], np.int64),
    }
    nodes = [
        helper.make_node('Slice', ['images', 'starts', 'ends'], ['part']),
        helper.make_node('Reshape', ['part', 'shape'], ['bytes']),
        helper.make_node('MatMul', ['bytes', 'weights'], ['rows']),
        helper.make_node('Transpose', ['rows'], ['columns'], perm=[1, 0]),
        helper.make_node('Reshape', ['columns', 'output_shape'], ['output']),
    ]
    image = 'images', (1, 3, HEIGHT, WIDTH), 'float32'
    output = 'output', (1, 5, rows), 'float32'
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape, _ in (image, output)
    ]
    values = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, 'boxes', tensors[:1], tensors[1:], values)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    write_manifest(path, (WIDTH, HEIGHT), image, output, Dense(), ('object',))
    return path


def picture_of(boxes, scores):
    """Return the picture for boxes (n, 4): left, top, right, bottom. uint8 (h, w, 3)."""
    picture = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    center_size = np.concatenate(
        [(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], axis=1
    )
    fixed = np.rint(center_size * 64).astype(int)
    rows = np.zeros((len(boxes), ROW_BYTES), np.uint8)
    rows[:, :8:2], rows[:, 1:8:2] = fixed // 256, fixed % 256
    rows[:, 8] = np.rint(255 * scores)
    picture[: len(boxes), :ROW_BYTES] = rows[..., None]
    return picture


def detections_of(message):
    """Return the detections of a message with their ids."""
    found = message.detections
    box = np.array(
        [
            (d.bbox.center.position.x, d.bbox.center.position.y, d.bbox.size_x, d.bbox.size_y)
            for d in found
        ],
        np.float32,
    ).reshape(-1, 4)
    return Detections(
        np.concatenate([box[:, :2] - box[:, 2:] / 2, box[:, :2] + box[:, 2:] / 2], axis=1),
        np.array([d.results[0].hypothesis.score for d in found], np.float32),
        np.zeros(len(found), np.int32),
        ids=np.array([int(d.id or -1) for d in found], np.int64),
    )


class Driver:
    """Sends images to a node with one camera, each after the answer to the previous one."""

    def __init__(self, node):
        self._node = node
        self._messages = []
        self._publisher = node.create_publisher(Image, 'image', quality('reliable'))
        node.create_subscription(
            Detection2DArray, 'detections', self._messages.append, QoSProfile(depth=100)
        )

    def ask(self, picture, stamp_s, limit_s=_ANSWER_S):
        """Return the detections of an image; None if they do not arrive within a time."""
        image = Image(encoding='bgr8', width=WIDTH, height=HEIGHT, step=3 * WIDTH)
        image.data.frombytes(picture.tobytes())
        sec, part = divmod(stamp_s, 1)
        image.header.stamp.sec, image.header.stamp.nanosec = int(sec), int(part * 1e9)
        self._messages.clear()
        self._publisher.publish(image)
        end_s = time.monotonic() + limit_s
        # The answer to an earlier image may be late.
        while not self._messages or self._messages[-1].header.stamp != image.header.stamp:
            if time.monotonic() > end_s:
                return None
            rclpy.spin_once(self._node, timeout_sec=0.05)
        return detections_of(self._messages[-1])


def measure_crossing(options):
    """Return the identity switches of each seed."""
    with tempfile.TemporaryDirectory() as folder, Children() as children:
        model = options.model or write_box_model(Path(folder, 'boxes.onnx'))
        words = ['--ros-args', '--log-level', 'warn', '-r', '__ns:=/crossing']
        for parameter in (f'engine_path:={model}', 'autostart:=true', *SIDES['on']):
            words += ['-p', parameter]
        child = children.start(NODE, *words, environment=launch_environment(), answers=False)
        rclpy.init()
        driver = Driver(rclpy.create_node('driver', namespace='/crossing'))
        try:
            nothing, deadline_s = np.zeros((HEIGHT, WIDTH, 3), np.uint8), time.monotonic()
            while driver.ask(nothing, 0.0, 0.5) is None:
                child.check()
                if time.monotonic() > deadline_s + _DISCOVERY_S:
                    raise SystemExit('the node does not answer')
            seeds = {
                str(seed): switches(driver, options.scene, seed, options.images)
                for seed in range(options.first_seed, options.first_seed + options.seeds)
            }
        finally:
            rclpy.try_shutdown()
    rates = [found['switches_per_100_images'] for found in seeds.values()]
    return {
        'model': Path(model).name,
        'scene': options.scene,
        'images': options.images,
        'sent_hz': RATE_HZ / 2,
        'seeds': seeds,
        'mean_switches_per_100_images': statistics.mean(rates),
        'highest_switches_per_100_images': max(rates),
    }


def switches(driver, scene, seed, images):
    """Send every second image of a scene; return the counts of ids and switches."""
    count, unanswered = SwitchCount(), 0
    # A stamp that jumps by more than max_lost_s ends the tracks of the scene before.
    first_s = 100.0 * (seed + 1)
    for index, image in enumerate(SCENES[scene](seed, 2 * images)):
        if index % 2:
            continue
        found = driver.ask(picture_of(image.detected, image.scores), first_s + index / RATE_HZ)
        unanswered += found is None
        count.add(image, found)
    return {**count.figures(images), 'unanswered': unanswered}


def parse_arguments():
    parser = OptionParser('scripts/bench cameras_tracks', __doc__, EXAMPLES)
    parser.add_argument('part', choices=['load', 'crossing'])
    parser.add_argument('model', nargs='?', type=parse_path, help='default of crossing: its own')
    parser.add_argument('--count', type=int, default=16, help='cameras of load (default 16)')
    parser.add_argument('--objects', type=int, default=30, help='of each image of load')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--seconds', type=float, default=8.0, help='measured in each round')
    parser.add_argument('--warm-up', type=float, default=3.0)
    parser.add_argument('--rate', type=float, default=30.0, help='of each camera of load')
    parser.add_argument('--size', default='1920x1080', help='of the images of load')
    parser.add_argument('--images', type=int, default=300, help='of each scene of crossing')
    parser.add_argument('--scene', choices=list(SCENES), default='walking', help='of crossing')
    parser.add_argument('--seeds', type=int, default=5, help='scenes of crossing')
    parser.add_argument('--first-seed', type=int, default=0)
    parser.add_argument(
        '--parameter', action='append', default=[], metavar='NAME:=VALUE', help='of the node'
    )
    add_file_option(parser, '--json', 'result (default benchmark_output/cameras_tracks.json)')
    options = parser.parse_args()
    if options.part == 'load' and options.model is None:
        parser.error('load needs a model')
    options.topic, options.view, options.logs, options.pictures = 'detections', None, None, []
    return options


def main():
    options = parse_arguments()
    measured = {'load': measure_load, 'crossing': measure_crossing}[options.part](options)
    content = {'host': host_settings(launch_environment()), options.part: measured}
    save('cameras_tracks', content, options.json)
    shown = {key: value for key, value in measured.items() if key != 'rounds'}
    print(json.dumps(shown, indent=2))
    return 0


if __name__ == '__main__':
    with guarded_streams():
        sys.exit(main())
