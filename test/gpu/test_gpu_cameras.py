# SPDX-License-Identifier: Apache-2.0
"""Cameras share one detector and its engines on a GPU, but get only the boxes of their images."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
from test_gpu_batches import assert_same, engines, open_pipeline
from test_gpu_devices import needs_two_gpus
from test_gpu_profiles import in_new_process

from support.gpu.engine_checks import colour_blocks
from support.gpu.gpu_support import needs_tensorrt
from support.scheduling.pool_runs import found_by_cameras
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.pipeline import detect_one
from trt_perception.ros.intake.buffers import MessageBuffers

__all__ = ['engines']  # the fixture

pytestmark = [needs_tensorrt, pytest.mark.ros]

CAMERAS = 12


def check_cameras(path, single_path, devices):
    """Return the number of boxes and the mean batch size of each pipeline."""
    rng = np.random.default_rng(5)
    sources = [
        [
            colour_blocks(*(int(side) for side in rng.integers(40, 500, 2)), seed=10 * camera + at)
            for at in range(3)
        ]
        for camera in range(CAMERAS)
    ]
    thresholds = [Thresholds(0.2 + 0.05 * camera) for camera in range(CAMERAS)]
    with ExitStack() as stack:
        single = stack.enter_context(open_pipeline(single_path))
        expected = [
            [detect_one(single, frame, camera_thresholds).detections for frame in frames]
            for frames, camera_thresholds in zip(sources, thresholds, strict=True)
        ]
        pipelines = [
            stack.enter_context(open_pipeline(path, device_id=device)) for device in devices
        ]
        buffers = MessageBuffers(pipelines[0].allocate)
        stack.callback(buffers.close)
        lending = threading.Lock()

        def place(frame):
            """Copy a frame into a message buffer, which is free again after its last reader."""
            with lending:
                lease = buffers.lend(frame.data.size)
            data = lease.array()[: frame.data.size]
            np.copyto(data, frame.data)
            return replace(frame, data=data, memory=lease.memory)

        found, _, statistics = found_by_cameras(
            pipelines, sources, thresholds, 60, bad=(2, 7), place=place
        )
        buffer_count = buffers.count
    for camera, results in enumerate(found):
        for index, detections in results:
            assert_same(detections, expected[camera][index])
    # Each GPU needs a buffer for each place of each slot. Two more batches may be in use, because
    # one is read and one is published.
    assert buffer_count <= sum((pipeline.depth + 2) * pipeline.batch for pipeline in pipelines)
    return (
        sum(len(detections) for results in found for _, detections in results),
        [part.frames / part.batches for part in statistics],
    )


@pytest.mark.parametrize('kind', ['fixed 1', 'fixed 3', 'profiles 1, 4, 8'])
def test_each_camera_gets_the_boxes_of_its_own_images(engines, kind):
    boxes, (frames,) = in_new_process(check_cameras, engines(kind), engines('fixed 1'), (0,))
    assert boxes > 200
    assert frames > 1.02 or kind == 'fixed 1'


@needs_two_gpus
def test_each_camera_gets_the_boxes_of_its_own_images_on_two_gpus(engines):
    path, single_path = engines('profiles 1, 4, 8'), engines('fixed 1')
    boxes, frames = in_new_process(check_cameras, path, single_path, (0, 1))
    assert boxes > 200
    assert len(frames) == 2
