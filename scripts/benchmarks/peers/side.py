# SPDX-License-Identifier: Apache-2.0
"""One side of the comparison, as a process: ``serve`` measures a side when it is asked to.

A side is a script of this folder. It defines how to open a model, and how to detect objects in a
frame. The process writes lines to its standard output:

- ``ready``, after the model is open and warm, and the boxes of each frame are written to a file;
- a JSON object with the figures of a round, for each line ``round SECONDS`` that it reads.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

# All sides have these thresholds and this limit.
CONFIDENCE, IOU, MAX_BOXES = 0.25, 0.45, 300
WARM_UP_S = 1.0


def serve(opener):
    """Run a side until its standard input ends.

    Args:
        opener: called with the command line's options and the frames, a list of uint8 arrays
            (1080, 1920, 3) in BGR order. Returns a context manager of the side's object. The
            object has a method ``detect(frame)``, which returns boxes (n, 4), scores (n,) and
            class ids (n,) as arrays. It may have a method ``run(frames, seconds)`` that replaces
            `one_by_one`, and a dictionary ``facts`` about the libraries in use.
    """
    options = parse_arguments()
    lines = own_standard_output()
    # A copy of each frame: ordinary memory of this process.
    frames = [frame.copy() for frame in np.load(options.frames, allow_pickle=False)]
    start = time.perf_counter()
    with opener(options, frames) as side:
        found = [side.detect(frame) for frame in frames]
        facts = {'first_results_s': time.perf_counter() - start, **getattr(side, 'facts', {})}
        run = getattr(side, 'run', None) or (lambda *given: one_by_one(side.detect, *given))
        run(frames, options.warm_up)
        save_boxes(options.boxes, found)
        print('ready', file=lines, flush=True)
        print(json.dumps(facts), file=lines, flush=True)
        for line in sys.stdin:
            seconds = float(line.split()[1])
            print(json.dumps(measure(run, frames, seconds)), file=lines, flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument('model')
    parser.add_argument('--frames', type=Path, required=True, help='.npy file')
    parser.add_argument('--boxes', type=Path, required=True, help='.npz file to write')
    parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda')
    parser.add_argument('--depth', type=int, default=1, help='frames in flight')
    parser.add_argument('--page-locked', action='store_true', help='frames in page-locked memory')
    parser.add_argument('--square', action='store_true', help='square input, as the others')
    parser.add_argument('--warm-up', type=float, default=WARM_UP_S, help='seconds')
    return parser.parse_args()


def own_standard_output():
    """Return the standard output. What libraries print goes to the standard error instead."""
    lines = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)
    return lines


def one_by_one(detect, frames, seconds):
    """Detect objects in one frame after the other. Return the time of each frame in seconds."""
    times = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end or not times:
        detect(frames[len(times) % len(frames)])
        times.append(time.perf_counter() - start)
    return times


def measure(run, frames, seconds):
    """Return the figures of one round. Times and memory are those of this process."""
    cpu, start = time.process_time(), time.perf_counter()
    times_s = run(frames, seconds)
    wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    p50, p99 = np.percentile(np.array(times_s) * 1e3, (50, 99)).tolist()
    return {
        'frames': len(times_s),
        'frames_per_s': len(times_s) / wall_s,
        'p50_ms': p50,
        'p99_ms': p99,
        'cpu_ms': 1e3 * cpu_s / len(times_s),
        'host_mib': resident_mib(),
    }


def resident_mib():
    """Return the host memory of this process (RSS) in MiB."""
    status = Path('/proc/self/status').read_text().splitlines()
    (line,) = (line for line in status if line.startswith('VmRSS'))
    return int(line.split()[1]) / 1024


def save_boxes(path, found):
    """Write the results of all frames: boxes (n, 4), scores, class ids, and the frame of each."""
    counts = [len(scores) for _, scores, _ in found]
    names = 'xyxy', 'scores', 'class_ids'
    arrays = {
        name: np.concatenate([np.asarray(result[index]) for result in found])
        for index, name in enumerate(names)
    }
    np.savez(path, frame=np.repeat(np.arange(len(found)), counts), **arrays)


@contextlib.contextmanager
def plain(side):
    """Return the context manager of a side that has nothing to close."""
    yield side
