# SPDX-License-Identifier: Apache-2.0
"""Run a detector_node in which native code never returns.

    python hanging_node.py STEP free|locked --ros-args ...

STEP is load, reload (the first image opens the model again), frame, close or shutdown (of the
interpreter). Native code releases Python's lock (free), or keeps it (locked). The pipeline has a
region of shared memory, as if a Triton server ran the model.

After a signal, the guard process ends the node if the lock is kept or the interpreter shuts down;
otherwise a thread of the node does. On a busy machine, the slower of the two may come first, so it
gets a much longer time limit here.
"""

import ctypes
import sys
from pathlib import Path

# Python starts this file by its path, so the folder of the tests' support is not in sys.path.
sys.path.append(str(Path(__file__).resolve().parents[2]))
from support.nodes.scripted_node import SPEC, ScriptedPipeline
from trt_perception.ros.detector_program import main
from trt_perception.ros.runtime import process
from trt_perception.stages.triton.memory import TritonRegion

SLEEP = {'free': ctypes.CDLL(None).sleep, 'locked': ctypes.PyDLL(None).sleep}
STEP, LOCK = sys.argv[1:3]
_regions = []
LONG_S = 60.0
if LOCK == 'locked' or STEP == 'shutdown':
    guard_limit_s = process.SIGNAL_LIMIT_S + process._GUARD_DELAY_S
    process.SIGNAL_LIMIT_S, process._GUARD_DELAY_S = LONG_S, guard_limit_s - LONG_S
else:
    process._GUARD_DELAY_S = LONG_S


def reach(step):
    if step == STEP:
        print(f'hanging in {step}', flush=True)
        while True:
            SLEEP[LOCK](1000)


class HangingPipeline(ScriptedPipeline):
    def __init__(self, path, options):
        _regions.append(TritonRegion([SPEC.input]))
        print('region', _regions[-1].name, flush=True)
        reach('load')
        super().__init__(path, options)

    def enqueue(self, slot, frames, thresholds):
        if int(frames[0].data[0]) == 0:  # an image of the test, not of the warm-up
            reach('reload')
        super().enqueue(slot, frames, thresholds)

    def collect(self, slot):
        if self._orders[slot][0] == 0:
            reach('frame')
        return super().collect(slot)

    def close(self):
        reach('close')
        _regions.pop().close()
        super().close()


class LateHang:
    def __del__(self):
        reach('shutdown')


if __name__ == '__main__':
    late = LateHang()
    del sys.argv[1:3]
    sys.exit(main(open_pipeline=HangingPipeline))
