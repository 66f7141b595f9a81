# SPDX-License-Identifier: Apache-2.0
"""Measure detect_bag on a bag of one camera, and find what limits it.

The bag has the demo's scenes, each one shifted by other pixels. In each round, the sides run in
turn: benchmark_engine with raw images of the same size, and detect_bag with each number of
workers. All new bags must have equal bytes. One more run measures single steps in one process:
images per second of each step alone, and the seconds that the threads of reading and of the model
spend on each activity.

The steady rate of detect_bag starts when all workers have opened the model, and ends when the
first worker has no more work.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
# A checkout needs no installation.
sys.path += [str(FOLDER), str(ROOT)]

import cv2  # noqa: E402
import numpy as np  # noqa: E402
from machine import describe_machine  # noqa: E402

from trt_perception.bags.bag import BagMessage  # noqa: E402
from trt_perception.bags.definitions import bag_topic  # noqa: E402
from trt_perception.bags.writer import BagWriter  # noqa: E402
from trt_perception.files.atomic_files import write_json  # noqa: E402
from trt_perception.offline.tools.parts.arguments import integer_at_least, parse_path  # noqa: E402
from trt_perception.process.option_parser import OptionParser  # noqa: E402
from trt_perception.transport.advice import keep_freed_memory  # noqa: E402
from trt_perception.wire.cdr import HeaderFields, StampFields  # noqa: E402
from trt_perception.wire.image_message import (  # noqa: E402
    compressed_message_start,
    image_message_start,
)

EXAMPLES = """\
examples:
  scripts/bench bags yolo.engine
  scripts/bench bags yolo.engine --image raw --images 1000 --rounds 3
  scripts/bench bags yolo.engine --workers 1 2 --device 0 1 --repeat 4
  scripts/bench bags yolo.onnx --size 640x480 --images 400
"""
SCENES = ROOT / 'demo' / 'scenes'
START_NS = 1_700_000_000 * 10**9
HZ = 30
JPEG_QUALITY = 90
TOPICS = {
    'jpeg': ('/front/image_raw/compressed', 'sensor_msgs/CompressedImage'),
    'raw': ('/front/image_raw', 'sensor_msgs/Image'),
}
#: The command benchmark_engine for `python -c`.
BENCHMARK_ENGINE = 'import sys; from trt_perception import commands; '
BENCHMARK_ENGINE += 'sys.exit(commands.benchmark_engine())'
#: Frames of each measurement of benchmark_engine, at most.
FRAMES = 1500
#: Images that are encoded at a time.
BLOCK = 128


def message_of(index, scenes, image):
    """Return the serialised message of an image."""
    bgr = np.roll(scenes[index % len(scenes)], 7 * index, axis=1)
    seconds, nanoseconds = divmod(START_NS + index * 10**9 // HZ, 10**9)
    header = HeaderFields(StampFields(seconds, nanoseconds), 'front')
    if image == 'raw':
        return image_message_start(header, bgr.shape[1::-1], 'bgr8', 3) + bgr.tobytes()
    data = cv2.imencode('.jpg', bgr, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1].tobytes()
    return compressed_message_start(header, 'jpeg', len(data)) + data


def write_bag(folder, image, size_wh, count):
    """Write a bag with images of one camera at 30 Hz. Return its size in bytes."""
    paths = sorted(SCENES.glob('*.jpg'))
    scenes = [cv2.resize(cv2.imread(str(path)), size_wh) for path in paths]
    topic = bag_topic(*TOPICS[image])
    cores = len(os.sched_getaffinity(0))
    with (
        BagWriter(folder, [topic], compression='none') as bag,
        ThreadPoolExecutor(cores) as threads,
    ):
        bag.begin_file()
        for first in range(0, count, BLOCK):
            block = range(first, min(first + BLOCK, count))
            data = threads.map(lambda index: message_of(index, scenes, image), block)
            for index, message in zip(block, data, strict=True):
                log_ns = START_NS + index * 10**9 // HZ
                bag.write(BagMessage(topic.name, log_ns, log_ns, message))
    return sum(path.stat().st_size for path in folder.iterdir())


def bag_digest(folder):
    """Return a hash of the new bags in a folder."""
    digest = hashlib.sha256()
    for path in sorted([*folder.rglob('*.mcap'), *folder.rglob('metadata.yaml')]):
        content = path.read_bytes()
        digest.update(f'{path.relative_to(folder)} {len(content)}\n'.encode() + content)
    return digest.hexdigest()


def steady_figures(record, workers):
    """Return the figures of detect_bag while all workers had work.

    In a short run, one worker may open the model when another one has no more work. Then only the
    times of opening are known.

    Args:
        record: of bags_side.py. Its parts must be at least twice the number of workers.
    """
    events = record['events']
    opened = [time_s for time_s, _, kind, _, _ in events if kind == 'Opened']
    finished = [time_s for time_s, _, kind, _, _ in events if kind == 'Finished']
    openings = {'first_opened_s': opened[0], 'last_opened_s': opened[-1]}
    begin_s, end_s = opened[-1], finished[-workers]
    if len(opened) < workers or begin_s >= end_s:
        return openings
    curves = {}
    for time_s, _, kind, part, images in events:
        if kind in ('Progress', 'Finished'):
            times, counts = curves.setdefault(part, ([], [0]))
            times.append(time_s)
            counts.append(counts[-1] + images)

    def images_at(time_s):
        return sum(
            float(np.interp(time_s, times, counts[1:], left=0.0))
            for times, counts in curves.values()
        )

    times, cpu = [event[0] for event in events], [event[1] for event in events]
    images = images_at(end_s) - images_at(begin_s)
    if not images:
        return openings
    cpu_s = float(np.interp(end_s, times, cpu) - np.interp(begin_s, times, cpu))
    return {
        'images_per_s': images / (end_s - begin_s),
        'cpu_ms': 1e3 * cpu_s / images,
        'steady_s': end_s - begin_s,
        'steady_images': images,
        **openings,
    }


class Runner:
    """Runs the sides of one bag.

    Attributes:
        digests: hashes of the new bags by side; equal unless results differ.
    """

    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.digests = {}
        self.bags = [folder / f'drive{number}' for number in range(options.repeat)]
        self.bag_bytes = write_bag(self.bags[0], options.image, options.size, options.images)
        for other in self.bags[1:]:
            # The same files again: a long run needs little space.
            other.mkdir()
            for path in self.bags[0].iterdir():
                os.link(path, other / path.name)

    @property
    def images(self):
        """Number of images that detect_bag processes."""
        return self.options.images * self.options.repeat

    def pipeline(self):
        """Measure the pipeline at full load with raw images, as benchmark_engine does."""
        options, target = self.options, self.folder / 'pipeline.json'
        width, height = options.size
        self._call(
            *('-c', BENCHMARK_ENGINE, options.model, '--image', SCENES),
            *('--size', f'{width}x{height}'),
            *('--depth', options.depth, '--seconds', options.seconds, '--frames', FRAMES),
            *('--warmup', 50, '--json', target, *self._limit()),
        )
        (model,) = json.loads(target.read_text())['models']
        (found,) = model['pipelines']
        return {
            'images_per_s': found['frames_per_s'],
            'cpu_ms': found['cpu_ms'],
            'depth': found['depth'],
            'latency_p50_ms': found['latency_ms']['p50'],
        }

    def detect_bag(self, name, workers, *arguments):
        """Run detect_bag, and return its figures."""
        output = self.folder / name / 'found'
        start = time.monotonic()
        record = self._run('run', self.bags, output, '--workers', workers, *arguments)
        seconds = time.monotonic() - start
        digest = bag_digest(output)
        self.digests.setdefault(name, digest)
        if self.digests[name] != digest:
            self.digests[f'{name}, another round'] = digest
        shutil.rmtree(output)
        figures = steady_figures(record, workers)
        if '--ray' in arguments:
            figures.pop('cpu_ms', None)  # its workers are no children of this process
        for key in ('first_opened_s', 'last_opened_s'):
            figures[key] -= start
        return {
            **figures,
            'join_cpu_ms': 1e3 * record['join_cpu_s'] / self.images,
            'all_s': seconds,
            'images_per_s_of_command': self.images / seconds,
        }

    def steps(self):
        """Measure single steps of detect_bag in one process, without the repeats of the bag."""
        output = self.folder / 'steps' / 'found'
        record = self._run('steps', self.bags[:1], output, *self._devices(1))
        shutil.rmtree(output)
        return record['steps']

    def _run(self, side, bags, output, *arguments):
        """Run a side of bags_side.py. Return its record."""
        options, target = self.options, self.folder / 'record.json'
        self._call(
            *(FOLDER / 'bags_side.py', target, side, options.model, *bags, '--output', output),
            *('--part-s', options.part_s, '--param', f'pipeline_depth={options.depth}'),
            *(*self._limit(), *arguments),
        )
        return json.loads(target.read_text())

    def sides(self):
        """Return the functions that measure a side, by name."""
        found = {'pipeline': self.pipeline}
        for workers in self.options.workers:
            name = f'workers_{workers}'
            found[name] = lambda name=name, workers=workers: self.detect_bag(
                name, workers, *self._devices(workers)
            )
            if self.options.ray:
                name = f'ray_{workers}'
                found[name] = lambda name=name, workers=workers: self.detect_bag(
                    name, workers, '--ray'
                )
        return found

    def _devices(self, workers):
        # One GPU for each worker, as far as there are GPUs.
        return ['--device', *self.options.device[:workers]]

    def _limit(self):
        most = self.options.max_detections
        return ['--max-detections', most] if most else []

    def _call(self, *words):
        """Run Python. Raise SystemExit with its last output if it fails."""
        words = [str(word) for word in words]
        paths = [os.environ.get('PYTHONPATH', ''), str(ROOT)]
        result = subprocess.run(
            [sys.executable, *words],
            env={**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, paths))},
            capture_output=True,
            text=True,
        )
        if result.returncode:
            output = (result.stdout + result.stderr)[-3000:]
            raise SystemExit(f'{" ".join(words)}\nexit code {result.returncode}:\n{output}')


def main(arguments=None):
    options = parse_arguments(arguments)
    keep_freed_memory()
    record = {
        'machine': describe_machine(),
        'settings': settings(options),
        'sides': {},
        'failures': {},
    }
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        start = time.monotonic()
        runner = Runner(options, Path(folder))
        record['bag'] = {'bytes': runner.bag_bytes, 'writing_s': time.monotonic() - start}
        names = list(runner.sides())
        measure(record, 'steps', runner.steps)
        save(options.json, record)
        for number in range(options.rounds):
            # Each round begins with another side.
            first = number % len(names)
            for name in names[first:] + names[:first]:
                measure(record, name, runner.sides()[name])
                record['medians'] = medians(record)
                record['digests'] = runner.digests
                save(options.json, record)
    print_table(record)
    are_equal = len(set(runner.digests.values())) <= 1
    print('new bags have equal bytes' if are_equal else f'new bags differ: {runner.digests}')
    return int(bool(record['failures']) or not are_equal)


def measure(record, name, side):
    """Add the figures of a side to the record, or why it failed. The other sides go on."""
    if name in record['failures']:
        return
    load = os.getloadavg()[0]
    try:
        figures = side()
    except SystemExit as error:
        record['failures'][name] = str(error)
        print(f'{name} failed: {error}', file=sys.stderr, flush=True)
    else:
        record['sides'].setdefault(name, []).append({**figures, 'load': load})
        print(f'{name}: {json.dumps(figures)}', file=sys.stderr, flush=True)


def medians(record):
    """Return the medians of each side, and ratios: the medians of the ratios of the rounds."""
    sides = record['sides']
    found = {
        name: {
            key: statistics.median(figures[key] for figures in rounds)
            for key in rounds[0]
            if all(isinstance(figures.get(key), (int, float)) for figures in rounds)
        }
        for name, rounds in sides.items()
    }
    ratios = {}
    for name, base in [(name, base) for name in sides for base in ('pipeline', 'workers_1')]:
        if base not in sides or name in (base, 'pipeline', 'steps'):
            continue
        keys = ['images_per_s', 'cpu_ms']
        keys += ['images_per_s_of_command'] if base != 'pipeline' else []
        ratios[f'{name} to {base}'] = {
            key: statistics.median(
                one[key] / other[key] for one, other in zip(sides[name], sides[base], strict=False)
            )
            for key in keys
            if all(key in figures for figures in (*sides[name], *sides[base]))
        }
    return {**found, 'ratios': ratios}


def print_table(record):
    """Print the medians."""
    for name, figures in record.get('medians', {}).items():
        if name == 'ratios':
            continue
        text = ', '.join(f'{key} {value:.4g}' for key, value in figures.items())
        print(f'{name}: {text}')
    for name, figures in record.get('medians', {}).get('ratios', {}).items():
        print(f'{name}: ' + ', '.join(f'{key} {value:.3f}' for key, value in figures.items()))
    for seconds in (each['seconds'] for each in record['sides'].get('steps', [])):
        shares = ', '.join(f'{key} {value:.3f} s' for key, value in seconds.items())
        print(f'time of the threads: {shares}')


def settings(options):
    """Return the settings of this run."""
    return {
        'model': Path(options.model).name,
        'image': options.image,
        'jpeg_quality': JPEG_QUALITY if options.image == 'jpeg' else None,
        'size': list(options.size),
        'images': options.images,
        'repeat': options.repeat,
        'part_s': options.part_s,
        'pipeline_depth': options.depth,
        'max_detections': options.max_detections,
        'devices': options.device,
    }


def save(path, record):
    """Write the record, also of an unfinished run."""
    if path:
        write_json(path, record, 1)


def size_of(text):
    """Return width and height of a text such as 1920x1080."""
    width, _, height = text.partition('x')
    return int(width), int(height)


def parse_arguments(arguments):
    parser = OptionParser('scripts/bench bags', __doc__, EXAMPLES)
    add = parser.add_argument
    count = integer_at_least(1)
    add('model', metavar='MODEL', help='engine or ONNX file')
    add('--image', choices=tuple(TOPICS), default='jpeg', help='images of the bag; default: jpeg')
    add('--images', type=count, default=3000, help='images of the bag; default: 3000')
    add('--repeat', type=count, default=1, help='process the bag several times; default: 1')
    add('--size', type=size_of, default=(1920, 1080), metavar='WxH', help='default: 1920x1080')
    add('--part-s', type=float, default=10.0, help='seconds of a part; default: 10')
    add('--depth', type=count, default=3, help='batches in flight; default: 3')
    add('--device', type=int, nargs='+', default=[0], help='CUDA devices; default: 0')
    add('--max-detections', type=count, metavar='N', help='objects of an image')
    add('--workers', type=count, nargs='+', default=[1], help='numbers of workers; default: 1')
    add('--ray', action='store_true', help='also run the workers with Ray')
    add('--rounds', type=count, default=3, help='default: 3')
    add('--seconds', type=float, default=3.0, help='of benchmark_engine; default: 3')
    add('--folder', type=parse_path, help='for the bags; default: the temporary folder')
    add('--json', type=Path, metavar='FILE', help='write all figures')
    options = parser.parse_args(arguments)
    parts = options.repeat * -(-options.images // round(HZ * options.part_s))
    if parts < 2 * max(options.workers):
        parser.error(f'--part-s: {parts} parts are too few; give two for each worker')
    return options


if __name__ == '__main__':
    sys.exit(main())
