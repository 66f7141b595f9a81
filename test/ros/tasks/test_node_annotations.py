# SPDX-License-Identifier: Apache-2.0
"""Test that a node's drawings for Foxglove equal the detections of the same image."""

import itertools

import cv2
import numpy as np
import pytest
from foxglove_msgs.msg import ImageAnnotations, PointsAnnotation
from sensor_msgs.msg import Image, PointCloud2

from support.docs_pages import ROOT
from support.nodes.graph import Detector, image_message
from support.optional_packages import needs

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = [pytest.mark.each_distro, needs('scipy')]

SCENE = cv2.imread(str(ROOT / 'demo' / 'scenes' / 'scene_046.jpg'))
MODELS = {
    'detect': 'digits.onnx',
    'segment': 'digits_segment.onnx',
    'pose': 'digits_pose.onnx',
    'obb': 'digits_obb.onnx',
}


def stamp_of(stamp):
    return stamp.sec, stamp.nanosec


def images():
    """Yield the scene again and again, each 0.1 s later, so that tracks are confirmed."""
    height, width = SCENE.shape[:2]
    for number in itertools.count():
        stamp = 100 + number // 10, number % 10 * 100_000_000
        yield image_message(SCENE, width, height, 'bgr8', step=3 * width, stamp=stamp)


def messages_of_one_image(node, topics):
    """Publish images until one with ids has a message on each topic; return these messages."""
    pictures = images()

    def complete():
        node.camera.publish(next(pictures))
        for detections in node.detections:
            if not any(found.id for found in detections.detections):
                continue
            stamp = stamp_of(detections.header.stamp)
            others = [[m for m in topic if stamp_of(stamped(m)) == stamp] for topic in topics]
            if all(others):
                return detections, *(found[0] for found in others)
        return None

    return node.client.spin_until(complete, 'annotations of an image with ids')


def stamped(message):
    return message.timestamp if isinstance(message, ImageAnnotations) else message.header.stamp


def corners_of(bbox):
    """Return the corners of a box of vision_msgs, as OpenCV computes them: (4, 2)."""
    center, size = bbox.center.position, (bbox.size_x, bbox.size_y)
    return cv2.boxPoints(((center.x, center.y), size, np.degrees(bbox.center.theta)))


def places(annotation):
    return np.array([(point.x, point.y) for point in annotation.points])


def assert_same_objects(message, detections):
    """Assert that texts and boxes have the values of the detections, in their order."""
    count = len(detections.detections)
    assert count > 3
    assert len(message.texts) == count
    for found, box, text in zip(
        detections.detections, message.points[:count], message.texts, strict=True
    ):
        result = found.results[0].hypothesis
        values = {pair.key: pair.value for pair in box.metadata}
        assert (values['class'], values['id']) == (result.class_id, found.id)
        assert float(np.float32(values['score'])) == result.score
        number = f'#{found.id} ' if found.id else ''
        assert text.text == f'{number}{result.class_id} {result.score:.2f}'
        assert box.type == PointsAnnotation.LINE_LOOP
        # Each corner of one box is a corner of the other.
        distances = np.linalg.norm(corners_of(found.bbox)[:, None] - places(box), axis=2)
        assert max(distances.min(axis=0).max(), distances.min(axis=1).max()) < 1e-3


@pytest.mark.parametrize('task', MODELS)
def test_drawings_equal_the_detections_of_the_image(client, task):
    model = ROOT / 'models' / MODELS[task]
    node = Detector(
        client, {'engine_path': str(model), 'tracker.type': 'bytetrack', 'autostart': True}
    )
    try:
        drawings = node.subscribe(ImageAnnotations, 'annotations')
        others = {'segment': (Image, 'masks'), 'pose': (PointCloud2, 'keypoints')}
        topics = [drawings]
        if task in others:
            topics.append(node.subscribe(*others[task]))
        detections, message, *other = messages_of_one_image(node, topics)
    finally:
        node.close()
    assert_same_objects(message, detections)
    count = len(detections.detections)
    assert {stamp_of(one.timestamp) for one in (*message.points, *message.texts)} == {
        stamp_of(detections.header.stamp)
    }
    if task == 'segment':
        assert_same_masks(message.points[count:], *other)
    elif task == 'pose':
        assert_same_keypoints(message, count, *other)
    else:
        assert len(message.points) == count
    if task == 'obb':
        assert len({found.bbox.center.theta for found in detections.detections}) > 3


def assert_same_masks(outlines, masks):
    """Assert that the filled outlines cover all masks, except for pixels near their borders."""
    numbers = np.frombuffer(bytes(masks.data), '<u2').reshape(masks.height, masks.width)
    assert len(outlines) >= len(np.unique(numbers)) - 1 > 3
    filled = np.zeros(numbers.shape, np.uint8)
    for outline in outlines:
        alone = np.zeros_like(filled)
        cv2.fillPoly(alone, [(places(outline) - 0.5).round().astype(np.int32)], 1)
        filled |= alone
    inner = cv2.erode((numbers > 0).astype(np.uint8), np.ones((5, 5), np.uint8))
    assert not np.any((inner > 0) & (filled == 0))
    # The outline of a hole fills the hole.
    assert np.count_nonzero(filled) < 1.2 * np.count_nonzero(numbers)


def assert_same_keypoints(message, count, cloud):
    points = np.frombuffer(bytes(cloud.data), '<f4').reshape(cloud.height, cloud.width, 3)
    seen = points[points[..., 2] >= 0.25][:, :2]
    circles = np.array([(one.position.x, one.position.y) for one in message.circles])
    assert len(seen) > 3
    assert np.array_equal(circles, seen.astype(np.float64))
    lines = message.points[count:]
    assert lines
    for line in lines:
        assert line.type == PointsAnnotation.LINE_LIST
        assert all(place in seen.tolist() for place in places(line).tolist())
