# SPDX-License-Identifier: Apache-2.0
"""Test the node detections_3d over DDS, in a scene of known geometry, projected by OpenCV."""

import contextlib
import io
import math
import signal
import struct
import time
from dataclasses import dataclass

import cv2
import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray
from PIL import Image as PillowImage
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, PointCloud2
from std_msgs.msg import Header
from vision_msgs.msg import (
    Detection2D,
    Detection2DArray,
    Detection3DArray,
    LabelInfo,
    ObjectHypothesisWithPose,
    VisionClass,
)
from visualization_msgs.msg import MarkerArray

from support.programs import Program, executable
from support.waiting import WaitTimeoutError
from trt_perception.images.detections import Detections
from trt_perception.images.drawing import draw_detections
from trt_perception.ros.boxes_3d.worker import OUTCOMES
from trt_perception.wire.result_messages import keypoints_message

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro

WIDTH, HEIGHT = 320, 240
K = np.array([[300.0, 0, 157.3], [0, 310, 121.8], [0, 0, 1]])
BACKGROUND_M = 6.0
RELIABLE = QoSProfile(depth=30)
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
BEST_EFFORT = QoSProfile(depth=30, reliability=ReliabilityPolicy.BEST_EFFORT)
KINDS = {
    'detections': Detection2DArray,
    'depth': Image,
    'camera_info': CameraInfo,
    'masks': Image,
    'keypoints': PointCloud2,
    'depth/compressedDepth': CompressedImage,
}
NO_MASKS = ('detections', 'depth', 'camera_info')
#: Type of the pixels and units in a metre.
ENCODINGS = {'32FC1': (np.float32, 1), '16UC1': (np.uint16, 1000)}


@dataclass
class Card:
    """A rectangle that faces the camera, in the camera's optical frame.

    Attributes:
        center: x, y and z in metres.
        size: width and height in metres.
        slope: how much farther the right edge is than the left edge, in metres.
    """

    center: tuple[float, float, float]
    size: tuple[float, float]
    slope: float = 0.0

    def box(self):
        """Return left, top, right and bottom in pixels. The image's left edge is 0."""
        half = np.array([*self.size, 0]) / 2
        corners = np.array([self.center - half, self.center + half])
        projected, _ = cv2.projectPoints(corners, np.zeros(3), np.zeros(3), K, None)
        return (projected.reshape(4) + 0.5).tolist()


CARDS = [Card((0.3, -0.2, 2.5), (0.6, 0.4)), Card((-0.5, 0.4, 3.0), (0.5, 0.7), slope=0.5)]


def pixel_centers():
    """Return x and y of the pixels of an image."""
    return np.meshgrid(np.arange(WIDTH) + 0.5, np.arange(HEIGHT) + 0.5)


def depth_of_scene(cards):
    """Return the depth in metres of each pixel of an image."""
    x, y = pixel_centers()
    depth = np.full(x.shape, BACKGROUND_M)
    for card in cards:
        left, top, right, bottom = card.box()
        inside = (x > left) & (x < right) & (y > top) & (y < bottom)
        slanted = card.center[2] + card.slope * ((x - left) / (right - left) - 0.5)
        depth[inside] = slanted[inside]
    return depth


def depth_message(depth, encoding='32FC1', big_endian=False):
    kind, units = ENCODINGS[encoding]
    if kind is np.uint16:
        depth = np.nan_to_num(depth, posinf=0).round(3)
    values = (depth * units).round(4).astype(kind)
    # The rows of some drivers end with unused bytes.
    rows = np.pad(values, ((0, 0), (0, 4)))
    if big_endian:
        rows = rows.byteswap()
    message = Image(height=len(rows), width=values.shape[1], encoding=encoding)
    message.step, message.is_bigendian = rows.shape[1] * rows.itemsize, int(big_endian)
    message.data = rows.tobytes()
    return message


def detection(number, box, theta=0.0):
    left, top, right, bottom = box
    found = Detection2D(id=f'id {number}')
    found.bbox.center.position.x, found.bbox.center.position.y = (
        (left + right) / 2,
        (top + bottom) / 2,
    )
    found.bbox.center.theta, found.bbox.size_x, found.bbox.size_y = (
        theta,
        right - left,
        bottom - top,
    )
    result = ObjectHypothesisWithPose()
    result.hypothesis.class_id, result.hypothesis.score = f'class {number}', 0.9 - 0.1 * number
    found.results.append(result)
    return found


def detections_of(cards):
    return Detection2DArray(detections=[detection(i, card.box()) for i, card in enumerate(cards)])


def mask_message(regions):
    """Return the message of masks: objects by number, given as left, top, right and bottom."""
    x, y = pixel_centers()
    numbers = np.zeros(x.shape, '<u2')
    for number, (left, top, right, bottom) in enumerate(regions, 1):
        numbers[(x > left) & (x < right) & (y > top) & (y < bottom)] = number
    return Image(
        height=HEIGHT, width=WIDTH, encoding='mono16', step=2 * WIDTH, data=numbers.tobytes()
    )


def info_message(k=K):
    return CameraInfo(width=WIDTH, height=HEIGHT, k=k.ravel())


class BoxesNode:
    """Runs the node in a namespace, and exchanges messages with it.

    Args:
        client: publishes the topics and receives the answers.
        namespace: namespace of the node.
        topics: topics that have a publisher.
        qos: QoS of the publishers of camera_info and depth.
        parameters: assignments of parameters.
        connect: whether to wait until the node answers.
    """

    def __init__(
        self, client, namespace, topics=NO_MASKS, qos=RELIABLE, parameters=(), connect=True
    ):
        self._client, self._stamp, self._namespace = client, 0, namespace
        self._publishers = {
            topic: client.node.create_publisher(
                KINDS[topic],
                f'{namespace}/{topic}',
                RELIABLE if topic in ('detections', 'masks', 'keypoints') else qos,
            )
            for topic in topics
        }
        self._subscriptions = []
        self.answers = self.subscribe(Detection3DArray, f'{namespace}/detections_3d')
        self.keypoints = self.subscribe(PointCloud2, f'{namespace}/keypoints_3d')
        self._diagnostics = self.subscribe(DiagnosticArray, '/diagnostics')
        # On a busy machine, the messages of an image may come at longer intervals than the default
        # of max_wait_ms allows.
        settings = ['autostart:=true', 'diagnostics_period_s:=0.1', 'max_wait_ms:=3000.0']
        arguments = [word for setting in (*settings, *parameters) for word in ('-p', setting)]
        command = [executable('detections_3d'), '--ros-args', '-r', f'__ns:={namespace}']
        self.program = Program([*command, *arguments])
        if connect:
            client.spin_until(self._is_answered, 'an answer of the node')

    def subscribe(self, kind, topic):
        messages, subscription = self._client.subscribe(kind, topic)
        self._subscriptions.append(subscription)
        return messages

    def _is_answered(self):
        self.publish()
        return self.find_soon(lambda: self.answers)

    def find_soon(self, find):
        """Return what a function finds within a second; None if it finds nothing.

        An image in each moment would fill the shared memory of a node on a busy machine.
        """
        with contextlib.suppress(WaitTimeoutError):
            return self._client.spin_until(find, 'an answer', seconds=1.0)

    def publish(self, *, without=(), stamp=None, **messages):
        """Publish the messages of an image, by default of the scene. Return its stamp."""
        if stamp is None:
            stamp = self._stamp = self._stamp + 1
        scene = {
            'camera_info': info_message(),
            'depth': depth_message(depth_of_scene(CARDS)),
            'detections': detections_of(CARDS),
            'masks': mask_message([card.box() for card in CARDS]),
        }
        for topic, message in {**scene, **messages}.items():
            if topic in self._publishers and topic not in without:
                message.header = Header(frame_id='optical')
                message.header.stamp.sec = stamp
                self._publishers[topic].publish(message)
        return stamp

    def send_bytes(self, topic, message):
        """Publish a serialised message."""
        self._publishers[topic].publish(message)

    def ask(self, **messages):
        """Publish the messages of an image, and return the answer with its stamp."""
        return self.answer_of(self.publish(**messages))

    def answer_of(self, stamp, answers=None):
        def find():
            found = self.answers if answers is None else answers
            return next((a for a in found if a.header.stamp.sec == stamp), None)

        return self._client.spin_until(find, f'the answer to image {stamp}')

    def wait_for_status(self, accepts, what):
        """Return the first status of the node, as a dict, that a function accepts.

        Ignore statuses that were sent before the call, because they may arrive late.
        """
        name = f'{self._namespace}/detections_3d: boxes'
        since_ns = time.time_ns()

        def find():
            for message in self._diagnostics:
                stamp = message.header.stamp
                if stamp.sec * 10**9 + stamp.nanosec < since_ns:
                    continue
                for status in message.status:
                    values = {pair.key: pair.value for pair in status.values}
                    if status.name == name and accepts(status, values):
                        return status.message, values
            self._diagnostics.clear()
            return None

        return self._client.spin_until(find, what)

    def wait_for_warning(self, part, publish):
        """Publish until the node has logged a warning with these words."""

        def has_warned():
            publish()
            self._client.spin_for(0.05)
            return any(
                '[WARN]' in line and part in line for line in self.program.output.split('\n')
            )

        self._client.spin_until(has_warned, f'a warning: {part}')

    def close(self):
        self.program.send(signal.SIGTERM)
        self._client.spin_until(lambda: not self.program.alive, 'the end of the node')
        code = self.program.code
        self.program.close()
        for subscription in self._subscriptions:
            self._client.node.destroy_subscription(subscription)
        for publisher in self._publishers.values():
            self._client.node.destroy_publisher(publisher)
        assert code == 0


@pytest.fixture(scope='module')
def start_node(client):
    """Return a function that starts nodes. They end with the module."""
    nodes = []

    def start(*arguments, **options):
        nodes.append(BoxesNode(client, *arguments, **options))
        return nodes[-1]

    yield start
    for node in nodes:
        node.close()


@pytest.fixture(scope='module')
def boxes(start_node):
    return start_node('/boxes')


@pytest.fixture(scope='module')
def boxes_with_masks(start_node):
    return start_node('/masks', (*NO_MASKS, 'masks'))


def position(found):
    at = found.bbox.center.position
    return at.x, at.y, at.z


def near(expected):
    """Compare with a tolerance of a pixel at the distance of the nearest card, 8 mm."""
    return pytest.approx(expected, abs=0.008)


@pytest.mark.parametrize('encoding', ENCODINGS)
def test_objects_are_where_the_cards_are(boxes, encoding):
    answer = boxes.ask(depth=depth_message(depth_of_scene(CARDS), encoding))

    assert answer.header.frame_id == 'optical'
    assert [found.id for found in answer.detections] == ['id 0', 'id 1']
    for number, (found, card) in enumerate(zip(answer.detections, CARDS, strict=True)):
        result = found.results[0]
        assert (result.hypothesis.class_id, result.hypothesis.score) == (
            f'class {number}',
            0.9 - 0.1 * number,
        )
        assert result.pose.pose == found.bbox.center
        assert found.header == answer.header
        assert position(found)[2] == pytest.approx(card.center[2], rel=0.01)
        # The left and right edges of the sloped card are not equally far.
        left, _, right, _ = card.box()
        low, high = (
            (edge - 0.5 - K[0, 2]) / K[0, 0] * (card.center[2] + side * card.slope / 2)
            for edge, side in ((left, -1), (right, 1))
        )
        assert position(found)[0] == near((low + high) / 2)
        assert found.bbox.size.x == pytest.approx(high - low, abs=0.016)
        assert found.bbox.size.z == pytest.approx(max(card.slope, 0.05), rel=0.08)
        turn = found.bbox.center.orientation
        assert (turn.x, turn.y, turn.z, turn.w) == (0, 0, 0, 1)
    first = answer.detections[0]
    assert position(first) == near(CARDS[0].center)
    assert (first.bbox.size.x, first.bbox.size.y) == near(CARDS[0].size)


def test_mask_decides_which_depths_count(boxes_with_masks):
    card = CARDS[0]
    left, top, right, bottom = card.box()
    edge = left + 0.2 * (right - left)
    depth = depth_of_scene([card])
    x, y = pixel_centers()
    # Something nearer hides the card except its left fifth.
    depth[(x > edge) & (y > top) & (y < bottom)] = 1.0

    answer = boxes_with_masks.ask(
        detections=detections_of([card]),
        depth=depth_message(depth),
        masks=mask_message([(left, top, edge - 4, bottom)]),
    )

    assert answer.detections[0].bbox.center.position.z == pytest.approx(card.center[2], rel=0.01)


def test_mask_without_pixels_leaves_its_object_out(boxes_with_masks):
    answer = boxes_with_masks.ask(masks=mask_message([(0, 0, 0, 0), CARDS[1].box()]))

    assert [found.id for found in answer.detections] == ['id 1']


def test_missing_mask_is_replaced_by_the_box_and_counted(boxes_with_masks):
    stamp = boxes_with_masks.publish(without=['masks'])

    assert position(boxes_with_masks.answer_of(stamp).detections[0]) == near(CARDS[0].center)
    boxes_with_masks.wait_for_status(
        lambda status, values: int(values['masks_missing']) > 0, 'a missing mask'
    )


def test_object_without_depth_is_left_out(boxes):
    depth = depth_of_scene(CARDS)
    left, top, right, bottom = map(round, CARDS[0].box())
    depth[top:bottom, left:right] = 0
    outside = detection(2, (WIDTH + 5, HEIGHT + 5, WIDTH + 9, HEIGHT + 9))
    found = detections_of(CARDS)
    found.detections.append(outside)

    answer = boxes.ask(detections=found, depth=depth_message(depth))

    assert [found.id for found in answer.detections] == ['id 1']


def test_image_without_objects_has_an_empty_answer_even_without_depth(boxes):
    stamp = boxes.publish(detections=Detection2DArray(), without=['depth'])
    assert list(boxes.answer_of(stamp).detections) == []


def test_box_may_be_rotated(boxes):
    center, size, theta = (150.0, 110.0), (160, 16), math.radians(40)
    bar = np.full((HEIGHT, WIDTH), BACKGROUND_M)
    corners = cv2.boxPoints((center, size, math.degrees(theta)))
    cv2.fillPoly(bar, [corners.round().astype(int)], 2.0)
    half = np.array(size) / 2
    found = detection(0, (*(center - half), *(center + half)), theta)

    answer = boxes.ask(detections=Detection2DArray(detections=[found]), depth=depth_message(bar))

    box = answer.detections[0].bbox
    expected = np.linalg.inv(K) @ [center[0] - 0.5, center[1] - 0.5, 1] * 2
    assert position(answer.detections[0]) == near(tuple(expected))
    assert box.size.z == 0.05
    turn = box.center.orientation
    assert 2 * math.atan2(turn.z, turn.w) == pytest.approx(theta)
    assert (turn.x, turn.y) == (0, 0)


def test_depth_may_have_the_other_byte_order(boxes):
    answer = boxes.ask(depth=depth_message(depth_of_scene(CARDS), big_endian=True))

    assert position(answer.detections[0]) == near(CARDS[0].center)


def test_topics_of_an_image_may_come_in_any_order(boxes):
    stamp = boxes.publish(without=['depth'])
    boxes.publish(without=['camera_info', 'detections'], stamp=stamp)

    assert len(boxes.answer_of(stamp).detections) == 2


def test_nearest_stamp_is_used_and_each_message_is_counted_once(boxes, client):

    def is_settled(_, values):
        return int(values['received']) == sum(int(values[name]) for name in OUTCOMES)

    before = boxes.wait_for_status(is_settled, 'a status that counts all images')[1]
    boxes.publish(without=['depth'])
    boxes.ask()
    boxes.publish(depth=Image(height=1, width=1, step=1, encoding='mono8', data=b'1'))
    boxes.publish(depth=depth_message(np.zeros((HEIGHT, WIDTH))))
    last = boxes.publish()
    boxes.answer_of(last)
    expected = {'received': 5, 'published': 2, 'no_depth': 1, 'no_valid_depth': 2}

    def has_counts(_, values):
        return all(
            int(values[key]) - int(before[key]) == expected.get(key, 0)
            for key in (
                *expected,
                'no_camera_info',
                'replaced',
                'bad_message',
                'failed',
                'waiting',
            )
        )

    boxes.wait_for_status(has_counts, f'{expected} more than {before}')


def test_malformed_messages_are_counted_and_the_node_goes_on(boxes):
    before = boxes.wait_for_status(lambda *_: True, 'a status')[1]
    garbage = b'\x00\x01\x00\x00' + bytes(range(1, 250))
    for topic in ('detections', 'depth', 'camera_info'):
        boxes.send_bytes(topic, garbage)
    huge = Detection2DArray(detections=[detection(0, (0, 0, 1, 1))] * 4097)
    boxes.publish(detections=huge)
    boxes.answer_of(boxes.publish())

    def is_counted(_, values):
        return int(values['bad_message']) == int(before['bad_message']) + 2

    boxes.wait_for_status(is_counted, 'two bad messages')


def test_problems_are_logged_once_and_shown(boxes):
    wrong = Image(height=1, width=1, step=1, encoding='mono8', data=b'1')
    boxes.wait_for_warning('mono8', lambda: boxes.publish(depth=wrong))
    boxes.publish(depth=wrong)
    boxes.wait_for_status(
        lambda status, _: status.level == b'\x01' and 'mono8' in status.message, 'a warning'
    )
    assert boxes.program.output.count('mono8') == 1


def test_keypoints_are_placed_on_the_surface(start_node, client):
    node = start_node('/keypoints', (*NO_MASKS, 'keypoints'), connect=False)
    left, top, right, bottom = CARDS[0].box()
    middle = (left + right) / 2, (top + bottom) / 2
    points = np.array([[[*middle, 0.9], [1.0, 1.0, 0.2]], [[0, 0, 0], [0, 0, 0]]], np.float32)

    def ask():
        node.publish(keypoints=keypoints_of(points))
        return node.find_soon(lambda: node.keypoints)

    answer = client.spin_until(ask, 'keypoints in space')[0]
    assert (answer.height, answer.width) == (2, 2)
    assert [field.name for field in answer.fields] == ['x', 'y', 'z', 'score']
    placed = np.frombuffer(answer.data, np.float32).reshape(2, 2, 4)
    assert tuple(placed[0, 0, :3]) == near(CARDS[0].center)
    assert np.isnan(placed[0, 1, :3]).all()
    assert placed[0, :, 3].tolist() == points[0, :, 2].tolist()


def keypoints_of(points):
    return deserialize_message(bytes(keypoints_message(Header(), points)), PointCloud2)


def test_depth_may_be_compressed_and_cameras_best_effort(start_node, client):
    topics = 'detections', 'depth/compressedDepth', 'camera_info'
    parameters = ['depth_transport:=compressedDepth']
    node = start_node('/compressed', topics, BEST_EFFORT, parameters, connect=False)
    file = io.BytesIO(struct.pack('<iff', 0, 0, 0))
    file.seek(12)
    millimetres = (depth_of_scene(CARDS) * 1000).round().astype(np.uint16)
    PillowImage.fromarray(millimetres).save(file, 'png')
    message = CompressedImage(format='16UC1; compressedDepth png', data=file.getvalue())

    def ask():
        node.publish(**{'depth/compressedDepth': message})
        return node.find_soon(lambda: node.answers)

    answer = client.spin_until(ask, 'boxes from compressed depth')[0]
    assert position(answer.detections[0]) == near(CARDS[0].center)


def test_topics_that_never_come_are_named(start_node):
    node = start_node('/silent', ('detections',), connect=False)
    node.wait_for_warning('-r depth:=', node.publish)
    node.wait_for_warning('-r camera_info:=', node.publish)


def test_markers_are_the_boxes_of_the_same_stamp(boxes, client):
    bar = Card((0.5, 0.5, 3.5), (0.8, 0.1))
    found = detections_of([*CARDS, bar])
    found.detections[2].bbox.center.theta = math.radians(10)
    class_ids = {'class 0': 3, 'class 1': 40, 'class 2': 0}
    names = LabelInfo(
        class_map=[VisionClass(class_name=name, class_id=i) for name, i in class_ids.items()]
    )
    publisher = client.node.create_publisher(LabelInfo, '/boxes/label_info', LATCHED)
    publisher.publish(names)
    markers = boxes.subscribe(MarkerArray, '/boxes/markers')
    stamps = set()

    def ask():
        depth = depth_message(depth_of_scene([*CARDS, bar]))
        stamps.add(boxes.publish(detections=found, depth=depth))
        return boxes.find_soon(pair_with_colours)

    def pair_with_colours():
        pairs = [
            (array, answer)
            for array in markers
            for answer in boxes.answers
            if array.markers[0].header.stamp.sec == answer.header.stamp.sec
            and answer.header.stamp.sec in stamps
        ]
        # The node may not have the names yet.
        return next((pair for pair in pairs if pair[0].markers[1].color.r != GREY), None)

    array, answer = client.spin_until(ask, 'markers with the colours of classes')
    client.node.destroy_publisher(publisher)
    deletion, *added = array.markers
    assert deletion.action == deletion.DELETEALL
    drawn = {(marker.ns, marker.id): marker for marker in added}
    assert len(answer.detections) == 3
    assert list(drawn) == [(ns, i) for ns in ('boxes', 'labels') for i in range(3)]
    assert all(marker.header == answer.header for marker in array.markers)
    assert all(marker.action == marker.ADD for marker in added)
    assert all(marker.lifetime.sec > 0 for marker in added)
    for i, detection_3d in enumerate(answer.detections):
        box, label = drawn['boxes', i], drawn['labels', i]
        center, hypothesis = detection_3d.bbox.center, detection_3d.results[0].hypothesis
        assert box.type == box.CUBE
        assert (box.pose, box.scale) == (center, detection_3d.bbox.size)
        assert 0 < box.color.a < label.color.a == 1
        expected = color_in_debug_image(class_ids[hypothesis.class_id])
        for color in (box.color, label.color):
            assert (color.b, color.g, color.r) == pytest.approx(expected)
        assert label.type == label.TEXT_VIEW_FACING
        distance_m = np.linalg.norm(position(detection_3d))
        words = detection_3d.id, hypothesis.class_id, f'{hypothesis.score:.2f}'
        assert label.text == '#{} {} {}, {:.2f} m'.format(*words, distance_m)
        # Above the box: the y axis of the optical frame points down.
        assert label.pose.position.y + label.scale.z / 2 < center.position.y - box.scale.y / 2


GREY = pytest.approx(200 / 255)


def color_in_debug_image(class_id):
    """Return the colour of an object of a class in the debug image: blue, green and red to 1."""
    found = Detections(
        np.array([[20, 20, 80, 80]], np.float32), np.ones(1, np.float32), np.array([class_id])
    )
    bgr = np.zeros((100, 100, 3), np.uint8)
    draw_detections(bgr, found, ['a'] * (class_id + 1))
    return bgr[80, 50] / 255
