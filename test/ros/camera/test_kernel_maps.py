# SPDX-License-Identifier: Apache-2.0
"""Maps from the kernels of a GPU are published from their own memory."""

from types import SimpleNamespace

import numpy as np
import pytest
from sensor_msgs.msg import Image
from std_msgs.msg import Header

from support.oracles.map_outputs import map_spec
from trt_perception.images.frame import Frame
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.kernel_maps import HEADER_ROOM, KernelMaps
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tasks.semantic import Semantic
from trt_perception.parameters.values import ParameterValues
from trt_perception.ros.camera import publishers as publishers_module
from trt_perception.ros.camera.camera import NodeCamera
from trt_perception.ros.camera.publishers import CameraPublishers

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro

SIZE = (5, 3)
LETTERBOX = Letterbox.fit(SIZE, SIZE, 'stretch')
CASES = [
    (Semantic(), 'segmentation/mask', 'class_ids', 'uint8', 'mono8', False),
    (Semantic(), 'segmentation/confidence', 'confidence', 'uint8', 'mono8', False),
    (Depth(), 'depth', 'depth', 'float32', '32FC1', True),
    (Depth(), 'relative_depth', 'depth', 'float32', '32FC1', False),
]


class Memory:
    def __init__(self, pixels):
        self.size_wh, self.dtype = pixels.shape[::-1], pixels.dtype
        room = np.full(HEADER_ROOM, 0xA5, np.uint8)
        self._memory = np.concatenate([room, pixels.reshape(-1).view(np.uint8)])

    def memory(self):
        return self._memory


@pytest.mark.parametrize(('task', 'topic', 'kind', 'dtype', 'encoding', 'is_metric'), CASES)
def test_a_map_is_published_with_its_header(
    client, node, task, topic, kind, dtype, encoding, is_metric
):
    pixels = np.arange(15).reshape(SIZE[::-1]).astype(dtype)
    publishers = CameraPublishers(node, ('a', 'b'), ParameterValues(), task)
    messages, subscription = client.subscribe(Image, topic)
    client.spin_until(lambda: topic in publishers.wanted_topics(), 'a subscription')
    frame = Frame.view(bytes(48), width=4, height=4, step=12, encoding='bgr8')
    # The header of the second message does not fit into the free memory in front of the pixels.
    for frame_id in ('camera', 'x' * 2 * HEADER_ROOM):
        found = KernelMaps({kind: Memory(pixels)}, LETTERBOX, is_metric)
        count = len(messages)
        while not publishers.publish(Header(frame_id=frame_id), frame, found):
            pass  # the thread is still busy with the first message
        client.spin_until(lambda count=count: len(messages) > count, 'the map')
        message = messages[-1]
        assert message.header.frame_id == frame_id
        assert (message.width, message.height, message.encoding) == (*SIZE, encoding)
        assert message.step == SIZE[0] * pixels.itemsize
        assert bytes(message.data) == pixels.tobytes()
    publishers.close()
    client.node.destroy_subscription(subscription)


def test_a_map_that_was_not_made_is_skipped(client, node):
    publishers = CameraPublishers(node, ('a', 'b'), ParameterValues(), Semantic())
    messages, subscription = client.subscribe(Image, 'segmentation/mask')
    client.spin_until(lambda: publishers.wanted_topics(), 'a subscription')
    frame = Frame.view(bytes(48), width=4, height=4, step=12, encoding='bgr8')
    made = {'class_ids': Memory(np.zeros(SIZE[::-1], np.uint8))}
    assert not publishers.publish(Header(frame_id='without'), frame, KernelMaps({}, LETTERBOX))
    assert publishers.publish(Header(frame_id='with'), frame, KernelMaps(made, LETTERBOX))
    client.spin_until(lambda: messages, 'the map')
    assert [message.header.frame_id for message in messages] == ['with']
    publishers.close()
    client.node.destroy_subscription(subscription)


def test_a_new_viewer_gets_no_debug_image_without_a_map(client, node, monkeypatch):
    monkeypatch.setattr(publishers_module, '_SUBSCRIBERS_KEPT_S', 3600.0)
    publishers = CameraPublishers(
        node, ('a', 'b'), ParameterValues(debug_image_max_rate_hz=1000.0), Semantic()
    )
    frame = Frame.view(bytes(45), width=5, height=3, step=15, encoding='bgr8')
    assert not publishers.wanted_topics()
    messages, subscription = client.subscribe(Image, 'debug_image')
    client.spin_until(lambda: publishers._debug_image.has_subscriber, 'a subscription')
    publishers.publish(Header(frame_id='without'), frame, KernelMaps({}, LETTERBOX))
    client.spin_until(lambda: publishers._debug_image._newest_result is None, 'the drawing')
    publishers._next_count_s = 0.0
    assert publishers.wanted_topics() == {'debug_image'}
    made = {'class_ids': Memory(np.ones(SIZE[::-1], np.uint8))}

    def publish():
        publishers.publish(Header(frame_id='with'), frame, KernelMaps(made, LETTERBOX))
        return len(messages) > 2

    client.spin_until(publish, 'debug images')
    publishers.close()
    client.node.destroy_subscription(subscription)
    assert {message.header.frame_id for message in messages} == {'with'}


@pytest.mark.parametrize('is_metric', [True, False])
def test_only_a_missing_focal_length_is_reported(node, is_metric):
    spec = map_spec('depth and sky', 'stretch', (96, 64), 0, batch=1)
    camera = NodeCamera(node, '', ParameterValues(), SimpleNamespace(spec=spec))
    warnings = []
    camera._log = SimpleNamespace(warning=lambda text, **_: warnings.append(text))
    frame = Frame.view(bytes(48), width=4, height=4, step=12, encoding='bgr8')
    found = KernelMaps({}, LETTERBOX, is_metric)
    camera.publish_result(SimpleNamespace(header=Header()), frame, found)
    camera.close_publishers()
    assert len(warnings) == (not is_metric)
