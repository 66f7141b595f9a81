# SPDX-License-Identifier: Apache-2.0
"""Test that the worker counts each detection message once, whatever happens."""

import threading

import numpy as np
import pytest

from trt_perception.boxes_3d.pairing import MAX_KEPT
from trt_perception.errors import ImageError
from trt_perception.parameters.boxes_3d import BoxParameters
from trt_perception.ros.boxes_3d.locator import LocatedImage
from trt_perception.ros.boxes_3d.worker import OUTCOMES, BoxWorker
from trt_perception.wire.cdr import HeaderFields, ImageFields, StampFields
from trt_perception.wire.detections import FoundObjects

REFUSED = 1000


class Worker(BoxWorker):
    """A worker that publishes into a list; each image waits while `gate` is closed."""

    def __init__(self, **parameters):
        self.published, self.reports, self.traces = [], [], []
        self.gate, self.started = threading.Event(), threading.Event()
        self.gate.set()
        super().__init__(
            BoxParameters(**parameters), self.keep, self.reports.append, self.traces.append
        )

    def keep(self, located: LocatedImage):
        self.started.set()
        assert self.gate.wait(60)
        if located.header.stamp.sec == REFUSED:
            raise RuntimeError('the middleware refused')
        self.published.append(located.header.stamp.sec)

    def outcomes(self):
        counts = self.facts().counts
        assert sum(counts.get(name, 0) for name in OUTCOMES) == counts['received']
        return {name: counts[name] for name in OUTCOMES if counts.get(name)}


def empty(stamp):
    return FoundObjects(HeaderFields(StampFields(stamp, 0), 'optical'), ())


def with_object(stamp):
    return empty(stamp)._replace(objects=('an object',))


def test_detections_without_depth_are_counted_when_the_node_stops():
    worker = Worker(max_wait_ms=10000.0)
    worker.start()
    worker.add_detections(with_object(1), ())
    worker.add_detections(empty(2), ())
    worker.add_bad_detections()
    worker.stop()
    assert worker.outcomes() == {'published': 1, 'no_depth': 1, 'bad_message': 1}
    assert worker.published == [2]
    assert not worker.is_alive


def test_worker_that_was_never_started_stops():
    Worker().stop()


def test_exception_does_not_end_the_thread():
    worker = Worker()
    worker.start()
    for stamp in (REFUSED, 1):
        worker.add_detections(empty(stamp), ())
    worker.stop()
    assert worker.outcomes() == {'published': 1, 'failed': 1}
    assert 'the middleware refused' in worker.traces[0]


def test_detections_are_replaced_while_the_thread_is_busy():
    worker = Worker(max_wait_ms=10000.0)
    worker.start()
    worker.gate.clear()
    worker.add_detections(empty(0), ())
    assert worker.started.wait(60)
    for stamp in range(1, MAX_KEPT + 4):
        worker.add_detections(empty(stamp), ())
    assert worker.facts().waiting == MAX_KEPT
    worker.gate.set()
    worker.stop()
    assert worker.outcomes() == {'published': MAX_KEPT + 1, 'replaced': 3}
    assert worker.published == [0, *range(4, MAX_KEPT + 4)]


@pytest.mark.parametrize('stamp', [1, -(2**31)])
def test_depth_of_the_same_stamp_needs_a_calibration(stamp):
    worker = Worker(max_wait_ms=10000.0)
    worker.start()
    header = HeaderFields(StampFields(stamp, 0), 'optical')
    data = np.zeros(2, np.uint8)
    worker.add_depth(ImageFields(header, 1, 1, '16UC1', 0, 2, data), data.size)
    worker.add_detections(with_object(stamp), ())
    worker.stop()
    assert worker.outcomes() == {'no_camera_info': 1}
    assert not any(isinstance(report, ImageError) for report in worker.reports)


@pytest.mark.parametrize(
    ('depth_stamp', 'comes_later', 'offset_s'),
    [(4, True, -5), (4, False, None), (14, True, 5), (14, False, 5)],
)
def test_stamp_of_the_last_depth_image_is_kept_only_while_depth_images_come(
    depth_stamp, comes_later, offset_s
):
    worker = Worker(max_wait_ms=10000.0)
    header = HeaderFields(StampFields(depth_stamp, 0), 'optical')
    depth = ImageFields(header, 1, 1, '16UC1', 0, 2, np.zeros(2, np.uint8))
    steps = [lambda: worker.add_depth(depth, 2), lambda: worker.add_detections(with_object(9), ())]
    for step in reversed(steps) if comes_later else steps:
        step()
    worker.start()
    worker.stop()
    assert worker.outcomes() == {'no_depth': 1}
    offset_ns = worker.facts().depth_offset_ns
    assert offset_ns == (None if offset_s is None else offset_s * 1_000_000_000)
