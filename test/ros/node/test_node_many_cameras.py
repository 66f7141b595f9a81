"""One node, several cameras, over real DDS: what happens to one changes nothing for the others."""

import signal

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image

from support.models.tiny_model import expected_detections, write_tiny_model
from support.nodes.camera_of_many import COLOR, HELLO, NAMES, CameraOfMany, assert_unharmed, steady
from support.nodes.graph import assert_found, picture_of
from support.programs import Program, script

pytest_plugins = ['support.nodes.many_cameras_fixtures']

OK, ERROR = DiagnosticStatus.OK, DiagnosticStatus.ERROR


# Whose result is whose.


COLORS = {'front': (200, 10, 20), 'rear': (10, 200, 20), 'left': (10, 20, 200)}
SIZES = {'front': (64, 48), 'rear': (128, 96), 'left': (640, 480)}


def picture_from(camera, number):
    """Return an image that only this camera sends."""
    name = camera.name
    stamp = number, NAMES.index(name)
    return picture_of(COLORS[name], SIZES[name], frame_id=f'{name}_optical', stamp=stamp)


def assert_answered(camera, numbers):
    """Assert that these images, and no others, were answered, in order and each by its own."""
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
    """Publish an image of each camera, and wait for all before the next."""
    for camera in cameras:
        camera.counts()  # no answer to another image is on its way
        camera.detections.clear()
    for number in numbers:
        for camera in cameras:
            camera.publisher.publish(picture_from(camera, number))
        for camera in cameras:
            camera.client.spin_until(
                lambda c=camera, n=number: len(c.answers()) == n, f'{camera.name} {number}'
            )


def test_each_result_is_of_its_camera(cameras):
    numbers = range(1, 21)
    ask_all_at_once(cameras, numbers)
    for camera in cameras:
        assert_answered(camera, numbers)


@pytest.mark.parametrize('intake', ['auto', 'rclpy'])
def test_each_result_of_a_batch_is_of_its_camera(start_detector, tmp_path, intake):
    model = write_tiny_model(tmp_path / 'four.onnx', batch=4)
    settings = {'engine_path': str(model), 'cameras': list(NAMES), 'image_intake': intake}
    # Long enough for the images of all, which are published at once, to be in one batch.
    settings |= {'batch_max_delay_ms': 50.0, 'autostart': True}
    detector = start_detector(settings, camera_qos=None)
    cameras = [CameraOfMany(detector, name) for name in NAMES]
    for camera in cameras:
        camera.connect()
    before = frames_and_batches(detector)
    front, rear, left = cameras
    connecting = front.counts()['dropped']  # then a newer image may replace one
    odd = picture_of(COLOR, (16, 12))
    odd.step += 1
    numbers = range(1, 4)
    ask_all_at_once(cameras, numbers)
    for number in range(4, 8):  # an image that cannot be read costs the others nothing
        for camera, picture in ((front, None), (rear, odd), (left, None)):
            camera.publisher.publish(picture or picture_from(camera, number))
        for camera in (front, left):
            camera.client.spin_until(
                lambda c=camera, n=number: len(c.answers()) == n, f'{camera.name} {number}'
            )
    for camera in (front, left):
        assert_answered(camera, range(1, 8))
    rear.wait_for_status(lambda _, values: 'dropped: bad_length' in values, 'one is dropped')
    assert_answered(rear, numbers)
    assert rear.counts()['dropped'].keys() <= {'bad_length', 'replaced'}
    assert front.counts()['dropped'] == connecting
    after = frames_and_batches(detector)
    assert after[0] - before[0] == 7 + 7 + 3
    assert after[1] - before[1] < 7 + 7 + 3, 'some of them went together'
    # What concerns no camera by itself is said of the node alone.
    detector.program.forget()
    model.write_bytes(model.read_bytes())
    detector.wait_for_status(lambda status, _: str(model) in status.message, 'another model')
    detector.wait_for_log('WARN', str(model))
    front.wait_for_status(lambda status, _: str(model) not in status.message, 'its own status')
    assert detector.program.count(str(model)) == 1
    for camera in cameras:
        camera.destroy_publisher()


def frames_and_batches(detector):
    counts = detector.settled_counts()
    _, values = detector.wait_for_status(lambda *_: True, 'a status')
    return counts['published'], int(values['batches'])


def test_what_is_said_of_each_and_of_all(cameras, detector):
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
    detector.to('deactivate')
    for camera, counts in zip(cameras, of_each, strict=True):
        detector.program.wait_for_line(rf'detector\.{camera.name}\]: .*: {counts["received"]} ')
    detector.program.wait_for_line(rf'detector\]: .*: {together["received"]} ')
    camera.wait_for_status(
        lambda _, values: values['state'] == 'inactive' and values['received'] != '0',
        'what the activation came to',
    )


# One camera in trouble; one that is killed stays in the graph for 20 s, so it comes last.


def assert_node_reports(name, detector, publish):
    """The status of the node has the level and the message of a camera in trouble."""
    status, _ = detector.wait_for_status(
        lambda status, _: publish() or status.level == ERROR, 'an error of the node'
    )
    assert status.message.startswith(f'{name}: ')


def test_a_camera_that_is_gone_while_images_are_elsewhere(cameras, detector):
    front, rear, left = cameras
    rear.destroy_publisher()
    topic = detector.topic('rear_camera/image')
    elsewhere = rear.client.node.create_publisher(Image, topic, 1)
    publish = steady([front, left])
    rear.wait_for_report(ERROR, rear.topic, publish=publish)
    status, _ = rear.wait_for_status(
        lambda status, _: topic in status.message, 'where images are', publish=publish
    )
    assert f'-r rear/image:={topic} ' in status.message
    assert front.topic not in status.message, 'which is the other camera'
    assert_node_reports('rear', detector, publish)
    assert_unharmed([front, left], publish)
    rear.client.node.destroy_publisher(elsewhere)


def test_a_camera_that_sends_rubbish(cameras, detector):
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


def test_a_camera_whose_images_change_their_size_and_kind(cameras):
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


def test_a_camera_that_offers_less(cameras, detector):
    front, rear, left = cameras
    publish = steady([front, left])
    best_effort = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
    rear.create_publisher(best_effort)
    picture = HELLO
    rear.wait_for_status(
        lambda _, values: values['image reliability'] == 'best_effort',
        'another subscription',
        publish=lambda: publish() or rear.publisher.publish(picture),
    )
    detector.wait_for_log('INFO', rear.topic, of='rear')
    assert_unharmed([front, left], publish)
    assert front.wait_for_status(lambda *_: True, 'a status')[1]['image reliability'] == 'reliable'


def test_what_keeps_a_camera_out_is_named_as_the_parameter_of_this_one(cameras, detector):
    _, rear, _ = cameras
    parameter = 'camera.rear.image_qos.reliability'
    detector.bring_to('unconfigured')
    detector.set_well(**{parameter: 'reliable'})
    rear.create_publisher(QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT))
    detector.bring_to('active')
    detector.wait_for_log('ERROR', parameter, of='rear')
    detector.bring_to('unconfigured')
    detector.set_well(**{parameter: 'auto'})


def test_a_camera_that_is_killed_and_started_anew(cameras, detector):
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
    again = Program([*command, '128x96'])
    rear.wait_for_status(
        lambda status, values: status.level != ERROR and float(values['published (Hz)']) > 10,
        'images again',
        publish=publish,
    )
    again.close()
    assert_unharmed([front, left], publish)
    assert f'detector.{front.name}]: ' not in detector.program.output
    rear.counts()
