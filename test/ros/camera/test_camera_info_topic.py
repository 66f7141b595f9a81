# SPDX-License-Identifier: Apache-2.0
"""Test the subscription to calibrations."""

import itertools

import pytest
from sensor_msgs.msg import CameraInfo
from std_msgs.msg import Header

from trt_perception.ros.camera.camera_info import subscribe_camera_info

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro


@pytest.mark.parametrize(
    ('name', 'value'),
    [('d', [0.0] * 65), ('distortion_model', 'm' * 257), ('frame_id', 'f' * 257)],
)
def test_too_large_calibration_is_ignored(client, node, name, value):
    received = []
    subscription = subscribe_camera_info(node, '', received.append)
    publisher = client.node.create_publisher(CameraInfo, subscription.topic_name, 10)
    large, usual = (
        CameraInfo(header=Header(frame_id='camera'), distortion_model='plumb_bob', d=[0.5])
        for _ in range(2)
    )
    setattr(large.header if name == 'frame_id' else large, name, value)

    turns = itertools.cycle([usual, large])

    def arrived():
        publisher.publish(next(turns))  # one at a time, because the queue has room for one
        return len(received) > 3

    client.spin_until(arrived, 'calibrations')
    assert {info.distortion_model for info in received} == {'plumb_bob'}
    assert {info.d for info in received} == {(0.5,)}
    assert {info.header.frame_id for info in received} == {'camera'}
    node.destroy_subscription(subscription)
    client.node.destroy_publisher(publisher)
