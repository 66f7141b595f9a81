"""Fixtures of one node with several cameras: pytest_plugins = ['many_cameras_fixtures']."""

import pytest
from camera_of_many import NAMES
from camera_of_many import CameraOfMany
from graph import Detector

pytest_plugins = ['graph_fixtures']


@pytest.fixture(scope='module')
def detector(client, model):
    """One node for all tests; they leave its parameters as they found them."""
    detector = Detector(client, {'engine_path': str(model), 'cameras': list(NAMES)})
    detector.destroy_camera()
    yield detector
    detector.close()


@pytest.fixture
def cameras(detector):
    """Three cameras of an active node; each test begins with an activation of its own."""
    detector.bring_to('inactive')
    cameras = [CameraOfMany(detector, name) for name in NAMES]
    detector.program.forget()
    detector.bring_to('active')
    for camera in cameras:
        camera.connect()
    yield cameras
    for camera in cameras:
        camera.destroy_publisher()
