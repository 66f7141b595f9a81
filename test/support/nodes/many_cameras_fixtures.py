"""Fixtures of a node with several cameras.

A plugin: pytest_plugins = ['support.nodes.many_cameras_fixtures'].
"""

import pytest

from support.nodes.camera_of_many import NAMES, CameraOfMany
from support.nodes.graph import Detector

pytest_plugins = ['support.nodes.graph_fixtures']


@pytest.fixture(scope='module')
def detector(client, model):
    """One node for all tests; they leave its parameters as they found them."""
    settings = {'engine_path': str(model), 'cameras': list(NAMES)}
    detector = Detector(client, settings, camera_qos=None)
    yield detector
    detector.close()


@pytest.fixture
def cameras(detector):
    """Three cameras of an active node; each test begins with an activation of its own."""
    if detector.state() == 'active':
        said = {name: f'detector.{name}]: counts: ' for name in NAMES}
        before = {name: detector.program.count(text) for name, text in said.items()}
        detector.bring_to('inactive')
        for name, text in said.items():  # the last that is said of it, before it is forgotten
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
