# SPDX-License-Identifier: Apache-2.0
"""Tests of the tracks of one camera: changes of the type while frames are in flight."""

import numpy as np
import pytest
from std_srvs.srv import Trigger

from support.optional_packages import needs
from trt_perception.images.detections import Detections
from trt_perception.images.frame import frame_from_bgr
from trt_perception.images.results.class_scores import ClassScores
from trt_perception.parameters.values import ParameterValues
from trt_perception.ros.camera.tracks import CameraTracks
from trt_perception.wire.cdr import StampFields

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = needs('scipy')

FRAME = frame_from_bgr(np.zeros((48, 64, 3), np.uint8))


def tracking(confidence_threshold=0.5):
    return ParameterValues(tracker_type='bytetrack', confidence_threshold=confidence_threshold)


def objects(*scores):
    """Return objects next to each other, best score first."""
    left = 10 * np.arange(len(scores), dtype=np.float32)
    boxes = np.stack([left, left * 0, left + 8, left * 0 + 8], axis=1)
    return Detections(boxes, np.array(scores, np.float32), np.zeros(len(scores), np.int32))


@pytest.fixture
def tracks(client):
    tracks = CameraTracks(client.node, 'front')
    yield tracks
    tracks.close()


def services(client):
    return [service.srv_name.rpartition('/')[2] for service in client.node.services]


def test_camera_without_a_tracker_returns_results_as_they_are(client, tracks):
    tracks.apply(ParameterValues())
    for found in (objects(0.9, 0.1), ClassScores(np.array([0.5, 0.5], np.float32))):
        assert tracks.update(StampFields(1, 0), FRAME, found) is found
    assert tracks.counts() is None
    assert 'reset_tracks' not in services(client)


def test_low_scores_in_flight_are_not_published_when_the_tracker_ends(client, tracks):
    tracks.apply(tracking())
    assert services(client).count('reset_tracks') == 1
    for nanosec in (0, 10**8):
        tracked = tracks.update(StampFields(1, nanosec), FRAME, objects(0.9))
    assert tracked.ids.tolist() == [1]
    assert tracks.counts() == (1, 1)

    tracks.apply(ParameterValues(confidence_threshold=0.5))

    # The decoder used the tracker's threshold for this frame.
    found = tracks.update(StampFields(1, 2 * 10**8), FRAME, objects(0.9, 0.5, 0.2))
    assert found.scores.tolist() == pytest.approx([0.9])
    assert found.ids is None
    later = objects(0.9, 0.6)
    assert tracks.update(StampFields(1, 3 * 10**8), FRAME, later) is later
    assert tracks.counts() is None
    assert 'reset_tracks' not in services(client)

    tracks.apply(tracking())
    for nanosec in (4 * 10**8, 5 * 10**8):
        tracked = tracks.update(StampFields(1, nanosec), FRAME, objects(0.9))
    assert tracked.ids.tolist() == [2], 'numbers go on'


def test_new_settings_keep_tracks(tracks):
    tracks.apply(tracking())
    for nanosec in (0, 10**8):
        tracks.update(StampFields(1, nanosec), FRAME, objects(0.9))
    tracks.apply(tracking(0.3))
    found = tracks.update(StampFields(1, 2 * 10**8), FRAME, objects(0.9, 0.4))
    assert found.ids.tolist() == [1, -1]


def test_model_of_another_task_may_follow(tracks):
    """The tracks outlive the model of the node."""
    tracks.apply(tracking())
    tracks.update(StampFields(1, 0), FRAME, objects(0.9))
    tracks.close()
    tracks.apply(ParameterValues())
    found = ClassScores(np.array([0.5, 0.5], np.float32))
    assert tracks.update(StampFields(2, 0), FRAME, found) is found


class Log:
    """Records the messages of each severity."""

    def __init__(self):
        self.warnings, self.infos = [], []

    def warning(self, text, throttle_duration_sec):
        assert throttle_duration_sec > 0
        self.warnings.append(text)

    def info(self, text):
        self.infos.append(text)


@pytest.mark.parametrize(('second', 'warnings'), [((1, 1), 0), ((1, 0), 1), ((0, 999), 1)])
def test_stamps_that_are_not_later_are_a_warning(tracks, monkeypatch, second, warnings):
    log = Log()
    monkeypatch.setattr(tracks, '_log', log)
    tracks.apply(tracking())
    tracks.update(StampFields(1, 0), FRAME, objects(0.9))
    assert not log.warnings
    tracks.update(StampFields(*second), FRAME, objects(0.9))
    assert len(log.warnings) == warnings
    # The end of the tracks is wanted: no further warning.
    tracks._on_reset(None, Trigger.Response())
    tracks.update(StampFields(0, 0), FRAME, objects(0.9))
    assert len(log.warnings) == warnings


def test_reset_of_no_track_is_not_logged(tracks, monkeypatch):
    log = Log()
    monkeypatch.setattr(tracks, '_log', log)
    tracks.apply(tracking())
    for nanosec in (1, 2):
        tracks.update(StampFields(1, nanosec), FRAME, objects(0.9, 0.8))
    answers = [tracks._on_reset(None, Trigger.Response()) for _ in range(3)]
    assert all(answer.success for answer in answers)
    assert len(log.infos) == 1
