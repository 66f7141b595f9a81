# SPDX-License-Identifier: Apache-2.0
"""Provoke each mistake in what other nodes publish, and compare what the node says."""

import time
from dataclasses import replace

import numpy as np
import pytest

from trt_perception.boxes_3d.calibration import Calibration
from trt_perception.boxes_3d.pairing import Pair
from trt_perception.boxes_3d.surface import ImageBox
from trt_perception.parameters.boxes_3d import BoxParameters
from trt_perception.ros.boxes_3d.locator import DroppedError, Locator
from trt_perception.ros.boxes_3d.messages import Keypoints
from trt_perception.wire.cdr import CompressedImageView, HeaderFields, ImageFields, StampFields
from trt_perception.wire.detections import FoundObject, FoundObjects

HEADER = HeaderFields(StampFields(1, 0), 'optical')
K = (100.0, 0, 31.5, 0, 100.0, 23.5, 0, 0, 1)
CALIBRATION = Calibration((64, 48), (), K, (0.0,) * 12)
OBJECT = FoundObject((('person', 0.9),), ImageBox(32, 24, 20, 20), 'id 1')
DETECTIONS = FoundObjects(HEADER, (OBJECT,))


def image(values, encoding, header=HEADER):
    data = np.ascontiguousarray(values)
    height, width = values.shape
    step = width * values.itemsize
    return ImageFields(header, height, width, encoding, 0, step, data.view(np.uint8).reshape(-1))


def depth(metres=2.0, shape=(48, 64), header=HEADER):
    return image(np.full(shape, metres * 1000, np.uint16), '16UC1', header)


class Scene:
    """A locator, its reports, and a pair of detections and depth whose parts may be replaced."""

    def __init__(self, golden_messages):
        self.reasons = []

        def report(error):
            self.reasons.append(error.reason)
            golden_messages.add(error)

        self.locator = Locator(BoxParameters(), report)
        self.locator.calibration = HEADER, CALIBRATION

    def locate(self, depth=None, detections=DETECTIONS, **others):
        """Return the result, or the reason why there is none."""
        try:
            return self.locator.locate(Pair(detections, depth, 0, others))
        except DroppedError as drop:
            return drop.reason


@pytest.fixture
def scene(golden_messages):
    return Scene(golden_messages)


def test_right_messages_give_a_box_without_a_report(scene):
    [located] = scene.locate(depth()).objects
    assert located.found == OBJECT
    assert located.box.center == pytest.approx((0, 0, 2), abs=0.05)
    assert scene.reasons == []


def test_nothing_is_located_after_the_end(scene):
    scene.locator.until_s = time.monotonic() - 1
    assert scene.locate(depth()) == 'replaced'


def test_end_is_noticed_between_two_objects(monkeypatch, scene):
    scene.locator.until_s = 2.0
    times = iter([0.0, 1.0, 3.0])
    monkeypatch.setattr('time.monotonic', lambda: next(times))
    assert scene.locate(depth(), FoundObjects(HEADER, (OBJECT,) * 3)) == 'replaced'


def test_depth_of_another_size_is_refused(scene):
    assert scene.locate(depth(shape=(24, 32))) == 'no_valid_depth'
    assert scene.reasons == ['depth_size']


def test_depth_of_another_frame_is_refused(scene):
    other = HeaderFields(StampFields(1, 0), 'depth_optical')
    assert scene.locate(depth(header=other)) == 'no_valid_depth'
    assert scene.reasons == ['depth_frame']


@pytest.mark.parametrize('frame_id', ['', '/optical'])
def test_frame_without_a_name_or_with_a_slash_is_the_same(frame_id, scene):
    other = HeaderFields(StampFields(1, 0), frame_id)
    assert scene.locate(depth(header=other)).objects


@pytest.mark.parametrize(
    ('values', 'encoding'),
    [
        (np.full((48, 64), 2, np.uint16), '16UC1'),
        (np.full((48, 64), 2000, np.float32), '32FC1'),
    ],
)
def test_unlikely_unit_is_refused_unless_the_user_says_the_unit(values, encoding, scene):
    assert scene.locate(image(values, encoding)) == 'no_valid_depth'
    assert scene.reasons == ['depth_unit']
    unit_m = 1.0 if encoding == '16UC1' else 0.001
    scene.locator.parameters = BoxParameters(depth_unit_m=unit_m)
    [located] = scene.locate(image(values, encoding)).objects
    assert located.box.center[2] == pytest.approx(2, rel=0.02)
    assert scene.reasons == ['depth_unit']


def test_colour_image_is_refused(scene):
    colours = image(np.zeros((48, 64), np.uint8), 'mono8')
    assert scene.locate(colours) == 'no_valid_depth'
    assert scene.reasons == ['unknown_encoding']


def test_rvl_is_refused_by_name(scene):
    view = CompressedImageView(HEADER, '16UC1; compressedDepth rvl', np.zeros(20, np.uint8))
    assert scene.locate(view) == 'no_valid_depth'
    assert scene.reasons == ['unknown_encoding']


def test_depth_without_any_pixel_is_no_valid_depth(scene):
    assert scene.locate(depth(0)) == 'no_valid_depth'
    assert scene.reasons == ['empty_depth']


def test_object_without_points_is_left_out(scene):
    values = np.full((48, 64), 2000, np.uint16)
    values[14:34, 22:42] = 0
    located = scene.locate(image(values, '16UC1'))
    assert (located.objects, located.left_out) == ([], 1)


@pytest.mark.parametrize(
    'changes',
    [{'matrix': (0.0,) * 9}, {'matrix': (np.inf,) * 9}, {'size_wh': (0, 0)}],
)
def test_camera_without_calibration_is_named(changes, scene):
    scene.locator.calibration = HEADER, replace(CALIBRATION, **changes)
    assert scene.locate(depth()) == 'no_camera_info'
    assert scene.reasons == ['bad_calibration']


def test_camera_info_of_another_frame_is_refused(scene):
    other = HeaderFields(StampFields(1, 0), 'infra')
    scene.locator.calibration = other, CALIBRATION
    assert scene.locate(depth()) == 'no_camera_info'
    assert scene.reasons == ['camera_info_frame']


def test_missing_camera_info_is_counted(scene):
    scene.locator.calibration = None
    assert scene.locate(depth()) == 'no_camera_info'


def test_binning_and_region_of_interest_are_read(scene):
    matrix = (200.0, 0, 163.0, 0, 200.0, 107.0, 0, 0, 1)
    full = Calibration((320, 240), (), matrix, (0.0,) * 12, (2, 2), (100, 60, 128, 96))
    scene.locator.calibration = HEADER, full
    [located] = scene.locate(depth()).objects
    assert located.box.center == pytest.approx((0, 0, 2), abs=0.05)
    assert scene.reasons == []


def test_distortion_is_reported_and_boxes_are_published(scene):
    scene.locator.calibration = HEADER, replace(CALIBRATION, distortion=(0.2, 0.1))
    assert scene.locate(depth()).objects
    assert scene.reasons == ['distortion']


@pytest.mark.parametrize(
    ('mask', 'reason'),
    [
        (np.ones((24, 32), np.uint16), 'mask_size'),
        (np.ones((48, 64), np.uint8), 'bad_mask'),
    ],
)
def test_box_replaces_an_unusable_mask(mask, reason, scene):
    message = image(mask, 'mono16' if mask.dtype == np.uint16 else 'mono8')
    located = scene.locate(depth(), masks=message)
    assert len(located.objects) == 1
    assert located.without_mask
    assert scene.reasons == [reason]


def test_mask_and_keypoints_belong_to_the_object_of_their_number(scene):
    numbers = np.zeros((48, 64), np.uint16)
    numbers[14:34, 22:32] = 2
    both = FoundObjects(HEADER, (OBJECT, OBJECT._replace(id='id 2')))
    points = np.array([[[32, 24, 0.1]], [[28, 24, 0.2]]], np.float32)
    located = scene.locate(
        depth(), both, masks=image(numbers, 'mono16'), keypoints=Keypoints(HEADER, points)
    )
    assert [each.found.id for each in located.objects] == ['id 2']
    assert located.objects[0].box.center[0] == pytest.approx(-0.1, abs=0.03)
    assert located.keypoints[:, :, 3].tolist() == [[np.float32(0.2)]]
    assert (located.left_out, located.without_mask) == (1, False)


def test_keypoints_of_another_number_of_objects_are_reported(scene):
    keypoints = Keypoints(HEADER, np.zeros((3, 2, 3), np.float32))
    located = scene.locate(depth(), keypoints=keypoints)
    assert located.keypoints is None
    assert scene.reasons == ['bad_keypoints']


def test_image_without_objects_needs_nothing(scene):
    scene.locator.calibration = None
    keypoints = Keypoints(HEADER, np.zeros((0, 17, 3), np.float32))
    located = scene.locate(detections=FoundObjects(HEADER, ()), keypoints=keypoints)
    assert (located.objects, located.keypoints.shape) == ([], (0, 17, 4))
