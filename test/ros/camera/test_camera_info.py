"""Test calibrations for maps of another size than the image."""

import itertools

import numpy as np
import pytest
from sensor_msgs.msg import CameraInfo, RegionOfInterest

from trt_perception.ros.camera.camera_info import (
    normalised_focal_lengths,
    scaled_camera_info,
    subscribe_camera_info,
)

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro
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
    after = scaled_camera_info(before, size_wh)
    ratio = np.divide(size_wh, image_wh)
    for found, expected in zip(pixel_in_image(after), pixel_in_image(before), strict=True):
        np.testing.assert_allclose(found, expected * ratio, rtol=1e-9)
    columns, rows = after.roi.width or after.width, after.roi.height or after.height
    assert columns / max(after.binning_x, 1) == size_wh[0]
    assert rows / max(after.binning_y, 1) == size_wh[1]
    for name in ('d', 'r', 'distortion_model', 'binning_x', 'binning_y'):
        assert np.array_equal(getattr(after, name), getattr(before, name))
    assert after.roi.do_rectify == before.roi.do_rectify
    assert before == camera_info(**values)


@pytest.mark.parametrize('size', [{'width': 0}, {'height': 0}])
def test_calibration_without_a_size_is_ignored(size):
    info = camera_info()
    for name, value in size.items():
        setattr(info, name, value)
    assert scaled_camera_info(info, (320, 240)) is None


def test_impossible_sizes_stay_in_the_range_of_the_message():
    info = camera_info(roi=RegionOfInterest(x_offset=2**32 - 1, width=1, height=1))
    assert scaled_camera_info(info, (320, 240)).roi.x_offset == 2**32 - 1


@each_image_size
def test_focal_lengths_are_shares_of_the_image(values, image_wh):
    info = camera_info(**values)
    # The distance of two points at a depth of 1, in pixels of the image.
    binning = np.maximum([info.binning_x, info.binning_y], 1)
    expected = np.array([900.0, 910.0]) / binning / image_wh
    np.testing.assert_allclose(normalised_focal_lengths(info), expected)


@pytest.mark.parametrize('value', [0.0, -1.0, np.nan, np.inf])
def test_calibration_without_focal_length_is_unusable(value):
    for place in (0, 4):
        info = camera_info()
        info.k[place] = value
        assert normalised_focal_lengths(info) is None
    assert normalised_focal_lengths(CameraInfo(k=camera_info().k)) is None


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('number', [1e308, np.inf, np.nan, -1.0])
def test_impossible_numbers_are_scaled_without_a_warning(number):
    broken = camera_info()
    broken.k[:], broken.p[:] = number, number
    scaled = scaled_camera_info(broken, (12800, 9600))
    np.testing.assert_array_equal(scaled.k[:6], 10 * number)
    np.testing.assert_array_equal(scaled.p[:8], 10 * number)


@pytest.mark.parametrize(
    ('name', 'value'),
    [('d', [0.0] * 65), ('distortion_model', 'm' * 257), ('frame_id', 'f' * 257)],
)
def test_too_large_calibration_is_ignored(client, node, name, value):
    received = []
    subscription = subscribe_camera_info(node, '', received.append)
    publisher = client.node.create_publisher(CameraInfo, subscription.topic_name, 10)
    large, usual = camera_info(), camera_info()
    setattr(large.header if name == 'frame_id' else large, name, value)

    turns = itertools.cycle([usual, large])

    def arrived():
        publisher.publish(next(turns))  # one at a time, because the queue has room for one
        return len(received) > 3

    client.spin_until(arrived, 'calibrations')
    assert all(info == usual for info in received)
    node.destroy_subscription(subscription)
    client.node.destroy_publisher(publisher)
