"""Silence over real DDS: said in the log and in the diagnostics, and its end too."""

import json
import signal

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image

from support import forked
from support.nodes import scripted_node
from support.nodes.graph import HANDSHAKE, Detector, command_image, picture_of
from support.programs import DEADLINE_S, Program, executable, script

pytest_plugins = ['support.nodes.graph_fixtures']

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR
BEST_EFFORT = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)


def assert_recovers(detector, kind='', picture=None):
    """Publish until the log says how long which kind of problem lasted."""
    detector.program.forget()
    publish = detector.camera.publish
    picture = picture or picture_of((0, 0, 0), frame_id=HANDSHAKE, stamp=(0, 0))
    detector.wait_for_status(
        lambda status, _: publish(picture) or status.level == OK, 'a status without trouble'
    )
    detector.program.wait_for_line(rf'^\[INFO\] .* [0-9.]+ s \({kind}')


@pytest.fixture(scope='module')
def adjustable(client, model):
    """One detector without a camera; a test that wants one makes it."""
    detector = Detector(client, {'engine_path': str(model)}, camera_qos=None)
    yield detector
    detector.close()


@pytest.fixture
def lonely(adjustable):
    adjustable.bring_to('unconfigured')
    adjustable.set_well(**{'image_qos.reliability': 'auto', 'image_transport': 'raw'})
    adjustable.program.forget()
    yield adjustable
    adjustable.destroy_camera()


def publishers_gone(detector, topic):
    graph = detector.client.node
    detector.client.spin_until(lambda: not graph.count_publishers(topic), f'nobody on {topic}')


def test_nobody_publishes_and_images_are_elsewhere(lonely):
    publishers_gone(lonely, lonely.topic('image'))
    lonely.bring_to('active')
    lonely.wait_for_report(WARN, lonely.topic('image'))
    elsewhere = lonely.topic('front/image_raw')
    camera = lonely.client.node.create_publisher(Image, elsewhere, 1)
    lonely.wait_for_status(
        lambda status, _: f'image_topic:={elsewhere} ' in status.message,
        'the topic that has images',
    )
    lonely.client.node.destroy_publisher(camera)
    lonely.camera = lonely.create_camera(QoSProfile(depth=10))
    assert_recovers(lonely, 'no publisher')


def test_compressed_images_where_raw_ones_are_expected(lonely):
    lonely.bring_to('active')
    topic = lonely.topic('image/compressed')
    camera = lonely.client.node.create_publisher(CompressedImage, topic, 1)
    lonely.wait_for_status(
        lambda status, _: 'image_transport:=compressed (detect.launch.py)' in status.message,
        'the parameter to set',
    )
    lonely.client.node.destroy_publisher(camera)


def test_raw_images_where_compressed_ones_are_expected(lonely):
    lonely.set_well(image_transport='compressed')
    lonely.bring_to('active')
    lonely.camera = lonely.create_camera(QoSProfile(depth=1))
    lonely.wait_for_status(
        lambda status, _: 'image_transport:=raw (detect.launch.py)' in status.message,
        'the parameter to set',
    )


def test_another_type_on_the_topic(lonely):
    lonely.bring_to('active')
    camera = lonely.client.node.create_publisher(CompressedImage, lonely.topic('image'), 1)
    lonely.wait_for_report(ERROR, 'sensor_msgs/msg/CompressedImage')
    lonely.client.node.destroy_publisher(camera)


def test_quality_of_service_that_keeps_the_camera_out(lonely):
    lonely.set_well(**{'image_qos.reliability': 'reliable'})
    lonely.bring_to('active')
    camera = lonely.create_camera(BEST_EFFORT)
    picture = picture_of((9, 9, 9))
    lonely.wait_for_report(ERROR, 'image_qos.reliability', publish=lambda: camera.publish(picture))
    lonely.client.node.destroy_publisher(camera)
    lonely.camera = lonely.create_camera(QoSProfile(depth=10))
    assert_recovers(lonely)


def test_a_camera_that_sends_nothing_stalls_and_leaves(lonely):
    topic = lonely.topic('image')
    lonely.bring_to('active')
    lonely.camera = lonely.create_camera(QoSProfile(depth=10))
    lonely.wait_for_report(WARN, topic)
    assert_recovers(lonely, 'not arriving')
    lonely.wait_for_report(ERROR, topic)
    assert_recovers(lonely, 'stalled')
    lonely.destroy_camera()
    lonely.wait_for_report(ERROR, 'image_topic:=')
    lonely.camera = lonely.create_camera(QoSProfile(depth=10))
    assert_recovers(lonely)


def test_every_image_is_dropped(lonely):
    lonely.bring_to('active')
    lonely.camera = lonely.create_camera(QoSProfile(depth=10))
    lonely.connect()
    bad = picture_of((1, 2, 3))
    bad.encoding = 'no_such_encoding'
    lonely.wait_for_report(ERROR, 'x unknown_encoding', publish=lambda: lonely.camera.publish(bad))
    assert_recovers(lonely)


def test_an_engine_slower_than_the_camera(scripted_detector):
    def flood():
        for _ in range(10):
            scripted_detector.camera.publish(command_image(scripted_node.SLOW))

    scripted_detector.wait_for_report(WARN, publish=flood)
    # Silence has trouble of its own; this one is over.
    assert_recovers(scripted_detector, picture=command_image(0, frame_id=HANDSHAKE))


def test_frames_lost_on_the_way(scripted_detector):
    """What comes while the node cannot look is written over by what comes next."""

    def miss():
        scripted_detector.program.stop()
        for _ in range(20):
            scripted_detector.camera.publish(command_image(0))
        scripted_detector.program.send(signal.SIGCONT)

    scripted_detector.wait_for_report(WARN, 'image_qos.depth', publish=miss)


def test_images_but_no_output(start_detector):
    detector = start_detector(command=script('nodes/scripted_node.py'))
    detector.to('configure', 'activate')
    detector.connect(command_image(0, frame_id=HANDSHAKE))

    def never():  # again and again, because a newer image replaces one that waits
        detector.camera.publish(command_image(scripted_node.NEVER))

    detector.wait_for_report(ERROR, 'benchmark_engine', publish=never)
    detector.program.send(signal.SIGKILL)


def test_the_final_counts_are_logged(scripted_detector):
    for stamp in range(3):
        scripted_detector.ask(command_image(0, stamp))
    counts = scripted_detector.settled_counts()
    scripted_detector.to('deactivate')
    scripted_detector.program.wait_for_line(
        rf'counts: {counts["received"]} .* = {counts["published"]} '
    )
    scripted_detector.to('activate')
    scripted_detector.to('shutdown from active')
    scripted_detector.program.wait_for_output('counts: ', 2)


def test_another_node_of_the_same_name(client, adjustable):
    adjustable.bring_to('unconfigured')
    adjustable.bring_to('active')
    name = adjustable.name
    adjustable.wait_for_report(WARN, adjustable.topic('image'))
    adjustable.program.forget()
    twin = Program(
        [executable('detector_node'), '--ros-args', '-r', f'__ns:={adjustable.namespace}']
    )
    try:
        # Beside what else holds.
        adjustable.wait_for_report(WARN, 'namespace:=front')
        adjustable.program.wait_for_line(rf'namespace:=.*{adjustable.topic("image")}')

        def of_nodes():
            command = [executable('doctor'), '--seconds', '2', '--json']
            report = json.loads(forked.run(command, timeout=DEADLINE_S).stdout)
            return [f for f in report['findings'] if f['area'] == 'nodes']

        [found] = client.spin_until(of_nodes, 'doctor hears of both')
        assert (found['name'], found['level']) == (name, 'yellow')
    finally:
        twin.send(signal.SIGINT)
        twin.wait()
        twin.close()
    adjustable.wait_for_status(
        lambda status, _: 'namespace:=' not in status.message, 'that the other one is gone'
    )
