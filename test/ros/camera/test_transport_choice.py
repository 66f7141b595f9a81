# SPDX-License-Identifier: Apache-2.0
"""Tests of the transport that `auto` chooses for each of several cameras."""

from types import SimpleNamespace

import pytest
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage, Image

from trt_perception.errors import InterruptionError
from trt_perception.parameters.camera import CameraPlan
from trt_perception.ros.camera import transport_choice
from trt_perception.ros.camera.transport_choice import TransportChoice, choose_transports

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro


@pytest.fixture
def offered(client, node):
    """Publish JPEG files of front, another type on the topic of rear, and no images of left."""
    made = [
        client.node.create_publisher(kind, f'/{camera}/image/compressed', QoSProfile(depth=1))
        for camera, kind in (('front', CompressedImage), ('rear', Image))
    ]
    client.spin_until(
        lambda: all(node.count_publishers(each.topic_name) for each in made), 'the publishers'
    )
    yield
    for publisher in made:
        client.node.destroy_publisher(publisher)


NAMES = ('front', 'rear', 'left', 'right')
PLANS = [
    CameraPlan(name, transport=transport)
    for name, transport in zip(NAMES, ('auto', 'auto', 'compressed', 'raw'), strict=True)
]


def test_transport_is_chosen_for_each_camera(node, offered, golden_messages):
    chosen = dict(zip(NAMES, choose_transports(node, PLANS, decodes_jpeg=True), strict=True))
    assert chosen['front'].transport == 'compressed'
    golden_messages.add(chosen['front'].reason)
    assert chosen['rear'].transport == 'raw'
    golden_messages.add(chosen['rear'].reason)
    assert chosen['rear'].may_change
    assert chosen['left'] == TransportChoice('compressed')
    assert chosen['right'] == TransportChoice('raw')


def test_graph_is_not_queried_if_no_gpu_decodes_jpeg(node, offered, golden_messages):
    chosen = choose_transports(node, PLANS, decodes_jpeg=False)
    assert [choice.transport for choice in chosen] == ['raw', 'raw', 'compressed', 'raw']
    golden_messages.add(chosen[0].reason)
    assert not chosen[0].may_change


def test_many_cameras_wait_no_longer_than_one(node, monkeypatch):
    now = [100.0]

    def sleep(seconds):
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(transport_choice, 'time', clock)
    plans = [CameraPlan(f'c{n}', transport='auto') for n in range(20)]
    chosen = choose_transports(node, plans, decodes_jpeg=True)
    assert {choice.transport for choice in chosen} == {'raw'}
    assert 1.0 <= now[0] - 100.0 < 1.1


def test_interruption_of_the_process_ends_the_wait(node, monkeypatch):
    def end():
        raise InterruptionError('activate', 'interrupted')

    monkeypatch.setattr(transport_choice, 'check_interruption', end)
    with pytest.raises(InterruptionError):
        choose_transports(node, PLANS[:1], decodes_jpeg=True)
