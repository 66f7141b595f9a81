# SPDX-License-Identifier: Apache-2.0
"""Tests of undecoded JPEGs for the pipeline, and of the topic that `auto` chooses.

A stand-in for the CUDA pipeline runs in jpeg_node.py.
"""

import io
import re

import cv2
import numpy as np
import pytest
from PIL import Image as Picture
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage, Image
from vision_msgs.msg import Detection2DArray

from support.fuzz import camera_jpegs
from support.models.tiny_model import expected_detections
from support.nodes.graph import HANDSHAKE, assert_found, picture_of
from support.optional_packages import needs
from support.programs import script

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro

COLOR = (200, 120, 80)
SIZE = (128, 96)
AUTO = {'autostart': True, 'image_transport': 'auto'}


def encoded(kind='JPEG', rgb=COLOR, **options):
    file = io.BytesIO()
    Picture.new('RGB', SIZE, rgb).save(file, kind, **options)
    return file.getvalue()


def message(data, frame_id='camera'):
    image = CompressedImage(format='jpeg', data=data)
    image.header.frame_id = frame_id
    return image


@pytest.fixture
def make_publisher(client):
    """Return a function that creates publishers, which are destroyed after the test."""
    publishers = []

    def make(kind, topic):
        publishers.append(client.node.create_publisher(kind, topic, QoSProfile(depth=10)))
        return publishers[-1]

    yield make
    for publisher in publishers:
        client.node.destroy_publisher(publisher)


@pytest.fixture
def start(start_detector, model):
    """Return a function that starts jpeg_node.py, or the usual detector if `usual` is true."""

    def make(parameters, *, usual=False, **options):
        command = None if usual else script('nodes/jpeg_node.py')
        settings = {'engine_path': str(model), **parameters}
        return start_detector(settings, command=command, **options)

    return make


def assert_answers(answer):
    assert_found(answer, expected_detections(COLOR, SIZE), 3 / 255)


def test_auto_chooses_jpegs_if_they_are_published(start, make_publisher):
    detector = start({'image_transport': 'auto'})
    raw = make_publisher(Image, detector.topic('image'))
    jpegs = make_publisher(CompressedImage, detector.topic('image/compressed'))
    detector.wait_for_discovery()
    detector.transition('configure', 'activate')
    detector.program.wait_for_line(f'image_transport auto: compressed, .* {jpegs.topic_name} ')
    detector.connect(message(encoded(rgb=(0, 0, 0)), HANDSHAKE), jpegs)
    assert raw.get_subscription_count() == 0
    # After the answer to this image, no handshake image is in flight.
    detector.ask(message(encoded()), jpegs)
    taken = detector.settled_counts()['published']
    detector.program.wait_for_output('jpeg taken', taken)
    assert_answers(detector.ask(message(encoded()), jpegs))
    detector.program.wait_for_output('jpeg taken', taken + 1)
    # The worker decodes other formats, and logs each format once.
    for _ in range(3):
        assert_answers(detector.ask(message(encoded(progressive=True)), jpegs))
        assert_answers(detector.ask(message(encoded('PNG')), jpegs))
    assert detector.program.count('jpeg taken') == taken + 1
    assert detector.program.count('progressive JPEG') == 1
    assert detector.program.count('PNG') == 1


def test_debug_image_of_a_jpeg_is_drawn(start, make_publisher):
    detector = start({'autostart': True, 'image_transport': 'compressed'})
    jpegs = make_publisher(CompressedImage, detector.topic('image/compressed'))
    drawn, subscription = detector.client.subscribe(Image, detector.topic('debug_image'))
    detector.connect(message(encoded(rgb=(0, 0, 0)), HANDSHAKE), jpegs)

    def found():
        jpegs.publish(message(encoded(), 'drawn'))
        return [image for image in drawn if image.header.frame_id == 'drawn']

    image = detector.client.spin_until(found, 'a debug image')[0]
    detector.client.node.destroy_subscription(subscription)
    assert (image.width, image.height, image.encoding) == (*SIZE, 'bgr8')
    pixels = np.frombuffer(image.data, np.uint8).reshape(image.height, image.width, 3)
    expected = cv2.imdecode(np.frombuffer(encoded(), np.uint8), cv2.IMREAD_COLOR)
    # Boxes cover the other pixels.
    assert (pixels == expected).all(axis=-1).mean() > 0.3


def test_auto_chooses_again_with_each_activation(start, make_publisher):
    detector = start(AUTO, camera_qos=None)
    topic = detector.topic('image/compressed')
    detector.program.wait_for_line(f'image_transport auto: raw, .* {topic} has no publisher')
    jpegs = make_publisher(CompressedImage, topic)
    wait_for_advice(detector, topic)
    detector.transition('deactivate', 'activate')
    detector.connect(message(encoded(rgb=(0, 0, 0)), HANDSHAKE), jpegs)
    assert_answers(detector.ask(message(encoded()), jpegs))
    # A camera that publishes raw images replaces the JPEG camera.
    detector.client.node.destroy_publisher(jpegs)
    detector.camera = detector.create_camera(QoSProfile(depth=10))
    wait_for_advice(detector, detector.topic('image'))


def wait_for_advice(detector, topic):
    """Wait until the status names the topic with images and the node to activate again."""
    detector.wait_for_status(
        lambda status, _: f' {topic}, ' in status.message and detector.name in status.message,
        'advice in the status',
    )


def test_auto_chooses_raw_images_without_a_gpu(start, make_publisher):
    detector = start({'image_transport': 'auto'}, usual=True, camera_qos=None)
    make_publisher(CompressedImage, detector.topic('image/compressed'))
    detector.transition('configure', 'activate')
    detector.program.wait_for_output('image_transport auto: raw, because no GPU ')
    detector.wait_for_status(
        lambda status, _: 'image_transport:=compressed (detect.launch.py)' in status.message,
        'the parameter to set',
    )


def test_auto_ignores_another_type_on_the_compressed_topic(start, make_publisher):
    detector = start({'image_transport': 'auto'})
    topic = detector.topic('image/compressed')
    make_publisher(Image, topic)
    detector.wait_for_discovery()
    detector.transition('configure', 'activate')
    detector.program.wait_for_line(f'image_transport auto: raw, .* {topic} has no publisher')


def test_one_camera_sends_jpegs_while_another_sends_raw_images(start, make_publisher):
    detector = start({'cameras': ['front', 'rear'], 'camera.rear.image_transport': 'compressed'})
    raw = make_publisher(Image, detector.topic('front/image'))
    jpegs = make_publisher(CompressedImage, detector.topic('rear/image/compressed'))
    rear, _ = detector.client.subscribe(Detection2DArray, detector.topic('rear/detections'))
    front, _ = detector.client.subscribe(Detection2DArray, detector.topic('front/detections'))
    detector.transition('configure', 'activate')
    for publisher, image, received in (
        (jpegs, message(encoded()), rear),
        (raw, picture_of(COLOR, SIZE), front),
    ):

        def answered(publisher=publisher, image=image, received=received):
            publisher.publish(image)
            return received

        assert_answers(detector.client.spin_until(answered, 'detections')[0])
    detector.program.wait_for_line('jpeg taken')
    assert not re.search(r'\[WARN\].*detector.*JPEG', detector.program.output)


@needs('simplejpeg')
@pytest.mark.parametrize('usual', [True, False], ids=['CPU', 'undecoded'])
def test_damaged_jpegs_are_counted_and_nothing_is_printed(start, make_publisher, usual):
    detector = start({'autostart': True, 'image_transport': 'compressed'}, usual=usual)
    jpegs = make_publisher(CompressedImage, detector.topic('image/compressed'))
    detector.connect(message(encoded(rgb=(0, 0, 0)), HANDSHAKE), jpegs)
    # After the answer to this image, no handshake image is in flight.
    detector.ask(message(encoded()), jpegs)
    before = detector.settled_counts()
    whole = [*camera_jpegs.WHOLE_JPEGS.values(), *camera_jpegs.JPEGS_OF_UNKNOWN_VERSIONS.values()]
    harmless = list(camera_jpegs.JPEGS_WITH_HARMLESS_DEFECTS.values())
    truncated = [
        content
        for name in ('subsampling 2', 'restart markers', 'no Huffman tables', 'grey', 'CMYK')
        for content in list(camera_jpegs.cut_files(camera_jpegs.WHOLE_JPEGS[name]))[::16]
    ]

    for content in (*whole, *harmless):
        detector.ask(message(content), jpegs)
    for number, content in enumerate(truncated, start=1):
        jpegs.publish(message(content))
        detector.wait_for_status(
            lambda _, values, number=number: values.get('dropped: not_decodable') == str(number),
            f'{number} refused images',
        )

    counts = detector.settled_counts()
    _, values = detector.wait_for_status(lambda *_: True, 'a status')
    assert counts['published'] - before['published'] == len(whole) + len(harmless)
    assert counts['dropped'] == {**before['dropped'], 'not_decodable': len(truncated)}
    assert values['decoder_warnings'] == str(len(harmless))
    detector.program.wait_for_output('a JPEG has a defect')
    assert detector.program.count('a JPEG has a defect') == 1
    printed = detector.program.output.splitlines()
    assert [line for line in printed if not line.startswith(('[', 'jpeg taken'))] == []


def test_missing_simplejpeg_is_reported_at_configure(start, monkeypatch, tmp_path):
    (tmp_path / 'simplejpeg.py').write_text("raise ValueError('another NumPy')\n")
    monkeypatch.setenv('PYTHONPATH', str(tmp_path), prepend=':')
    warning = 'simplejpeg is missing (ValueError: another NumPy)'

    detector = start({'image_transport': 'compressed'}, usual=True)
    detector.transition('configure')
    detector.program.wait_for_output(warning)
    detector.transition('cleanup')
    raw = start({}, usual=True)
    raw.transition('configure')

    assert detector.program.count(warning) == 1
    assert raw.program.count(warning) == 0
