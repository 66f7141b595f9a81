# SPDX-License-Identifier: Apache-2.0
"""Tests of quality of service: `auto` follows the camera, other values report a mismatch."""

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
def node_parameters(model):
    return {'engine_path': str(model), 'autostart': True}


def reliability(detector):
    _, values = detector.wait_for_status(
        lambda _, values: values['image reliability'] != '', 'the reliability'
    )
    return values['image reliability']


@pytest.fixture(scope='module')
def detector_without_camera(client, model, request):
    """Return a detector without a camera. Tests set its parameters."""
    parameters = {'engine_path': str(model), 'image_intake': request.param}
    detector = Detector(client, parameters, camera_qos=None)
    yield detector
    detector.close()


# Parameter, the camera's QoS, and the resulting reliability. Only `auto` needs package code.
AUTO = [('auto', RELIABLE, 'reliable'), ('auto', BEST_EFFORT, 'best_effort')]
FIXED = [
    ('reliable', RELIABLE, 'reliable'),
    ('best_effort', RELIABLE, 'best_effort'),
    ('best_effort', BEST_EFFORT, 'best_effort'),
]


@pytest.mark.parametrize(
    ('detector_without_camera', 'setting', 'offered', 'expected_reliability'),
    [*(('auto', *row) for row in AUTO + FIXED), *(('rclpy', *row) for row in AUTO)],
    indirect=['detector_without_camera'],
)
@pytest.mark.parametrize('started_first', ['node', 'camera'])
def test_images_arrive_with_the_expected_reliability(
    detector_without_camera, setting, offered, expected_reliability, started_first
):
    detector_without_camera.bring_to('unconfigured')
    assert detector_without_camera.set({'image_qos.reliability': setting}) == [(True, '')]
    if started_first == 'node':
        detector_without_camera.bring_to('active')
    camera = detector_without_camera.create_camera(offered)
    try:
        detector_without_camera.bring_to('active')
        detector_without_camera.connect(publisher=camera)
        assert reliability(detector_without_camera) == expected_reliability
        # A second subscription would receive every image twice.
        graph = detector_without_camera.client.node
        topic = detector_without_camera.topic('image')
        detector_without_camera.client.spin_until(
            lambda: graph.count_subscribers(topic) == 1, 'exactly one subscription'
        )

        def boxes():
            """Publish again, because best effort may lose images."""
            camera.publish(picture_of(COLOR))
            return [each for each in detector_without_camera.detections if each.detections]

        detector_without_camera.client.spin_until(boxes, 'boxes of an image')
    finally:
        detector_without_camera.client.node.destroy_publisher(camera)
        detector_without_camera.bring_to('unconfigured')
        # Otherwise the next activation may adapt to the camera of this test.
        detector_without_camera.wait_for_discovery()


def test_auto_serves_reliable_and_best_effort_cameras_at_once(start_detector, node_parameters):
    detector = start_detector(node_parameters)
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
        # The node learns later that the second camera is gone, so activate again until then.
        detector.transition('deactivate', 'activate')
        detector.connect(picture_of(COLOR, frame_id='first'))
        return reliability(detector) == 'reliable'

    detector.client.spin_until(reliable_again, 'a reliable subscription')


def test_qos_mismatch_mentions_the_parameter(start_detector, node_parameters):
    node_parameters['image_qos.reliability'] = 'reliable'
    detector = start_detector(node_parameters, camera_qos=BEST_EFFORT)
    detector.wait_for_log('ERROR', RELIABILITY)
    detector.camera.publish(picture_of(COLOR))
    node = detector.client.node
    good = node.create_publisher(Image, detector.topic('image'), RELIABLE)
    detector.connect(picture_of(COLOR, frame_id='good'), good)
    assert {message.header.frame_id for message in detector.detections} == {'good'}
    node.destroy_publisher(good)


def test_qos_mismatch_of_a_switched_off_camera_is_not_logged(start_detector, node_parameters):
    node_parameters['image_qos.reliability'] = 'reliable'
    detector = start_detector(node_parameters, camera_qos=RELIABLE)
    detector.connect(picture_of(COLOR))
    detector.set_or_fail(enabled=False)
    node, topic = detector.client.node, detector.topic('image')
    best_effort_camera = node.create_publisher(Image, topic, BEST_EFFORT)
    detector.client.spin_until(lambda: node.count_publishers(topic) == 2, 'the camera')
    detector.wait_for_status(
        lambda status, _: 'enabled' in status.message, 'a status of the switched-off camera'
    )
    assert detector.program.count(RELIABILITY) == 0
    detector.set_or_fail(enabled=True)
    node.destroy_publisher(best_effort_camera)


def test_many_incompatible_cameras_give_few_log_lines(start_detector, node_parameters):
    node_parameters['image_qos.reliability'] = 'reliable'
    detector = start_detector(node_parameters, camera_qos=BEST_EFFORT)
    detector.wait_for_log('ERROR', RELIABILITY)
    begun = time.monotonic()
    node, topic = detector.client.node, detector.topic('image')
    cameras = []
    for count in range(2, 12):
        cameras.append(node.create_publisher(Image, topic, BEST_EFFORT))
        detector.client.spin_until(lambda: node.count_publishers(topic) == count, 'the camera')  # noqa: B023
        detector.wait_for_status(lambda status, _: RELIABILITY in status.message, 'the error')
    # The first camera is logged at once. The watchdog logs the lack of images, and repeats it.
    seconds = time.monotonic() - begun
    lines = [line for line in detector.program.output.splitlines() if RELIABILITY in line]
    assert len(lines) <= 4 + seconds / 10 + seconds / 30
    for camera in cameras:
        node.destroy_publisher(camera)


def test_images_of_a_camera_with_stricter_qos_arrive(start_detector, node_parameters):
    detector = start_detector(node_parameters)
    detector.connect()
    qos = QoSProfile(depth=1, liveliness=LivelinessPolicy.MANUAL_BY_TOPIC)
    qos.durability = DurabilityPolicy.TRANSIENT_LOCAL
    node = detector.client.node
    camera = node.create_publisher(Image, detector.topic('image'), qos)
    detector.connect(picture_of(COLOR), camera)
    node.destroy_publisher(camera)


def only_info(detector, kind, topic):
    """Return the QoS and the names of the only publisher or subscription of a topic."""
    infos_of = getattr(detector.client.node, f'get_{kind}_info_by_topic')
    [info] = detector.client.spin_until(lambda: infos_of(detector.topic(topic)), topic)
    return info


def test_subscription_has_the_depth_of_the_parameter(start_detector, node_parameters):
    node_parameters['image_qos.depth'] = 7
    detector = start_detector(node_parameters)
    detector.connect()
    info = only_info(detector, 'subscriptions', 'image')
    assert info.qos_profile.reliability == ReliabilityPolicy.RELIABLE
    # Not every middleware reports the depth of other nodes. 0 means unknown.
    assert info.qos_profile.depth in (0, 7)


def test_detections_are_reliable_and_label_info_is_latched(start_detector, node_parameters):
    detector = start_detector(node_parameters)
    detector.connect()
    info = only_info(detector, 'publishers', 'detections')
    assert info.qos_profile.reliability == ReliabilityPolicy.RELIABLE
    info = only_info(detector, 'publishers', 'label_info')
    assert info.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL
