# SPDX-License-Identifier: Apache-2.0
"""Tests of topics that are remapped to each other's names. ROS remaps a name only once."""

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage

from support.nodes.camera_of_many import CameraOfMany
from support.nodes.graph import picture_of

pytest_plugins = ['support.nodes.graph_fixtures']

SOURCES = {'left': 'right', 'right': 'left'}
SWAPPED = ('-r', 'left/image:=right/image', '-r', 'right/image:=left/image')


@pytest.mark.parametrize('intake', ['auto', 'rclpy'])
def test_cameras_with_swapped_topics_get_the_remapped_images(start_detector, model, intake):
    parameters = {'engine_path': str(model), 'cameras': list(SOURCES), 'image_intake': intake}
    detector = start_detector(parameters, arguments=SWAPPED, camera_qos=None)
    detector.bring_to('active')
    cameras = [CameraOfMany(detector, name, publish=False) for name in SOURCES]
    for camera in cameras:
        camera.topic = detector.topic(f'{SOURCES[camera.name]}/image')
        camera.create_publisher()
    try:
        for camera in cameras:
            camera.connect()
            picture = picture_of((200, 120, 60), frame_id=camera.name)
            assert camera.ask(picture).header.frame_id == camera.name
        left, right = ({m.header.frame_id for m in camera.answers()} for camera in cameras)
        assert (left, right) == ({'left'}, {'right'})
    finally:
        for camera in cameras:
            camera.destroy_publisher()


def test_publishers_of_the_remapped_topic_are_reported(start_detector, client, model):
    parameters = {'engine_path': str(model), 'cameras': list(SOURCES), 'autostart': True}
    detector = start_detector(parameters, arguments=SWAPPED)
    topic = detector.topic('right/image')
    other = client.node.create_publisher(CompressedImage, topic, QoSProfile(depth=10))
    try:
        camera = CameraOfMany(detector, 'left', publish=False)
        camera.wait_for_report(DiagnosticStatus.ERROR, f'CompressedImage on {topic}')
    finally:
        client.node.destroy_publisher(other)
