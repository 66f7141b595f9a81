# SPDX-License-Identifier: Apache-2.0
"""Tests of silent cameras over DDS: the log and the diagnostics report begin and end."""

import json
import signal

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image
from vision_msgs.msg import LabelInfo

from support import forked
from support.nodes import scripted_node
from support.nodes.graph import HANDSHAKE, Detector, command_image, picture_of
from support.programs import DEADLINE_S, Program, executable, script
from trt_perception.model.tasks.table import PUBLISHED_TOPICS

pytest_plugins = ['support.nodes.graph_fixtures']

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR
BEST_EFFORT = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)


def assert_recovers(detector, kind='', picture=None):
    """Publish until the log reports the end of a problem, its kind and its duration."""
    detector.program.forget()
    publish = detector.camera.publish
    picture = picture or picture_of((0, 0, 0), frame_id=HANDSHAKE, stamp=(0, 0))
    detector.wait_for_status(
        lambda status, _: publish(picture) or status.level == OK, 'a status without a problem'
    )
    detector.program.wait_for_line(rf'^\[INFO\] .* [0-9.]+ s \({kind}')


@pytest.fixture(scope='module')
def detector_without_camera(client, model):
    """Return a detector without a camera. Tests create cameras."""
    detector = Detector(client, {'engine_path': str(model)}, camera_qos=None)
    yield detector
    detector.close()


@pytest.fixture
def unconfigured_detector(detector_without_camera):
    detector_without_camera.bring_to('unconfigured')
    detector_without_camera.set_or_fail(
        **{'image_qos.reliability': 'auto', 'image_transport': 'raw'}
    )
    detector_without_camera.program.forget()
    yield detector_without_camera
    detector_without_camera.destroy_camera()


def wait_for_no_publishers(detector, topic):
    graph = detector.client.node
    detector.client.spin_until(
        lambda: not graph.count_publishers(topic), f'no publisher on {topic}'
    )


def test_topic_without_publisher_is_reported_with_the_topic_that_has_images(unconfigured_detector):
    wait_for_no_publishers(unconfigured_detector, unconfigured_detector.topic('image'))
    unconfigured_detector.bring_to('active')
    unconfigured_detector.wait_for_report(WARN, unconfigured_detector.topic('image'))
    elsewhere = unconfigured_detector.topic('front/image_raw')
    camera = unconfigured_detector.client.node.create_publisher(Image, elsewhere, 1)
    unconfigured_detector.wait_for_status(
        lambda status, _: f'image_topic:={elsewhere} ' in status.message,
        'the topic that has images',
    )
    unconfigured_detector.client.node.destroy_publisher(camera)
    unconfigured_detector.camera = unconfigured_detector.create_camera(QoSProfile(depth=10))
    assert_recovers(unconfigured_detector, 'no publisher')


def test_images_of_another_detector_are_not_suggested(unconfigured_detector):
    node = unconfigured_detector.client.node
    topic = unconfigured_detector.topic
    wait_for_no_publishers(unconfigured_detector, topic('image'))
    publishers = [node.create_publisher(LabelInfo, topic('other/label_info'), 1)]
    publishers += [
        node.create_publisher(Image, topic(f'other/{each.name}'), 1)
        for each in PUBLISHED_TOPICS
        if each.message == 'sensor_msgs/Image'
    ]
    camera = node.create_publisher(Image, topic('camera/depth'), 1)
    unconfigured_detector.bring_to('active')
    unconfigured_detector.wait_for_status(
        lambda status, _: f'images are on {camera.topic_name}: ' in status.message,
        'the topic of the camera as the only suggestion',
    )
    for publisher in (camera, *publishers):
        node.destroy_publisher(publisher)


def test_compressed_images_are_suggested_if_raw_images_are_missing(unconfigured_detector):
    unconfigured_detector.bring_to('active')
    topic = unconfigured_detector.topic('image/compressed')
    camera = unconfigured_detector.client.node.create_publisher(CompressedImage, topic, 1)
    unconfigured_detector.wait_for_status(
        lambda status, _: 'image_transport:=compressed (detect.launch.py)' in status.message,
        'the parameter to set',
    )
    unconfigured_detector.client.node.destroy_publisher(camera)


def test_raw_images_are_suggested_if_compressed_images_are_missing(unconfigured_detector):
    unconfigured_detector.set_or_fail(image_transport='compressed')
    unconfigured_detector.bring_to('active')
    unconfigured_detector.camera = unconfigured_detector.create_camera(QoSProfile(depth=1))
    unconfigured_detector.wait_for_status(
        lambda status, _: 'image_transport:=raw (detect.launch.py)' in status.message,
        'the parameter to set',
    )


def test_another_type_on_the_topic_is_reported(unconfigured_detector):
    unconfigured_detector.bring_to('active')
    camera = unconfigured_detector.client.node.create_publisher(
        CompressedImage, unconfigured_detector.topic('image'), 1
    )
    unconfigured_detector.wait_for_report(ERROR, 'sensor_msgs/msg/CompressedImage')
    unconfigured_detector.client.node.destroy_publisher(camera)


def test_qos_mismatch_is_reported(unconfigured_detector):
    unconfigured_detector.set_or_fail(**{'image_qos.reliability': 'reliable'})
    unconfigured_detector.bring_to('active')
    camera = unconfigured_detector.create_camera(BEST_EFFORT)
    picture = picture_of((9, 9, 9))
    unconfigured_detector.wait_for_report(
        ERROR, 'image_qos.reliability', publish=lambda: camera.publish(picture)
    )
    unconfigured_detector.client.node.destroy_publisher(camera)
    unconfigured_detector.camera = unconfigured_detector.create_camera(QoSProfile(depth=10))
    assert_recovers(unconfigured_detector)


def test_camera_without_images_then_stalled_then_gone_is_reported(unconfigured_detector):
    topic = unconfigured_detector.topic('image')
    unconfigured_detector.bring_to('active')
    unconfigured_detector.camera = unconfigured_detector.create_camera(QoSProfile(depth=10))
    unconfigured_detector.wait_for_report(WARN, topic)
    assert_recovers(unconfigured_detector, 'not arriving')
    unconfigured_detector.wait_for_report(ERROR, topic)
    assert_recovers(unconfigured_detector, 'stalled')
    unconfigured_detector.destroy_camera()
    unconfigured_detector.wait_for_report(ERROR, 'image_topic:=')
    unconfigured_detector.camera = unconfigured_detector.create_camera(QoSProfile(depth=10))
    assert_recovers(unconfigured_detector)


def test_only_invalid_images_are_reported(unconfigured_detector):
    unconfigured_detector.bring_to('active')
    unconfigured_detector.camera = unconfigured_detector.create_camera(QoSProfile(depth=10))
    unconfigured_detector.connect()
    bad = picture_of((1, 2, 3))
    bad.encoding = 'no_such_encoding'
    unconfigured_detector.wait_for_report(
        ERROR, 'x unknown_encoding', publish=lambda: unconfigured_detector.camera.publish(bad)
    )
    assert_recovers(unconfigured_detector)


def test_engine_slower_than_the_camera_is_reported(scripted_detector):
    def flood():
        for _ in range(10):
            scripted_detector.camera.publish(command_image(scripted_node.SLOW))

    scripted_detector.wait_for_report(WARN, publish=flood)
    # Images must still arrive, because a silent camera is another problem.
    assert_recovers(scripted_detector, picture=command_image(0, frame_id=HANDSHAKE))


@pytest.mark.parametrize(
    ('command', 'expected'), [(scripted_node.SLOW, 'model'), (scripted_node.SLOW_WORKER, 'worker')]
)
def test_stage_that_is_too_slow_for_the_camera_is_reported(scripted_detector, command, expected):
    node, camera = scripted_detector.client.node, scripted_detector.camera
    timer = node.create_timer(0.005, lambda: camera.publish(command_image(command)))
    scripted_detector.wait_for_status(
        lambda _, values: values.get('late stage') == expected, f'late stage: {expected}'
    )
    node.destroy_timer(timer)


def test_images_lost_in_transport_are_reported(scripted_detector):
    """While the node is stopped, newer images overwrite older ones in the middleware."""

    def lose_images():
        scripted_detector.program.stop()
        for _ in range(20):
            scripted_detector.camera.publish(command_image(0))
        scripted_detector.program.send(signal.SIGCONT)

    scripted_detector.wait_for_report(WARN, 'image_qos.depth', publish=lose_images)


def test_hanging_pipeline_is_reported(start_detector):
    detector = start_detector(command=script('nodes/scripted_node.py'))
    detector.transition('configure', 'activate')
    detector.connect(command_image(0, frame_id=HANDSHAKE))

    # Called repeatedly, because a newer image replaces a waiting one.
    def never():
        detector.camera.publish(command_image(scripted_node.NEVER))

    detector.wait_for_report(ERROR, 'benchmark_engine', publish=never)
    detector.program.send(signal.SIGKILL)


def test_final_counts_are_logged(scripted_detector):
    for stamp in range(3):
        scripted_detector.ask(command_image(0, stamp))
    counts = scripted_detector.settled_counts()
    scripted_detector.transition('deactivate')
    scripted_detector.program.wait_for_line(
        rf'counts: {counts["received"]} .* = {counts["published"]} '
    )
    scripted_detector.transition('activate')
    scripted_detector.transition('shutdown from active')
    scripted_detector.program.wait_for_output('counts: ', 2)


def test_second_node_of_the_same_name_is_reported(client, detector_without_camera):
    detector_without_camera.bring_to('unconfigured')
    detector_without_camera.bring_to('active')
    name = detector_without_camera.name
    detector_without_camera.wait_for_report(WARN, detector_without_camera.topic('image'))
    detector_without_camera.program.forget()
    twin = Program(
        [
            executable('detector_node'),
            '--ros-args',
            '-r',
            f'__ns:={detector_without_camera.namespace}',
        ]
    )
    try:
        # The missing publisher is still reported.
        detector_without_camera.wait_for_report(WARN, 'namespace:=front')
        detector_without_camera.program.wait_for_line(
            rf'namespace:=.*{detector_without_camera.topic("image")}'
        )

        def findings_about_nodes():
            command = [executable('doctor'), '--seconds', '2', '--json']
            report = json.loads(forked.run(command, timeout=DEADLINE_S).stdout)
            return [f for f in report['findings'] if f['area'] == 'nodes']

        [found] = client.spin_until(findings_about_nodes, 'a finding of doctor about both nodes')
        assert (found['name'], found['level']) == (name, 'yellow')
    finally:
        twin.send(signal.SIGINT)
        twin.wait()
        twin.close()
    detector_without_camera.wait_for_status(
        lambda status, _: 'namespace:=' not in status.message,
        'a status after the end of the other node',
    )
