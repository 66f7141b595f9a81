# SPDX-License-Identifier: Apache-2.0
"""Tests of a node with several cameras over DDS: a problem of one does not affect the others."""

import signal
from collections import Counter

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image

from support.gpu.host_kernels import needs_compiler
from support.models.tiny_model import expected_detections, write_tiny_model
from support.nodes.camera_of_many import COLOR, HELLO, NAMES, CameraOfMany, assert_unharmed, steady
from support.nodes.graph import assert_found, picture_of
from support.optional_packages import needs
from support.programs import Program, script
from support.range_recorder import record_ranges, recorded_ranges

pytest_plugins = ['support.nodes.many_cameras_fixtures']

OK, ERROR = DiagnosticStatus.OK, DiagnosticStatus.ERROR


# Each camera gets its own results.


COLORS = {'front': (200, 10, 20), 'rear': (10, 200, 20), 'left': (10, 20, 200)}
SIZES = {'front': (64, 48), 'rear': (128, 96), 'left': (640, 480)}


def picture_from(camera, number):
    """Return an image that only this camera sends."""
    name = camera.name
    stamp = number, NAMES.index(name)
    return picture_of(COLORS[name], SIZES[name], frame_id=f'{name}_optical', stamp=stamp)


def assert_answered(camera, numbers):
    """Assert that exactly these images were answered, in order, each with its own detections."""
    name = camera.name
    expected = expected_detections(COLORS[name], SIZES[name])
    assert expected
    stamps = [message.header.stamp for message in camera.answers()]
    assert [stamp.sec for stamp in stamps] == list(numbers)
    assert {stamp.nanosec for stamp in stamps} == {NAMES.index(name)}
    for message in camera.answers():
        assert message.header.frame_id == f'{name}_optical'
        assert_found(message, expected, 1e-3, abs=0.01)


def ask_all_at_once(cameras, numbers):
    """For each number, publish an image of each camera, and wait for all detections."""
    for camera in cameras:
        camera.counts()  # waits until no image is in flight
        camera.detections.clear()
    for number in numbers:
        for camera in cameras:
            camera.publisher.publish(picture_from(camera, number))
        for camera in cameras:
            camera.client.spin_until(
                lambda c=camera, n=number: len(c.answers()) == n, f'{camera.name} {number}'
            )


def test_each_camera_gets_its_own_detections(cameras):
    numbers = range(1, 21)
    ask_all_at_once(cameras, numbers)
    for camera in cameras:
        assert_answered(camera, numbers)


@pytest.mark.parametrize('intake', ['auto', 'rclpy'])
def test_cameras_of_one_batch_get_their_own_detections(start_detector, tmp_path, intake):
    model = write_tiny_model(tmp_path / 'four.onnx', batch=4)
    settings = {'engine_path': str(model), 'cameras': list(NAMES), 'image_intake': intake}
    # The delay is long enough to put images that are published together into one batch.
    settings |= {'batch_max_delay_ms': 50.0, 'autostart': True}
    detector = start_detector(settings, camera_qos=None)
    cameras = [CameraOfMany(detector, name) for name in NAMES]
    for camera in cameras:
        camera.connect()
    before = frames_and_batches(detector)
    front, rear, left = cameras
    dropped_while_connecting = front.counts()['dropped']  # may include replaced images
    odd = picture_of(COLOR, (16, 12))
    odd.step += 1
    numbers = range(1, 4)
    ask_all_at_once(cameras, numbers)
    for number in range(4, 8):  # an invalid image does not affect the other cameras
        for camera, picture in ((front, None), (rear, odd), (left, None)):
            camera.publisher.publish(picture or picture_from(camera, number))
        for camera in (front, left):
            camera.client.spin_until(
                lambda c=camera, n=number: len(c.answers()) == n, f'{camera.name} {number}'
            )
    for camera in (front, left):
        assert_answered(camera, range(1, 8))
    rear.wait_for_status(lambda _, values: 'dropped: bad_length' in values, 'a dropped image')
    assert_answered(rear, numbers)
    assert rear.counts()['dropped'].keys() <= {'bad_length', 'replaced'}
    assert front.counts()['dropped'] == dropped_while_connecting
    after = frames_and_batches(detector)
    assert after[0] - before[0] == 7 + 7 + 3
    assert after[1] - before[1] < 7 + 7 + 3, 'no batch had several frames'
    # Only the node's status and log report a problem of the whole node.
    detector.program.forget()
    model.write_bytes(model.read_bytes())
    detector.wait_for_status(
        lambda status, _: str(model) in status.message, 'a report of the replaced model'
    )
    detector.wait_for_log('WARN', str(model))
    front.wait_for_status(
        lambda status, _: str(model) not in status.message,
        'a status without the problem of the node',
    )
    assert detector.program.count(str(model)) == 1
    for camera in cameras:
        camera.destroy_publisher()


def frames_and_batches(detector):
    counts = detector.settled_counts()
    _, values = detector.wait_for_status(lambda *_: True, 'a status')
    return counts['published'], int(values['batches'])


@needs('nvtx')
@needs_compiler
def test_node_marks_the_frames_of_each_camera(start_detector, model, tmp_path, monkeypatch):
    file = tmp_path / 'ranges.txt'
    record_ranges(monkeypatch, file)
    settings = {'engine_path': str(model), 'cameras': ['front', 'rear'], 'nvtx': True}
    detector = start_detector({**settings, 'autostart': True}, camera_qos=None)
    cameras = [CameraOfMany(detector, name) for name in settings['cameras']]
    for camera in cameras:
        camera.connect()
    published = {camera.name: camera.counts()['published'] for camera in cameras}
    detector.bring_to('inactive')
    ranges = Counter(recorded_ranges(file))
    for name, count in published.items():
        assert ranges[f'frame {name}'] == ranges[f'publish {name}'] == count > 0
    assert ranges['batch of 1'] == ranges['infer'] > 0


def test_node_counts_are_sums_of_camera_counts(cameras, detector):
    for number, camera in enumerate(cameras, 1):
        for stamp in range(1, 1 + 2 * number):
            camera.ask(picture_of(COLOR, stamp=(stamp, 0)))
    of_each = [camera.counts() for camera in cameras]
    together = detector.settled_counts()
    for key in ('received', 'published', 'failed'):
        assert together[key] == sum(counts[key] for counts in of_each)
    assert [c['published'] >= 2 * n for n, c in enumerate(of_each, 1)] == [True] * 3
    _, values = detector.wait_for_status(lambda *_: True, 'a status')
    assert values['cameras'] == 'front, rear, left'
    assert 0 < int(values['batches']) <= together['received']
    _, values = cameras[1].wait_for_status(lambda *_: True, 'a status')
    assert values['image reliability'] == 'reliable'
    assert 'engine' not in values
    detector.transition('deactivate')
    for camera, counts in zip(cameras, of_each, strict=True):
        detector.program.wait_for_line(rf'detector\.{camera.name}\]: .*: {counts["received"]} ')
    detector.program.wait_for_line(rf'detector\]: .*: {together["received"]} ')
    camera.wait_for_status(
        lambda _, values: values['state'] == 'inactive' and values['received'] != '0',
        'the counts of the last activation',
    )


# One camera has a problem. The test of a killed camera is last, because this camera stays in the
# graph for 20 s.


def assert_node_reports(name, detector, publish):
    """Wait until the node's status is an error that names this camera."""
    # On a busy machine, another camera may be late for a moment.
    detector.wait_for_status(
        lambda status, _: (
            publish() or (status.level == ERROR and status.message.startswith(f'{name}: '))
        ),
        f'an error of the node about {name}',
    )


def test_missing_camera_is_reported_with_the_topic_that_has_images(cameras, detector):
    front, rear, left = cameras
    rear.destroy_publisher()
    topic = detector.topic('rear_camera/image')
    elsewhere = rear.client.node.create_publisher(Image, topic, 1)
    publish = steady([front, left])
    rear.wait_for_report(ERROR, rear.topic, publish=publish)
    status, _ = rear.wait_for_status(
        lambda status, _: topic in status.message, 'the topic that has images', publish=publish
    )
    assert f'-r rear/image:={topic} ' in status.message
    assert front.topic not in status.message, 'the topic of another camera is suggested'
    assert_node_reports('rear', detector, publish)
    assert_unharmed([front, left], publish)
    rear.client.node.destroy_publisher(elsewhere)


def test_invalid_messages_of_one_camera_are_reported(cameras, detector):
    front, rear, left = cameras
    publish = steady([front, left])
    rubbish = [b'\xff' * 1000, bytes(5), b'\0\1\0\0' + b'x' * 100_000]

    def send():
        publish()
        for content in rubbish:
            rear.publisher.publish(content)

    rear.wait_for_report(ERROR, 'bad_message', publish=send)
    assert_node_reports('rear', detector, publish)
    assert_unharmed([front, left], publish)
    counts = rear.counts()
    assert counts['dropped']['bad_message'] >= len(rubbish)
    rear.connect()
    rear.wait_for_status(
        lambda status, _: status.level == OK,
        'nothing wrong',
        publish=lambda: rear.publisher.publish(HELLO),
    )


def test_images_of_changing_size_and_validity_do_not_affect_other_cameras(cameras):
    front, rear, left = cameras
    publish = steady([front, left])
    sizes = [(16, 12), (1280, 960), (4, 3), (2048, 1536), (64, 48)]
    for number, size in enumerate(sizes * 3):
        publish()
        answer = rear.ask(picture_of(COLOR, size, frame_id=f'rear {number}', stamp=(0, 0)))
        assert answer.header.frame_id == f'rear {number}'
        odd = picture_of(COLOR, (16, 12))
        odd.step += 1
        rear.publisher.publish(odd)
    assert_unharmed([front, left], publish)
    counts = rear.counts()
    assert counts['dropped'].keys() <= {'bad_length', 'replaced'}


def test_images_arrive_after_a_camera_becomes_best_effort(cameras, detector):
    front, rear, left = cameras
    publish = steady([front, left])
    best_effort = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
    rear.create_publisher(best_effort)
    picture = HELLO
    rear.wait_for_status(
        lambda _, values: values['image reliability'] == 'best_effort',
        'a best-effort subscription',
        publish=lambda: publish() or rear.publisher.publish(picture),
    )
    detector.wait_for_log('INFO', rear.topic, of='rear')
    assert_unharmed([front, left], publish)
    assert front.wait_for_status(lambda *_: True, 'a status')[1]['image reliability'] == 'reliable'


def test_qos_mismatch_mentions_the_parameter_of_the_camera(cameras, detector):
    _, rear, _ = cameras
    parameter = 'camera.rear.image_qos.reliability'
    detector.bring_to('unconfigured')
    detector.set_or_fail(**{parameter: 'reliable'})
    rear.create_publisher(QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT))
    detector.bring_to('active')
    detector.wait_for_log('ERROR', parameter, of='rear')
    detector.bring_to('unconfigured')
    detector.set_or_fail(**{parameter: 'auto'})


def test_killed_camera_is_reported_until_it_is_started_again(cameras, detector):
    front, rear, left = cameras
    rear.destroy_publisher()
    command = [*script('nodes/numbered_camera.py'), rear.topic, 'reliable', 10, 50, 0]
    program = Program([*command, '64x48'])
    publish = steady([front, left])
    rear.wait_for_status(
        lambda _, values: float(values['published (Hz)']) > 10, 'images', publish=publish
    )
    program.send(signal.SIGKILL)
    rear.wait_for_report(ERROR, rear.topic, publish=publish)
    assert_node_reports('rear', detector, publish)
    program.close()
    restarted_program = Program([*command, '128x96'])
    rear.wait_for_status(
        lambda status, values: status.level != ERROR and float(values['published (Hz)']) > 10,
        'images again',
        publish=publish,
    )
    restarted_program.send(signal.SIGTERM)
    front.client.spin_until(
        lambda: publish() or not restarted_program.alive, 'the end of the camera'
    )
    restarted_program.close()
    assert_unharmed([front, left], publish)
    assert f'detector.{front.name}]: ' not in detector.program.output
    rear.counts()
