# SPDX-License-Identifier: Apache-2.0
"""Tests of published detections, and of label_info if the middleware refuses it at first."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.qos import QoSDurabilityPolicy, QoSProfile
from sensor_msgs.msg import Image
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray, LabelInfo

from support.programs import DEADLINE_S
from trt_perception.errors import ImageError
from trt_perception.images.detections import Detections, MaskGeometry, Masks
from trt_perception.images.frame import Frame
from trt_perception.model.tasks.segment import Segment
from trt_perception.model.tasks.table import TASKS
from trt_perception.parameters.values import ParameterValues
from trt_perception.ros.camera import publishers as publishers_module
from trt_perception.ros.camera import task_topics
from trt_perception.ros.camera.publishers import CameraPublishers
from trt_perception.ros.camera.task_topics import TASK_TOPICS

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro

LATCHED = QoSProfile(depth=1, durability=QoSDurabilityPolicy.TRANSIENT_LOCAL)
BUSY = rclpy_implementation.RCLError('Failed to publish: cannot publish data')


class Refusing:
    """A publisher whose middleware refuses the next messages."""

    def __init__(self, publisher, errors):
        self._publisher = publisher
        self.errors = errors

    def publish(self, message):
        if self.errors:
            raise self.errors.pop()
        self._publisher.publish(message)

    def __getattr__(self, name):
        return getattr(self._publisher, name)


def subscribed_to(publishers, name):
    """Return a function that returns whether a topic of a task has a subscriber."""
    [topic] = [each for each in publishers._topics if each.topic.name == name]
    return lambda: topic.has_subscriber


@pytest.fixture
def publishers(node):
    publishers = CameraPublishers(
        node, ('red', 'green'), ParameterValues(confidence_threshold=0.25)
    )
    yield publishers
    publishers.close()


@pytest.fixture
def labels(client):
    messages, subscription = client.subscribe(LabelInfo, 'label_info', LATCHED)
    yield messages
    client.node.destroy_subscription(subscription)


def test_every_topic_of_a_task_is_published_with_its_type():
    types = {topic.name: topic.message for task in TASKS.values() for topic in task.topics}
    assert set(TASK_TOPICS) == set(types)
    for name, kind in TASK_TOPICS.items():
        if not kind.is_available():
            continue
        package = kind.message_type.__module__.partition('.')[0]
        assert f'{package}/{kind.message_type.__name__}' == types[name]


def test_label_info_has_names_and_threshold(client, publishers, labels):
    client.spin_until(lambda: labels, 'label_info')
    classes = [(each.class_id, each.class_name) for each in labels[0].class_map]
    assert (classes, labels[0].threshold) == ([(0, 'red'), (1, 'green')], 0.25)
    assert labels[0].header.stamp.sec > 0


@pytest.mark.parametrize('count', [0, 3, 300])
def test_all_detections_of_an_image_arrive(client, publishers, count):
    messages, subscription = client.subscribe(Detection2DArray, 'detections')
    frame = Frame.view(bytes(12), width=4, height=1, step=12, encoding='bgr8')
    boxes = np.arange(count)[:, None] + np.array([0.0, 0.0, 10.0, 20.0])
    scores = np.linspace(1, 0.5, count)
    found = Detections(boxes.astype('f4'), scores.astype('f4'), np.arange(count, dtype='i4') % 2)
    client.spin_until(subscribed_to(publishers, 'detections'), 'the subscription')
    publishers.publish(Header(frame_id='front'), frame, found)
    client.spin_until(lambda: messages, 'the detections')
    [message] = messages
    centres = [detection.bbox.center.position.y for detection in message.detections]
    assert centres == [index + 10.0 for index in range(count)]
    names = [detection.results[0].hypothesis.class_id for detection in message.detections]
    assert names == [('red', 'green')[index % 2] for index in range(count)]
    client.node.destroy_subscription(subscription)


@pytest.mark.parametrize('count', [3, 300])
def test_refused_detections_affect_only_one_image(client, publishers, monkeypatch, count):
    messages, subscription = client.subscribe(Detection2DArray, 'detections')
    frame = Frame.view(bytes(12), width=4, height=1, step=12, encoding='bgr8')
    boxes = np.tile(np.array([0, 0, 10, 20], 'f4'), (count, 1))
    found = Detections(boxes, np.ones(count, 'f4'), np.zeros(count, 'i4'))
    client.spin_until(subscribed_to(publishers, 'detections'), 'the subscription')
    [detections] = [each for each in publishers._topics if each.topic.name == 'detections']
    refusing = Refusing(detections._publisher, [BUSY])
    if count == 300:  # large messages are published without the GIL
        unlocked = task_topics.publish_unlocked
        monkeypatch.setattr(
            task_topics,
            'publish_unlocked',
            lambda publisher, message: (
                unlocked(publisher, message) if not refusing.errors else refusing.publish(message)
            ),
        )
    else:
        detections._publisher = refusing
    with pytest.raises(ImageError, match='cannot publish data') as caught:
        publishers.publish(Header(frame_id='first'), frame, found)
    assert caught.value.reason == 'not_published'
    publishers.publish(Header(frame_id='second'), frame, found)
    client.spin_until(lambda: messages, 'the second detections')
    assert [message.header.frame_id for message in messages] == ['second']
    client.node.destroy_subscription(subscription)


def publish_masks(client, publishers, frame_id, frame, found):
    """Publish a result until the thread of the masks is free and accepts it."""
    header = Header(frame_id=frame_id)
    client.spin_until(lambda: publishers.publish(header, frame, found), 'a free thread')


@pytest.mark.parametrize('error', [RuntimeError('too large'), MemoryError()])
def test_refused_masks_do_not_affect_detections(client, node, monkeypatch, capfd, error):
    publishers = CameraPublishers(node, ('red',), ParameterValues(), Segment())
    found, of_found = client.subscribe(Detection2DArray, 'detections')
    images, of_images = client.subscribe(Image, 'masks')
    client.spin_until(subscribed_to(publishers, 'detections'), 'a subscription')
    client.spin_until(subscribed_to(publishers, 'masks'), 'a subscription')
    frame = Frame.view(bytes(48), width=4, height=4, step=12, encoding='bgr8')
    box = np.array([[1, 0, 3, 4]], 'f4')
    geometry = MaskGeometry((4, 4), (1, 1), (0, 0))
    masks = Masks(box, np.ones((1, 1), 'f4'), np.ones((1, 4, 4), 'f4'), geometry)
    seen = Detections(box, np.ones(1, 'f4'), np.zeros(1, 'i4'), masks=masks)
    publish = task_topics.publish_unlocked
    errors = [error]

    def refusing(publisher, message):
        if publisher is publishers._topics[1]._publisher and errors:
            raise errors.pop()
        publish(publisher, message)

    monkeypatch.setattr(task_topics, 'publish_unlocked', refusing)
    publishers.publish(Header(frame_id='first'), frame, seen)
    client.spin_until(lambda: not errors, 'the refusal of the first masks')
    publish_masks(client, publishers, 'second', frame, seen)
    client.spin_until(lambda: len(found) >= 2 and images, 'both detections and the second masks')
    assert [message.header.frame_id for message in images] == ['second']
    assert np.frombuffer(bytes(images[0].data), '<u2').reshape(4, 4).tolist() == [[0, 1, 1, 0]] * 4
    assert f'masks was not published: {type(error).__name__}' in capfd.readouterr().err
    publishers.close()
    for subscription in (of_found, of_images):
        client.node.destroy_subscription(subscription)


def test_masks_that_were_not_made_are_not_published(client, node):
    """A GPU makes masks only for frames that arrive while the topic has a subscriber."""
    publishers = CameraPublishers(node, ('red',), ParameterValues(), Segment())
    assert not publishers.wanted_topics()
    found, of_found = client.subscribe(Detection2DArray, 'detections')
    images, of_images = client.subscribe(Image, 'masks')
    client.spin_until(subscribed_to(publishers, 'detections'), 'a subscription')
    client.spin_until(publishers.wanted_topics, 'a subscription')
    frame = Frame.view(bytes(48), width=4, height=4, step=12, encoding='bgr8')

    class Drawn:
        def number(self, out):
            out[:] = [[0, 1, 1, 0]] * 4

    boxes = np.array([[1, 0, 3, 4]], 'f4'), np.ones(1, 'f4'), np.zeros(1, 'i4')
    assert not publishers.publish(Header(frame_id='before'), frame, Detections(*boxes))
    after = Detections(*boxes, numbered=Drawn())
    publish_masks(client, publishers, 'after', frame, after)
    client.spin_until(lambda: len(found) >= 2 and images, 'both detections and the second masks')
    assert [message.header.frame_id for message in images] == ['after']
    assert np.frombuffer(bytes(images[0].data), '<u2').reshape(4, 4).tolist() == [[0, 1, 1, 0]] * 4
    publishers.close()
    for subscription in (of_found, of_images):
        client.node.destroy_subscription(subscription)


def test_detections_do_not_wait_for_a_mask_image(client, node):
    publishers = CameraPublishers(node, ('red',), ParameterValues(), Segment())
    found, of_found = client.subscribe(Detection2DArray, 'detections')
    images, of_images = client.subscribe(Image, 'masks')
    client.spin_until(subscribed_to(publishers, 'detections'), 'a subscription')
    client.spin_until(subscribed_to(publishers, 'masks'), 'a subscription')
    may_end = threading.Event()

    class SlowMasks:
        def number(self, out):
            may_end.wait(DEADLINE_S)
            out[:] = 1

    frame = Frame.view(bytes(48), width=4, height=4, step=12, encoding='bgr8')
    boxes = np.array([[1, 0, 3, 4]], 'f4'), np.ones(1, 'f4'), np.zeros(1, 'i4')
    slow = Detections(*boxes, numbered=SlowMasks())
    names = ['0', '1', '2']
    accepted = [publishers.publish(Header(frame_id=name), frame, slow) for name in names]
    client.spin_until(lambda: len(found) == 3, 'the detections of all images')

    assert not images
    assert accepted == [True, False, False]
    assert [message.header.frame_id for message in found] == names
    may_end.set()
    publish_masks(client, publishers, 'last', frame, slow)
    client.spin_until(lambda: len(images) == 2, 'two mask images')
    assert [message.header.frame_id for message in images] == ['0', 'last']
    publishers.close()
    for subscription in (of_found, of_images):
        client.node.destroy_subscription(subscription)


class CountedTopic:
    """A topic on demand that counts how often it was asked for its subscribers."""

    name = 'masks'

    def __init__(self):
        self.is_wanted, self.asked = False, 0

    @property
    def has_subscriber(self):
        self.asked += 1
        return self.is_wanted

    def close(self):
        pass


def test_subscribers_are_counted_once_in_a_tenth_of_a_second(node, monkeypatch):
    """Counting takes 10 µs for each topic, and the worker needs the answer for each image."""
    publishers = CameraPublishers(node, ('red',), ParameterValues(), Segment())
    for thread in publishers._on_demand:
        thread.close()
    topic = CountedTopic()
    publishers._on_demand = [topic]
    now_s = [50.0]
    monkeypatch.setattr(publishers_module, 'time', SimpleNamespace(monotonic=lambda: now_s[0]))
    assert not publishers.wanted_topics()
    topic.is_wanted = True
    for now_s[0] in (50.0, 50.05, 50.099):
        assert not publishers.wanted_topics()
    assert topic.asked == 1
    for now_s[0] in (50.101, 50.15, 50.2):
        assert publishers.wanted_topics() == {'masks'}
    assert topic.asked == 2
    publishers.close()


def refuse(publishers, *errors):
    """Refuse the next publications of label_info."""
    [publisher] = publishers._label_infos
    refusing = Refusing(getattr(publisher, '_publisher', publisher), list(errors))
    publishers._label_infos = [refusing]
    return refusing


def test_refused_label_info_is_published_later(client, publishers, labels):
    client.spin_until(lambda: labels, 'the first label_info')
    refusing = refuse(publishers, BUSY, BUSY, BUSY)
    publishers.publish_label_info(0.75)
    assert refusing.errors == [BUSY, BUSY], 'the caller does not wait'
    client.spin_until(lambda: labels[-1].threshold == 0.75, 'label_info with the new threshold')
    assert not refusing.errors
    assert publishers._retry_timer is None


def test_newest_threshold_cancels_the_retry_of_an_older_one(client, publishers, labels):
    refuse(publishers, BUSY)
    publishers.publish_label_info(0.5)
    publishers.publish_label_info(0.75)
    assert publishers._retry_timer is None, 'the older threshold is not published later'
    client.spin_until(lambda: labels and labels[-1].threshold == 0.75, 'the newest threshold')


def test_close_cancels_the_retry_of_label_info(node, publishers):
    refuse(publishers, BUSY)
    publishers.publish_label_info(0.5)
    publishers.close()
    assert not list(node.timers)


def test_other_errors_of_label_info_are_raised(publishers):
    refuse(publishers, ValueError('not bytes'))
    with pytest.raises(ValueError, match='not bytes'):
        publishers.publish_label_info(0.5)
    assert publishers._retry_timer is None
