# SPDX-License-Identifier: Apache-2.0
"""Large masks, maps and debug images: skipped above a limit, and made one at a time."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from sensor_msgs.msg import Image
from std_msgs.msg import Header

from trt_perception.images.detections import Detections, MaskGeometry, Masks
from trt_perception.images.frame import Frame
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results import image_limits
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.images.results.kernel_maps import KernelMaps
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.segment import Segment
from trt_perception.model.tasks.semantic import Semantic
from trt_perception.parameters.values import ParameterValues
from trt_perception.ros.camera.publishers import CameraPublishers
from trt_perception.ros.camera.result_images import too_large_error

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro

SMALL, LARGE, LARGEST, TOO_LARGE = (8, 4), (8, 8), (16, 8), (43, 3)
BOX = np.array([[1, 0, 3, 3]], 'f4'), np.ones(1, 'f4'), np.zeros(1, 'i4')


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    """Images above 32 pixels are large, and images above 128 pixels are skipped."""
    monkeypatch.setattr(image_limits, 'LARGE_RESULT_PIXELS', 32)
    monkeypatch.setattr(image_limits, 'MAX_RESULT_PIXELS', 128)


def frame_of(size_wh):
    width, height = size_wh
    data = bytes(3 * width * height)
    return Frame.view(data, width=width, height=height, step=3 * width, encoding='bgr8')


def letterbox_of(size_wh):
    return Letterbox.fit(size_wh, (8, 4), 'stretch')


def class_map(size_wh):
    return ClassMap(np.ones((2, 4, 8), 'f4'), letterbox_of(size_wh))


def depth_map(size_wh, is_metric=True):
    return DepthMap(np.ones((4, 8), 'f4'), letterbox_of(size_wh), 'bilinear', is_metric)


def masks(size_wh):
    geometry = MaskGeometry(size_wh, (1, 1), (0, 0))
    prototypes = np.ones((1, *size_wh[::-1]), 'f4')
    return Detections(*BOX, masks=Masks(BOX[0], np.ones((1, 1), 'f4'), prototypes, geometry))


class Drawn:
    """Numbered masks. `number` waits until a test releases it."""

    def __init__(self):
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def number(self, out):
        self.has_begun.set()
        assert self.may_end.wait(60)
        out[:] = 1


CASES = {
    'masks': (Segment(), masks),
    'segmentation/mask': (Semantic(), class_map),
    'segmentation/confidence': (Semantic(), class_map),
    'depth': (Depth(), depth_map),
    'relative_depth': (Depth(), lambda size: depth_map(size, is_metric=False)),
}
DEBUG_CASES = {
    'masks': CASES['masks'],
    'class map': CASES['segmentation/mask'],
    'depth': CASES['depth'],
    'boxes': (DETECT, lambda size: Detections(*BOX)),
}


class Viewer:
    """The publishers of a camera, with a subscriber to one topic."""

    def __init__(self, client, node, task, topic, camera='', **parameters):
        parameters = ParameterValues.from_values(
            {'engine_path': 'x.onnx', 'debug_image.max_rate_hz': 1000.0, **parameters}
        )
        self.client = client
        self.publishers = CameraPublishers(node, ('a', 'b'), parameters, task, camera)
        self.warnings = []
        log = SimpleNamespace(warning=self.warnings.append)
        name = f'{camera}/{topic}' if camera else topic
        self.messages, self._subscription = client.subscribe(Image, name)
        debug, threads = self.publishers._debug_image, self.publishers._on_demand
        [self.topic] = [each for each in (*threads, debug) if each.name == topic]
        self.topic._limit._log = log

        def is_wanted():
            if not self.publishers._on_demand:
                return debug.has_subscriber
            return topic in self.publishers.wanted_topics()

        client.spin_until(is_wanted, 'a subscription')

    def publish(self, name, size_wh, found):
        return self.publishers.publish(Header(frame_id=name), frame_of(size_wh), found)

    def publish_when_free(self, name, size_wh, found):
        self.client.spin_until(lambda: self.publish(name, size_wh, found), 'a free thread')

    def names(self):
        return [message.header.frame_id for message in self.messages]

    def wait_for(self, *names):
        self.client.spin_until(lambda: set(names) <= set(self.names()), f'images {names}')

    def close(self):
        self.publishers.close()
        self.client.node.destroy_subscription(self._subscription)


@pytest.fixture
def view(client, node):
    viewers = []

    def view(*arguments, **parameters):
        viewers.append(Viewer(client, node, *arguments, **parameters))
        return viewers[-1]

    yield view
    for viewer in viewers:
        viewer.close()


@pytest.mark.parametrize(
    ('topic', 'task', 'make'),
    [
        *((topic, *case) for topic, case in CASES.items()),
        *(('debug_image', *case) for case in DEBUG_CASES.values()),
    ],
    ids=[*CASES, *(f'debug image of {name}' for name in DEBUG_CASES)],
)
def test_images_above_the_limit_are_skipped_and_reported_once(
    view, topic, task, make, golden_messages
):
    viewer = view(task, topic)
    assert not viewer.publish('first', TOO_LARGE, make(TOO_LARGE))
    assert not viewer.publish('second', TOO_LARGE, make(TOO_LARGE))
    [warning] = viewer.warnings
    golden_messages.add(warning)
    for size in (LARGEST, SMALL):
        viewer.publish_when_free(f'{size}', size, make(size))
        viewer.wait_for(f'{size}')
    assert [(message.width, message.height) for message in viewer.messages[:1]] == [LARGEST]
    assert viewer.names() == [f'{LARGEST}', f'{SMALL}']
    assert len(viewer.warnings) == 1


@pytest.mark.parametrize('topic', [name for name in CASES if name != 'masks'])
def test_map_size_decides_about_maps_of_images_above_the_limit(view, topic):
    task, make = CASES[topic]
    viewer = view(task, topic, map_size='16x8')
    assert viewer.publish('camera', TOO_LARGE, make(TOO_LARGE))
    viewer.wait_for('camera')
    assert (viewer.messages[0].width, viewer.messages[0].height) == LARGEST
    assert not viewer.warnings


def test_error_names_size_limit_and_fix():
    error = too_large_error('depth', (12_000, 11_000), 'set map_size')
    assert (error.reason, error.subject) == ('too_large', 'depth')
    assert '132000000' in error.found
    assert str(2**25) in error.expected
    assert error.fix.startswith('set map_size')


def test_result_that_waits_for_its_thread_keeps_no_image(view):
    viewer = view(Segment(), 'masks')
    drawn = Drawn()
    viewer.publish('slow', SMALL, Detections(*BOX, numbered=drawn))
    assert drawn.has_begun.wait(60)
    assert not any(isinstance(each, Frame) for each in viewer.topic._result)
    drawn.may_end.set()


@pytest.fixture
def busy(view):
    """A camera whose thread makes a large mask image until the test ends it."""
    viewer, drawn = view(Segment(), 'masks', 'busy'), Drawn()
    assert viewer.publish('busy', LARGE, Detections(*BOX, numbered=drawn))
    assert drawn.has_begun.wait(60)
    viewer.drawn = drawn
    yield viewer
    drawn.may_end.set()


@pytest.mark.parametrize('topic', CASES)
def test_large_images_of_all_cameras_are_made_one_at_a_time(busy, view, topic):
    task, make = CASES[topic]
    other = view(task, topic, 'other')
    assert other.publish('waits', LARGE, make(LARGE))
    assert not other.publish('skipped', LARGE, make(LARGE))
    small = view(task, topic, 'small')
    for name in ('first', 'second', 'third'):
        small.publish_when_free(name, SMALL, make(SMALL))
        small.wait_for(name)
    assert not other.messages
    busy.drawn.may_end.set()
    other.wait_for('waits')
    busy.wait_for('busy')
    assert other.names() == ['waits']


def test_large_debug_image_waits_and_small_debug_image_does_not(busy, view):
    other, small = view(DETECT, 'debug_image', 'other'), view(DETECT, 'debug_image', 'small')
    assert other.publish('waits', LARGE, Detections(*BOX))
    assert small.publish('small', SMALL, Detections(*BOX))
    small.wait_for('small')
    assert not other.messages
    busy.drawn.may_end.set()
    other.wait_for('waits')


@pytest.mark.parametrize('topic', [*CASES, 'debug_image'])
def test_camera_that_waits_for_another_camera_can_be_closed(busy, view, topic):
    task, make = CASES.get(topic, DEBUG_CASES['boxes'])
    other = view(task, topic, 'other')
    assert other.publish('waits', LARGE, make(LARGE))
    other.publishers.close()  # waits for its thread
    assert not other.messages
    assert not busy.drawn.may_end.is_set()


def test_failed_large_image_lets_the_next_one_through(view):
    class Failing:
        def number(self, out):
            raise MemoryError

    viewer = view(Segment(), 'masks')
    assert viewer.publish('failed', LARGE, Detections(*BOX, numbered=Failing()))
    viewer.publish_when_free('good', LARGE, masks(LARGE))
    viewer.wait_for('good')
    assert viewer.names() == ['good']


@pytest.mark.parametrize('topic', [*CASES, 'debug_image'])
def test_memory_of_a_large_message_is_freed(view, topic):
    task, make = CASES.get(topic, DEBUG_CASES['boxes'])
    viewer = view(task, topic)
    maker = viewer.topic if topic == 'debug_image' else viewer.topic._topic
    for size, is_kept in ((SMALL, True), (LARGE, False), (SMALL, True)):
        viewer.publish_when_free(f'{size} {is_kept}', size, make(size))
        viewer.wait_for(f'{size} {is_kept}')
        # The thread frees the memory soon after it has published the message.
        viewer.client.spin_until(
            lambda is_kept=is_kept: bool(maker._message.size) == is_kept, 'the memory'
        )


@pytest.mark.parametrize('is_made', [False, True])
def test_skipped_map_of_a_gpu_is_counted(view, is_made):
    class Memory:
        size_wh, dtype = SMALL, np.dtype('uint8')

        def memory(self):
            return np.zeros(1024 + 32, np.uint8)

    viewer = view(Semantic(), 'segmentation/mask')
    maps = {'class_ids': Memory()} if is_made else {}
    found = KernelMaps(maps, letterbox_of(SMALL))
    assert viewer.publish('frame', SMALL, found) == is_made
