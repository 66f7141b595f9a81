# SPDX-License-Identifier: Apache-2.0
"""Tests of benchmark measurements with known values: order of frames, times, image sources."""

import itertools
import weakref

import cv2
import numpy as np
import pytest

from trt_perception.errors import ConfigError
from trt_perception.images.detections import Detections
from trt_perception.images.frame import PIXEL_FORMATS
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.images.results.kernel_maps import KernelMaps
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.benchmarking import measure
from trt_perception.offline.benchmarking.control import MeasurementControl
from trt_perception.offline.benchmarking.frames import load_frames, synthetic_image
from trt_perception.offline.benchmarking.measure import (
    TimeStatistics,
    detect_all,
    measure_pipeline,
)
from trt_perception.pipelines.pipeline import Result


class RecordingPipeline:
    """A pipeline that returns the frame's width as score, and records the slots in flight."""

    def __init__(self, depth, batch=1):
        self.depth = depth
        self.batch = batch
        self.flying = {}
        self.most = 0
        self.order = []
        self.clock = lambda: None  # `collect` calls this function

    def enqueue(self, slot, frames, thresholds):
        assert len(frames) == len(thresholds) == self.batch
        assert slot not in self.flying
        # The same memory must not be in two slots.
        inside = [*frames, *(frame for flying in self.flying.values() for frame in flying)]
        assert len({frame.width for frame in inside}) == len(inside)
        self.flying[slot] = frames
        self.most = max(self.most, len(self.flying))

    def collect(self, slot):
        assert slot == next(iter(self.flying))  # the oldest
        frames = self.flying.pop(slot)
        self.clock()
        self.order += [frame.width for frame in frames]
        scores = [np.array([frame.width / 1000], np.float32) for frame in frames]
        return [
            Result(Detections(np.ones((1, 4), 'f4'), score, np.zeros(1, 'i4')), 0.0, frame)
            for score, frame in zip(scores, frames, strict=True)
        ]


@pytest.mark.parametrize('depth', [1, 3])
def test_measurement_fills_all_slots_and_keeps_the_order_of_frames(depth):
    frames = [load_frames('', (width, 8), 'mono8', 1)[0] for width in (10, 20, 30)]
    pipeline = RecordingPipeline(depth)
    control = MeasurementControl(7)
    expected = detect_all(pipeline, frames, Thresholds(), control)
    report = measure_pipeline(pipeline, frames, Thresholds(), expected, control)
    assert pipeline.most == depth
    assert not pipeline.flying
    assert report.latency_ms.count == report.busy_latency_ms.count == 7
    widths = [frame.width for frame, _ in zip(itertools.cycle(frames), range(7), strict=False)]
    assert pipeline.order == widths[:3] + widths + widths
    assert (report.depth, report.detections, report.unequal) == (depth, 1, 0)
    assert report.frames_per_s > 0


@pytest.mark.parametrize(('depth', 'count'), [(1, 5), (3, 40)])
def test_time_line_has_the_last_batches_in_order(depth, count):
    frames = [load_frames('', (width, 8), 'mono8', 1)[0] for width in (10, 20, 30)]
    pipeline, control = RecordingPipeline(depth), MeasurementControl(count)
    report = measure_pipeline(pipeline, frames, Thresholds(), [], control)
    batches = report.last_batches
    assert len(batches) == min(12, count)
    first = (count - len(batches)) % depth
    assert [one.slot for one in batches] == [
        (first + number) % depth for number in range(len(batches))
    ]
    assert min(one.enqueue_start for one in batches) == 0
    for one in batches:
        assert one.enqueue_start <= one.enqueue_end <= one.collect_start <= one.collect_end
    # Only one thread works: it collects one batch after the other.
    for one, following in itertools.pairwise(batches):
        assert one.collect_end <= following.collect_start
    longest = max(report.busy_latency_percentiles_ms)
    assert longest == pytest.approx(report.busy_latency_ms.max)
    assert max(one.collect_end - one.enqueue_start for one in batches) <= longest * 1.000001


@pytest.mark.parametrize(('batch', 'depth'), [(2, 1), (2, 3), (4, 2)])
def test_batches_repeat_the_frames_in_the_same_order(batch, depth):
    widths = [8 + 2 * number for number in range(12)]
    frames = [load_frames('', (width, 8), 'mono8', 1)[0] for width in widths]
    pipeline = RecordingPipeline(depth, batch)
    control = MeasurementControl(20)
    expected = detect_all(pipeline, frames, Thresholds(), control, batch)
    assert [round(1000 * float(found.scores[0])) for found in expected] == widths
    given = frames, Thresholds(), expected, control
    report = measure_pipeline(pipeline, *given, batch)
    assert pipeline.most == depth
    assert pipeline.order == widths + 2 * (widths + widths[:8])
    # Times are per batch, rates per frame.
    assert report.latency_ms.count == report.busy_latency_ms.count == 20 // batch
    assert (report.batch, report.name) == (batch, f'batch {batch}, depth {depth}')
    assert report.unequal == 0
    swapped = frames, Thresholds(), expected[::-1], control
    assert measure_pipeline(pipeline, *swapped, batch).unequal == 40


class MapPipeline(RecordingPipeline):
    """Returns a depth map of 1 MiB with the width of its frame or NaN, and counts live maps."""

    def __init__(self, depth):
        super().__init__(depth)
        self.live = []
        self.most_live = 0

    def collect(self, slot):
        found = []
        for result in super().collect(slot):
            grid = np.full((512, 512), result.frame.width, np.float32)
            grid[-1] = np.nan
            self.live.append(weakref.ref(grid))
            letterbox = Letterbox.fit((512, 512), (512, 512), 'stretch')
            found.append(Result(DepthMap(grid, letterbox, 'bilinear', True), 0.0, result.frame))
        self.most_live = max(self.most_live, sum(one() is not None for one in self.live))
        return found


def test_only_some_of_the_maps_are_kept_and_compared(monkeypatch):
    monkeypatch.setattr(measure, '_MAX_KEPT_BYTES', 4 * 2**20)  # three results of 1 MiB + 1 KiB
    frames = [load_frames('', (width, 8), 'mono8', 1)[0] for width in range(10, 22)]
    pipeline, control = MapPipeline(2), MeasurementControl(40)
    expected = detect_all(pipeline, frames, Thresholds(), control)
    assert [int(found.grid[0, 0]) for found in expected] == [10, 11, 12]
    report = measure_pipeline(pipeline, frames, Thresholds(), expected, control)
    assert pipeline.most_live <= 3 + 3 + 2  # expected, kept, in flight
    assert report.unequal == 0
    report = measure_pipeline(pipeline, frames, Thresholds(), expected[::-1], control)
    assert report.unequal == 2 * 2  # the second is equal


@pytest.mark.parametrize('kind', ['KernelMaps', 'ClassMap', 'DepthMap'])
def test_figures_of_the_pipeline_include_the_maps(kind, monkeypatch):
    letterbox = Letterbox.fit((4, 4), (4, 4), 'stretch')
    now = [0.0]
    monkeypatch.setattr(measure.time, 'perf_counter', lambda: now[0])

    class Copy:
        """A map that a kernel made. Its copy to the host ends 1 s after the first wait."""

        size_wh, dtype = (4, 4), np.dtype(np.uint8)
        has_ended = False

        def memory(self):
            now[0] += not self.has_ended
            self.has_ended = True
            return np.zeros(1024 + 16, np.uint8)

    def made_in_one_second(_):
        now[0] += 1

    monkeypatch.setattr(ClassMap, 'class_ids', made_in_one_second)
    monkeypatch.setattr(DepthMap, 'depth', made_in_one_second)
    make = {
        'KernelMaps': lambda: KernelMaps({'class_ids': Copy()}, letterbox),
        'ClassMap': lambda: ClassMap(np.zeros((4, 4), np.uint8), letterbox),
        'DepthMap': lambda: DepthMap(np.zeros((4, 4), 'f4'), letterbox, 'bilinear', True),
    }

    class OneMap(RecordingPipeline):
        def collect(self, slot):
            now[0] += 1  # the work before the map
            return [Result(make[kind](), 0.0, each.frame) for each in super().collect(slot)]

    frames = [load_frames('', (width, 8), 'mono8', 1)[0] for width in (10, 20)]
    control = MeasurementControl(6)
    expected = detect_all(OneMap(1), frames, Thresholds(), control)
    report = measure_pipeline(OneMap(1), frames, Thresholds(), expected, control)
    assert report.latency_ms.p50 == report.busy_latency_ms.p50 == 2000
    assert report.frames_per_s == 0.5
    assert report.unequal == 0


def test_a_stopped_run_has_no_results():
    frames = [load_frames('', (width, 8), 'mono8', 1)[0] for width in (10, 20, 30)]
    pipeline, control = RecordingPipeline(1), MeasurementControl(7)
    pipeline.clock = lambda: setattr(control, 'stopped', True)
    assert detect_all(pipeline, frames, Thresholds(), control) is None


def test_time_statistics_are_in_milliseconds():
    spread = TimeStatistics.of_seconds([0.001 * value for value in range(1001)])
    figures = spread.mean, spread.p50, spread.p95, spread.p99, spread.p999, spread.max
    assert figures == pytest.approx((500, 500, 950, 990, 999, 1000))


@pytest.mark.parametrize('encoding', PIXEL_FORMATS)
def test_synthetic_frames_differ_but_are_repeatable(encoding):
    frames = load_frames('', (62, 46), encoding, 3)
    assert {(frame.width, frame.height) for frame in frames} == {(62, 46)}
    assert len({frame.data.tobytes() for frame in frames}) == 3
    again = load_frames('', (62, 46), encoding, 3)
    assert [f.data.tobytes() for f in frames] == [f.data.tobytes() for f in again]


def test_frames_from_a_folder_repeat_up_to_the_requested_count(tmp_path):
    for name, size in (('a.png', (40, 30)), ('b.png', (50, 20))):
        cv2.imwrite(str(tmp_path / name), synthetic_image(size, seed=1))
    sizes = [(f.width, f.height) for f in load_frames(str(tmp_path), None, 'bgr8', 3)]
    assert sizes == [(40, 30), (50, 20), (40, 30)]
    assert load_frames(str(tmp_path), (20, 10), 'bgr8', 2)[1].width == 20
    with pytest.raises(ConfigError):
        load_frames(str(tmp_path / 'none'), None, 'bgr8', 1)
