"""The soaks, for seconds: that they work, and that what they promise holds at least so long.

What is a matter of time may take five times as long here, where the machine may be busy, and a
camera may be half as fast; scripts/soak shows the figures.
"""

import pytest

from support.soak import soaks
from support.soak.soak_frames import frames
from support.soak.soak_many_cameras import many_cameras
from support.soak.soak_silence import silence

pytest_plugins = ['support.nodes.graph_fixtures']

SLACK = {'s': 5, 'ms': 5, '%': 2}


def check(figures):
    broken = [f for f in figures if f.value > f.limit * SLACK.get(f.unit, 1)]
    assert not broken
    assert figures


def test_lifecycle(model):
    check(soaks.lifecycle(model, warm_up=100, cycles=100))


@pytest.mark.any_ros  # test_node_lifecycle and test_transition_faults show it
def test_transitions(client, model):
    check(soaks.transitions(client, model, seconds=4, seed=1))


@pytest.mark.any_ros  # as the test before
def test_transitions_during_inference(client):
    check(soaks.transitions(client, seconds=4, seed=2))


@pytest.mark.parametrize('intake', ['auto', pytest.param('rclpy', marks=pytest.mark.any_ros)])
def test_frames(client, intake):
    check(frames(client, count=100, rounds=1, large_images=2, intake=intake))


@pytest.mark.any_ros  # test_node_signals shows it
def test_signals(model):
    check(soaks.signals(model, count=10))


@pytest.mark.any_ros  # test_node_counting shows it
def test_overload(client):
    check(soaks.overload(client, seconds=5))


def test_cameras(client, model):
    check(soaks.cameras(client, model, switches=12, images=4))


def test_many_cameras(client):
    check(many_cameras(client, seconds=6, limits=(20.0, 40.0)))


@pytest.mark.any_ros  # test_node_silence shows it
def test_silence(client, model):
    check(silence(client, model))


def test_a_broken_promise_is_noticed():
    with pytest.raises(AssertionError):
        check([soaks.Figure('all', 0, 0), soaks.Figure('one', 1.0, 5.1, 's')])
    with pytest.raises(AssertionError):
        check([soaks.Figure('one', 0, 1)])
