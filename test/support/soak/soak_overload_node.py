# SPDX-License-Identifier: Apache-2.0
"""Run a detector_node whose pipeline takes 20 ms per frame. Print statistics at the end.

    python soak_overload_node.py --ros-args ...

The last line is a JSON object. ``published`` is the number of frames, ``seconds`` the time between
the first and the last frame, and ``depth`` the depth of the pipeline. ``age_s`` has the 50th, 95th
and 99th percentile of the time from the entry of the callback to the publication.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

# Python starts this file by its path, so the folder of the tests' support is not in sys.path.
sys.path.append(str(Path(__file__).resolve().parents[2]))
from support.nodes import scripted_node
from trt_perception.monitoring.frame_statistics import FrameStatistics
from trt_perception.pipelines.pipeline import Result
from trt_perception.ros.detector_node import DetectorNode
from trt_perception.ros.runtime.process import run_node

FRAME_S = 0.02
# Width of a histogram bin in seconds. A list of all ages would look like a memory leak.
BIN_S = 1e-4
START_UP = 50  # ages of the first frames are ignored


class Pipeline(scripted_node.ScriptedPipeline):
    """Overlaps frames without work in this process, like an external GPU."""

    def __init__(self, path, options):
        self._ready = {}
        self._last = 0.0

    def enqueue(self, slot, frames, thresholds):
        # Frames run one after the other, as on a GPU, so more slots add no throughput.
        self._last = max(self._last, time.monotonic()) + FRAME_S
        self._ready[slot] = self._last, *frames

    def is_done(self, slot):
        return time.monotonic() >= self._ready[slot][0]

    def collect(self, slot):
        ready, frame = self._ready.pop(slot)
        time.sleep(max(0.0, ready - time.monotonic()))
        return [Result(scripted_node.Detections.empty(), FRAME_S, frame)]

    def close(self):
        pass


def main():
    ages = np.zeros(100_000, np.int64)
    published, first, last = 0, 0.0, 0.0
    publish = FrameStatistics.publish

    def record(self, times, time_s):
        nonlocal published, first, last
        published, last = published + 1, time.monotonic()
        first = first or last
        if published > START_UP:
            ages[min(int(times.total / BIN_S), len(ages) - 1)] += 1
        publish(self, times, time_s)

    FrameStatistics.publish = record
    code = run_node(lambda: DetectorNode(open_pipeline=Pipeline), DetectorNode.close, sys.argv)
    shares = ages.cumsum() / max(1, ages.sum())
    print(
        json.dumps(
            {
                'published': published,
                'depth': Pipeline.depth,
                'seconds': last - first,
                'age_s': [BIN_S * (1 + int((shares < p).sum())) for p in (0.5, 0.95, 0.99)],
            }
        ),
        flush=True,
    )
    return code


if __name__ == '__main__':
    sys.exit(main())
