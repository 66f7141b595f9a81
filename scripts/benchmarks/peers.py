# SPDX-License-Identifier: Apache-2.0
"""Compare trt_perception with other ways to run a YOLO model on 1080p frames, side by side.

Each side is a script of scripts/benchmarks/peers, in a process of its own, with the same frames,
model and thresholds. The sides are measured in turn in each round, because a machine's speed
changes within minutes. A side that fails is reported, and the others go on.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent / 'peers'
# A checkout needs no installation.
sys.path += [str(FOLDER.parent), str(FOLDER), str(ROOT)]

import gpus  # noqa: E402
import numpy as np  # noqa: E402
from children import Child  # noqa: E402
from frames import COUNT, SCENES, picture_files, scenes  # noqa: E402
from machine import describe_machine  # noqa: E402
from report import agreement, print_table, summary  # noqa: E402
from side import CONFIDENCE, IOU, MAX_BOXES  # noqa: E402

from trt_perception.offline.tools.parts.arguments import integer_at_least, parse_path  # noqa: E402
from trt_perception.process.option_parser import OptionParser  # noqa: E402
from trt_perception.process.standard_streams import guarded_streams  # noqa: E402

EXAMPLES = """\
examples:
  scripts/bench peers yolo11n.onnx --engine yolo11n_fp16.engine --weights yolo11n.pt
  scripts/bench peers mine.onnx mine_fp16.onnx --weights mine.pt --pictures ~/pictures
  scripts/bench peers yolo11n.onnx --weights yolo11n.pt --device cpu --images 5
"""
START_S, ROUND_S = 120.0, 60.0


@dataclass(frozen=True)
class Side:
    """A side to measure.

    Attributes:
        name: key in the record.
        script: a script of the folder peers.
        model: the model's file.
        arguments: further arguments of the script.
    """

    name: str
    script: str
    model: str
    arguments: tuple[str, ...] = ()


def sides(options):
    """Return the sides that the options allow. The first one is the reference for the boxes."""
    ours = options.engine or options.onnx[0]
    found = [Side('ours_1', 'ours_pipeline', ours)]
    if options.engine:
        eight = ('--depth', '8')
        locked = (*eight, '--page-locked')
        found += [
            Side('ours_8', 'ours_pipeline', ours, eight),
            Side('ours_8_locked', 'ours_pipeline', ours, locked),
        ]
    found.append(Side('ours_python', 'ours_python', ours))
    if options.weights:
        found += [
            Side('ultralytics', 'ultralytics_predictor', options.weights),
            Side('ultralytics_square', 'ultralytics_predictor', options.weights, ('--square',)),
        ]
    found += [
        Side(f'onnxruntime_{Path(file).stem}', 'onnxruntime_opencv', file) for file in options.onnx
    ]
    if options.engine:
        found += [
            Side('tensorrt', 'tensorrt_opencv', ours),
            Side('limit_1', 'limit', ours),
            Side('limit_8', 'limit', ours, eight),
        ]
    return [side for side in found if not options.sides or side.name in options.sides]


def main(arguments=None):
    options = parse_arguments(arguments)
    record = {
        'machine': describe_machine(),
        'settings': settings(options),
        'sides': {},
        'failures': {},
    }
    record['medians'] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        frames = Path(folder) / 'frames.npy'
        np.save(frames, scenes(options.images, options.pictures))
        children = {}
        for side in sides(options):
            boxes = Path(folder) / f'{side.name}.npz'
            try:
                child, found = start(side, options, frames, boxes, ends)
            except SystemExit as error:
                record['failures'][side.name] = str(error)
                print(f'{side.name} failed: {error}', file=sys.stderr, flush=True)
                continue
            children[side.name] = child
            reference = Path(folder) / f'{next(iter(children))}.npz'
            found['agreement'] = agreement(
                np.load(reference, allow_pickle=False), np.load(boxes, allow_pickle=False)
            )
            found['model'] = Path(side.model).name
            record['sides'][side.name] = {**found, 'rounds': []}
            print(f'{side.name} is ready', file=sys.stderr, flush=True)
        for number in range(options.rounds):
            names = list(children)
            # Each round begins with another side.
            first = number % max(1, len(names))
            for name in names[first:] + names[:first]:
                try:
                    figures = run_round(children[name], options.seconds)
                except SystemExit as error:  # noqa: PERF203 (the other sides go on)
                    record['failures'][name] = str(error)
                    print(f'{name} failed: {error}', file=sys.stderr, flush=True)
                    del children[name]
                else:
                    record['sides'][name]['rounds'].append(figures)
            record['medians'] = summary(record)
            save(options.json, record)
    print_table(record)
    return int(bool(record['failures']))


def start(side, options, frames, boxes, ends):
    """Start a side and wait until it is warm. Return its process, and what it says of itself."""
    before = gpus.used_mib()
    paths = [os.environ.get('PYTHONPATH', ''), str(ROOT)]
    child = ends.enter_context(
        Child(
            FOLDER / f'{side.script}.py',
            side.model,
            *('--frames', frames, '--boxes', boxes, '--device', options.device),
            *('--warm-up', options.warm_up, *side.arguments),
            environment={'PYTHONPATH': os.pathsep.join(filter(None, paths))},
        )
    )
    wait(child, START_S)
    child.wait_for('ready')
    facts = json.loads(child.next_line())
    after = gpus.used_mib()
    gpu_mib = None if None in (before, after) else after - before
    return child, {'facts': facts, 'gpu_mib': gpu_mib}


def run_round(child, seconds):
    """Measure a side for some seconds. Return its figures."""
    child.tell(f'round {seconds}')
    wait(child, seconds + ROUND_S)
    line = child.next_line()
    if not line:
        child.fail('ended during a round')
    return json.loads(line)


def wait(child, timeout_s):
    """Wait until the process prints a line or ends."""
    end = time.monotonic() + timeout_s
    while not child.has_line(0.2):
        if time.monotonic() > end:
            child.fail(f'printed nothing within {timeout_s:.0f} s')


def settings(options):
    """Return the settings that all sides share."""
    return {
        'confidence_threshold': CONFIDENCE,
        'iou_threshold': IOU,
        'max_detections': MAX_BOXES,
        'frames': options.images,
        'pictures': options.pictures.name,
        'seconds_per_round': options.seconds,
        'device': options.device,
    }


def save(path, record):
    """Write the record, also of an unfinished run."""
    if path:
        path.write_text(json.dumps(record, indent=1) + '\n', encoding='utf-8')


def parse_arguments(arguments):
    parser = OptionParser('scripts/bench peers', __doc__, EXAMPLES)
    parser.add_argument(
        'onnx',
        metavar='MODEL.onnx',
        nargs='+',
        help='a YOLO model with a square input, in FP32 or FP16, or in both',
    )
    parser.add_argument('--engine', metavar='FILE', help='of the same model; default: ours on CPU')
    parser.add_argument('--weights', metavar='FILE', help='the same model for Ultralytics (.pt)')
    parser.add_argument('--rounds', type=integer_at_least(1), default=3, help='default: 3')
    parser.add_argument('--seconds', type=float, default=3.0, help='of a round; default: 3')
    parser.add_argument('--warm-up', type=float, default=1.0, help='seconds; default: 1')
    parser.add_argument(
        '--images', type=integer_at_least(1), default=COUNT, help=f'default and most: {COUNT}'
    )
    parser.add_argument(
        '--device',
        choices=('cuda', 'cpu'),
        default='cuda' if gpus.names() else 'cpu',
        help='default: cuda if this machine has a GPU',
    )
    parser.add_argument(
        '--pictures',
        type=parse_path,
        default=SCENES,
        metavar='FOLDER',
        help="JPEG and PNG files, scaled to 1080p; default: the demo's",
    )
    parser.add_argument('--sides', nargs='+', metavar='NAME', help='default: all')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write all figures')
    options = parser.parse_args(arguments)
    if not (options.pictures.is_dir() and picture_files(options.pictures)):
        parser.error(f'--pictures: {options.pictures} has no JPEG or PNG files')
    return options


if __name__ == '__main__':
    with guarded_streams():
        sys.exit(main())
