"""A pipeline is made ready by a grey image through every slot."""

import numpy as np
import pytest

from trt_perception.config import Thresholds
from trt_perception.detections import Detections
from trt_perception.images.memory import PlainMemory
from trt_perception.pipelines.pipeline import Result
from trt_perception.pipelines.ready import warm_up


@pytest.mark.parametrize('depth', [1, 4])
def test_warm_up_runs_every_slot_once(depth):
    calls = []

    class Warmed:
        front = 256
        allocate = PlainMemory

        def __init__(self):
            self.depth = depth

        def enqueue(self, slot, frame, thresholds):
            assert isinstance(thresholds, Thresholds)
            assert np.unique(frame.data).tolist() == [114]
            calls.append(('enqueue', slot))

        def collect(self, slot):
            calls.append(('collect', slot))
            return Result(Detections.empty(), 0.0)

    warm_up(Warmed())
    assert calls == [(call, slot) for slot in range(depth) for call in ('enqueue', 'collect')]
