# SPDX-License-Identifier: Apache-2.0
"""Provide the fixture that launches detect.launch.py."""

import pytest

from support.nodes.launching import launch


@pytest.fixture
def start_launch(start_detector):
    """Return a function that launches detect.launch.py in its own namespace."""

    def start(*arguments, environment=None):
        return start_detector(
            start=lambda namespace: launch(
                'detect.launch.py',
                f'namespace:={namespace}',
                *arguments,
                environment=environment,
            )
        )

    return start
