# SPDX-License-Identifier: Apache-2.0
"""The memory of a node that gets a small JPEG of 132 megapixels, while its results are viewed."""

import cv2
import numpy as np
import pytest
from sensor_msgs.msg import CompressedImage, Image

from support.models.image_models import write_image_model
from support.nodes.graph import Detector

pytest_plugins = ['support.nodes.graph_fixtures']

WIDTH, HEIGHT = 12_000, 11_000


@pytest.fixture(scope='module')
def jpeg():
    grey = np.full((HEIGHT, WIDTH), 99, np.uint8)
    _, file = cv2.imencode('.jpg', grey)
    assert file.size < 3e6
    return CompressedImage(format='jpeg', data=file.tobytes())


def memory_bytes(program, name):
    with open(f'/proc/{program.pid}/status', encoding='ascii') as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(name))


@pytest.mark.parametrize(
    ('task', 'topics'),
    [
        ('semantic', ['segmentation/mask', 'segmentation/confidence', 'debug_image']),
        ('depth', ['depth', 'debug_image']),
    ],
)
def test_viewers_of_a_huge_image_cost_no_memory(client, tmp_path, jpeg, task, topics):
    parameters = write_image_model(task, tmp_path / 'model.onnx')
    node = Detector(client, {**parameters, 'image_transport': 'compressed'}, camera_qos=None)
    try:
        topic = node.topic('image/compressed')
        camera = client.node.create_publisher(CompressedImage, topic, 1)
        found = [node.subscribe(Image, topic) for topic in topics]
        node.bring_to('active')
        client.spin_until(camera.get_subscription_count, 'the subscription')
        before = memory_bytes(node.program, 'VmRSS:')

        def is_skipped(_, values):
            camera.publish(jpeg)
            return int(values.get('result_images_skipped', 0)) > 1

        node.wait_for_status(is_skipped, 'skipped images')
        # Decoding and the letterbox need 0.9 GB. With maps, it was 2.8 GB and more.
        assert memory_bytes(node.program, 'VmHWM:') - before < 1.9e9
        assert not any(found)
        client.node.destroy_publisher(camera)
    finally:
        node.close()
