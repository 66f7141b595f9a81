# SPDX-License-Identifier: Apache-2.0
"""Tests of the topics of nodes whose models describe the whole image."""

import re

import cv2
import numpy as np
import pytest
from rclpy.qos import QoSDurabilityPolicy, QoSProfile
from sensor_msgs.msg import CameraInfo, Image
from vision_msgs.msg import Classification, LabelInfo

from support.models.image_models import (
    IMAGE_TASKS,
    NAMES,
    NETWORK,
    write_depth_anything,
    write_depth_anything_3,
    write_image_model,
)
from support.nodes.graph import TWO_LIFECYCLES, Detector, image_message

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro

WIDTH, HEIGHT = 517, 333
LATCHED = QoSProfile(depth=1, durability=QoSDurabilityPolicy.TRANSIENT_LOCAL)


@pytest.fixture(scope='module')
def halves():
    """An image whose left half is red and whose right half is blue."""
    bgr = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    bgr[:, : WIDTH // 2] = 40, 20, 250
    bgr[:, WIDTH // 2 :] = 230, 30, 10
    return image_message(bgr, WIDTH, HEIGHT, 'bgr8', step=3 * WIDTH, frame_id='halves')


@pytest.fixture
def start(client, tmp_path):
    detectors = []

    def start(task, **others):
        parameters = write_image_model(task, tmp_path / 'model.onnx')
        detectors.append(Detector(client, {**parameters, 'autostart': True, **others}))
        return detectors[-1]

    yield start
    for detector in detectors:
        detector.close()


def published(client, detector, image, kind, name):
    """Return the first message of a topic, while the camera sends the image."""
    messages, subscription = client.subscribe(kind, detector.topic(name))

    def arrived():
        detector.camera.publish(image)
        return messages

    client.spin_until(arrived, name)
    client.node.destroy_subscription(subscription)
    return messages[0]


def test_classification_has_the_best_classes(client, start, halves):
    detector = start('classify', **{'classification.top_k': 3})
    message = published(client, detector, halves, Classification, 'classification')
    assert message.header.frame_id == 'halves'
    assert message.header.stamp == halves.header.stamp
    scores = [result.score for result in message.results]
    assert [result.class_id for result in message.results] == ['blue', 'red', 'gray']
    assert scores == sorted(scores, reverse=True)
    assert 0.5 < sum(scores) < 1


def test_mask_has_the_class_of_each_pixel(client, start, halves):
    detector = start('semantic')
    message = published(client, detector, halves, Image, 'segmentation/mask')
    assert (message.width, message.height, message.step) == (WIDTH, HEIGHT, WIDTH)
    assert message.encoding == 'mono8'
    assert message.header.stamp == halves.header.stamp
    ids = np.array(message.data).reshape(HEIGHT, WIDTH)
    assert (ids[:, : WIDTH // 2 - 5] == NAMES.index('red')).all()
    assert (ids[:, WIDTH // 2 + 5 :] == NAMES.index('blue')).all()
    confidence = published(client, detector, halves, Image, 'segmentation/confidence')
    assert (confidence.encoding, confidence.step) == ('mono8', WIDTH)
    assert np.array(confidence.data).reshape(HEIGHT, WIDTH)[:, [0, -1]].min() > 200
    labels, _ = client.subscribe(LabelInfo, detector.topic('segmentation/label_info'), LATCHED)
    client.spin_until(lambda: labels, 'label_info')
    assert [(one.class_id, one.class_name) for one in labels[0].class_map] == [*enumerate(NAMES)]


def test_depth_has_metres_of_each_pixel(client, start, halves):
    detector = start('depth')
    message = published(client, detector, halves, Image, 'depth')
    assert (message.width, message.height, message.step) == (WIDTH, HEIGHT, 4 * WIDTH)
    assert (message.encoding, message.is_bigendian) == ('32FC1', 0)
    depth = np.frombuffer(bytes(message.data), '<f4').reshape(HEIGHT, WIDTH)
    np.testing.assert_allclose(depth[:, [0, -1]].mean(0), [310 / 765, 270 / 765], atol=0.01)


@pytest.mark.parametrize('size', [(400, 200), NETWORK])
@pytest.mark.parametrize(
    ('task', 'topic'),
    [
        ('semantic', 'segmentation/mask'),
        ('semantic', 'segmentation/confidence'),
        ('depth', 'depth'),
    ],
)
def test_map_has_the_size_of_the_parameter(client, start, halves, task, topic, size):
    text = 'network' if size == NETWORK else f'{size[0]}x{size[1]}'
    detector = start(task, map_size=text)
    message = published(client, detector, halves, Image, topic)
    pixel_bytes = 4 if task == 'depth' else 1
    assert (message.width, message.height, message.step) == (*size, pixel_bytes * size[0])
    pixels = np.frombuffer(bytes(message.data), '<f4' if task == 'depth' else 'u1')
    left, right = pixels.reshape(size[::-1])[:, [0, -1]].mean(0)
    expected = {
        'segmentation/mask': (NAMES.index('red'), NAMES.index('blue')),
        'depth': (310 / 765, 270 / 765),
    }
    if topic in expected:
        np.testing.assert_allclose((left, right), expected[topic], atol=0.01)
    else:
        assert min(left, right) > 200


@pytest.mark.parametrize(
    ('task', 'topic'),
    [('semantic', 'segmentation/camera_info'), ('depth', 'depth/camera_info')],
)
def test_calibration_is_scaled_to_the_maps(client, start, halves, task, topic):
    detector = start(task, map_size='400x200')
    messages, subscription = client.subscribe(CameraInfo, detector.topic(topic))
    maps, mask_subscription = client.subscribe(
        Image, detector.topic('depth' if task == 'depth' else 'segmentation/mask')
    )

    def map_arrived():
        detector.camera.publish(halves)
        return maps

    client.spin_until(map_arrived, 'map')
    assert messages == []  # there is no calibration yet
    publisher = client.node.create_publisher(CameraInfo, detector.topic('camera_info'), 1)
    info = CameraInfo(width=WIDTH, height=HEIGHT, k=[float(n) for n in range(1, 10)])

    def arrived():
        publisher.publish(info)
        detector.camera.publish(halves)
        return messages

    client.spin_until(arrived, topic)
    for entity in (subscription, mask_subscription):
        client.node.destroy_subscription(entity)
    client.node.destroy_publisher(publisher)
    found = messages[0]
    assert found.header == halves.header
    assert (found.width, found.height) == (400, 200)
    assert found.k[2] == pytest.approx(3 * 400 / WIDTH)


def test_relative_depth_has_its_own_topic(client, start, halves):
    detector = start('depth', **{'model.decoder': 'relative_depth'})
    message = published(client, detector, halves, Image, 'relative_depth')
    assert (message.width, message.height, message.encoding) == (WIDTH, HEIGHT, '32FC1')
    depth = np.frombuffer(bytes(message.data), '<f4').reshape(HEIGHT, WIDTH)
    np.testing.assert_allclose(depth[:, [0, -1]].mean(0), [310 / 765, 270 / 765], atol=0.01)


@pytest.mark.parametrize(
    ('decoder', 'silent', 'published_topic'),
    [('relative_depth', 'depth', 'relative_depth'), ('metric_depth', 'relative_depth', 'depth')],
)
def test_subscriber_of_the_other_depth_topic_is_told_once(
    client, start, halves, golden_messages, decoder, silent, published_topic
):
    detector = start('depth', **{'model.decoder': decoder})
    published(client, detector, halves, Image, published_topic)
    assert 'nothing is published' not in detector.program.output
    messages, subscription = client.subscribe(Image, detector.topic(silent))

    def reported():
        detector.camera.publish(halves)
        return re.search(r'INFO.*: (nothing is published .*)', detector.program.output)

    [line] = client.spin_until(reported, 'the line').groups()
    golden_messages.add(line.replace(detector.namespace, ''))
    for _ in range(3):
        published(client, detector, halves, Image, published_topic)
    assert detector.program.count('nothing is published') == 1
    assert not messages
    client.node.destroy_subscription(subscription)


def test_first_image_decides_the_size_of_the_network(client, tmp_path, halves):
    path = write_depth_anything(tmp_path)
    detector = Detector(
        client, {'engine_path': str(path), 'map_size': 'network', 'autostart': True}
    )
    message = published(client, detector, halves, Image, 'relative_depth')
    assert (message.width, message.height) == (84, 56)  # 517 x 333 pixels in multiples of 14
    pixels = np.zeros((WIDTH, HEIGHT, 3), np.uint8)
    tall = image_message(pixels, HEIGHT, WIDTH, 'bgr8', step=3 * HEIGHT)

    def refused():
        detector.camera.publish(tall)
        return detector.settled_counts()['dropped'].get('changed_size')

    client.spin_until(refused, 'changed_size')
    published(client, detector, halves, Image, 'relative_depth')
    detector.close()


def test_focal_length_of_the_calibration_gives_metres(client, tmp_path, halves):
    parameters = write_depth_anything_3(tmp_path / 'model.onnx')
    detector = Detector(client, {**parameters, 'autostart': True})
    value = 310 / 765
    message = published(client, detector, halves, Image, 'relative_depth')
    pixels = np.frombuffer(bytes(message.data), '<f4').reshape(HEIGHT, WIDTH)
    assert pixels[0, 0] == pytest.approx(1 / value, rel=1e-3)
    detector.wait_for_log('WARN', 'relative_depth')
    # The calibration is for twice the size of the images.
    publisher = client.node.create_publisher(CameraInfo, detector.topic('camera_info'), 1)
    info = CameraInfo(width=2 * WIDTH, height=2 * HEIGHT)
    info.k[0], info.k[4] = 1200.0, 1000.0
    messages, subscription = client.subscribe(Image, detector.topic('depth'))

    def arrived():
        publisher.publish(info)
        detector.camera.publish(halves)
        return messages

    client.spin_until(arrived, 'depth')
    focal_length = (600 * NETWORK[0] / WIDTH + 500 * NETWORK[1] / HEIGHT) / 2
    pixels = np.frombuffer(bytes(messages[0].data), '<f4').reshape(HEIGHT, WIDTH)
    assert pixels[0, 0] == pytest.approx(value * focal_length / 300, rel=1e-3)
    detector.set_or_fail(**{'model.focal_length': 3000.0})
    focal_length = 1500 * (NETWORK[0] / WIDTH + NETWORK[1] / HEIGHT)

    def changed():
        detector.camera.publish(halves)
        first = np.frombuffer(bytes(messages[-1].data[:4]), '<f4')[0]
        return first == pytest.approx(value * focal_length / 300, rel=1e-3)

    client.spin_until(changed, 'model.focal_length')
    client.node.destroy_subscription(subscription)
    client.node.destroy_publisher(publisher)
    detector.close()


TOPICS = {
    'classify': (Classification, 'classification'),
    'semantic': (Image, 'segmentation/mask'),
    'depth': (Image, 'depth'),
}


def picture(color, name):
    bgr = np.full((HEIGHT, WIDTH, 3), color, np.uint8)
    return image_message(bgr, WIDTH, HEIGHT, 'bgr8', step=3 * WIDTH, frame_id=name)


def content(message):
    """Return the values of a result: names of classes, or the middle of a map."""
    if isinstance(message, Classification):
        return [result.class_id for result in message.results][:1]
    dtype = {'mono8': 'u1', '32FC1': '<f4'}[message.encoding]
    values = np.frombuffer(bytes(message.data), dtype).reshape(HEIGHT, WIDTH)
    return [values[HEIGHT // 2, WIDTH // 2].item()]


@pytest.mark.parametrize('task', IMAGE_TASKS)
def test_each_camera_gets_its_own_results_and_every_image_is_counted(client, start, task):
    detector = start(task, cameras=['front', 'rear'])
    kind, topic = TOPICS[task]
    pictures = {'front': picture((250, 20, 10), 'front'), 'rear': picture((0, 5, 200), 'rear')}
    expected = {
        'classify': {'front': ['blue'], 'rear': ['red']},
        'semantic': {'front': [NAMES.index('blue')], 'rear': [NAMES.index('red')]},
        'depth': {'front': pytest.approx([280 / 765]), 'rear': pytest.approx([205 / 765])},
    }
    senders = {
        name: client.node.create_publisher(Image, detector.topic(f'{name}/image'), 10)
        for name in pictures
    }
    found = {name: client.subscribe(kind, detector.topic(f'{name}/{topic}')) for name in pictures}

    def all_arrived():
        for name, sender in senders.items():
            sender.publish(pictures[name])
        return all(len(messages) >= 3 for messages, _ in found.values())

    client.spin_until(all_arrived, topic)
    for name, (messages, subscription) in found.items():
        client.node.destroy_subscription(subscription)
        client.node.destroy_publisher(senders[name])
        assert {message.header.frame_id for message in messages} == {name}
        assert all(content(message) == expected[task][name] for message in messages)
        counts = detector.settled_counts(of=name)
        assert counts['received'] == counts['published'] + sum(counts['dropped'].values())
        assert counts['published'] >= 3


@pytest.mark.parametrize('task', IMAGE_TASKS)
def test_two_lifecycles_reach_the_expected_states(client, start, halves, task):
    detector = start(task, autostart=False)
    kind, topic = TOPICS[task]
    for transition, state in TWO_LIFECYCLES:
        assert detector.change_state(transition)
        assert detector.state() == state
        if state == 'active':
            message = published(client, detector, halves, kind, topic)
            assert message.header.frame_id == 'halves'
            counts = detector.settled_counts()
            assert counts['received'] == counts['published'] + sum(counts['dropped'].values())
    client.spin_until(
        lambda: not client.node.count_publishers(detector.topic(topic)), 'no publisher'
    )


@pytest.mark.parametrize('task', IMAGE_TASKS)
def test_debug_image_shows_the_result(client, start, halves, task):
    detector = start(task, **{'debug_image.max_rate_hz': 50.0})
    message = published(client, detector, halves, Image, 'debug_image')
    drawn = np.array(message.data).reshape(HEIGHT, WIDTH, 3)
    plain = np.array(halves.data).reshape(HEIGHT, WIDTH, 3)
    assert cv2.absdiff(drawn, plain).max() > 50


def test_parameter_without_effect_is_reported_only_if_it_differs_from_its_default(start):
    changed = {'confidence_threshold': 0.4, 'class_filter': ['unicorn']}
    detector = start('classify', **changed, iou_threshold=0.45)
    for name in changed:
        detector.wait_for_log('WARN', name)
    detector.program.wait_for_output('active: ')
    assert not [line for line in detector.program.output.splitlines() if 'iou_threshold' in line]
    detector.set_or_fail(iou_threshold=0.3)
    detector.wait_for_log('WARN', 'iou_threshold')
