# SPDX-License-Identifier: Apache-2.0
"""Serialised detections equal the messages that rclpy reads and writes."""

from dataclasses import replace

import numpy as np
import pytest
from rclpy.serialization import deserialize_message, serialize_message
from std_msgs.msg import Header
from vision_msgs.msg import (
    Detection2D,
    Detection2DArray,
    ObjectHypothesisWithPose,
)

from support.properties import given, settings, st
from trt_perception.images.detections import Detections
from trt_perception.wire.serialize import DetectionsSerializer

pytestmark = [pytest.mark.ros, pytest.mark.each_distro]

CLASS_NAMES = ('a', 'bb', 'ccc', 'dddd', 'größer als', '自転車', 'x' * 99)


def header_of(frame_id='camera', sec=1, nanosec=2):
    header = Header(frame_id=frame_id)
    header.stamp.sec, header.stamp.nanosec = sec, nanosec
    return header


def detections_of(rows):
    """Return Detections from rows of left, top, right, bottom, score, class id."""
    table = np.array([row[:5] for row in rows], np.float32).reshape(-1, 5)
    ids = np.array([row[5] for row in rows], np.int32)
    return Detections(table[:, :4].copy(), table[:, 4].copy(), ids)


def expected_message(header, rows):
    """Build the message field by field."""
    message = Detection2DArray()
    message.header = header
    for left, top, right, bottom, score, class_id in rows:
        detection = Detection2D()
        detection.header = header
        result = ObjectHypothesisWithPose()
        result.hypothesis.class_id = CLASS_NAMES[class_id]
        result.hypothesis.score = float(np.float32(score))
        detection.results.append(result)
        left, top, right, bottom = (float(np.float32(side)) for side in (left, top, right, bottom))
        detection.bbox.center.position.x = (left + right) / 2
        detection.bbox.center.position.y = (top + bottom) / 2
        detection.bbox.size_x = right - left
        detection.bbox.size_y = bottom - top
        message.detections.append(detection)
    return message


def assert_same_message(content, expected):
    assert deserialize_message(bytes(content), Detection2DArray) == expected
    # Both serialisations have the same size, so the padding has the same size, too.
    assert len(content) == len(serialize_message(expected))


def test_message_without_detections_equals_the_message_of_rclpy():
    content = DetectionsSerializer(CLASS_NAMES)(header_of(), Detections.empty())
    assert_same_message(content, expected_message(header_of(), []))


def test_message_with_one_detection_has_all_fields():
    rows = [(10.5, 20.25, 30.0, 60.75, 0.875, 1)]
    content = bytes(DetectionsSerializer(CLASS_NAMES)(header_of(), detections_of(rows)))
    [detection] = deserialize_message(content, Detection2DArray).detections
    assert detection.header == header_of()
    assert detection.id == ''
    [result] = detection.results
    assert result.hypothesis.class_id == 'bb'
    assert result.hypothesis.score == 0.875
    assert (detection.bbox.center.position.x, detection.bbox.center.position.y) == (20.25, 40.5)
    assert (detection.bbox.size_x, detection.bbox.size_y) == (19.5, 40.5)
    assert detection.bbox.center.theta == 0.0
    assert_same_message(content, expected_message(header_of(), rows))


BOX_NUMBERS = st.floats(0, 32767, width=32)
ROWS = st.lists(
    st.tuples(
        BOX_NUMBERS,
        BOX_NUMBERS,
        BOX_NUMBERS,
        BOX_NUMBERS,
        st.floats(0, 1, width=32),
        st.integers(0, len(CLASS_NAMES) - 1),
    ),
    max_size=12,
)
# Text that fits into a ROS string: no NUL, no half of a surrogate pair.
TEXT = st.text(st.characters(exclude_characters='\0', exclude_categories=['Cs']), max_size=20)
STAMPS = st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**32 - 1))


#: The number of detections from which the serialiser uses NumPy.
EITHER_WAY = pytest.mark.parametrize('many', [1, 128])


@EITHER_WAY
@settings(deadline=None)
@given(frames=st.lists(st.tuples(TEXT, STAMPS, ROWS), min_size=1, max_size=4))
def test_bytes_equal_the_serialisation_of_rclpy(frames, many):
    # One serialiser for all messages, as in a node: templates must not contain an old header.
    serialize = DetectionsSerializer(CLASS_NAMES, many)
    for frame_id, stamp, rows in frames:
        header = header_of(frame_id, *stamp)
        content = serialize(header, detections_of(rows))
        assert_same_message(content, expected_message(header, rows))


@pytest.mark.parametrize('count', [63, 64, 128, 300])
def test_serialised_detections_equal_the_message_of_rclpy(count):
    row = np.random.default_rng(count).random(4) * 100
    rows = [(*(row + i), (i + 1) / (count + 1), i % len(CLASS_NAMES)) for i in range(count)]
    serialize = DetectionsSerializer(CLASS_NAMES)
    # The bytes of the last stamp are a signalling NaN as float64.
    stamps = ((0, 0), (-5, 4_000_000_000), (1, 0x7FF0_0000))
    for header in (header_of(name, *stamp) for name in ('', 'x', 'camera') for stamp in stamps):
        content = serialize(header, detections_of(rows))
        assert_same_message(content, expected_message(header, rows))


@EITHER_WAY
@settings(deadline=None)
@given(
    oriented=st.lists(
        st.tuples(BOX_NUMBERS, BOX_NUMBERS, BOX_NUMBERS, BOX_NUMBERS, st.floats(-2, 2, width=32)),
        max_size=5,
    ),
    stamp=STAMPS,
)
def test_bytes_of_oriented_boxes_equal_the_serialisation_of_rclpy(oriented, stamp, many):
    header = header_of('camera', *stamp)
    rows = [(0, 0, 1, 1, 0.5, index) for index in range(len(oriented))]
    turned = np.array(oriented, np.float32).reshape(-1, 5)
    content = DetectionsSerializer(CLASS_NAMES, many)(
        header, replace(detections_of(rows), oriented=turned)
    )
    expected = expected_message(header, rows)
    for detection, (x, y, width, height, angle) in zip(expected.detections, oriented, strict=True):
        detection.bbox.center.position.x, detection.bbox.center.position.y = x, y
        detection.bbox.center.theta = angle
        detection.bbox.size_x, detection.bbox.size_y = width, height
    assert_same_message(content, expected)


@given(
    rows=ROWS,
    numbers=st.lists(st.one_of(st.just(-1), st.integers(1, 10**12)), min_size=12, max_size=12),
    many=st.sampled_from([0, 64]),
)
def test_bytes_with_ids_of_tracks_equal_the_serialisation_of_rclpy(rows, numbers, many):
    """Ids of different lengths move all later fields."""
    ids = numbers[: len(rows)]
    found = detections_of(rows).with_ids(np.array(ids, np.int64))
    message = expected_message(header_of(), rows)
    for detection, number in zip(message.detections, ids, strict=True):
        detection.id = str(number) if number > 0 else ''
    assert_same_message(DetectionsSerializer(CLASS_NAMES, many)(header_of(), found), message)
