"""One node, several cameras, over real DDS: what happens to one changes nothing for the others."""

import signal

import numpy as np
import pytest
from camera_of_many import CameraOfMany
from diagnostic_msgs.msg import DiagnosticStatus
from graph import HANDSHAKE
from graph import Detector
from graph import found_in
from graph import picture_of
from programs import Program
from programs import script
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy
from rclpy.qos import QoSProfile
from rclpy.qos import ReliabilityPolicy
from sensor_msgs.msg import Image
from tiny_model import CLASS_NAMES
from tiny_model import expected_detections
from tiny_model import write_tiny_model
from vision_msgs.msg import LabelInfo

pytest_plugins = ['graph_fixtures']

OK, ERROR = DiagnosticStatus.OK, DiagnosticStatus.ERROR
NAMES = ('front', 'rear', 'left')
COLOR, BLUE = (200, 120, 60), (0, 0, 200)
# Without a stamp, as old ones are said to be of another clock.
HELLO = picture_of((0, 0, 0), frame_id=HANDSHAKE, stamp=(0, 0))
LATCHED = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)


@pytest.fixture(scope='module')
def detector(client, model):
    """One node for all tests; they leave its parameters as they found them."""
    detector = Detector(client, {'engine_path': str(model), 'cameras': list(NAMES)})
    detector.destroy_camera()
    yield detector
    detector.close()


@pytest.fixture
def cameras(detector):
    """Three cameras of an active node; each test begins with an activation of its own."""
    detector.bring_to('inactive')
    cameras = [CameraOfMany(detector, name) for name in NAMES]
    detector.program.forget()
    detector.bring_to('active')
    for camera in cameras:
        camera.connect()
    yield cameras
    for camera in cameras:
        camera.destroy_publisher()


def steady(cameras):
    """Return a function that publishes an image of each, with numbers that count up."""
    numbers = {camera.name: 0 for camera in cameras}

    def publish():
        for camera in cameras:
            # A camera waits until its last one is answered, so that each image must come out.
            if len(camera.answers()) == numbers[camera.name]:
                numbers[camera.name] += 1
                number = f'{numbers[camera.name]}'
                camera.publisher.publish(picture_of(BLUE, frame_id=number, stamp=(0, 0)))

    for camera in cameras:
        camera.detections.clear()
    return publish


def assert_unharmed(cameras):
    """Every image of these was answered, in order, and nothing is said of them."""
    for camera in cameras:
        camera.wait_for_status(lambda status, _: status.level == OK, 'nothing wrong')
        numbers = [int(message.header.frame_id) for message in camera.answers()]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) > 3
        counts = camera.counts()
        assert not counts['dropped']
        assert not counts['failed']


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
        found = found_in(message)
        assert [name for name, _, _ in found] == [name for name, _, _ in expected]
        for (_, score, box), (_, other_score, other_box) in zip(found, expected, strict=True):
            assert score == pytest.approx(other_score, abs=1e-3)
            np.testing.assert_allclose(box, other_box, atol=0.01)


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
    detector = start_detector({**settings, 'batch_max_delay_ms': 50.0, 'autostart': True})
    detector.destroy_camera()
    cameras = [CameraOfMany(detector, name) for name in NAMES]
    for camera in cameras:
        camera.connect()
    before = frames_and_batches(detector)
    front, rear, left = cameras
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
    assert not front.counts()['dropped']
    after = frames_and_batches(detector)
    assert after[0] - before[0] == 7 + 7 + 3
    assert after[1] - before[1] < 7 + 7 + 3, 'some of them went together'
    # What concerns no camera by itself is said of the node alone.
    model.write_bytes(model.read_bytes())
    status, _ = detector.wait_for_status(
        lambda status, _: 'was replaced on disk' in status.message, 'that the model is another'
    )
    assert status.message.startswith(str(model))
    front.wait_for_status(lambda status, _: 'on disk' not in status.message, 'its own status')
    detector.program.wait_for_output('was replaced on disk')
    assert detector.program.count('was replaced on disk') == 1
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
        detector.program.wait_for_line(
            rf'detector\.{camera.name}\]: counts: {counts["received"]} received = '
        )
    detector.program.wait_for_line(
        rf'detector\]: counts of all cameras: {together["received"]} received = '
    )
    camera.wait_for_status(
        lambda _, values: values['state'] == 'inactive' and values['received'] != '0',
        'what the activation came to',
    )


# One camera in trouble; one that is killed stays in the graph for 20 s, so it comes last.


def test_a_camera_that_is_gone_while_images_are_elsewhere(cameras, detector):
    front, rear, left = cameras
    rear.destroy_publisher()
    topic = detector.topic('rear_camera/image')
    elsewhere = rear.client.node.create_publisher(Image, topic, 1)
    publish = steady([front, left])
    rear.wait_until_said(ERROR, f'the camera on {rear.topic} has been gone', publish=publish)
    status, _ = rear.wait_for_status(
        lambda status, _: topic in status.message, 'where images are', publish=publish
    )
    assert f'-r rear/image:={topic} ' in status.message
    assert front.topic not in status.message, 'which is the other camera'
    status, _ = detector.wait_for_status(
        lambda status, _: publish() or status.level == ERROR, 'the node says it, too'
    )
    assert status.message.startswith('rear: the camera on')
    assert_unharmed([front, left])
    rear.client.node.destroy_publisher(elsewhere)


def test_a_camera_that_sends_rubbish(cameras, detector):
    front, rear, left = cameras
    publish = steady([front, left])
    rubbish = [b'\xff' * 1000, bytes(5), b'\0\1\0\0' + b'x' * 100_000]

    def send():
        publish()
        for content in rubbish:
            rear.publisher.publish(content)

    rear.wait_until_said(ERROR, 'bad_message', publish=send)
    detector.wait_for_status(
        lambda status, _: publish() or 'rear: every image' in status.message, 'the node says it'
    )
    assert_unharmed([front, left])
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
    rear.client.spin_until(lambda: publish() or len(front.answers()) > 4, 'images of the others')
    assert_unharmed([front, left])
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
    detector.program.wait_for_line(r'detector\.rear\]: the camera on .* is best effort')
    rear.client.spin_until(lambda: publish() or len(front.answers()) > 4, 'images of the others')
    assert_unharmed([front, left])
    assert front.wait_for_status(lambda *_: True, 'a status')[1]['image reliability'] == 'reliable'


def test_a_camera_that_is_killed_and_started_anew(cameras, detector):
    front, rear, left = cameras
    rear.destroy_publisher()
    command = [*script('numbered_camera.py'), rear.topic, 'reliable', 10, 50, 0]
    program = Program([*command, '64x48'])
    publish = steady([front, left])
    rear.wait_for_status(
        lambda _, values: float(values['published (Hz)']) > 10, 'images', publish=publish
    )
    program.send(signal.SIGKILL)
    rear.wait_until_said(ERROR, f'no image on {rear.topic}', publish=publish)
    status, _ = detector.wait_for_status(
        lambda status, _: publish() or status.level == ERROR, 'the node says it, too'
    )
    assert status.message.startswith('rear: no image on')
    program.close()
    again = Program([*command, '128x96'])
    rear.wait_for_status(
        lambda status, values: status.level != ERROR and float(values['published (Hz)']) > 10,
        'images again',
        publish=publish,
    )
    again.close()
    assert_unharmed([front, left])
    assert f'detector.{front.name}]: ' not in detector.program.output
    rear.counts()


# Parameters of one camera.


def names_found(camera):
    return [name for name, _, _ in found_in(camera.ask(picture_of(COLOR)))]


def test_thresholds_of_one_camera(cameras, detector):
    front, rear, _ = cameras
    labels = {
        camera.name: detector.subscribe(LabelInfo, f'{camera.name}/label_info', LATCHED)
        for camera in (front, rear)
    }
    detector.set_well(**{'camera.rear.confidence_threshold': 0.75})
    assert names_found(rear) == ['red']
    assert names_found(front) == ['red', 'red', 'green']
    detector.set_well(**{'camera.rear.class_filter': ['green']})
    assert names_found(rear) == []
    detector.set_well(**{'camera.rear.confidence_threshold': 0.1})
    assert names_found(rear) == ['green']
    detector.set_well(confidence_threshold=0.9)  # of all that have none of their own
    assert names_found(rear) == ['green']
    assert names_found(front) == []
    front.client.spin_until(
        lambda: labels['front'] and labels['front'][-1].threshold == pytest.approx(0.9), 'labels'
    )
    assert {label.threshold for label in labels['rear']} <= {
        np.float32(value) for value in (0.25, 0.75, 0.1)
    }
    assert labels['rear'][-1].threshold == pytest.approx(0.1)
    assert [entry.class_name for entry in labels['rear'][-1].class_map] == list(CLASS_NAMES)
    detector.set_well(confidence_threshold=0.25)
    detector.bring_to('unconfigured')  # cleanup: all follow the node's again
    detector.bring_to('active')
    for camera in (front, rear):
        camera.connect()
    assert names_found(rear) == names_found(front) == ['red', 'red', 'green']


def test_a_camera_is_switched_off_and_on(cameras, detector):
    front, rear, left = cameras
    detector.set_well(**{'camera.rear.enabled': False})
    publish = steady([front, left])
    picture = picture_of(COLOR)
    _, values = rear.wait_for_status(
        lambda _, values: int(values.get('dropped: disabled', 0)) > 5,
        'images that are dropped',
        publish=lambda: publish() or rear.publisher.publish(picture),
    )
    status, _ = rear.wait_for_status(
        lambda status, _: 'switched off' in status.message, 'that it is off'
    )
    assert status.level == OK
    rear.detections.clear()
    assert names_found(front)
    assert not rear.answers()
    assert rear.counts()['published'] == int(values['published'])
    detector.set_well(**{'camera.rear.enabled': True})
    assert names_found(rear) == ['red', 'red', 'green']
    rear.wait_for_status(lambda status, _: 'switched off' not in status.message, 'that it is on')
    # The node's own parameter is for all that have none of their own; this one has.
    detector.set_well(enabled=False)
    assert names_found(rear) == ['red', 'red', 'green']
    front.wait_for_status(
        lambda _, values: int(values.get('dropped: disabled', 0)) > 2,
        'images that are dropped',
        publish=lambda: front.publisher.publish(picture),
    )
    detector.set_well(enabled=True)
    assert names_found(front) == ['red', 'red', 'green']


def test_the_rate_of_one_camera(cameras, detector):
    front, rear, left = cameras
    detector.set_well(**{'camera.rear.max_rate_hz': 0.1})
    publish = steady([front, left])
    rear.wait_for_status(
        lambda _, values: int(values.get('dropped: rate_limit', 0)) > 10,
        'images above the rate',
        publish=lambda: publish() or rear.publisher.publish(picture_of(COLOR)),
    )
    assert_unharmed([front, left])
    detector.set_well(**{'camera.rear.max_rate_hz': 0.0})
    before = rear.counts()['dropped']['rate_limit']
    for _ in range(5):
        assert names_found(rear) == ['red', 'red', 'green']
    assert rear.counts()['dropped']['rate_limit'] == before


def test_each_camera_has_its_debug_image(cameras, detector):
    front, rear, _ = cameras
    images = detector.subscribe(Image, 'rear/debug_image')
    picture = picture_of(COLOR, (128, 96), frame_id='rear')

    def drawn():
        front.publisher.publish(picture_of(COLOR, (64, 48), frame_id='front'))
        rear.publisher.publish(picture)
        return images

    front.client.spin_until(drawn, 'a debug image')
    assert {(image.header.frame_id, image.width) for image in images} == {('rear', 128)}


def test_another_kind_of_a_cameras_parameter_is_refused(cameras, detector):
    [(well, reason)] = detector.set({'camera.rear.image_qos.depth': 3})
    assert not well
    assert 'cannot change while the node is configured' in reason
    [(well, reason)] = detector.set({'camera.rear.class_filter': ['cat']})
    assert not well
    assert "'cat'" in reason or 'cat' in reason
    [(well, _)] = detector.set({'camera.rear.class_filter': []}, Parameter.Type.STRING_ARRAY)
    assert well


def test_other_cameras_are_named_while_unconfigured(cameras, detector):
    for camera in cameras:
        camera.destroy_publisher()
    [(well, reason)] = detector.set({'cameras': ['front', 'back']})
    assert not well
    assert 'cannot change while the node is configured' in reason
    detector.bring_to('unconfigured')
    detector.set_well(cameras=['front', 'back'], **{'image_qos.depth': 2})
    assert detector.get('camera.back.image_qos.depth') == 2
    detector.bring_to('active')
    others = [CameraOfMany(detector, name) for name in ('front', 'back')]
    for camera in others:
        camera.connect()
        assert names_found(camera) == ['red', 'red', 'green']
    _, values = detector.wait_for_status(lambda *_: True, 'a status')
    assert values['cameras'] == 'front, back'
    graph = detector.client.node
    gone = detector.topic('rear/detections')
    detector.client.spin_until(lambda: not graph.count_publishers(gone), 'the end of the other')
    for camera in others:
        camera.destroy_publisher()
    detector.bring_to('unconfigured')
    detector.set_well(cameras=list(NAMES), **{'image_qos.depth': 1})
