# SPDX-License-Identifier: Apache-2.0
"""Tracks of detections from emulated kernels: the thresholds, the ids and the mask numbers."""

import numpy as np
import pytest

from support.gpu.emulated_kernels import emulated_kernels
from support.gpu.host_kernels import needs_compiler
from support.gpu.host_machine import DEVICE, HostMachine, use_host_memory
from support.optional_packages import needs
from support.oracles.task_outputs import (
    TASKS,
    assert_same,
    decode_on_host,
    decode_with_kernels,
    random_outputs,
    spec_of,
)
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.cuda.pinned_images import ImagePool
from trt_perception.tracking.tracker import Tracker

pytestmark = [needs_compiler, needs('scipy')]

LOWEST = [0.1, 0.6, 0.2]


def camera_configs():
    """Return the parameters of two cameras with a tracker, and of one without between them."""
    return [
        ParameterValues(
            tracker_type='bytetrack', confidence_threshold=0.6, tracker_low_threshold=0.1
        ),
        ParameterValues(confidence_threshold=0.6),
        ParameterValues(
            tracker_type='bytetrack',
            confidence_threshold=0.2,
            tracker_low_threshold=0.3,
            tracker_high_threshold=0.4,
        ),
    ]


@pytest.fixture(autouse=True)
def _host_memory(monkeypatch):
    use_host_memory(monkeypatch)


def spread_scores(rng, spec, outputs):
    """Give all boxes scores from 0 to 1, and some the exact thresholds."""
    scores = outputs[0][:, 4 : 4 + len(spec.class_names)]
    scores[:] = rng.uniform(0, 1, scores.shape).astype(np.float32) ** 3
    exact = np.float32(LOWEST)[rng.integers(0, 3, scores.shape)]
    np.copyto(scores, exact, where=rng.uniform(size=scores.shape) < 0.2)


@pytest.mark.parametrize('name', ['detect', 'obb', 'segment'])
def test_kernels_and_host_use_the_lowest_threshold_of_each_camera(name):
    spec = spec_of(TASKS[name], (96, 64), 3, 300, batch=3)
    configs = camera_configs()
    thresholds = [config.thresholds(spec.class_names, spec.task) for config in configs]
    kernels = emulated_kernels(spec, max_detections=300, class_agnostic=False)
    rng = np.random.default_rng(1)
    outputs = random_outputs(rng, spec, 300)
    spread_scores(rng, spec, outputs)
    sizes = [(96, 64)] * 3
    found, geometries = decode_with_kernels(
        kernels, HostMachine(), spec, outputs, sizes, thresholds
    )
    expected = decode_on_host(outputs, spec, geometries, thresholds)
    for by_kernels, on_host, config, lowest in zip(found, expected, configs, LOWEST, strict=True):
        assert_same(by_kernels, on_host)
        assert by_kernels.scores.min() > np.float32(lowest)
        is_low = by_kernels.scores <= np.float32(config.confidence_threshold)
        assert is_low.any() == (lowest < config.confidence_threshold)


def test_masks_of_kernels_get_the_numbers_of_the_published_objects():
    spec = spec_of(TASKS['segment'], (96, 64), 3, 300, batch=1)
    config = camera_configs()[0]
    thresholds = [config.thresholds(spec.class_names, spec.task)]
    kernels = emulated_kernels(spec, max_detections=300, class_agnostic=False)
    rng = np.random.default_rng(2)
    outputs = random_outputs(rng, spec, 300)
    trackers = [
        Tracker(**vars(config.tracker_settings(config.confidence_threshold))) for _ in range(2)
    ]
    dropped = low_tracks = 0
    for image in range(6):
        spread_scores(rng, spec, outputs)
        (by_kernels,), geometries = decode_with_kernels(
            kernels, HostMachine(), spec, outputs, [(96, 64)], thresholds, ImagePool(DEVICE)
        )
        (on_host,) = decode_on_host(outputs, spec, geometries, thresholds)
        tracked, expected = (
            tracker.update(found, image / 30)
            for tracker, found in zip(trackers, (by_kernels, on_host), strict=True)
        )
        assert tracked.kept.tolist() == expected.kept.tolist()
        assert tracked.ids.tolist() == expected.ids.tolist()
        all_numbers, numbers = (np.full((64, 96), 9999, np.uint16) for _ in range(2))
        by_kernels.numbered.number(all_numbers)
        tracked.detections.numbered.number(numbers)
        wanted = np.zeros_like(numbers)
        for number, kept in enumerate(tracked.kept.tolist(), 1):
            wanted[all_numbers == kept + 1] = number
        assert (numbers == wanted).all()
        assert numbers.any()
        dropped += len(by_kernels) - len(tracked)
        low_tracks += int((tracked.detections.scores <= 0.6).sum())
    assert dropped
    assert low_tracks
