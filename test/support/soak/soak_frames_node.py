# SPDX-License-Identifier: Apache-2.0
"""Run a detector_node that checks whether each frame's pixels belong to its header.

    python soak_frames_node.py --ros-args ...

The images are filled with their number, which is also the stamp's seconds
(nodes/numbered_camera.py). The node checks each frame when it enters the pipeline, when it leaves
the pipeline, and when its detections are published.
The last line of the output is a JSON object. It has the numbers of published ``frames`` and of
``wrong`` frames, and the ``sizes``.
"""

import json
import sys
import time
from pathlib import Path

# Python starts this file by its path, so the folder of the tests' support is not in sys.path.
sys.path.append(str(Path(__file__).resolve().parents[2]))
from support.nodes import scripted_node
from support.nodes.numbered_camera import VALUES
from trt_perception.pipelines.pipeline import Result
from trt_perception.ros.camera.publishers import CameraPublishers
from trt_perception.ros.detector_node import DetectorNode
from trt_perception.ros.runtime.process import run_node

FRAME_S = 0.005
#: Line that the node prints for each frame with more than 2,000 columns.
LARGE = 'a large one'


def look(frame):
    """Return the values of sampled pixels, which include the last pixels."""
    return {*frame.data[::4099].tolist(), *frame.data[-2:].tolist()}


class Pipeline(scripted_node.ScriptedPipeline):
    """Holds three frames for some milliseconds each, like a GPU pipeline.

    With the engine_path ``2 of 40 ms``, the pipeline takes 40 ms for each batch of two frames. The
    batches do not overlap.
    """

    torn = 0

    def __init__(self, path, options):
        self._held = {}
        self._free_at = 0.0
        self._batch_s = FRAME_S
        if path:
            batch, _, milliseconds, _ = path.split()
            self.batch, self._batch_s = int(batch), float(milliseconds) / 1e3

    def enqueue(self, slot, frames, thresholds):
        ready = max(self._free_at, time.monotonic()) + self._batch_s
        self._free_at = ready if self.batch > 1 else 0.0
        self._held[slot] = frames, [look(frame) for frame in frames], ready

    def is_done(self, slot):
        return time.monotonic() >= self._held[slot][2]

    def collect(self, slot):
        frames, seen, ready = self._held.pop(slot)
        time.sleep(max(0.0, ready - time.monotonic()))
        for frame, before in zip(frames, seen, strict=True):
            Pipeline.torn += len(before) != 1 or look(frame) != before
        found = scripted_node.Detections.empty()
        return [Result(found, self._batch_s, frame) for frame in frames]

    def close(self):
        pass


def main():
    frames = wrong = 0
    sizes = set()
    publish = CameraPublishers.publish

    def check(self, header, frame, detections):
        nonlocal frames, wrong
        frames += 1
        wrong += look(frame) != {header.stamp.sec % VALUES}
        if frame.width > 2000:
            print(LARGE, flush=True)
        sizes.add((frame.width, frame.height))
        publish(self, header, frame, detections)

    CameraPublishers.publish = check
    code = run_node(lambda: DetectorNode(open_pipeline=Pipeline), DetectorNode.close, sys.argv)
    result = {'frames': frames, 'wrong': wrong + Pipeline.torn, 'sizes': sorted(sizes)}
    print(json.dumps(result), flush=True)
    return code


if __name__ == '__main__':
    sys.exit(main())
