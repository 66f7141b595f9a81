# SPDX-License-Identifier: Apache-2.0
"""Serialised results equal the messages that rclpy reads and writes."""

import array

import numpy as np
import pytest
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import Image, PointCloud2, PointField
from std_msgs.msg import Header
from vision_msgs.msg import Classification, LabelInfo, ObjectHypothesis, VisionClass

from support.properties import given, settings, st
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.class_scores import ClassScores
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.images.results.kernel_maps import HEADER_ROOM, KernelMaps
from trt_perception.wire.result_messages import (
    classification_message,
    keypoints_message,
    label_info_message,
    map_message,
    masks_message,
    point_cloud_message,
)

pytestmark = [pytest.mark.ros, pytest.mark.each_distro]

# Text that fits into a ROS string: no NUL, no half of a surrogate pair.
TEXT = st.text(st.characters(exclude_characters='\0', exclude_categories=['Cs']), max_size=20)
#: Every remainder of the length by 4, and characters of several bytes.
FRAME_IDS = ['', 'a', 'ab', 'abc', 'Kamera größer']
each_frame_id = pytest.mark.parametrize('frame_id', FRAME_IDS)


def header_with(frame_id):
    header = Header(frame_id=frame_id)
    header.stamp.sec, header.stamp.nanosec = -5, 4_000_000_000
    return header


def check(message, expected):
    """Check that rclpy reads the expected message, and writes one of the same length."""
    content = serialize_message(expected)
    kind = type(expected)
    assert deserialize_message(bytes(message), kind) == deserialize_message(content, kind)
    assert len(content) - 3 <= len(message) <= len(content)  # rclpy appends padding


@each_frame_id
@pytest.mark.parametrize(('found', 'count'), [(0, 17), (3, 2), (1, 1)])
def test_keypoints_have_a_row_for_each_detection(frame_id, found, count):
    header = header_with(frame_id)
    points = np.random.default_rng(count).random((found, count, 3), np.float32)
    expected = PointCloud2(header=header, height=found, width=count, is_dense=True)
    expected.fields = [
        PointField(name=name, offset=offset, datatype=PointField.FLOAT32, count=1)
        for name, offset in (('x', 0), ('y', 4), ('score', 8))
    ]
    expected.point_step, expected.row_step = 12, 12 * count
    expected.data = array.array('B', points.tobytes())
    check(keypoints_message(header, points), expected)


@each_frame_id
def test_point_cloud_with_other_fields_equals_the_message_of_rclpy(frame_id):
    header, names = header_with(frame_id), ('x', 'longer', 'größe')
    points = np.full((2, 3, 3), np.nan, np.float32)
    expected = PointCloud2(header=header, height=2, width=3, point_step=12, row_step=36)
    expected.fields = [
        PointField(name=name, offset=4 * index, datatype=PointField.FLOAT32, count=1)
        for index, name in enumerate(names)
    ]
    expected.data = array.array('B', points.tobytes())
    check(point_cloud_message(header, names, points, is_dense=False), expected)


@settings(deadline=None)
@given(
    frame_id=TEXT,
    classes=st.lists(st.tuples(TEXT, st.floats(0, 1, width=32)), max_size=8),
    count=st.integers(0, 9),
)
def test_classification_equals_the_message_of_rclpy(frame_id, classes, count):
    header, names = header_with(frame_id), [name for name, _ in classes]
    scores = [score for _, score in classes]
    best = sorted(range(len(classes)), key=lambda class_id: (-scores[class_id], class_id))[:count]
    results = [ObjectHypothesis(class_id=names[index], score=scores[index]) for index in best]
    found = ClassScores(np.array(scores, np.float32))
    expected = Classification(header=header, results=results)
    check(classification_message(header, found, names, count), expected)


@settings(deadline=None)
@given(frame_id=TEXT, names=st.lists(TEXT, max_size=8), threshold=st.floats(0, 1))
def test_label_info_equals_the_message_of_rclpy(frame_id, names, threshold):
    header = header_with(frame_id)
    classes = [VisionClass(class_id=index, class_name=name) for index, name in enumerate(names)]
    expected = LabelInfo(header=header, class_map=classes, threshold=threshold)
    check(label_info_message(header, names, threshold), expected)


def image_with(header, pixels, encoding):
    """Return an image with these pixels (height, width), little-endian."""
    height, width = pixels.shape
    image = Image(header=header, width=width, height=height, encoding=encoding)
    image.step = width * pixels.itemsize
    image.data = array.array('B', pixels.tobytes())
    return image


class Drawn:
    """The masks of a detector, already drawn."""

    def __init__(self, pixels):
        self._pixels = pixels

    def number(self, out):
        out[:] = self._pixels


@each_frame_id
def test_masks_equal_the_message_of_rclpy(frame_id):
    header, pixels = header_with(frame_id), np.arange(300, 315, dtype='<u2').reshape(3, 5)
    message = masks_message(header, (5, 3), Drawn(pixels))
    check(message, image_with(header, pixels, 'mono16'))
    again = masks_message(header, (5, 3), Drawn(pixels + 1), message)
    assert again is message
    check(again, image_with(header, pixels + 1, 'mono16'))


SIZE_WH = 5, 3
LETTERBOX = Letterbox.fit(SIZE_WH, SIZE_WH, 'stretch')
LOGITS = np.random.default_rng(1).normal(size=(4, 3, 5)).astype(np.float32)
DEPTH = np.array([[1, 2, np.nan, 4, 5]] * 3, np.float32)
HOST_MAPS = {
    'class_ids': (ClassMap(LOGITS, LETTERBOX), 'mono8'),
    'confidence': (ClassMap(LOGITS, LETTERBOX), 'mono8'),
    'depth': (DepthMap(DEPTH, LETTERBOX, 'bilinear', is_metric=True), '32FC1'),
}


@each_frame_id
@pytest.mark.parametrize('kind', HOST_MAPS)
@pytest.mark.parametrize('size_wh', [SIZE_WH, (7, 2)])
def test_map_equals_the_message_of_rclpy(frame_id, kind, size_wh):
    found, encoding = HOST_MAPS[kind]
    header = header_with(frame_id)
    expected = image_with(header, getattr(found, kind)(size_wh), encoding)
    message = map_message(header, found, kind, size_wh)
    check(message, expected)
    assert map_message(header, found, kind, size_wh, message) is message
    check(message, expected)


class Memory:
    """The memory of a map of kernels."""

    def __init__(self, pixels):
        self.size_wh, self.dtype = pixels.shape[::-1], pixels.dtype
        room = np.full(HEADER_ROOM, 0xA5, np.uint8)
        self._memory = np.concatenate([room, pixels.reshape(-1).view(np.uint8)])

    def memory(self):
        return self._memory


@each_frame_id
@pytest.mark.parametrize(
    ('kind', 'dtype', 'encoding'),
    [('class_ids', 'u1', 'mono8'), ('confidence', 'u1', 'mono8'), ('depth', '<f4', '32FC1')],
)
def test_map_of_kernels_is_serialised_in_its_memory(frame_id, kind, dtype, encoding):
    header, pixels = header_with(frame_id), np.arange(15).reshape(3, 5).astype(dtype)
    memory = Memory(pixels)
    # The kernels chose another size than the caller asks for.
    message = map_message(header, KernelMaps({kind: memory}, LETTERBOX), kind, (9, 9))
    check(message, image_with(header, pixels, encoding))
    assert np.shares_memory(message, memory.memory())


@pytest.mark.parametrize(
    ('found', 'kind'),
    [
        (ClassMap(np.zeros((3, 5), np.uint8), LETTERBOX), 'confidence'),
        (KernelMaps({}, LETTERBOX), 'depth'),
    ],
)
def test_missing_map_gives_no_message(found, kind):
    assert map_message(Header(), found, kind, SIZE_WH) is None
