# SPDX-License-Identifier: Apache-2.0
"""Tests of the topics of nodes that run pose, oriented-box and segmentation models."""

import json
import re

import cv2
import numpy as np
import pytest
from sensor_msgs.msg import Image, PointCloud2

from support.docs_pages import ROOT
from support.models.open_model import open_by_parameters
from support.models.recorded_exports import recorded_values, write_export
from support.nodes.graph import Detector, image_message
from trt_perception.images.frame import frame_from_bgr
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.pipeline import detect_one

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro

POSE_EXPORT = recorded_values('ultralytics_pose')


@pytest.fixture(scope='module')
def parameters(tmp_path_factory):
    values = write_export(POSE_EXPORT, tmp_path_factory.mktemp('pose') / 'pose.onnx')
    return {**values, 'confidence_threshold': 0.02}


@pytest.fixture(scope='module')
def detector(client, parameters):
    detector = Detector(client, {**parameters, 'autostart': True, 'debug_image.max_rate_hz': 50.0})
    try:
        detector.connect()
        yield detector
    finally:
        detector.close()


@pytest.fixture
def listener(client, detector):
    """Return a function that subscribes to a topic of the node and returns its message list."""
    subscriptions = []

    def listen(kind, name):
        messages, subscription = client.subscribe(kind, detector.topic(name))
        subscriptions.append(subscription)
        return messages

    yield listen
    for subscription in subscriptions:
        client.node.destroy_subscription(subscription)


def message_of(bgr, name):
    height, width = bgr.shape[:2]
    return image_message(bgr, width, height, 'bgr8', step=3 * width, frame_id=name)


def publish_until_both(detector, others, image):
    """Publish an image until its detections and its keypoints or mask arrive. Return both."""
    name = image.header.frame_id

    def both():
        detector.camera.publish(image)
        found = [m for m in detector.detections if m.header.frame_id == name]
        points = [m for m in others if m.header.frame_id == name]
        return (found[-1], points[-1]) if found and points else None

    return detector.client.spin_until(both, 'detections and keypoints')


def keypoints_of_cloud(cloud):
    fields = [(field.name, field.offset, field.datatype, field.count) for field in cloud.fields]
    assert fields == [(name, offset, 7, 1) for name, offset in (('x', 0), ('y', 4), ('score', 8))]
    assert not cloud.is_bigendian
    assert cloud.is_dense
    shape = cloud.height, cloud.width, 3
    assert (cloud.point_step, cloud.row_step) == (12, 12 * cloud.width)
    return np.frombuffer(bytes(cloud.data), '<f4').reshape(shape)


def detect_in_process(values, image):
    parameters = ParameterValues.from_values(values)
    pipeline = open_by_parameters(parameters)
    thresholds = parameters.thresholds(pipeline.spec.class_names)
    return detect_one(pipeline, frame_from_bgr(image), thresholds).detections


def test_node_publishes_the_keypoints_of_the_pipeline(detector, listener, parameters):
    expected = detect_in_process(parameters, POSE_EXPORT['image'])
    assert len(expected) > 3
    others = listener(PointCloud2, 'keypoints')
    image = message_of(POSE_EXPORT['image'], 'poses')
    detections, cloud = publish_until_both(detector, others, image)
    assert cloud.header == detections.header == image.header
    assert len(detections.detections) == len(expected)
    assert np.array_equal(keypoints_of_cloud(cloud), expected.keypoints)


def test_image_without_objects_gives_an_empty_keypoints_message(detector, listener):
    others = listener(PointCloud2, 'keypoints')
    detector.set_or_fail(confidence_threshold=1.0)
    try:
        image = message_of(POSE_EXPORT['image'], 'nothing')
        detections, cloud = publish_until_both(detector, others, image)
        assert not detections.detections
        assert (cloud.height, cloud.width, len(cloud.data)) == (0, 17, 0)
        assert cloud.header == image.header
    finally:
        detector.set_or_fail(confidence_threshold=0.02)


def test_keypoint_names_and_skeleton_are_read_only_parameters(start_detector, golden_messages):
    model = ROOT / 'models' / 'digits_pose.onnx'
    manifest = json.loads(model.with_suffix('.onnx.json').read_text(encoding='utf-8'))
    names = manifest['keypoints']['names']
    ends = [end for line in manifest['keypoints']['skeleton'] for end in line]
    # A file of `ros2 param dump` has start values, too.
    node = start_detector({'engine_path': str(model), 'keypoints.names': ['other']})
    assert not node.call('get_parameters', names=['keypoints.names']).values
    node.transition('configure')
    assert list(node.get('keypoints.names')) == names
    assert list(node.get('keypoints.skeleton')) == ends
    for name, value in (('keypoints.names', ['other']), ('keypoints.skeleton', [0, 1])):
        [(successful, reason)] = node.set({name: value})
        assert not successful
        golden_messages.add(reason)
    node.set_or_fail(**{'keypoints.names': names, 'keypoints.skeleton': ends})
    node.transition('cleanup')
    assert not node.call('get_parameters', names=['keypoints.names']).values
    node.transition('configure')
    assert list(node.get('keypoints.skeleton')) == ends


def test_debug_image_shows_the_skeleton(detector, listener):
    drawn = listener(Image, 'debug_image')
    black = np.zeros_like(POSE_EXPORT['image'])
    image = message_of(black, 'drawn')

    def find():
        detector.camera.publish(image)
        return [m for m in drawn if m.header.frame_id == 'drawn']

    message = detector.client.spin_until(find, 'a debug image')[0]
    pixels = np.frombuffer(bytes(message.data), np.uint8).reshape(black.shape)
    # Boxes and labels without skeletons would leave more pixels black.
    assert pixels.any(axis=2).mean() > 0.2


def test_ultralytics_export_is_read_without_a_warning(detector, golden_messages):
    # Only the node's lines count: on some distributions the middleware logs warnings.
    lines = [line for line in detector.program.output.splitlines() if 'detector]: ' in line]
    # Lines about the model come first. Lines about the camera follow.
    active = next(index for index, line in enumerate(lines) if 'detector]: active: ' in line)
    for line in lines[:active]:
        assert line.startswith('[INFO]')
        golden_messages.add(line.partition('detector]: ')[2])
    # No message shows a Python repr: Type(field=…), {'key': …} or None.
    assert not any(re.search(r"\w\(\w+=|\{'|\bNone\b", line) for line in lines)


def test_cleanup_removes_the_keypoints_topic(detector):
    graph = detector.client.node
    detector.bring_to('unconfigured')
    detector.client.spin_until(
        lambda: graph.count_publishers(detector.topic('keypoints')) == 0, 'no publisher'
    )
    detector.bring_to('active')
    detector.client.spin_until(
        lambda: graph.count_publishers(detector.topic('keypoints')) == 1, 'a publisher'
    )


def test_node_publishes_the_oriented_boxes_of_the_pipeline(client, tmp_path):
    export = recorded_values('ultralytics_obb')
    values = {**write_export(export, tmp_path / 'obb.onnx'), 'confidence_threshold': 0.02}
    expected = detect_in_process(values, export['image']).oriented
    node = Detector(client, {**values, 'autostart': True})
    try:
        node.connect()
        boxes = [one.bbox for one in node.ask(message_of(export['image'], 'oriented')).detections]
        assert client.node.count_publishers(node.topic('keypoints')) == 0
    finally:
        node.close()
    found = [
        (box.center.position.x, box.center.position.y, box.size_x, box.size_y, box.center.theta)
        for box in boxes
    ]
    assert len(found) > 3
    assert np.array_equal(np.array(found), expected.astype(np.float64))
    assert len({box.center.theta for box in boxes}) > 3


def test_node_publishes_the_masks_of_the_pipeline(client, tmp_path):
    export = recorded_values('ultralytics_segment_26')
    values = {**write_export(export, tmp_path / 'segment.onnx'), 'confidence_threshold': 0.02}
    masks = detect_in_process(values, export['image']).masks.whole()
    height, width = masks.shape[1:]
    expected = np.zeros((height, width), np.uint16)
    for number in range(len(masks), 0, -1):
        expected[masks[number - 1]] = number
    assert len(np.unique(expected)) > 5
    node = Detector(client, {**values, 'autostart': True})
    try:
        node.connect()
        found, subscription = client.subscribe(Image, node.topic('masks'))
        image = message_of(export['image'], 'masks')
        detections, message = publish_until_both(node, found, image)
        assert len(detections.detections) == len(masks)
        assert message.header == detections.header == image.header
        assert (message.encoding, message.is_bigendian) == ('mono16', 0)
        assert (message.height, message.width, message.step) == (height, width, 2 * width)
        pixels = np.frombuffer(bytes(message.data), '<u2').reshape(height, width)
        assert np.array_equal(pixels, expected)
        node.set_or_fail(confidence_threshold=1.0)
        _, message = publish_until_both(node, found, message_of(export['image'], 'nothing'))
        assert not any(message.data)
        node.set_or_fail(confidence_threshold=0.02)
        large = message_of(cv2.resize(export['image'], (1600, 1200)), 'large')

        def is_skipped(_, values):
            node.camera.publish(large)
            return int(values.get('result_images_skipped', 0)) > 0

        node.wait_for_status(is_skipped, 'a skipped mask image')
        client.node.destroy_subscription(subscription)
    finally:
        node.close()
