"""Test examples/detections_3d.py in a scene of known geometry, projected by OpenCV."""

import math
import signal
import sys
from dataclasses import dataclass

import cv2
import numpy as np
import pytest
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CameraInfo, Image
from std_msgs.msg import Header
from vision_msgs.msg import (
    Detection2D,
    Detection2DArray,
    Detection3DArray,
    ObjectHypothesisWithPose,
)

from support.docs_pages import ROOT
from support.programs import Program

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro

WIDTH, HEIGHT = 320, 240
K = np.array([[300.0, 0, 157.3], [0, 310, 121.8], [0, 0, 1]])
BACKGROUND_M = 6.0
RELIABLE = QoSProfile(depth=30)
BEST_EFFORT = QoSProfile(depth=30, reliability=ReliabilityPolicy.BEST_EFFORT)
KINDS = {'detections': Detection2DArray, 'depth': Image, 'camera_info': CameraInfo, 'masks': Image}
NO_MASKS = ('detections', 'depth', 'camera_info')
#: Type of the pixels and units in a metre.
ENCODINGS = {'32FC1': (np.float32, 1), '16UC1': (np.uint16, 1000)}
#: Sizes of depth images: as the camera image, half of it, and larger with another aspect ratio.
SIZES = [(320, 240), (160, 120), (480, 270)]


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


def pixel_centers(size):
    """Return x and y of the pixels of an image of this size, in pixels of the camera image."""
    x, y = ((np.arange(n) + 0.5) * full / n for n, full in zip(size, (WIDTH, HEIGHT), strict=True))
    return np.meshgrid(x, y)


def depth_of_scene(cards, size=(WIDTH, HEIGHT)):
    """Return the depth in metres of each pixel of an image of this size."""
    x, y = pixel_centers(size)
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


def mask_message(regions, size=(WIDTH, HEIGHT)):
    """Return the message of masks: objects by number, given as left, top, right and bottom."""
    x, y = pixel_centers(size)
    numbers = np.zeros(x.shape, '<u2')
    for number, (left, top, right, bottom) in enumerate(regions, 1):
        numbers[(x > left) & (x < right) & (y > top) & (y < bottom)] = number
    return Image(
        height=size[1], width=size[0], encoding='mono16', step=2 * size[0], data=numbers.tobytes()
    )


def info_message(k=K):
    return CameraInfo(width=WIDTH, height=HEIGHT, k=k.ravel())


class Example:
    """Runs the example in a namespace, and exchanges messages with it.

    Args:
        client: publishes the topics and receives the answers.
        namespace: namespace of the example.
        topics: topics that have a publisher.
        qos: QoS of the publishers of camera_info and depth.
        arguments: further ROS arguments of the example.
        connect: whether to wait until the example answers.
    """

    def __init__(
        self, client, namespace, topics=NO_MASKS, qos=RELIABLE, arguments=(), connect=True
    ):
        self._client, self._stamp = client, 0
        self._publishers = {
            topic: client.node.create_publisher(
                KINDS[topic],
                f'{namespace}/{topic}',
                qos if topic in ('depth', 'camera_info') else RELIABLE,
            )
            for topic in topics
        }
        self.answers, self._subscription = client.subscribe(
            Detection3DArray, f'{namespace}/detections_3d'
        )
        command = [sys.executable, ROOT / 'examples' / 'detections_3d.py', '--ros-args']
        self.program = Program([*command, '-r', f'__ns:={namespace}', *arguments])
        if connect:
            client.spin_until(self._is_answered, 'an answer of the example')

    def _is_answered(self):
        self.publish()
        self._client.spin_for(0.05)
        return bool(self.answers)

    def publish(self, *, without=(), stamp=None, **messages):
        """Publish the messages of an image, by default of the scene. Return its stamp."""
        if stamp is None:
            stamp = self._stamp = self._stamp + 1
        scene = {
            'detections': detections_of(CARDS),
            'depth': depth_message(depth_of_scene(CARDS)),
            'camera_info': info_message(),
            'masks': mask_message([card.box() for card in CARDS]),
        }
        for topic, message in {**scene, **messages}.items():
            if topic in self._publishers and topic not in without:
                message.header = Header(frame_id='optical')
                message.header.stamp.sec = stamp
                self._publishers[topic].publish(message)
        return stamp

    def ask(self, **messages):
        """Publish the messages of an image, and return the answer with its stamp."""
        return self.answer_of(self.publish(**messages))

    def answer_of(self, stamp):
        def find():
            return next((a for a in self.answers if a.header.stamp.sec == stamp), None)

        return self._client.spin_until(find, f'the answer to image {stamp}')

    def _has_ended(self):
        self.publish()
        self._client.spin_for(0.05)
        return not self.program.alive

    def close(self):
        # rclpy may miss the signal while it waits for messages. The next message wakes it.
        self.program.send(signal.SIGTERM)
        self._client.spin_until(self._has_ended, 'the end of the example')
        self.program.close()
        self._client.node.destroy_subscription(self._subscription)
        for publisher in self._publishers.values():
            self._client.node.destroy_publisher(publisher)


@pytest.fixture(scope='module')
def start_example(client):
    """Return a function that starts the example. It ends with the module."""
    examples = []

    def start(*arguments, **options):
        examples.append(Example(client, *arguments, **options))
        return examples[-1]

    yield start
    for example in examples:
        example.close()


@pytest.fixture(scope='module')
def example(start_example):
    return start_example('/boxes')


@pytest.fixture(scope='module')
def example_with_masks(start_example):
    return start_example('/masks', KINDS)


def position(found):
    at = found.bbox.center.position
    return at.x, at.y, at.z


def near(expected):
    """Compare with a tolerance of 2 mm, half of a pixel at the distance of the nearest card."""
    return pytest.approx(expected, abs=0.002)


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('encoding', ENCODINGS)
def test_objects_are_where_the_cards_are(example, encoding, size):
    answer = example.ask(depth=depth_message(depth_of_scene(CARDS, size), encoding))

    assert answer.header.frame_id == 'optical'
    assert [found.id for found in answer.detections] == ['id 0', 'id 1']
    for number, (found, card) in enumerate(zip(answer.detections, CARDS, strict=True)):
        result = found.results[0]
        assert (result.hypothesis.class_id, result.hypothesis.score) == (
            f'class {number}',
            0.9 - 0.1 * number,
        )
        assert result.pose.pose == found.bbox.center
        assert position(found) == pytest.approx(card.center, rel=0.02)
        assert (found.bbox.size.x, found.bbox.size.y) == pytest.approx(card.size, rel=0.02)
        # 80 % of the depths in the inner half of the box
        assert found.bbox.size.z == pytest.approx(card.slope * 0.4, abs=0.02)


def test_position_is_exact_to_half_a_pixel(example):
    answer = example.ask()

    assert position(answer.detections[0]) == near(CARDS[0].center)


@pytest.mark.parametrize('mask_size', [(WIDTH, HEIGHT), (WIDTH // 2, HEIGHT // 2)])
@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('encoding', ENCODINGS)
def test_mask_decides_which_depths_count(example_with_masks, encoding, size, mask_size):
    card = CARDS[0]
    left, top, right, bottom = card.box()
    edge = left + 0.2 * (right - left)
    depth = depth_of_scene([card], size)
    x, y = pixel_centers(size)
    # Something nearer hides the card except its left fifth.
    depth[(x > edge) & (y > top) & (y < bottom)] = 1.0

    answer = example_with_masks.ask(
        detections=detections_of([card]),
        depth=depth_message(depth, encoding),
        masks=mask_message([(left, top, edge - 4, bottom)], mask_size),
    )

    assert position(answer.detections[0]) == pytest.approx(card.center, rel=0.02)


def test_mask_without_pixels_leaves_its_object_out(example_with_masks):
    answer = example_with_masks.ask(masks=mask_message([(0, 0, 0, 0), CARDS[1].box()]))

    assert [found.id for found in answer.detections] == ['id 1']


@pytest.mark.parametrize('missing', [0, np.nan, np.inf])
@pytest.mark.parametrize('encoding', ENCODINGS)
def test_missing_depths_do_not_count(example, encoding, missing):
    card = CARDS[0]
    left, top, right, bottom = card.box()
    depth = depth_of_scene(CARDS)
    x, y = pixel_centers((WIDTH, HEIGHT))
    depth[(x > left) & (x < 0.3 * left + 0.7 * right) & (y > top) & (y < bottom)] = missing

    answer = example.ask(depth=depth_message(depth, encoding))

    assert position(answer.detections[0]) == near(card.center)


@pytest.mark.parametrize('encoding', ENCODINGS)
def test_object_without_depth_is_left_out(example, encoding):
    depth = depth_of_scene(CARDS)
    left, top, right, bottom = map(round, CARDS[0].box())
    depth[top:bottom, left:right] = 0
    outside = detection(2, (WIDTH + 5, HEIGHT + 5, WIDTH + 9, HEIGHT + 9))
    found = detections_of(CARDS)
    found.detections.append(outside)

    answer = example.ask(detections=found, depth=depth_message(depth, encoding))

    assert [found.id for found in answer.detections] == ['id 1']


def test_image_without_objects_has_an_empty_answer(example):
    assert list(example.ask(detections=Detection2DArray()).detections) == []


def test_box_may_be_rotated(example):
    center, size, theta = (150.0, 110.0), (160, 16), math.radians(40)
    bar = np.full((HEIGHT, WIDTH), BACKGROUND_M)
    corners = cv2.boxPoints((center, size, math.degrees(theta)))
    cv2.fillPoly(bar, [corners.round().astype(int)], 2.0)
    half = np.array(size) / 2
    found = detection(0, (*(center - half), *(center + half)), theta)

    answer = example.ask(detections=Detection2DArray(detections=[found]), depth=depth_message(bar))

    box = answer.detections[0].bbox
    expected = np.linalg.inv(K) @ [center[0] - 0.5, center[1] - 0.5, 1] * 2
    assert position(answer.detections[0]) == near(tuple(expected))
    assert box.size.z == 0
    turn = box.center.orientation
    assert 2 * math.atan2(turn.z, turn.w) == pytest.approx(theta)
    assert (turn.x, turn.y) == (0, 0)


def test_depth_may_have_the_other_byte_order(example):
    answer = example.ask(depth=depth_message(depth_of_scene(CARDS), big_endian=True))

    assert position(answer.detections[0]) == near(CARDS[0].center)


def test_topics_of_an_image_may_come_in_any_order(example):
    stamp = example.publish(without=['detections', 'depth'])
    example.publish(without=['camera_info', 'depth'], stamp=stamp)
    example.publish(without=['camera_info', 'detections'], stamp=stamp)

    assert len(example.answer_of(stamp).detections) == 2


@pytest.mark.parametrize(
    'changes',
    [
        *({'without': [topic]} for topic in ('detections', 'depth', 'camera_info')),
        {'depth': Image(height=1, width=1, step=1, encoding='mono8', data=b'1')},
        {'camera_info': info_message(np.zeros((3, 3)))},
    ],
)
def test_image_with_a_missing_or_unusable_message_is_skipped(example, changes):
    skipped = example.publish(**changes)
    example.ask()

    assert skipped not in [answer.header.stamp.sec for answer in example.answers]


def test_missing_mask_image_is_replaced_by_the_box(example_with_masks):
    # The node skips mask images that it cannot make in time.
    skipped = example_with_masks.publish(without=['masks'])
    example_with_masks.ask()

    answer = example_with_masks.answer_of(skipped)
    assert position(answer.detections[0]) == near(CARDS[0].center)


def test_skipped_images_and_objects_cause_warnings(client, start_example):
    example = start_example('/warnings', connect=False)

    def warns_about(messages):
        def has_warned():
            example.publish(**messages)
            client.spin_for(0.05)
            return '[WARN]' in example.program.output

        example.program.forget()
        client.spin_until(has_warned, 'a warning')

    # Without depth, no image is complete. The oldest images must make room for others.
    warns_about({'without': ['depth']})
    assert not example.answers
    warns_about({'depth': depth_message(np.zeros((HEIGHT, WIDTH)))})


def test_camera_may_publish_as_best_effort(start_example):
    names = '/best_effort/depth', '/best_effort/camera_info'
    overrides = [f'qos_overrides.{name}.subscription.reliability:=best_effort' for name in names]
    arguments = [part for override in overrides for part in ('-p', override)]

    example = start_example('/best_effort', qos=BEST_EFFORT, arguments=arguments)

    assert len(example.ask().detections) == 2
