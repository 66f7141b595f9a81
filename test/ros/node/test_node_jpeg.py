"""JPEGs as a pipeline on the GPU takes them, and which of a camera's topics `auto` chooses."""

import io
import re

import cv2
import numpy as np
import pytest
from PIL import Image as Picture
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage, Image
from vision_msgs.msg import Detection2DArray

from support.models.tiny_model import expected_detections
from support.nodes.graph import HANDSHAKE, assert_found, picture_of
from support.programs import script

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro

COLOR = (200, 120, 80)
SIZE = (128, 96)
AUTO = {'autostart': True, 'image_transport': 'auto'}


def content(kind='JPEG', rgb=COLOR, **options):
    file = io.BytesIO()
    Picture.new('RGB', SIZE, rgb).save(file, kind, **options)
    return file.getvalue()


def message(data, frame_id='camera'):
    image = CompressedImage(format='jpeg', data=data)
    image.header.frame_id = frame_id
    return image


@pytest.fixture
def camera(client):
    """Return a function that makes a publisher; all are destroyed in the end."""
    made = []

    def make(kind, topic):
        made.append(client.node.create_publisher(kind, topic, QoSProfile(depth=10)))
        return made[-1]

    yield make
    for publisher in made:
        client.node.destroy_publisher(publisher)


@pytest.fixture
def start(start_detector, model):
    """Return a function that starts a detector: of JPEGs, unless it is the usual one."""

    def make(parameters, *, usual=False, **options):
        command = None if usual else script('nodes/jpeg_node.py')
        settings = {'engine_path': str(model), **parameters}
        return start_detector(settings, command=command, **options)

    return make


def assert_answers(answer):
    assert_found(answer, expected_detections(COLOR, SIZE), 3 / 255)


def test_auto_takes_jpegs_where_a_camera_offers_them(start, camera):
    detector = start({'image_transport': 'auto'})
    raw = camera(Image, detector.topic('image'))
    jpegs = camera(CompressedImage, detector.topic('image/compressed'))
    detector.to('configure', 'activate')
    detector.program.wait_for_line(f'image_transport auto: compressed, .* {jpegs.topic_name} ')
    detector.connect(message(content(rgb=(0, 0, 0)), HANDSHAKE), jpegs)
    assert raw.get_subscription_count() == 0
    # Published behind all the handshakes: once it is answered, none of them is on its way.
    detector.ask(message(content()), jpegs)
    taken = detector.settled_counts()['published']
    detector.program.wait_for_output('jpeg taken', taken)
    assert_answers(detector.ask(message(content()), jpegs))
    detector.program.wait_for_output('jpeg taken', taken + 1)
    # What is no plain JPEG is decoded by the worker, and said once for each kind.
    for _ in range(3):
        assert_answers(detector.ask(message(content(progressive=True)), jpegs))
        assert_answers(detector.ask(message(content('PNG')), jpegs))
    assert detector.program.count('jpeg taken') == taken + 1
    assert detector.program.count('progressive JPEG') == 1
    assert detector.program.count('PNG') == 1


def test_the_debug_image_of_a_jpeg(start, camera):
    detector = start({'autostart': True, 'image_transport': 'compressed'})
    jpegs = camera(CompressedImage, detector.topic('image/compressed'))
    drawn, subscription = detector.client.subscribe(Image, detector.topic('debug_image'))
    detector.connect(message(content(rgb=(0, 0, 0)), HANDSHAKE), jpegs)

    def found():
        jpegs.publish(message(content(), 'drawn'))
        return [image for image in drawn if image.header.frame_id == 'drawn']

    image = detector.client.spin_until(found, 'a debug image')[0]
    detector.client.node.destroy_subscription(subscription)
    assert (image.width, image.height, image.encoding) == (*SIZE, 'bgr8')
    pixels = np.frombuffer(image.data, np.uint8).reshape(image.height, image.width, 3)
    expected = cv2.imdecode(np.frombuffer(content(), np.uint8), cv2.IMREAD_COLOR)
    # Boxes are drawn over the rest.
    assert (pixels == expected).all(axis=-1).mean() > 0.3


def test_auto_takes_raw_images_where_nobody_offers_jpegs_and_decides_again(start, camera):
    detector = start(AUTO, camera_qos=None)
    topic = detector.topic('image/compressed')
    detector.program.wait_for_line(f'image_transport auto: raw, .* {topic} has no publisher')
    jpegs = camera(CompressedImage, topic)
    wait_for_advice(detector, topic)
    detector.to('deactivate', 'activate')
    detector.connect(message(content(rgb=(0, 0, 0)), HANDSHAKE), jpegs)
    assert_answers(detector.ask(message(content()), jpegs))
    # And back, where the camera is another one.
    detector.client.node.destroy_publisher(jpegs)
    detector.camera = detector.create_camera(QoSProfile(depth=10))
    wait_for_advice(detector, detector.topic('image'))


def wait_for_advice(detector, topic):
    """Wait until the status says where images are, and for which node to decide again."""
    detector.wait_for_status(
        lambda status, _: f' {topic}, ' in status.message and detector.name in status.message,
        'what to do about it',
    )


def test_auto_takes_raw_images_where_no_gpu_decodes(start, camera):
    detector = start({'image_transport': 'auto'}, usual=True)
    camera(CompressedImage, detector.topic('image/compressed'))
    detector.to('configure', 'activate')
    detector.program.wait_for_output('image_transport auto: raw, because no GPU ')
    detector.wait_for_status(
        lambda status, _: 'image_transport:=compressed (detect.launch.py)' in status.message,
        'the parameter to set',
    )


def test_another_type_on_the_compressed_topic_is_no_offer(start, camera):
    detector = start({'image_transport': 'auto'})
    topic = detector.topic('image/compressed')
    camera(Image, topic)
    detector.to('configure', 'activate')
    detector.program.wait_for_line(f'image_transport auto: raw, .* {topic} has no publisher')


def test_the_jpegs_of_one_camera_are_decoded_where_the_others_are_raw(start, camera):
    detector = start({'cameras': ['front', 'rear'], 'camera.rear.image_transport': 'compressed'})
    raw = camera(Image, detector.topic('front/image'))
    jpegs = camera(CompressedImage, detector.topic('rear/image/compressed'))
    rear, _ = detector.client.subscribe(Detection2DArray, detector.topic('rear/detections'))
    front, _ = detector.client.subscribe(Detection2DArray, detector.topic('front/detections'))
    detector.to('configure', 'activate')
    for publisher, image, heard in (
        (jpegs, message(content()), rear),
        (raw, picture_of(COLOR, SIZE), front),
    ):

        def answered(publisher=publisher, image=image, heard=heard):
            publisher.publish(image)
            return heard

        assert_answers(detector.client.spin_until(answered, 'detections')[0])
    detector.program.wait_for_line('jpeg taken')
    assert not re.search(r'\[WARN\].*detector.*JPEG', detector.program.output)
