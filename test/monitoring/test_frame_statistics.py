# SPDX-License-Identifier: Apache-2.0
"""Tests of counts and stage times of frames, and of Detections."""

from collections import deque

import numpy as np
import pytest

from trt_perception.images.detections import Detections
from trt_perception.monitoring.frame_statistics import FrameStatistics, FrameTimes
from trt_perception.monitoring.pipeline_statistics import PipelineStatistics


def times(total):
    return FrameTimes(wait=0.001, copy=0.002, compute=0.003, publish=0.004, total=total)


def test_counts_start_at_zero():
    now = FrameStatistics().snapshot()
    assert (now.received, now.published, now.failed, now.in_flight) == (0, 0, 0, 0)
    assert dict(now.dropped) == {}
    assert dict(now.latency) == {}


def test_every_frame_is_counted_once():
    statistics = FrameStatistics()
    for _ in range(9):
        statistics.receive(1.0)
    assert statistics.snapshot().in_flight == 9
    statistics.publish(times(0.01), 2.0)
    statistics.publish(times(0.01), 2.0)
    statistics.drop('replaced')
    statistics.drop('replaced')
    statistics.drop('bad_step')
    statistics.fail(1)
    statistics.fail(0)
    statistics.fail(2)
    now = statistics.snapshot()
    assert (now.received, now.published, now.failed, now.in_flight) == (9, 2, 3, 1)
    assert dict(now.dropped) == {'replaced': 2, 'bad_step': 1}


def test_text_lists_counts_and_drop_reasons(golden_messages):
    golden_messages.add(FrameStatistics(9, 2, {'replaced': 3, 'bad_step': 1}, 1, 2))
    golden_messages.add(FrameStatistics(1, 1))


def test_snapshot_does_not_change_with_later_frames():
    statistics = FrameStatistics()
    statistics.receive(1.0)
    statistics.drop('one')
    before = statistics.snapshot()
    statistics.receive(1.0)
    statistics.drop('one')
    assert (before.received, dict(before.dropped)) == (1, {'one': 1})


def test_snapshot_has_the_times_of_the_last_frames():
    statistics = FrameStatistics()
    statistics.receive(3.0)
    statistics.receive(4.5)
    statistics.publish(times(0.01), 5.25)
    statistics.drop('one')
    assert (statistics.snapshot().received_s, statistics.snapshot().published_s) == (4.5, 5.25)


def test_percentiles_use_the_last_512_frames_by_default():
    statistics = FrameStatistics()
    # In a window of 512 frames, half of the times are 0 s and half 2 s. The median is their mean.
    for total in [0.0, *256 * [0.0], *256 * [2.0]]:
        statistics.publish(times(total), 2.0)
    assert statistics.snapshot().latency['total'].p50_ms == pytest.approx(1000)


def test_percentiles_ignore_frames_before_the_window():
    statistics = FrameStatistics(times=deque(maxlen=200))
    for _ in range(50):
        statistics.publish(times(100.0), 2.0)  # later frames push these out of the window
    milliseconds = np.random.default_rng(40).permutation(200) + 1
    for value in milliseconds:
        statistics.publish(times(value / 1e3), 2.0)
    latency = statistics.snapshot().latency
    assert latency['wait'].p50_ms == pytest.approx(1)
    assert latency['copy'].p99_ms == pytest.approx(2)
    assert latency['compute'].p50_ms == pytest.approx(3)
    assert latency['publish'].p50_ms == pytest.approx(4)
    # Half of the times are at most 100 ms, and 99 % at most 198 ms. Definitions differ by 1 ms.
    assert 100 <= latency['total'].p50_ms <= 101
    assert 198 <= latency['total'].p99_ms <= 199


def test_empty_detections_have_the_expected_shapes_and_types():
    none = Detections.empty()
    assert len(none) == 0
    assert (none.xyxy.shape, none.scores.shape, none.class_ids.shape) == ((0, 4), (0,), (0,))
    assert (none.xyxy.dtype, none.scores.dtype) == (np.float32, np.float32)
    assert none.class_ids.dtype == np.int32


@pytest.mark.parametrize(
    ('boxes', 'scores', 'ids'),
    [
        ((0, 5), (0,), (0,)),
        ((0,), (0,), (0,)),
        ((2, 4), (1,), (2,)),
        ((2, 4), (2,), (3,)),
        ((1, 4), (2,), (2,)),
        ((2, 4), (2, 1), (2,)),
        ((2, 4), (2,), (2, 1)),
        ((4, 2), (2,), (2,)),
    ],
)
def test_detections_with_wrong_shapes_are_refused(boxes, scores, ids, golden_messages):
    scores_and_ids = np.zeros(scores, np.float32), np.zeros(ids, np.int32)
    with golden_messages.raises(ValueError):
        Detections(np.zeros(boxes, np.float32), *scores_and_ids)


def test_merged_statistics_are_sums():
    parts = [FrameStatistics(), FrameStatistics(), FrameStatistics()]
    for camera, statistics in enumerate(parts[:2]):
        for _ in range(600):
            statistics.receive(3.0 - camera)
            statistics.publish(times(0.1 * (camera + 1)), 4.0 + camera)
        for reason in ('one', f'of {camera}'):
            statistics.receive(1.0)
            statistics.drop(reason)
        statistics.receive(1.0)
        statistics.receive(2.0 + camera)
        statistics.fail(1)
    whole = FrameStatistics.merge([part.snapshot() for part in parts])
    assert (whole.received, whole.published, whole.failed, whole.in_flight) == (1208, 1200, 2, 2)
    assert whole.dropped == {'one': 2, 'of 0': 1, 'of 1': 1}
    assert (whole.received_s, whole.published_s) == (3.0, 5.0)
    # Frames of both cameras count equally, although the second camera published last.
    assert whole.latency['total'].p50_ms == pytest.approx(150)
    assert FrameStatistics.merge([]) == FrameStatistics()


def test_pipeline_statistics_count_frames_and_batches():
    statistics = PipelineStatistics()
    assert statistics.snapshot().compute is None
    for frames in (1, 3, 8):
        statistics.count(frames, 0.001 * frames)
    before = statistics.snapshot()
    statistics.count(2, None)  # a batch in which no frame could be read
    assert (before.frames, before.batches) == (12, 3)
    assert (statistics.frames, statistics.batches) == (14, 4)
    assert before.compute.p50_ms == pytest.approx(3)
    assert 7 <= before.compute.p99_ms <= 8
    assert statistics.snapshot().compute == before.compute
