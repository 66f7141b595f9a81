# SPDX-License-Identifier: Apache-2.0
"""Test a camera whose middleware is Eclipse Cyclone DDS, with a node on Fast DDS."""

import os

import pytest
from rclpy.utilities import get_rmw_implementation_identifier

from support.models.tiny_model import expected_detections
from support.nodes.graph import assert_found
from support.optional_packages import needs
from support.programs import Program, script

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = [
    pytest.mark.each_distro,
    needs('cyclonedds'),
    pytest.mark.skipif(
        os.environ.get('ROS_DISTRO') != 'jazzy',
        reason='Cyclone DDS 11.0.1 calls the type objects of Fast DDS 3.2 (Kilted) invalid, and '
        'sends nothing to its subscriptions',
    ),
    pytest.mark.skipif(
        get_rmw_implementation_identifier() == 'rmw_cyclonedds_cpp',
        reason='the node would have the same DDS as the camera',
    ),
]

COUNT = 20
COLORS = ((200, 0, 0), (0, 0, 200), (200, 120, 60))


@pytest.mark.parametrize(
    ('kind', 'reliability', 'size_wh'),
    [
        ('raw', 'reliable', (640, 480)),  # 921,600 bytes: many UDP packets
        ('raw', 'best_effort', (160, 120)),  # one packet: UDP loses parts of larger images
        ('jpeg', 'reliable', (640, 480)),
        ('jpeg', 'best_effort', (640, 480)),
    ],
)
def test_every_image_of_a_camera_on_another_dds_is_processed(
    start_detector, model, kind, reliability, size_wh
):
    transport, suffix = ('raw', '') if kind == 'raw' else ('compressed', '/compressed')
    detector = start_detector(
        {
            'engine_path': str(model),
            'autostart': True,
            'image_transport': transport,
            'image_qos.depth': 10,
        },
        camera_qos=None,
    )
    topic = detector.topic('image') + suffix
    colors = [bytes(color).hex() for color in COLORS]
    command = script('nodes/cyclone_camera.py')
    size = f'{size_wh[0]}x{size_wh[1]}'
    camera = Program([*command, topic, kind, reliability, size, str(COUNT), *colors])
    found = {}

    def is_complete():
        found.update((message.header.stamp.sec, message) for message in detector.detections)
        return len(found) == COUNT

    try:
        detector.client.spin_until(is_complete, f'detections of {COUNT} images')
    finally:
        camera.close()

    assert sorted(found) == list(range(1, COUNT + 1))
    for number, message in found.items():
        assert message.header.frame_id == 'cyclone'
        color = COLORS[(number - 1) % len(COLORS)]
        # JPEG rounds the colour.
        tolerance = 1e-5 if kind == 'raw' else 0.02
        assert_found(message, expected_detections(color, size_wh), tolerance)
    _, values = detector.wait_for_status(lambda *_: True, 'a status')
    assert values['failed'] == '0'
