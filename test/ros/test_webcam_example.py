# SPDX-License-Identifier: Apache-2.0
"""Test examples/webcam/webcam.py with a camera that sends grey images."""

import os
import signal
import sys

import numpy as np
import pytest
from sensor_msgs.msg import Image

from support.docs_pages import ROOT
from support.programs import Program

pytest_plugins = ['support.nodes.graph_fixtures']

CAMERA = """
import time
import numpy as np

class VideoCapture:
    def __init__(self, index):
        assert index == 0

    def isOpened(self):
        return True

    def read(self):
        time.sleep(0.02)
        return True, np.full((24, 32, 3), 77, np.uint8)
"""


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_example_publishes_images_until_a_signal(client, tmp_path, number):
    (tmp_path / 'cv2.py').write_text(CAMERA)
    messages, subscription = client.subscribe(Image, '/webcam_example/image')
    topic = f'/front/image_raw:={subscription.topic_name}'
    program = Program(
        [sys.executable, ROOT / 'examples/webcam/webcam.py', '--ros-args', '-r', topic],
        {'PYTHONPATH': os.pathsep.join([str(tmp_path), os.environ.get('PYTHONPATH', '')])},
    )
    try:
        image = client.spin_until(lambda: messages and messages[0], 'an image')
        assert (image.width, image.height, image.encoding) == (32, 24, 'bgr8')
        assert np.array_equal(image.data, np.full(image.step * image.height, 77))
        program.send(number)
        assert program.wait() == 0
    finally:
        program.close()
        client.node.destroy_subscription(subscription)
    assert not program.output
