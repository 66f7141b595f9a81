# SPDX-License-Identifier: Apache-2.0
"""Send many frames of changing size and encoding through one pipeline; check losses and memory.

    python3 scripts/benchmarks/endurance.py model.engine

Frames lie in memory that the pipeline lends, as a node's messages do. With --copied, frames lie in
ordinary memory. Prints the counts and the free device memory. Fails if a frame was lost or memory
was not freed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from trt_perception.gpu import Device
from trt_perception.images.encode import encode_bgr
from trt_perception.images.frame import PIXEL_FORMATS, Frame
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.open_pipeline import open_pipeline
from trt_perception.ros.intake.buffers import MessageBuffers
from trt_perception.scheduling.camera import Camera
from trt_perception.scheduling.worker_pool import WorkerPool

SIZES = ((3840, 2160), (640, 480), (1920, 1080), (1280, 720), (1918, 1078), (320, 240), (64, 48))


def make_frame(rng, encoding):
    width, height = SIZES[rng.integers(len(SIZES))]
    rows = encode_bgr(rng.integers(0, 256, (height, width, 3), np.uint8), encoding)
    return Frame.view(
        rows.reshape(-1), width=width, height=height, step=rows.shape[1], encoding=encoding
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('engine')
    parser.add_argument('--frames', type=int, default=10_000)
    parser.add_argument('--changes', type=int, default=100)
    parser.add_argument('--copied', action='store_true', help='frames lie in ordinary memory')
    options = parser.parse_args()
    pipeline = open_pipeline(options.engine, PipelineOptions(max_batch=1))
    buffers = MessageBuffers(pipeline.allocate)

    def taken(frame):
        if options.copied:
            return frame
        lease = buffers.lend(frame.data.size)
        data = lease.array()[: frame.data.size]
        np.copyto(data, frame.data)
        return replace(frame, data=data, memory=lease.memory)

    errors = []
    camera = Camera(
        '', taken, lambda *_: None, lambda _, error: errors.append(error), Thresholds()
    )
    pool = WorkerPool([pipeline], [camera], fault_handler=SimpleNamespace(on_fault=errors.append))
    pool.start()
    rng = np.random.default_rng(0)
    encodings = sorted({pixel_format.name for pixel_format in PIXEL_FORMATS.values()})
    rgb_4k = rng.integers(0, 256, (2160, 3840, 4), np.uint8).reshape(-1)
    largest = Frame.view(rgb_4k, width=3840, height=2160, step=4 * 3840, encoding='rgba8')
    send(pool, largest, 4 * pipeline.depth)  # each slot grows to the largest frame
    before = Device(0).memory()[0]
    started = time.perf_counter()
    for change in range(options.changes):
        frame = make_frame(rng, encodings[change % len(encodings)])
        send(pool, frame, options.frames // options.changes)
    while pool.statistics()[0].in_flight:
        time.sleep(50e-6)
    seconds = time.perf_counter() - started
    after = Device(0).memory()[0]
    pool.stop()
    counts = pool.statistics()[0]
    lent = buffers.count
    buffers.close()
    pipeline.close()
    result = {
        'received': counts.received,
        'published': counts.published,
        'dropped': dict(counts.dropped),
        'failed': counts.failed,
        'changes': options.changes,
        'seconds': round(seconds, 2),
        'device_memory_kept_bytes': before - after,
        'buffers': lent,
        'errors': [str(error) for error in errors],
    }
    print(json.dumps(result, indent=2))
    return 0 if counts.published == counts.received and before - after <= 1024 * 1024 else 1


def send(pool, frame, count):
    """Submit a frame repeatedly, each time after the previous frame has left the pool."""
    for _ in range(count):
        while pool.statistics()[0].in_flight >= 1:
            time.sleep(50e-6)
        pool.submit(0, frame)


if __name__ == '__main__':
    sys.exit(main())
