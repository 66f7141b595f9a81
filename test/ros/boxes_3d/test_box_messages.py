# SPDX-License-Identifier: Apache-2.0
"""Compare the readers and the writer of messages with rclpy's serialisation."""

import math

import numpy as np
import pytest
from geometry_msgs.msg import Point, Quaternion
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import CameraInfo, PointCloud2, PointField, RegionOfInterest
from std_msgs.msg import Header
from vision_msgs.msg import (
    Detection2D,
    Detection2DArray,
    Detection3DArray,
    ObjectHypothesisWithPose,
)

from support.properties import given, settings, st
from trt_perception.boxes_3d.surface import Box3D, ImageBox
from trt_perception.errors import ImageError
from trt_perception.ros.boxes_3d.messages import (
    LocatedObject,
    detections_3d_message,
    keypoints_3d_message,
    read_calibration,
    read_keypoints,
)
from trt_perception.wire.detections import FoundObject, read_detections
from trt_perception.wire.result_messages import keypoints_message

names = st.text(st.characters(codec='utf-8', exclude_characters='\0'), max_size=9)
numbers = st.floats(width=64, allow_nan=False)
hypotheses = st.lists(st.tuples(names, numbers), max_size=3)
objects = st.lists(st.tuples(hypotheses, st.tuples(*[numbers] * 5), names), max_size=4)


def bytes_of(message):
    return np.frombuffer(serialize_message(message), np.uint8)


def header(frame_id='optical'):
    made = Header(frame_id=frame_id)
    made.stamp.sec, made.stamp.nanosec = -5, 123
    return made


def detection_message(found):
    message = Detection2DArray(header=header())
    for results, (x, y, width, height, theta), own_id in found:
        detection = Detection2D(header=header('another'), id=own_id)
        for class_id, score in results:
            result = ObjectHypothesisWithPose()
            result.hypothesis.class_id, result.hypothesis.score = class_id, score
            detection.results.append(result)
        box = detection.bbox
        box.center.position.x, box.center.position.y, box.center.theta = x, y, theta
        box.size_x, box.size_y = width, height
        message.detections.append(detection)
    return message


@settings(deadline=None, max_examples=100)
@given(objects)
def test_detections_are_those_that_rclpy_serialised(found):
    read = read_detections(bytes_of(detection_message(found)))
    assert read.header == ((-5, 123), 'optical')
    assert [(list(each.hypotheses), tuple(each.box), each.id) for each in read.objects] == [
        (results, box, own_id) for results, box, own_id in found
    ]


@settings(deadline=None, max_examples=100)
@given(objects)
def test_boxes_are_those_that_rclpy_reads(found):
    located = [
        LocatedObject(
            FoundObject(tuple(results), ImageBox(*box), own_id),
            Box3D((1.0 + i, 2.0, 3.0), (0.1, 0.2, 0.3), 0.5 * i, (2, 4)),
        )
        for i, (results, box, own_id) in enumerate(found)
    ]
    message = deserialize_message(detections_3d_message(header(), located), Detection3DArray)
    assert message.header == header()
    assert len(message.detections) == len(found)
    for i, (read, (results, _, own_id)) in enumerate(zip(message.detections, found, strict=True)):
        assert (read.header, read.id) == (header(), own_id)
        assert [(r.hypothesis.class_id, r.hypothesis.score) for r in read.results] == results
        center = read.bbox.center
        assert center.position == Point(x=1.0 + i, y=2.0, z=3.0)
        turn = Quaternion(z=math.sin(0.25 * i), w=math.cos(0.25 * i))
        assert center.orientation == turn
        assert (read.bbox.size.x, read.bbox.size.y, read.bbox.size.z) == (0.1, 0.2, 0.3)
        assert all(result.pose.pose == center for result in read.results)
        assert not any(value for result in read.results for value in result.pose.covariance)


@pytest.mark.parametrize('model', ['', 'plumb_bob', 'equidistant'])
@pytest.mark.parametrize('count', [0, 5, 14])
def test_calibration_is_that_which_rclpy_serialised(model, count):
    info = CameraInfo(header=header(), width=640, height=480, distortion_model=model)
    info.d = [0.1 * i for i in range(count)]
    info.k, info.p = np.arange(9.0), np.arange(12.0) + 0.5
    info.binning_x, info.binning_y = 2, 4
    info.roi = RegionOfInterest(x_offset=1, y_offset=2, height=3, width=4, do_rectify=True)
    own_header, calibration = read_calibration(bytes_of(info))
    assert own_header.frame_id == 'optical'
    assert calibration.size_wh == (640, 480)
    assert list(calibration.distortion) == list(info.d)
    assert list(calibration.matrix) == list(info.k)
    assert list(calibration.projection) == list(info.p)
    assert (calibration.binning, calibration.region) == ((2, 4), (1, 2, 4, 3))


@pytest.mark.parametrize('shape', [(0, 17), (1, 1), (3, 17)])
def test_keypoints_are_those_of_the_detector(shape):
    values = np.random.default_rng(1).random((*shape, 3)).astype(np.float32)
    read = read_keypoints(np.frombuffer(keypoints_message(header(), values), np.uint8))
    np.testing.assert_array_equal(read.values, values)


def keypoint_cloud(shape):
    """Return the keypoints of a detector, all zero."""
    message = keypoints_message(header(), np.zeros((*shape, 3), np.float32))
    return deserialize_message(bytes(message), PointCloud2)


def test_keypoints_of_other_layouts_are_refused(golden_messages):
    cloud = keypoint_cloud((2, 3))
    fields = [PointField(name='x', offset=4 * i, datatype=7, count=1) for i in range(3)]
    for changes in ({'fields': fields}, {'row_step': 35}, {'width': 2**31}, {'data': []}):
        changed = PointCloud2(**{name: getattr(cloud, name) for name in FIELDS} | changes)
        with golden_messages.raises(ImageError) as caught:
            read_keypoints(bytes_of(changed))
        assert caught.value.reason == 'bad_message'


FIELDS = 'header', 'height', 'width', 'fields', 'point_step', 'row_step', 'data', 'is_dense'


@pytest.mark.parametrize(
    'changes',
    [
        {'width': 2**28, 'height': 0, 'row_step': 12 * 2**28},
        {'width': 0, 'height': 2**32 - 1, 'row_step': 0},
        {'width': 0, 'height': 0, 'row_step': 0, 'point_step': 2**31},
        {'width': 2000, 'height': 1, 'row_step': 24000, 'data': bytes(24000)},
    ],
)
def test_keypoints_of_impossible_sizes_are_refused(changes):
    cloud = keypoint_cloud((0, 3))
    fields = {name: getattr(cloud, name) for name in FIELDS}
    with pytest.raises(ImageError) as caught:
        read_keypoints(bytes_of(PointCloud2(**fields | changes)))
    assert caught.value.reason == 'bad_message'


def test_keypoints_in_space_are_a_point_cloud():
    values = np.array([[[1, 2, 3, 0.5], [np.nan, np.nan, np.nan, 0.1]]], np.float32)
    message = deserialize_message(keypoints_3d_message(header(), values), PointCloud2)
    assert (message.height, message.width, message.point_step) == (1, 2, 16)
    assert (message.row_step, message.is_dense) == (32, False)
    np.testing.assert_array_equal(np.frombuffer(message.data, np.float32).reshape(1, 2, 4), values)


READERS = {
    'detections': (read_detections, detection_message([([('person', 0.5)], (1, 2, 3, 4, 0), '')])),
    'camera_info': (read_calibration, CameraInfo(header=header(), d=[0.0] * 5)),
    'keypoints': (read_keypoints, keypoint_cloud((1, 2))),
}


@pytest.mark.parametrize('name', READERS)
def test_every_truncation_is_refused(name):
    read, message = READERS[name]
    data = bytes_of(message)
    end = len(data) - 1 if name == 'keypoints' else len(data)  # is_dense is not read
    end = len(data) - 3 if name == 'camera_info' else end  # nor is the padding of do_rectify
    for size in range(end):
        with pytest.raises(ImageError) as caught:
            read(data[:size])
        assert caught.value.reason == 'bad_message'


@pytest.mark.parametrize('name', READERS)
@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_changed_bytes_give_a_message_or_a_refusal(name, data):
    read, message = READERS[name]
    changed = bytes_of(message).copy()
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        read(changed)
        reason = 'bad_message'
    except ImageError as error:
        reason = error.reason
    assert reason in ('bad_message', 'bad_frame_id')


def test_long_lists_are_refused_before_they_are_read(golden_messages):
    data = bytes_of(detection_message([])).copy()
    data[-4:] = 255
    with golden_messages.raises(ImageError):
        read_detections(data)
