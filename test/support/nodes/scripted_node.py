# SPDX-License-Identifier: Apache-2.0
"""Run a detector_node whose pipeline obeys commands: the first byte of a picture is a command.

Tests start this program in a separate process. engine_path decides how the model loads. A file
name in SPECS decides the task.
"""

import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from trt_perception.images.detections import Detections
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.memory import NumpyMemory
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.class_scores import ClassScores
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tasks.classify import Classify
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tasks.semantic import Semantic
from trt_perception.model.tensors import TensorSpec
from trt_perception.pipelines.pipeline import Result
from trt_perception.process.interruption import check_interruption, is_interrupted
from trt_perception.ros.detector_node import DetectorNode
from trt_perception.ros.runtime import bond
from trt_perception.ros.runtime.process import run_node
from trt_perception.scheduling.scheduler import Scheduler

SLOW = 1
RAISE_IN_COLLECT = 2
RAISE_IN_ENQUEUE = 3
RAISE_IN_PUBLISH = 4
HELD_THEN_RAISE = 5  # hold the frame until the pipeline is full or stops, then raise
NEVER = 6
HELD_FOR_ANOTHER_THEN_RAISE = 7  # as HELD_THEN_RAISE, but also wait until another image is stored
SLOW_WORKER = 8  # takes the worker's time instead of the model's
UNTIL_SIGNAL = 9  # enqueue lasts until a signal, as if it opened the model again
HELD_ORDERS = HELD_THEN_RAISE, HELD_FOR_ANOTHER_THEN_RAISE
DURATIONS_S = {SLOW: 0.05, NEVER: 3600.0}
#: Set when an image was stored after the pipeline received its last frame.
IMAGE_STORED = threading.Event()

SPEC = ModelSpec(
    TensorSpec('images', (1, 3, 48, 64), 'float32'),
    (TensorSpec('output', (1, 5, 1), 'float32'),),
    Preprocessing((64, 48)),
    PRESETS['dense'].decoder,
    ('thing',),
    has_manifest=True,
)
#: Specifications of the tasks that describe the whole image, by name of the task.
SPECS = {
    task.name: replace(SPEC, task=task, decoder=PRESETS[preset].decoder, class_names=names)
    for task, preset, names in (
        (Classify(), 'class_logits', ('thing', 'other')),
        (Semantic(), 'pixel_ids', ('thing', 'other')),
        (Depth(), 'metric_depth', ()),
    )
}


def found_in_whole_image(task, frame):
    """Return a result of a task that describes the whole image."""
    if task == Classify():
        return ClassScores(np.array([0.75, 0.25], np.float32))
    letterbox = Letterbox.fit((frame.width, frame.height), (64, 48), 'stretch')
    if task == Semantic():
        return ClassMap(np.ones((48, 64), np.uint8), letterbox)
    return DepthMap(np.ones((48, 64), np.float32), letterbox, 'bilinear', is_metric=True)


class ScriptedPipeline:
    """Overlaps frames like a GPU pipeline. Each frame is done some time after its arrival."""

    depth = max_in_flight = 3
    batch = 1
    decodes_jpeg = False
    diagnostic_values = ()
    opening_reason = ''
    allocate = NumpyMemory

    def __init__(self, path, options):
        if path == 'raise while loading':
            raise RuntimeError('loading broke')
        self.spec = SPECS.get(Path(path).name, SPEC)
        self._orders = {}
        self._broken_warm_up = path == 'raise in warm-up'
        self._endless_warm_up = path == 'wait for a signal in warm-up'

    def enqueue(self, slot, frames, thresholds):
        (frame,) = frames
        order = int(frame.data[0])
        IMAGE_STORED.clear()
        print(f'enqueue {order}', flush=True)
        if order == SLOW_WORKER:
            time.sleep(DURATIONS_S[SLOW])
        while order == UNTIL_SIGNAL:
            time.sleep(0.01)
            check_interruption()
        if order == RAISE_IN_ENQUEUE:
            raise RuntimeError('enqueue broke')
        self._orders[slot] = order, time.monotonic() + DURATIONS_S.get(order, 0.0), frame

    def is_done(self, slot):
        order, ready, _ = self._orders[slot]
        return order not in HELD_ORDERS and time.monotonic() >= ready

    def collect(self, slot):
        order, ready, frame = self._orders.pop(slot)
        if self._broken_warm_up:
            raise RuntimeError('warm-up broke')
        while self._endless_warm_up and not is_interrupted():
            time.sleep(0.01)
        if order == NEVER:
            print(f'collect {order}', flush=True)
        if order == HELD_FOR_ANOTHER_THEN_RAISE:
            assert IMAGE_STORED.wait(60)
        while time.monotonic() < ready:
            time.sleep(0.005)
        if order == RAISE_IN_COLLECT or order in HELD_ORDERS:
            raise RuntimeError('collect broke')
        if self.spec.task.name in SPECS:
            found = found_in_whole_image(self.spec.task, frame)
            return [Result(found, DURATIONS_S.get(order, 0.001), frame)]
        class_ids = [7 if order == RAISE_IN_PUBLISH else 0]  # the model has no class 7
        box = np.array([[1, 2, 3, 4]], np.float32)
        found = Detections(box, np.array([0.5], np.float32), np.array(class_ids, np.int32))
        return [Result(found, DURATIONS_S.get(order, 0.001), frame)]

    def close(self):
        print('pipeline closed', flush=True)


def tell_when_stored():
    offer = Scheduler.put

    def offer_and_tell(*given):
        replaced = offer(*given)
        IMAGE_STORED.set()
        return replaced

    Scheduler.put = offer_and_tell


if __name__ == '__main__':
    bond._END_REPEAT_S = 2.0  # longer than in production, because the machine may be busy
    tell_when_stored()
    sys.exit(
        run_node(
            lambda: DetectorNode(open_pipeline=ScriptedPipeline), DetectorNode.close, sys.argv
        )
    )
