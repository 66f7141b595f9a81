"""The camera's quality of service: auto follows it, everything else says what is wrong."""

import time

import pytest
from rclpy.qos import DurabilityPolicy, LivelinessPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image

from support.nodes.graph import Detector, picture_of

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro

RELIABLE = QoSProfile(depth=5, reliability=ReliabilityPolicy.RELIABLE)
BEST_EFFORT = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
COLOR = (200, 120, 60)
RELIABILITY = 'image_qos.reliability'


@pytest.fixture
def settings(model):
    return {'engine_path': str(model), 'autostart': True}


def reliability(detector):
    _, values = detector.wait_for_status(
        lambda _, values: values['image reliability'] != '', 'the reliability'
    )
    return values['image reliability']


@pytest.fixture(scope='module')
def adjustable(client, model, request):
    """One detector without a camera, for tests that set its parameters themselves."""
    settings = {'engine_path': str(model), 'image_intake': request.param}
    detector = Detector(client, settings, camera_qos=None)
    yield detector
    detector.close()


# Setting, offer, and what is agreed; only `auto` does more than to ask the middleware.
AUTO = [('auto', RELIABLE, 'reliable'), ('auto', BEST_EFFORT, 'best_effort')]
FIXED = [
    ('reliable', RELIABLE, 'reliable'),
    ('best_effort', RELIABLE, 'best_effort'),
    ('best_effort', BEST_EFFORT, 'best_effort'),
]


@pytest.mark.parametrize(
    ('adjustable', 'setting', 'offered', 'agreed'),
    [*(('auto', *row) for row in AUTO + FIXED), *(('rclpy', *row) for row in AUTO)],
    indirect=['adjustable'],
)
@pytest.mark.parametrize('first', ['node', 'camera'])
def test_images_arrive(adjustable, setting, offered, agreed, first):
    adjustable.bring_to('unconfigured')
    assert adjustable.set({'image_qos.reliability': setting}) == [(True, '')]
    if first == 'node':
        adjustable.bring_to('active')
    camera = adjustable.create_camera(offered)
    try:
        adjustable.bring_to('active')
        adjustable.connect(publisher=camera)
        assert reliability(adjustable) == agreed
        # One subscription: two would show every image twice.
        graph = adjustable.client.node
        topic = adjustable.topic('image')
        adjustable.client.spin_until(
            lambda: graph.count_subscribers(topic) == 1, 'one subscription and no more'
        )
        # Best effort promises nothing, so: until one is answered.
        adjustable.connect(picture_of(COLOR), camera)
        assert adjustable.detections[-1].detections
    finally:
        adjustable.client.node.destroy_publisher(camera)
        adjustable.bring_to('unconfigured')


def test_auto_serves_both_kinds_of_camera_at_once(start_detector, settings):
    detector = start_detector(settings)
    detector.connect()
    assert reliability(detector) == 'reliable'
    node = detector.client.node
    second = node.create_publisher(Image, detector.topic('image'), BEST_EFFORT)
    detector.connect(picture_of(COLOR, frame_id='second'), second)
    assert reliability(detector) == 'best_effort'
    detector.connect(picture_of(COLOR, frame_id='first'))
    detector.connect(picture_of(COLOR, frame_id='second'), second)
    node.destroy_publisher(second)

    def reliable_again():
        # Until the word that the second camera is gone has reached the node.
        detector.to('deactivate', 'activate')
        detector.connect(picture_of(COLOR, frame_id='first'))
        return reliability(detector) == 'reliable'

    detector.client.spin_until(reliable_again, 'a reliable subscription')


def test_reliable_names_the_parameter_that_keeps_a_camera_out(start_detector, settings):
    settings['image_qos.reliability'] = 'reliable'
    detector = start_detector(settings, camera_qos=BEST_EFFORT)
    detector.wait_for_log('ERROR', RELIABILITY)
    detector.camera.publish(picture_of(COLOR))
    node = detector.client.node
    good = node.create_publisher(Image, detector.topic('image'), RELIABLE)
    detector.connect(picture_of(COLOR, frame_id='good'), good)
    assert {message.header.frame_id for message in detector.detections} == {'good'}
    node.destroy_publisher(good)


def test_of_a_camera_that_is_switched_off_nothing_is_logged(start_detector, settings):
    settings['image_qos.reliability'] = 'reliable'
    detector = start_detector(settings, camera_qos=RELIABLE)
    detector.connect(picture_of(COLOR))
    detector.set_well(enabled=False)
    node, topic = detector.client.node, detector.topic('image')
    kept_out = node.create_publisher(Image, topic, BEST_EFFORT)
    detector.client.spin_until(lambda: node.count_publishers(topic) == 2, 'the camera')
    detector.wait_for_status(lambda status, _: 'enabled' in status.message, 'that it is off')
    assert detector.program.count(RELIABILITY) == 0
    detector.set_well(enabled=True)
    node.destroy_publisher(kept_out)


def test_many_cameras_that_are_kept_out_are_few_lines_of_the_log(start_detector, settings):
    settings['image_qos.reliability'] = 'reliable'
    detector = start_detector(settings, camera_qos=BEST_EFFORT)
    detector.wait_for_log('ERROR', RELIABILITY)
    begun = time.monotonic()
    node, topic = detector.client.node, detector.topic('image')
    cameras = []
    for count in range(2, 12):
        cameras.append(node.create_publisher(Image, topic, BEST_EFFORT))
        detector.client.spin_until(lambda: node.count_publishers(topic) == count, 'the camera')  # noqa: B023
        detector.wait_for_status(lambda status, _: RELIABILITY in status.message, 'the error')
    # The first camera at once, and the watch says it when nothing arrives and while that lasts.
    seconds = time.monotonic() - begun
    lines = [line for line in detector.program.output.splitlines() if RELIABILITY in line]
    assert len(lines) <= 4 + seconds / 10 + seconds / 30
    for camera in cameras:
        node.destroy_publisher(camera)


def test_camera_that_offers_more_than_is_asked_for(start_detector, settings):
    detector = start_detector(settings)
    detector.connect()
    qos = QoSProfile(depth=1, liveliness=LivelinessPolicy.MANUAL_BY_TOPIC)
    qos.durability = DurabilityPolicy.TRANSIENT_LOCAL
    node = detector.client.node
    camera = node.create_publisher(Image, detector.topic('image'), qos)
    detector.connect(picture_of(COLOR), camera)
    node.destroy_publisher(camera)


def test_depth_is_what_the_parameter_says(start_detector, settings):
    settings['image_qos.depth'] = 7
    detector = start_detector(settings)
    detector.connect()
    [info] = detector.client.node.get_subscriptions_info_by_topic(detector.topic('image'))
    assert info.qos_profile.reliability == ReliabilityPolicy.RELIABLE
    # Not every middleware tells the depth of others; 0 stands for unknown.
    assert info.qos_profile.depth in (0, 7)


def test_detections_are_reliable(start_detector, settings):
    detector = start_detector(settings)
    detector.connect()
    [info] = detector.client.node.get_publishers_info_by_topic(detector.topic('detections'))
    assert info.qos_profile.reliability == ReliabilityPolicy.RELIABLE
    [info] = detector.client.node.get_publishers_info_by_topic(detector.topic('label_info'))
    assert info.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL
