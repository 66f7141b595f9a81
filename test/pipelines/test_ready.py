"""A pipeline is made ready by a grey image through every slot."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from reference_images import noise_frame

from trt_perception.config import Thresholds
from trt_perception.detections import Detections
from trt_perception.images.memory import PlainMemory
from trt_perception.pipelines.pipeline import Result
from trt_perception.pipelines.ready import put_in_place
from trt_perception.pipelines.ready import warm_up


@pytest.mark.parametrize('depth', [1, 4])
def test_warm_up_runs_every_slot_once(depth):
    calls = []

    class Warmed:
        front = 256
        allocate = PlainMemory

        def __init__(self):
            self.depth = depth

        def enqueue(self, slot, frames, thresholds):
            (frame,) = frames
            assert thresholds == [Thresholds()]
            assert np.unique(frame.data).tolist() == [114]
            calls.append(('enqueue', slot))

        def collect(self, slot):
            calls.append(('collect', slot))
            return [Result(Detections.empty(), 0.0)]

    warm_up(Warmed())
    assert calls == [(call, slot) for slot in range(depth) for call in ('enqueue', 'collect')]


class Counted(PlainMemory):
    """There are ``left``; each is used once."""

    left = 2
    freed: list[int] = []  # noqa: RUF012

    def __init__(self, size):
        if not Counted.left:
            raise MemoryError('there is none left')
        Counted.left -= 1
        super().__init__(size)

    def close(self):
        Counted.freed.append(self.pointer)


def test_frames_are_put_where_messages_lie(monkeypatch):
    monkeypatch.setattr(Counted, 'left', 2)
    monkeypatch.setattr(Counted, 'freed', [])
    pipeline = SimpleNamespace(front=256, allocate=Counted)
    frames = [noise_frame(np.random.default_rng(seed), 'yuyv', 10, 4, 3)[0] for seed in (1, 2)]
    with put_in_place(pipeline, frames) as placed:
        for frame, there in zip(frames, placed, strict=True):
            assert there.data.ctypes.data == there.memory.pointer + 256
            assert there.data.tobytes() == frame.data.tobytes()
            assert replace(there, data=frame.data, memory=None) == replace(frame, data=frame.data)
        assert Counted.freed == []
    assert sorted(Counted.freed) == sorted(frame.memory.pointer for frame in placed)
    Counted.left, Counted.freed = 1, []
    with pytest.raises(MemoryError), put_in_place(pipeline, frames):
        pytest.fail('there was memory for one only')
    assert len(Counted.freed) == 1
