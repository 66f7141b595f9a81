# SPDX-License-Identifier: Apache-2.0
"""Provide fixtures for a node with several cameras.

Use the plugin with pytest_plugins = ['support.nodes.many_cameras_fixtures'].
"""

import pytest

from support.nodes.camera_of_many import NAMES, CameraOfMany
from support.nodes.graph import Detector

pytest_plugins = ['support.nodes.graph_fixtures']


@pytest.fixture(scope='module')
def detector(client, model):
    """Return a node that all tests of a module share. Each test must restore its parameters."""
    settings = {'engine_path': str(model), 'cameras': list(NAMES)}
    detector = Detector(client, settings, camera_qos=None)
    yield detector
    detector.close()


@pytest.fixture
def cameras(detector):
    """Return three cameras of a node that is activated again for each test."""
    if detector.state() == 'active':
        count_lines = {name: f'detector.{name}]: counts: ' for name in NAMES}
        before = {name: detector.program.count(text) for name, text in count_lines.items()}
        detector.bring_to('inactive')
        for name, text in count_lines.items():  # the node logs this line last
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
