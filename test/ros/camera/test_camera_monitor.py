# SPDX-License-Identifier: Apache-2.0
"""Tests of the advice that CameraMonitor adds to the watchdog, and of its counts."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from std_msgs.msg import Header

from trt_perception.images.detections import Detections
from trt_perception.images.frame import frame_from_bgr
from trt_perception.monitoring.frame_statistics import FrameStatistics
from trt_perception.monitoring.pipeline_statistics import PipelineStatistics
from trt_perception.monitoring.status_summary import Level, StatusSummary
from trt_perception.ros.camera import camera_monitor
from trt_perception.ros.camera.camera import NodeCamera
from trt_perception.ros.camera.camera_monitor import CameraMonitor
from trt_perception.ros.camera.tracks import CameraTracks

pytest_plugins = ['support.nodes.graph_fixtures']


@pytest.mark.parametrize(
    'wanted',
    [
        [],
        ['masks', 'debug_image'],
        ['depth', 'depth/camera_info'],
        ['segmentation/confidence', 'segmentation/mask'],
    ],
)
@pytest.mark.parametrize('kind', ['engine_slower', 'lost_in_transport'])
def test_maps_with_subscribers_are_named_if_the_model_is_too_slow(
    kind, wanted, client, monkeypatch, golden_messages
):
    found = StatusSummary(Level.WARN, kind, 'the problem; its fix', 'model')
    watchdog = SimpleNamespace(check=lambda *_: found)
    monkeypatch.setattr(camera_monitor, 'CameraWatchdog', lambda *_, **__: watchdog)
    monitor = CameraMonitor(client.node)
    monitor.wanted_topics = lambda: frozenset(wanted)
    lost = {'not_delivered': 0, 'resubscribe_if_lost': lambda: False}
    monitor.watch(SimpleNamespace(topic='/image', reliability='reliable', **lost), 0.02, 1, 0.0)
    counts = FrameStatistics()
    assert monitor.check(counts, PipelineStatistics(), 1.0)
    summary = monitor.diagnostics(counts).summary
    assert (summary.level, summary.kind, summary.late_stage) == (Level.WARN, kind, 'model')
    golden_messages.add(summary.message)


class Log:
    """Collects the warnings of a camera."""

    def __init__(self):
        self.warnings = []

    def warning(self, text):
        self.warnings.append(text)


@pytest.mark.parametrize('result', ['detections', 'map'])
def test_images_with_too_many_candidates_are_counted_and_logged_once(
    result, client, monkeypatch, golden_messages
):
    log = Log()
    monkeypatch.setattr(camera_monitor, 'camera_logger', lambda *_: log)
    monitor = CameraMonitor(client.node)
    camera = NodeCamera.__new__(NodeCamera)
    camera.monitor, camera._needs_focal_length = monitor, False
    camera._publishers = SimpleNamespace(publish=lambda *_: True)
    camera._tracks = CameraTracks(client.node, '')
    message = SimpleNamespace(header=Header())
    frame = frame_from_bgr(np.zeros((4, 6, 3), np.uint8))

    for left_out in (0, 5, 0, 900, 1):
        found = replace(Detections.empty(), left_out=left_out) if result == 'detections' else None
        camera.publish_result(message, frame, found)

    assert monitor.diagnostics(None).candidates_limited == (3 if result == 'detections' else 0)
    assert len(log.warnings) == (1 if result == 'detections' else 0)
    for text in log.warnings:
        golden_messages.add(text)
