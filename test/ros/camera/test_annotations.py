# SPDX-License-Identifier: Apache-2.0
"""Test the drawings for Foxglove, and that they cost nothing without a subscriber or package."""

import subprocess
import sys
from dataclasses import replace

import cv2
import numpy as np
import pytest
from foxglove_msgs.msg import ImageAnnotations, PointsAnnotation
from rclpy.serialization import deserialize_message, serialize_message
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from trt_perception.images.detections import Detections, MaskGeometry, Masks
from trt_perception.images.drawing import draw_detections
from trt_perception.images.frame import Frame
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.pose import KeypointSpec, Pose
from trt_perception.model.tasks.segment import Segment
from trt_perception.parameters.values import ParameterValues
from trt_perception.ros.camera import annotations as annotations_module
from trt_perception.ros.camera import task_topics
from trt_perception.ros.camera.annotations import annotations_message
from trt_perception.ros.camera.publishers import CameraPublishers

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro

NAMES = ('a', 'größer als')
SIZE_WH = (1920, 1080)
STAMP = (7, 8)
BOXES = np.array([[10.25, 100.5, 60, 160.125], [500, 2, 700, 80]], np.float32)
SCORES = np.array([0.87, 1 / 3], np.float32)
FOUND = Detections(BOXES, SCORES, np.array([1, 0], np.int32))
TRACKED = FOUND.with_ids(np.array([31, -1], np.int64))


def header():
    stamped = Header(frame_id='front')
    stamped.stamp.sec, stamped.stamp.nanosec = STAMP
    return stamped


def message_of(found, **options):
    """Return the message, as a subscriber reads it."""
    made = annotations_message(header(), SIZE_WH, found, NAMES, **options)
    return deserialize_message(serialize_message(made), ImageAnnotations)


def places(annotation):
    return np.array([(point.x, point.y) for point in annotation.points])


def metadata(annotation):
    return {pair.key: pair.value for pair in annotation.metadata}


def bgr(color):
    assert color.a == 1
    return tuple(round(255 * value) for value in (color.b, color.g, color.r))


def test_boxes_have_corners_class_score_and_id():
    message = message_of(TRACKED)
    assert len(message.points) == len(message.texts) == 2
    for (left, top, right, bottom), box in zip(BOXES.tolist(), message.points, strict=True):
        assert box.type == PointsAnnotation.LINE_LOOP
        corners = [[left, top], [right, top], [right, bottom], [left, bottom]]
        assert places(box).tolist() == corners
    first, second = map(metadata, message.points)
    assert (first['class'], first['id']) == ('größer als', '31')
    assert (second['class'], second['id']) == ('a', '')
    scores = [np.float32(values['score']) for values in (first, second)]
    assert np.array_equal(scores, SCORES)
    assert [text.text for text in message.texts] == ['#31 größer als 0.87', 'a 0.33']
    assert not message.circles


def test_every_drawing_has_the_stamp_of_the_image():
    message = message_of(FOUND)
    stamps = [message.timestamp, *(one.timestamp for one in (*message.points, *message.texts))]
    assert {(stamp.sec, stamp.nanosec) for stamp in stamps} == {STAMP}
    empty = message_of(Detections.empty())
    assert (empty.timestamp.sec, empty.timestamp.nanosec) == STAMP
    assert len(empty.points) == len(empty.texts) == len(empty.circles) == 0


@pytest.mark.parametrize('found', [FOUND, TRACKED])
def test_colours_are_those_of_the_debug_image(found):
    drawn = np.zeros((*SIZE_WH[::-1], 3), np.uint8)
    draw_detections(drawn, found, NAMES)
    message = message_of(found)
    for box, text in zip(message.points, message.texts, strict=True):
        right, bottom = places(box)[2].round().astype(int)
        assert bgr(box.outline_color) == tuple(drawn[bottom, right].tolist())
        assert bgr(text.background_color) == bgr(box.outline_color)


def test_labels_are_inside_the_image():
    for text, box in zip(message_of(FOUND).texts, BOXES.tolist(), strict=True):
        assert text.position.x == box[0]
        assert text.position.y >= text.font_size
        assert text.position.y >= box[1]


def test_oriented_boxes_have_the_corners_of_opencv():
    oriented = np.array([[35, 130, 40, 20, 0.5], [600, 40, 90, 30, -1.2]], np.float32)
    found = Detections(BOXES, SCORES, FOUND.class_ids, oriented=oriented)
    for row, box in zip(oriented.tolist(), message_of(found).points, strict=True):
        x, y, width, height, angle = row
        expected = cv2.boxPoints(((x, y), (width, height), np.degrees(angle)))
        # Both go around the box. They may start at different corners, and go in opposite ways.
        ways = expected, expected[::-1]
        orders = [np.roll(way, turn, axis=0) for way in ways for turn in range(4)]
        assert min(np.abs(order - places(box)).max() for order in orders) < 1e-3


def test_skeletons_connect_keypoints_with_a_score():
    points = np.zeros((2, 3, 3), np.float32)
    points[0] = (20, 110, 0.9), (30, 120, 0.5), (40, 130, 0.2)
    points[1, :, 2] = 0.1
    found = Detections(BOXES, SCORES, FOUND.class_ids, keypoints=points)
    message = message_of(found, skeleton=[(0, 1), (1, 2)])
    *_, lines = message.points
    assert len(message.points) == 3
    assert lines.type == PointsAnnotation.LINE_LIST
    assert places(lines).tolist() == [[20, 110], [30, 120]]
    circles = [(circle.position.x, circle.position.y) for circle in message.circles]
    assert circles == [(20, 110), (30, 120)]
    drawn = np.zeros((*SIZE_WH[::-1], 3), np.uint8)
    draw_detections(drawn, found, NAMES, [(0, 1), (1, 2)])
    for circle in message.circles:
        x, y = round(circle.position.x), round(circle.position.y)
        # The white dot, and the ring around it.
        assert bgr(circle.fill_color) == tuple(drawn[y, x].tolist())
        ring = round(x + circle.diameter / 2)
        assert bgr(circle.outline_color) == tuple(drawn[y, ring].tolist())


def masks_of(found):
    """Return masks that fill the whole boxes."""
    geometry = MaskGeometry(SIZE_WH, (0.1, 0.1), (0.0, 0.0))
    ones = np.ones((1, SIZE_WH[1] // 10, SIZE_WH[0] // 10), np.float32)
    return Masks(found.xyxy, np.ones((len(found), 1), np.float32), ones, geometry)


def test_outlines_of_masks_follow_the_boxes():
    found = Detections(BOXES, SCORES, FOUND.class_ids, masks=masks_of(FOUND))
    message = message_of(found)
    assert len(message.points) == 4
    for box, outline in zip(message.points[:2], message.points[2:], strict=True):
        assert outline.type == PointsAnnotation.LINE_LOOP
        assert outline.outline_color == box.outline_color
        assert not outline.metadata
        # Masks have whole pixels, and outlines run through the middle of pixels.
        for corner in (np.min, np.max):
            assert np.abs(corner(places(outline), 0) - corner(places(box), 0)).max() <= 1.5


def older(kind, *without):
    """Return a stand-in for a message type that lacks fields, and refuses them."""
    fields = {
        name: text
        for name, text in kind.get_fields_and_field_types().items()
        if name not in without
    }

    class Older:
        LINE_LOOP = getattr(kind, 'LINE_LOOP', None)
        LINE_LIST = getattr(kind, 'LINE_LIST', None)

        def __init__(self, **values):
            assert values.keys() <= fields.keys()
            self.__dict__.update(values)

        @staticmethod
        def get_fields_and_field_types():
            return dict(fields)

    return Older


def test_release_3_2_4_without_metadata_gets_the_fields_that_it_has(monkeypatch):
    without = {
        'ImageAnnotations': ('timestamp', 'metadata'),
        'PointsAnnotation': ('metadata',),
        'TextAnnotation': ('metadata',),
        'CircleAnnotation': ('metadata',),
    }
    for name, fields in without.items():
        kind = getattr(annotations_module, name)
        monkeypatch.setattr(annotations_module, name, older(kind, *fields))
    points = np.ones((2, 1, 3), np.float32)
    found = Detections(BOXES, SCORES, FOUND.class_ids, keypoints=points, ids=TRACKED.ids)
    message = annotations_message(header(), SIZE_WH, found, NAMES)
    assert vars(message).keys() == {'circles', 'points', 'texts'}
    assert [text.text for text in message.texts] == ['#31 größer als 0.87', 'a 0.33']
    assert [places(box)[0].tolist() for box in message.points] == BOXES[:, :2].tolist()
    for one in (*message.circles, *message.points, *message.texts):
        assert (one.timestamp.sec, one.timestamp.nanosec) == STAMP
        assert 'metadata' not in vars(one)


# The topic.

TASKS = [DETECT, Segment(), Pose(KeypointSpec(('tip',), 3))]
FRAME = Frame.view(bytes(3 * 80 * 60), width=80, height=60, step=240, encoding='bgr8')


def found_by(task):
    boxes = np.array([[1, 1, 30, 20]], np.float32)
    found = Detections(boxes, np.ones(1, 'f4'), np.zeros(1, 'i4'))
    if task.has_masks:
        geometry = MaskGeometry((80, 60), (1.0, 1.0), (0.0, 0.0))
        ones = np.ones((1, 1), np.float32), np.ones((1, 60, 80), np.float32)
        return replace(found, masks=Masks(boxes, *ones, geometry))
    if task.keypoint_names:
        return replace(found, keypoints=np.ones((1, 1, 3), np.float32))
    return found


@pytest.mark.parametrize('task', TASKS, ids=str)
def test_drawings_are_computed_only_while_subscribed(client, node, monkeypatch, task):
    computed = []

    def recording(*args):
        computed.append(args)
        return annotations_message(*args)

    monkeypatch.setattr(task_topics, 'annotations_message', recording)
    publishers = CameraPublishers(node, NAMES, ParameterValues(), task)
    boxes, of_boxes = client.subscribe(Detection2DArray, 'detections')
    subscription = None
    try:
        found = found_by(task)
        client.spin_until(lambda: publishers.publish(header(), FRAME, found) and boxes, 'boxes')
        assert 'annotations' not in publishers.wanted_topics()
        assert computed == []
        messages, subscription = client.subscribe(ImageAnnotations, 'annotations')

        def publish():
            publishers.publish(header(), FRAME, found)
            return messages

        client.spin_until(publish, 'annotations')
        assert 'annotations' in publishers.wanted_topics()
        assert len(messages[0].texts) == 1
        assert bool(messages[0].circles) == (task.name == 'pose')
        assert len(messages[0].points) == 1 + task.has_masks
    finally:
        publishers.close()
        client.node.destroy_subscription(of_boxes)
        if subscription is not None:
            client.node.destroy_subscription(subscription)


WITHOUT_PACKAGE = """
import sys
sys.modules['foxglove_msgs'] = None  # imports raise ModuleNotFoundError
from trt_perception.ros.camera.task_topics import TASK_TOPICS
print(*(name for name, kind in TASK_TOPICS.items() if not kind.is_available()))
"""


def test_only_annotations_need_the_optional_package():
    ended = subprocess.run(
        [sys.executable, '-c', WITHOUT_PACKAGE], capture_output=True, text=True, timeout=60
    )
    assert ended.stdout.split() == ['annotations'], ended.stderr


@pytest.mark.parametrize('kind', [None, Frame], ids=['not installed', 'without type support'])
def test_node_without_a_usable_package_has_no_such_topic(node, monkeypatch, kind):
    monkeypatch.setattr(annotations_module, 'ImageAnnotations', kind)
    publishers = CameraPublishers(node, NAMES, ParameterValues())
    try:
        names = {name for name, _ in node.get_topic_names_and_types()}
        assert any(name.endswith('/detections') for name in names)
        assert not any(name.endswith('/annotations') for name in names)
        publishers.publish(header(), FRAME, found_by(DETECT))
    finally:
        publishers.close()
