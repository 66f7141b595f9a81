"""Fixtures for a node with several cameras.

A plugin: pytest_plugins = ['support.nodes.many_cameras_fixtures'].
"""

import pytest

from support.nodes.camera_of_many import NAMES, CameraOfMany
from support.nodes.graph import Detector

pytest_plugins = ['support.nodes.graph_fixtures']


@pytest.fixture(scope='module')
def detector(client, model):
    """Return a node shared by all tests, which must restore its parameters."""
    settings = {'engine_path': str(model), 'cameras': list(NAMES)}
    detector = Detector(client, settings, camera_qos=None)
    yield detector
    detector.close()


@pytest.fixture
def cameras(detector):
    """Return three cameras of an active node, which each test activates again."""
    if detector.state() == 'active':
        count_lines = {name: f'detector.{name}]: counts: ' for name in NAMES}
        before = {name: detector.program.count(text) for name, text in count_lines.items()}
        detector.bring_to('inactive')
        for name, text in count_lines.items():  # the last line about the cameras
            detector.program.wait_for_output(text, before[name] + 1)
    detector.bring_to('inactive')
    cameras = [CameraOfMany(detector, name) for name in NAMES]
    detector.program.forget()
    detector.bring_to('active')
    for camera in cameras:
        camera.connect()
    yield cameras
    for camera in cameras:
        camera.destroy_publisher()
