# SPDX-License-Identifier: Apache-2.0
"""Tests of the warm-up: a grey image runs through every slot."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from support.oracles.reference_images import random_frame
from trt_perception.errors import EngineError
from trt_perception.images.detections import Detections
from trt_perception.images.memory import NumpyMemory
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.pipeline import Result
from trt_perception.pipelines.warm_up import (
    copy_to_pipeline_memory,
    grey_frame,
    open_warm_pipelines,
    warm_up,
)


@pytest.mark.parametrize('depth', [1, 4])
def test_warm_up_runs_every_slot_once(depth):
    calls = []

    class Warmed:
        front = 256
        allocate = NumpyMemory

        def __init__(self):
            self.depth = depth

        def enqueue(self, slot, frames, thresholds):
            (frame,) = frames
            assert thresholds == [Thresholds()]
            assert np.unique(frame.data).tolist() == [114]
            calls.append(('enqueue', slot))

        def collect(self, slot):
            calls.append(('collect', slot))
            return [Result(Detections.empty(), 0.0, grey_frame())]

    warm_up(Warmed())
    assert calls == [(call, slot) for slot in range(depth) for call in ('enqueue', 'collect')]


class Counted(NumpyMemory):
    """Memory for at most ``left`` buffers. ``freed`` lists the pointers of closed buffers."""

    left = 2
    freed: list[int] = []  # noqa: RUF012

    def __init__(self, size):
        if not Counted.left:
            raise MemoryError('no memory is left')
        Counted.left -= 1
        super().__init__(size)

    def close(self):
        Counted.freed.append(self.pointer)


def test_frames_are_copied_to_pipeline_memory(monkeypatch):
    monkeypatch.setattr(Counted, 'left', 2)
    monkeypatch.setattr(Counted, 'freed', [])
    pipeline = SimpleNamespace(allocate=Counted)
    frames = [random_frame(np.random.default_rng(seed), 'yuyv', 10, 4, 3) for seed in (1, 2)]
    with copy_to_pipeline_memory(pipeline, frames) as placed:
        for frame, there in zip(frames, placed, strict=True):
            assert there.data.ctypes.data == there.memory.pointer
            assert there.data.tobytes() == frame.data.tobytes()
            # Python 3.13 and newer also compare a field if both frames have the same array.
            assert replace(there, data=None, memory=None) == replace(frame, data=None)
        assert Counted.freed == []
    assert sorted(Counted.freed) == sorted(frame.memory.pointer for frame in placed)
    Counted.left, Counted.freed = 1, []
    with pytest.raises(MemoryError), copy_to_pipeline_memory(pipeline, frames):
        pytest.fail('only one buffer has memory')
    assert len(Counted.freed) == 1


class OnDevice:
    """A pipeline that computes nothing. The class lists the devices of open pipelines."""

    open: list[int] = []  # noqa: RUF012
    depth, allocate = 1, NumpyMemory
    spec = SimpleNamespace(class_names=('thing',))

    def __init__(self, path, options):
        self.device = options.device_id
        self.most = options.max_batch
        if self.device == 9:
            raise EngineError('device', 'does not exist')
        OnDevice.open.append(self.device)

    def enqueue(self, slot, frames, thresholds):
        if self.device == 8:
            raise RuntimeError('the warm-up broke')

    def collect(self, slot):
        return [Result(Detections.empty(), 0.0, grey_frame())]

    def close(self):
        OnDevice.open.remove(self.device)
        if self.device == 7:
            raise RuntimeError('cannot be closed')


def ready(device_ids, *, cameras, path='model.engine'):
    return open_warm_pipelines(
        path, PipelineOptions(), OnDevice, device_ids=device_ids, cameras=cameras
    )


def test_each_gpu_with_a_camera_gets_a_warm_pipeline(monkeypatch):
    monkeypatch.setattr(OnDevice, 'open', [])
    pipelines, seconds = ready((3, 1, 2), cameras=2)
    assert [pipeline.device for pipeline in pipelines] == OnDevice.open == [3, 1]
    assert seconds > 0


def test_max_batch_is_the_number_of_cameras_of_a_pipeline(monkeypatch):
    monkeypatch.setattr(OnDevice, 'open', [])
    pipelines, _ = ready((3, 1), cameras=5)
    assert [pipeline.most for pipeline in pipelines] == [3, 2]
    [only], _ = ready((3, 1), cameras=1)
    assert only.most == 1


def test_cpu_model_has_one_pipeline_and_ignores_gpus(monkeypatch, caplog, golden_messages):
    caplog.set_level('INFO')
    monkeypatch.setattr(OnDevice, 'open', [])
    [only], _ = ready((3, 1), cameras=2, path='~/m.onnx')
    assert only.most == 2
    assert OnDevice.open == [3]
    golden_messages.add('\n'.join(record.message for record in caplog.records))


@pytest.mark.parametrize(
    ('devices', 'error'),
    [
        ((3, 9), EngineError),
        ((3, 1, 8), RuntimeError),
        ((3, 7, 9), RuntimeError),
    ],
)
def test_failed_warm_up_closes_all_pipelines(monkeypatch, devices, error, golden_messages):
    monkeypatch.setattr(OnDevice, 'open', [])
    with golden_messages.raises(error):
        ready(devices, cameras=4)
    assert OnDevice.open == []
