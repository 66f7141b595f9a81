"""Tests of the advice that the health of a camera adds to the watchdog's."""

from types import SimpleNamespace

import pytest

from trt_perception.monitoring.frame_statistics import FrameStatistics
from trt_perception.monitoring.health_state import HealthState, Level
from trt_perception.monitoring.pipeline_statistics import PipelineStatistics
from trt_perception.ros.camera import camera_health
from trt_perception.ros.camera.camera_health import CameraHealth

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
    found = HealthState(Level.WARN, kind, 'the problem; its fix', 'model')
    watchdog = SimpleNamespace(check=lambda *_: found)
    monkeypatch.setattr(camera_health, 'CameraWatchdog', lambda *_, **__: watchdog)
    health = CameraHealth(client.node)
    health.wanted_topics = lambda: frozenset(wanted)
    lost = {'not_delivered': 0, 'resubscribe_if_lost': lambda: False}
    health.watch(SimpleNamespace(topic='/image', reliability='reliable', **lost), 0.02, 1, 0.0)
    counts = FrameStatistics()
    assert health.check(counts, PipelineStatistics(), 1.0)
    state = health.facts(counts).health_state
    assert (state.level, state.kind, state.late_stage) == (Level.WARN, kind, 'model')
    golden_messages.add(state.message)
