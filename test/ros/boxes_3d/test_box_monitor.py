# SPDX-License-Identifier: Apache-2.0
"""Test what the node says about topics that do not come and stamps that do not fit."""

import pytest

from trt_perception.errors import ImageError
from trt_perception.parameters.boxes_3d import BoxParameters
from trt_perception.ros.boxes_3d.monitor import InputWatch, Problems
from trt_perception.ros.boxes_3d.worker import WorkerFacts

MS = 1_000_000
ALL_COME = {'received': 5, 'received: depth': 5, 'received: camera_info': 1}
TOPICS = {
    'detections': ('/front/detections', 1),
    'depth': ('/front/depth', 1),
    'camera_info': ('/front/camera_info', 1),
}


class Watched:
    """An input watch at second 0, and the reasons of its reports."""

    def __init__(self, golden_messages, similar=()):
        self.reasons = []

        def report(error):
            self.reasons.append(error.reason)
            golden_messages.add(error)

        self._watch = InputWatch(report, lambda name: list(similar), 0.0)

    def check(self, now_s, counts, offset_ns=None, topics=TOPICS):
        """Return the reasons of the reports of one check."""
        self.reasons.clear()
        facts = WorkerFacts(counts, 0, [], offset_ns)
        self._watch.check(facts, topics, BoxParameters(), now_s)
        return list(self.reasons)


def test_topics_without_messages_are_reported_after_a_time(golden_messages):
    watched = Watched(golden_messages)
    assert watched.check(2.0, {}) == []
    assert watched.check(3.0, {}) == ['no_detections', 'no_depth', 'no_camera_info']
    assert watched.check(3.0, ALL_COME) == []


@pytest.mark.parametrize('topic', ['/front/depth', '/front/depth/compressedDepth'])
def test_topics_without_publisher_are_reported_with_similar_ones(topic, golden_messages):
    watched = Watched(golden_messages, ['/camera/aligned_depth_to_color/image_raw'])
    counts = {**ALL_COME, 'received: depth': 0}
    assert watched.check(3.0, counts, topics={**TOPICS, 'depth': (topic, 0)}) == ['no_depth']


@pytest.mark.parametrize(
    ('offset_ns', 'reason'),
    [
        (-40 * MS, 'late_depth'),
        (50 * MS, 'late_depth'),
        (3600_000 * MS, 'clocks'),
        (-1_700_000_000_000 * MS, 'clocks'),
    ],
)
def test_stamps_that_do_not_fit_are_reported_when_detections_are_lost(
    offset_ns, reason, golden_messages
):
    watched = Watched(golden_messages)
    lost = {**ALL_COME, 'no_depth': 1}
    assert watched.check(1.0, lost, offset_ns) == [reason]
    assert watched.check(2.0, lost, offset_ns) == []
    assert watched.check(3.0, {**lost, 'received: depth': 6, 'no_depth': 2}, offset_ns) == [reason]


def test_depth_that_stops_is_reported_after_a_time_if_detections_need_it(golden_messages):
    watched = Watched(golden_messages)
    counts = {**ALL_COME, 'received: depth': 300, 'no_depth': 0}
    found = [
        watched.check(10.0 + seconds, {**counts, 'no_depth': 30 * seconds})
        for seconds in (0, 1, 2, 3)
    ]
    assert found == [[], [], [], ['no_depth']]
    assert watched.check(20.0, {**counts, 'no_depth': 90}) == []
    assert watched.check(21.0, {**counts, 'received: depth': 301, 'no_depth': 91}) == []


def test_replaced_detections_are_reported_when_they_become_more(golden_messages):
    watched = Watched(golden_messages)
    assert watched.check(1.0, {**ALL_COME, 'replaced': 0}) == []
    assert watched.check(2.0, {**ALL_COME, 'replaced': 7}) == ['overload']
    assert watched.check(3.0, {**ALL_COME, 'replaced': 7}) == []


def test_each_kind_of_problem_is_logged_once_and_shown_while_it_lasts():
    logged, now = [], [0.0]
    problems = Problems(logged.append, lambda: now[0])
    for value in ('1x1', '2x2'):
        problems.report(ImageError('depth_size', 'size', value))
    problems.report(ImageError('depth_unit', 'unit', 'metres'))
    assert logged == ['size: 1x1', 'unit: metres']
    assert problems.current() == ['size: 2x2', 'unit: metres']
    now[0] = 4.0
    problems.report(ImageError('depth_unit', 'unit', 'metres'))
    now[0] = 8.0
    assert problems.current() == ['unit: metres']
    assert logged == ['size: 1x1', 'unit: metres']
