# SPDX-License-Identifier: Apache-2.0
"""Tests of detections over DDS: headers, order, encodings and images that cannot be read."""

import cv2
import numpy as np
import pytest
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage, Image

from support.models.tiny_model import expected_detections
from support.nodes.graph import (
    HANDSHAKE,
    Detector,
    assert_found,
    found_in,
    frame_counts,
    image_message,
    picture_of,
)
from trt_perception.images.encode import encode_bgr

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro

COLOR = (200, 120, 80)
BLACK = (0, 0, 0)
LARGEST_INT32 = 2**31 - 1


@pytest.mark.parametrize('rgb', [COLOR, BLACK], ids=['detections', 'none'])
@pytest.mark.parametrize(
    ('stamp', 'frame_id'),
    [
        ((1, 2), 'camera'),
        ((0, 0), ''),
        ((LARGEST_INT32, 999_999_999), 'front_left/optical frame'),
        ((1_700_000_000, 123_456_789), 'カメラ_ü_🤖'),
        ((-5, 1), 'a clock before 1970'),
        ((1, 2**32 - 1), 'x' * 256),
    ],
    ids=['usual', 'zero', 'largest', 'unicode', 'negative', 'long'],
)
def test_detections_have_the_header_of_the_image(active_detector, rgb, stamp, frame_id):
    image = picture_of(rgb, stamp=stamp, frame_id=frame_id)
    answer = active_detector.ask(image)
    assert answer.header == image.header
    assert len(answer.detections) == (4 if rgb == COLOR else 0)
    for detection in answer.detections:
        assert detection.header == image.header


@pytest.mark.parametrize('image_wh', [(64, 48), (128, 96), (100, 75), (640, 480), (48, 36)])
def test_boxes_are_in_pixels_of_the_image(active_detector, image_wh):
    answer = active_detector.ask(picture_of(COLOR, image_wh))
    assert_found(answer, expected_detections(COLOR, image_wh))
    for detection in answer.detections:
        assert len(detection.results) == 1
        assert detection.id == ''
        assert detection.bbox.center.theta == 0.0
        assert detection.results[0].pose.pose.orientation.w == 1.0
        assert not detection.results[0].pose.covariance.any()


def test_every_image_is_answered_once_and_in_order(active_detector):
    # After the answer to this image, no handshake image is in flight.
    active_detector.ask(picture_of(COLOR))
    # Detections arrive before they are counted, so compare only when nothing is in flight.
    _, before = active_detector.wait_for_status(
        lambda _, v: v['in flight'] == '0', 'nothing in flight'
    )
    answers = []
    for number in range(20):
        answers.append(active_detector.ask(picture_of(COLOR, stamp=(number, 0))))
        assert len(active_detector.detections) == 1
    assert [answer.header.stamp.sec for answer in answers] == list(range(20))
    _, values = active_detector.wait_for_status(
        lambda _, v: int(v['received']) >= int(before['received']) + 20 and v['in flight'] == '0',
        'the counts of twenty images',
    )
    assert int(values['received']) == int(before['received']) + 20
    assert int(values['published']) == int(before['published']) + 20


def raw_image(rgb, encoding, padding=0):
    """Return an Image of one colour. Each row ends with `padding` meaningless bytes."""
    bgr = np.empty((96, 128, 3), np.uint8)
    bgr[...] = rgb[::-1]
    rows = encode_bgr(bgr, encoding)
    rows = np.pad(rows, ((0, 0), (0, padding)), constant_values=255)
    step = rows.shape[1]
    return image_message(rows, 128, 96, encoding, step=step)


@pytest.mark.parametrize('padding', [0, 10])
@pytest.mark.parametrize('encoding', ['bgr8', 'rgb8', 'bgra8', 'rgba8', '8UC3'])
def test_colour_encodings_give_equal_detections(active_detector, encoding, padding):
    same = active_detector.ask(picture_of(COLOR))
    answer = active_detector.ask(raw_image(COLOR, encoding, padding))
    assert found_in(answer) == found_in(same)
    assert_found(answer, expected_detections(COLOR, (128, 96)))


@pytest.mark.parametrize('padding', [0, 10])
@pytest.mark.parametrize('encoding', ['mono8', '8UC1', 'mono16'])
def test_grey_encodings_are_read(active_detector, encoding, padding):
    answer = active_detector.ask(raw_image((150, 150, 150), encoding, padding))
    assert_found(answer, expected_detections((150, 150, 150), (128, 96)))


@pytest.mark.parametrize('big_endian', [False, True])
def test_both_byte_orders_are_read(active_detector, big_endian):
    data = (149 * 257 + 100).to_bytes(2, 'big' if big_endian else 'little') * (128 * 96)
    image = image_message(data, 128, 96, 'mono16', step=256, big_endian=big_endian)
    assert_found(active_detector.ask(image), expected_detections((149, 149, 149), (128, 96)))


@pytest.mark.parametrize('padding', [0, 10])
@pytest.mark.parametrize(
    'encoding',
    ['uyvy', 'yuv422', 'yuyv', 'yuv422_yuy2', 'nv12', 'nv21', 'bayer_rggb8', 'bayer_gbrg8'],
)
def test_yuv_and_bayer_encodings_are_read(active_detector, encoding, padding):
    # Limited-range YUV stores a level with an error of about 1/255.
    answer = active_detector.ask(raw_image(COLOR, encoding, padding))
    assert_found(answer, expected_detections(COLOR, (128, 96)), score_tolerance=2.5 / 255)


GREY = bytes(96 * 128 * 3)
MALFORMED = [
    ('unknown_encoding', image_message(GREY, 128, 96, 'no_such_encoding', step=384)),
    ('unknown_encoding', image_message(GREY, 128, 96, '', step=384)),
    ('bad_length', image_message(GREY[:-1], 128, 96, 'bgr8', step=384)),
    ('bad_length', image_message(GREY + b'\0', 128, 96, 'bgr8', step=384)),
    ('bad_length', image_message(b'', 128, 96, 'bgr8', step=384)),
    ('bad_step', image_message(GREY, 128, 96, 'bgr8', step=383)),
    ('bad_step', image_message(GREY, 128, 96, 'bgr8', step=0)),
    ('bad_size', image_message(b'', 0, 0, 'bgr8', step=0)),
    ('bad_size', image_message(b'', 128, 0, 'bgr8', step=384)),
    ('bad_size', image_message(b'', 2**32 - 1, 2**32 - 1, 'bgr8', step=2**32 - 1)),
    ('odd_size', image_message(GREY, 127, 96, 'nv12', step=128)),
]


@pytest.mark.parametrize(
    ('reason', 'image'),
    MALFORMED,
    ids=[f'{i}-{reason}' for i, (reason, _) in enumerate(MALFORMED)],
)
def test_invalid_image_is_dropped_with_its_reason(active_detector, reason, image):
    before = active_detector.settled_counts()
    active_detector.camera.publish(image)
    _, values = active_detector.wait_for_status(
        lambda _, values: frame_counts(values)['received'] > before['received'],
        'a status that counts the image as received',
    )
    counts = frame_counts(values)
    # The image may still be in flight in this status.
    if counts['in flight']:
        counts = active_detector.settled_counts()
    assert counts['dropped'].get(reason, 0) == before['dropped'].get(reason, 0) + 1
    assert counts['published'] == before['published']
    assert_found(active_detector.ask(picture_of(COLOR)), expected_detections(COLOR, (128, 96)))


def test_first_dropped_image_is_logged(start_detector, model):
    detector = start_detector({'engine_path': str(model), 'autostart': True})
    detector.connect()
    detector.camera.publish(image_message(GREY, 128, 96, 'no_such_encoding', step=384))
    assert "'no_such_encoding'" in detector.wait_for_log('WARN', '(unknown_encoding)')


def compressed_image(rgb, suffix, frame_id='camera'):
    bgr = np.empty((96, 128, 3), np.uint8)
    bgr[...] = rgb[::-1]
    message = CompressedImage(format=suffix.removeprefix('.'))
    message.header.frame_id = frame_id
    message.header.stamp.sec = 7
    message.data = cv2.imencode(suffix, bgr)[1].tobytes()
    return message


@pytest.fixture(scope='module')
def compressed_detector(client, model):
    """Return an active detector of compressed images on a remapped topic, and its publisher."""
    parameters = {'engine_path': str(model), 'autostart': True, 'image_transport': 'compressed'}
    detector = Detector(client, parameters, arguments=('-r', 'image:=front/image_raw'))
    camera = client.node.create_publisher(
        CompressedImage, detector.topic('front/image_raw/compressed'), QoSProfile(depth=10)
    )
    try:
        detector.connect(compressed_image(BLACK, '.jpg', HANDSHAKE), camera)
        yield detector, camera
    finally:
        client.node.destroy_publisher(camera)
        detector.close()


@pytest.mark.parametrize('suffix', ['.jpg', '.png'])
def test_compressed_images_are_read(compressed_detector, suffix):
    detector, camera = compressed_detector
    image = compressed_image(COLOR, suffix)
    answer = detector.ask(image, camera)
    assert answer.header == image.header
    tolerance = 1e-5 if suffix == '.png' else 3 / 255
    assert_found(answer, expected_detections(COLOR, (128, 96)), tolerance)


def test_truncated_compressed_images_are_dropped(compressed_detector):
    detector, camera = compressed_detector
    for suffix in ('.jpg', '.png'):
        whole = compressed_image(COLOR, suffix)
        for size in (0, 3, len(whole.data) // 2):
            before = detector.settled_counts()
            broken = compressed_image(COLOR, suffix)
            broken.data = whole.data[:size]
            camera.publish(broken)
            detector.wait_for_status(
                lambda _, values, before=before: (
                    frame_counts(values)['dropped'].get('not_decodable', 0)
                    == before['dropped'].get('not_decodable', 0) + 1
                ),
                f'{suffix} cut to {size} bytes: the count of not_decodable',
            )
            answer = detector.ask(compressed_image(COLOR, suffix), camera)
            assert len(answer.detections) == 4


def test_image_topic_is_remapped(start_detector, model):
    parameters = {'engine_path': str(model), 'autostart': True}
    detector = start_detector(parameters, arguments=('-r', 'image:=front/image_raw'))
    camera = detector.client.node.create_publisher(
        Image, detector.topic('front/image_raw'), QoSProfile(depth=10)
    )
    detector.connect(publisher=camera)
    detector.client.node.destroy_publisher(camera)
