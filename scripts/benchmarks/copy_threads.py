"""Time to copy a 1080p bgr8 frame into pinned memory, by how many threads copy.

python3 scripts/benchmarks/copy_threads.py
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np

from trt_perception.gpu import Device
from trt_perception.gpu import PinnedBuffer
from trt_perception.pipelines.copier import Copier

FRAME_BYTES = 1920 * 1080 * 3
# More frames than caches hold, as a camera's messages are.
FRAMES = 32


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--threads', type=int, nargs='+', default=[1, 2, 3, 4, 6, 8], metavar='N')
    parser.add_argument('--frames', type=int, default=2000, metavar='N', help='default: 2000')
    options = parser.parse_args()
    Device(0)
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, FRAME_BYTES, np.uint8) for _ in range(FRAMES)]
    print(f'{FRAME_BYTES / 1e6:.1f} MB, {len(os.sched_getaffinity(0))} cores')
    with PinnedBuffer(FRAME_BYTES) as pinned:
        for threads in options.threads:
            copier = Copier(threads)
            seconds = []
            for index in range(-100, options.frames):
                start = time.perf_counter()
                copier.copy(pinned.array, frames[index % FRAMES])
                if index >= 0:
                    seconds.append(time.perf_counter() - start)
            copier.close()
            p50, p99 = np.percentile(seconds, (50, 99)) * 1e6
            print(f'{threads} threads: p50 {p50:4.0f} us, p99 {p99:4.0f} us')


if __name__ == '__main__':
    main()
