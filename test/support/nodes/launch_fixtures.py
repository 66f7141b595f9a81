"""The fixture that launches detect.launch.py."""

import pytest

from support.nodes.launching import launch


@pytest.fixture
def start_launch(start_detector):
    """Launch detect.launch.py in a namespace of its own."""

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
