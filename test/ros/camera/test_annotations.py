# SPDX-License-Identifier: Apache-2.0
"""Test the drawings for Foxglove, and that they cost nothing without a subscriber or package."""

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import cv2
import foxglove_msgs.msg as foxglove_messages
import numpy as np
import pytest
from foxglove_msgs.msg import ImageAnnotations, PointsAnnotation
from rclpy.serialization import deserialize_message, serialize_message
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from support.programs import DEADLINE_S
from trt_perception.images.detections import Detections, MaskGeometry, Masks
from trt_perception.images.drawing import draw_detections
from trt_perception.images.frame import Frame
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.pose import KeypointSpec, Pose
from trt_perception.model.tasks.segment import Segment
from trt_perception.parameters.values import ParameterValues
from trt_perception.ros.camera import annotations as annotations_module
from trt_perception.ros.camera.annotations import annotations_have_metadata
from trt_perception.ros.camera.publishers import CameraPublishers
from trt_perception.wire.annotations import AnnotationsSerializer
from trt_perception.wire.cdr import StampFields

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


def serialized(found, **options):
    return bytes(AnnotationsSerializer(NAMES, **options)(StampFields(*STAMP), SIZE_WH, found))


def message_of(found, **options):
    """Return the message, as a subscriber reads it."""
    return deserialize_message(serialized(found, **options), ImageAnnotations)


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


KEYPOINTS = np.array([[[20, 110, 0.9], [30, 120, 0.5]], [[0, 0, 0.1], [5, 6, 1]]], np.float32)


@pytest.mark.parametrize(
    'found',
    [
        Detections.empty(),
        FOUND,
        TRACKED,
        replace(TRACKED, keypoints=KEYPOINTS),
        Detections(BOXES, SCORES, FOUND.class_ids, masks=masks_of(FOUND)),
    ],
    ids=['empty', 'boxes', 'ids', 'keypoints', 'masks'],
)
def test_bytes_are_those_of_rclpy(found):
    made = serialized(found, skeleton=[(0, 1)])
    by_rclpy = serialize_message(deserialize_message(made, ImageAnnotations))
    assert len(made) == len(by_rclpy)
    # The padding of rclpy is undefined.
    different = [i for i, pair in enumerate(zip(made, by_rclpy, strict=True)) if len({*pair}) > 1]
    assert not any(made[i] for i in different)


#: Fields that releases before 3.2.5 lack.
NEWER = {
    'ImageAnnotations': {'timestamp', 'metadata'},
    'PointsAnnotation': {'metadata'},
    'TextAnnotation': {'metadata'},
    'CircleAnnotation': {'metadata'},
}
KINDS = (*NEWER, 'Point2', 'Color', 'KeyValuePair')


def definition(kind, without=()):
    """Return the definition of a message type by its installed class, without some fields."""
    names = {'double': 'float64', 'sequence<': '', '>': '[]'}
    lines = []
    for field, text in kind.get_fields_and_field_types().items():
        for name, replacement in names.items():
            text = text.replace(name, replacement)
        lines += [f'{text} {field}'] if field not in without else []
    return '\n'.join(lines)


def test_release_3_2_4_without_metadata_gets_the_fields_that_it_has():
    store = get_typestore(Stores.ROS2_HUMBLE)
    for name in KINDS:
        text = definition(getattr(foxglove_messages, name), NEWER.get(name, ()))
        store.register(get_types_from_msg(text, f'foxglove_msgs/msg/{name}'))
    found = replace(TRACKED, keypoints=KEYPOINTS)
    made = serialized(found, skeleton=[(0, 1)], has_metadata=False)
    message = store.deserialize_cdr(made, 'foxglove_msgs/msg/ImageAnnotations')
    newest = message_of(found, skeleton=[(0, 1)])
    assert [text.text for text in message.texts] == [text.text for text in newest.texts]
    assert len(message.points) == len(newest.points) == 3
    for one, other in zip(message.points, newest.points, strict=True):
        assert places(one).tolist() == places(other).tolist()
        assert one.outline_color.r == other.outline_color.r
    assert len(message.circles) == len(newest.circles) == 3
    for one in (*message.circles, *message.points, *message.texts):
        assert (one.timestamp.sec, one.timestamp.nanosec) == STAMP
    assert len(store.serialize_cdr(message, 'foxglove_msgs/msg/ImageAnnotations')) == len(made)


def with_fields(change):
    """Return a stand-in for the package whose message types have changed fields."""

    def stand_in(name):
        fields = dict(getattr(foxglove_messages, name).get_fields_and_field_types())
        change(name, fields)
        return SimpleNamespace(get_fields_and_field_types=lambda: fields)

    return type('Package', (), {name: stand_in(name) for name in KINDS})


def remove_newer(name, fields):
    for field in NEWER.get(name, ()):
        del fields[field]


def add_field(name, fields):
    if name == 'TextAnnotation':
        fields['angle'] = 'double'


def widen(name, fields):
    if name == 'Color':
        fields['a'] = 'float'


@pytest.mark.parametrize(
    ('change', 'has_metadata'),
    [(lambda *_: None, True), (remove_newer, False), (add_field, None), (widen, None)],
    ids=['3.4.3', '3.2.4', 'one more field', 'another type'],
)
def test_fields_of_the_release_decide_what_is_written(node, monkeypatch, change, has_metadata):
    monkeypatch.setattr(annotations_module, 'foxglove_messages', with_fields(change))
    assert annotations_have_metadata() is has_metadata
    publishers = CameraPublishers(node, NAMES, ParameterValues())
    try:
        # Nodes of other tests may still be in the graph, with topics in their namespaces.
        names = {name for name, _ in node.get_topic_names_and_types()}
        assert ('/annotations' in names) == (has_metadata is not None)
    finally:
        publishers.close()


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

    def recording(self, *args):
        computed.append(args)
        return serialize(self, *args)

    serialize = AnnotationsSerializer.__call__
    monkeypatch.setattr(AnnotationsSerializer, '__call__', recording)
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
        [sys.executable, '-c', WITHOUT_PACKAGE], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert ended.stdout.split() == ['annotations'], ended.stderr


@pytest.mark.parametrize('kind', [None, Frame], ids=['not installed', 'without type support'])
def test_node_without_a_usable_package_has_no_such_topic(node, monkeypatch, kind):
    monkeypatch.setattr(annotations_module, 'ImageAnnotations', kind)
    publishers = CameraPublishers(node, NAMES, ParameterValues())
    try:
        names = {name for name, _ in node.get_topic_names_and_types()}
        assert '/detections' in names
        assert '/annotations' not in names
        publishers.publish(header(), FRAME, found_by(DETECT))
    finally:
        publishers.close()
