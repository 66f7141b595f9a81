# SPDX-License-Identifier: Apache-2.0
"""Calibrations equal those of rclpy, and are scaled to maps of another size."""

import numpy as np
import pytest
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import CameraInfo, RegionOfInterest
from std_msgs.msg import Header

from trt_perception.errors import ImageError
from trt_perception.wire.camera_info import (
    camera_info_message,
    normalised_focal_lengths,
    read_camera_info,
    scaled_camera_info,
)

pytestmark = [pytest.mark.ros, pytest.mark.each_distro]
POINT = np.array([0.3, -0.2, 2.0, 1.0])


def camera_info(**values):
    return CameraInfo(
        width=1280,
        height=960,
        distortion_model='plumb_bob',
        d=[0.1, -0.2, 0.01, 0.02, 0.3],
        r=[float(number) for number in range(9)],
        k=[900.0, 0.5, 630.0, 0.0, 910.0, 470.0, 0.0, 0.0, 1.0],
        p=[800.0, 0.0, 620.0, -96.0, 0.0, 805.0, 465.0, 12.0, 0.0, 0.0, 1.0, 0.0],
        **values,
    )


def read(info):
    """Return a calibration of rclpy as it is read from its bytes."""
    return read_camera_info(np.frombuffer(serialize_message(info), np.uint8))


def scaled(info, size_wh):
    """Return a scaled calibration as a message of rclpy; None if it cannot be scaled."""
    found = scaled_camera_info(read(info), size_wh)
    if found is None:
        return None
    return deserialize_message(bytes(camera_info_message(info.header, found)), CameraInfo)


@pytest.mark.parametrize('model', ['', 'a', 'plumb_bob', 'größer'])
@pytest.mark.parametrize('count', [0, 1, 5, 64])
@pytest.mark.parametrize('frame_id', ['', 'a', 'ab', 'abc'])
def test_calibration_is_read_and_written_as_by_rclpy(model, count, frame_id):
    info = camera_info(roi=ROI, binning_x=2, binning_y=4)
    info.header.frame_id = 'other'
    info.distortion_model, info.d = model, [index + 0.1 for index in range(count)]
    found = read(info)
    assert found.roi._asdict() == {
        name: getattr(info.roi, name) for name in info.roi.get_fields_and_field_types()
    }
    for name in set(info.get_fields_and_field_types()) - {'roi', 'header'}:
        assert np.array_equal(getattr(found, name), getattr(info, name)), name
    header = Header(frame_id=frame_id)
    header.stamp.sec, header.stamp.nanosec = -5, 4_000_000_000
    message = camera_info_message(header, found)
    info.header = header
    expected = serialize_message(info)
    assert deserialize_message(bytes(message), CameraInfo) == info
    assert len(expected) - 3 <= len(message) <= len(expected)  # rclpy appends padding


@pytest.mark.parametrize(
    ('name', 'value'),
    [('d', [0.0] * 65), ('distortion_model', 'm' * 257), ('frame_id', 'f' * 257)],
)
def test_too_large_calibration_is_refused(name, value):
    info = camera_info()
    setattr(info.header if name == 'frame_id' else info, name, value)
    with pytest.raises(ImageError) as caught:
        read(info)
    assert caught.value.reason == 'bad_message'


def test_truncated_calibration_is_refused():
    content = np.frombuffer(serialize_message(camera_info()), np.uint8)
    for size in range(len(content) - 3):  # up to 3 bytes of padding
        with pytest.raises(ImageError) as caught:
            read_camera_info(content[:size])
        assert caught.value.reason == 'bad_message'


def pixel_in_image(info):
    """Return where a camera shows POINT, in pixels of its image: by P and by K."""
    by_p, by_k = info.p.reshape(3, 4) @ POINT, info.k.reshape(3, 3) @ POINT[:3]
    offset = info.roi.x_offset, info.roi.y_offset
    binning = max(info.binning_x, 1), max(info.binning_y, 1)
    return [(place[:2] / place[2] - offset) / binning for place in (by_p, by_k)]


ROI = RegionOfInterest(x_offset=160, y_offset=80, width=640, height=480, do_rectify=True)


each_image_size = pytest.mark.parametrize(
    ('values', 'image_wh'),
    [
        ({}, (1280, 960)),
        ({'roi': ROI}, (640, 480)),
        ({'binning_x': 2, 'binning_y': 4}, (640, 240)),
        ({'roi': ROI, 'binning_x': 2, 'binning_y': 2}, (320, 240)),
    ],
)


@each_image_size
@pytest.mark.parametrize('size_wh', [(320, 120), (640, 480), (2560, 960)])
def test_points_keep_their_place_in_the_image(values, image_wh, size_wh):
    before = camera_info(**values)
    after = scaled(before, size_wh)
    ratio = np.divide(size_wh, image_wh)
    for found, expected in zip(pixel_in_image(after), pixel_in_image(before), strict=True):
        np.testing.assert_allclose(found, expected * ratio, rtol=1e-9)
    columns, rows = after.roi.width or after.width, after.roi.height or after.height
    assert columns / max(after.binning_x, 1) == size_wh[0]
    assert rows / max(after.binning_y, 1) == size_wh[1]
    for name in ('d', 'r', 'distortion_model', 'binning_x', 'binning_y'):
        assert np.array_equal(getattr(after, name), getattr(before, name))
    assert after.roi.do_rectify == before.roi.do_rectify


@pytest.mark.parametrize('size', [{'width': 0}, {'height': 0}])
def test_calibration_without_a_size_is_ignored(size):
    info = camera_info()
    for name, value in size.items():
        setattr(info, name, value)
    assert scaled(info, (320, 240)) is None


def test_impossible_sizes_stay_in_the_range_of_the_message():
    info = camera_info(roi=RegionOfInterest(x_offset=2**32 - 1, width=1, height=1))
    assert scaled(info, (320, 240)).roi.x_offset == 2**32 - 1


@each_image_size
def test_focal_lengths_are_shares_of_the_image(values, image_wh):
    info = camera_info(**values)
    # The distance of two points at a depth of 1, in pixels of the image.
    binning = np.maximum([info.binning_x, info.binning_y], 1)
    expected = np.array([900.0, 910.0]) / binning / image_wh
    np.testing.assert_allclose(normalised_focal_lengths(read(info)), expected)


@pytest.mark.parametrize('value', [0.0, -1.0, np.nan, np.inf])
def test_calibration_without_focal_length_is_unusable(value):
    for place in (0, 4):
        info = camera_info()
        info.k[place] = value
        assert normalised_focal_lengths(read(info)) is None
    assert normalised_focal_lengths(read(CameraInfo(k=camera_info().k))) is None


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('number', [1e308, np.inf, np.nan, -1.0])
def test_impossible_numbers_are_scaled_without_a_warning(number):
    broken = camera_info()
    broken.k[:], broken.p[:] = number, number
    found = scaled(broken, (12800, 9600))
    np.testing.assert_array_equal(found.k[:6], 10 * number)
    np.testing.assert_array_equal(found.p[:8], 10 * number)
