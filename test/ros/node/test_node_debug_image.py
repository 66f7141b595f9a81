# SPDX-License-Identifier: Apache-2.0
"""Tests of the debug image, which is drawn only for subscribers."""

import itertools
import re
import threading
import time
import weakref
from pathlib import Path

import cv2
import numpy as np
import pytest
from lifecycle_msgs.srv import GetState
from sensor_msgs.msg import Image
from std_msgs.msg import Header

import trt_perception
from support.models.tiny_model import CLASS_NAMES
from support.nodes.graph import Detector, frame_counts, image_message, picture_of
from support.programs import DEADLINE_S
from trt_perception.images import drawing
from trt_perception.images.detections import Detections
from trt_perception.images.frame import Frame
from trt_perception.parameters.values import ParameterValues
from trt_perception.ros.camera import debug_image
from trt_perception.ros.camera.debug_image import DebugImage
from trt_perception.ros.camera.publishers import CameraPublishers

pytest_plugins = ['support.nodes.graph_fixtures']

ROOT = Path(__file__).resolve().parents[3]
MODELS = ROOT / 'models'
SCENE = sorted((ROOT / 'demo' / 'scenes').glob('*.jpg'))[4]
# A model of each task.
ALL_TASKS = tuple(sorted(path.stem for path in MODELS.glob('*.onnx')))
COLOR = (200, 120, 60)
NUMBERS = itertools.count()
PARAMETERS = {'autostart': True, 'debug_image.max_rate_hz': 50.0}


@pytest.fixture(scope='module')
def detector(client, model):
    detector = Detector(client, {'engine_path': str(model), **PARAMETERS})
    try:
        detector.connect()
        yield detector
    finally:
        detector.close()


def publish_until_drawn(detector, messages, image):
    """Publish an image until its debug image arrives, and return the debug image.

    The node draws no image before it discovers the subscriber. Each image has its own frame_id,
    because a debug image of the previous test may still arrive.
    """
    image.header.frame_id = f'image {next(NUMBERS)}'

    def drawn():
        detector.camera.publish(image)
        return [m for m in messages if m.header.frame_id == image.header.frame_id]

    return detector.client.spin_until(drawn, 'a debug image')[0]


def pixels(message):
    return np.frombuffer(message.data, np.uint8).reshape(message.height, message.width, 3)


def test_boxes_are_drawn(detector):
    image = picture_of(COLOR, stamp=(5, 6), frame_id='kamera ü')
    messages = detector.subscribe(Image, 'debug_image')
    drawn = publish_until_drawn(detector, messages, image)
    assert drawn.header == image.header
    assert (drawn.encoding, drawn.width, drawn.height, drawn.step) == ('bgr8', 128, 96, 384)
    assert len(drawn.data) == 96 * 384
    differs = (pixels(drawn) != pixels(image)).any(axis=2)
    # The green box of the model: centre (48, 12), size 10 x 9, at twice the network's size.
    assert differs[33, 86:106].all(), 'the lower edge of the green box'
    assert not differs[60:, :40].any(), 'nothing is drawn outside the boxes'


def test_debug_image_of_another_encoding_is_bgr8(detector):
    image = picture_of(COLOR)
    messages = detector.subscribe(Image, 'debug_image')
    image.encoding = 'rgb8'
    drawn = pixels(publish_until_drawn(detector, messages, image))
    # The bytes are blue, green, red, but the encoding says red, green, blue.
    assert tuple(drawn[-1, 0]) == (200, 120, 60)


def test_debug_image_without_detections_equals_the_image(detector):
    image = picture_of((9, 8, 7))
    messages = detector.subscribe(Image, 'debug_image')
    assert (pixels(publish_until_drawn(detector, messages, image)) == pixels(image)).all()


@pytest.mark.parametrize('name', ALL_TASKS)
def test_plot_of_a_result_in_python_equals_the_debug_image(start_detector, name):
    path = MODELS / f'{name}.onnx'
    image = cv2.imread(str(SCENE))
    with trt_perception.load(path, confidence_threshold=0.4) as model:
        plotted = model(image).plot()
    assert (plotted != image).any()
    detector = start_detector(
        {'engine_path': str(path), 'confidence_threshold': 0.4, **PARAMETERS}
    )
    messages = detector.subscribe(Image, 'debug_image')
    height, width = image.shape[:2]
    message = image_message(image.tobytes(), width, height, 'bgr8', step=3 * width)
    np.testing.assert_array_equal(
        pixels(publish_until_drawn(detector, messages, message)), plotted
    )


def test_rate_zero_creates_no_publisher(start_detector, model):
    settings = {'engine_path': str(model), 'autostart': True, 'debug_image.max_rate_hz': 0}
    detector = start_detector(settings)
    detector.connect()
    assert detector.ask(picture_of(COLOR)).detections
    assert detector.client.node.count_publishers(detector.topic('detections')) == 1
    assert detector.client.node.count_publishers(detector.topic('debug_image')) == 0


def test_subscriber_receives_debug_images_across_transitions(start_detector, model):
    detector = start_detector({'engine_path': str(model), **PARAMETERS, 'autostart': False})
    messages = detector.subscribe(Image, 'debug_image')
    for _ in range(2):
        detector.transition('configure', 'activate')
        detector.connect()
        publish_until_drawn(detector, messages, picture_of(COLOR))
        detector.transition('deactivate', 'activate')
        detector.connect()
        publish_until_drawn(detector, messages, picture_of(COLOR))
        detector.transition('deactivate', 'cleanup')
    topic = detector.topic('debug_image')
    # Other participants learn later that the publisher is gone.
    detector.client.spin_until(
        lambda: not detector.client.node.count_publishers(topic), 'the end of the publisher'
    )


# In this process, because these tests check that no work is done.


@pytest.fixture
def drawings(monkeypatch):
    """Return a list that gets an entry for each image that is converted for drawing."""
    conversions = []
    convert = debug_image.frame_to_bgr

    def count(*arguments, **options):
        conversions.append(1)
        return convert(*arguments, **options)

    monkeypatch.setattr(debug_image, 'frame_to_bgr', count)
    return conversions


def put_frame(debug, name=''):
    """Offer a frame for drawing. Return a weak reference to the frame."""
    data = bytes(12 * 16 * 3)
    frame = Frame.view(data, width=16, height=12, step=48, encoding='bgr8')
    debug.put(Header(frame_id=name), frame, Detections.empty())
    return weakref.ref(frame)


def debug_image_threads():
    return [thread for thread in threading.enumerate() if thread.name == 'debug_image']


@pytest.fixture
def watched(client, node):
    """Return a DebugImage with a subscriber, and the list of received messages."""
    debug = DebugImage(node, CLASS_NAMES, 100.0)
    messages, subscription = client.subscribe(Image, 'debug_image')
    client.spin_until(lambda: put_frame(debug) and messages, 'a debug image')
    yield debug, messages
    debug.close()
    client.node.destroy_subscription(subscription)


@pytest.fixture
def held_drawing(monkeypatch):
    """Make drawings wait. Return two events: a drawing has begun, and drawings may go on."""
    begun, release, draw = threading.Event(), threading.Event(), drawing.draw_detections

    def wait(*arguments):
        begun.set()
        assert release.wait(DEADLINE_S), 'the drawing was never released'
        draw(*arguments)

    monkeypatch.setattr(drawing, 'draw_detections', wait)
    yield begun, release
    release.set()


def call_get_state(client, name):
    """Call a service of a node of this process, and spin until it answers."""
    service = client.node.create_client(GetState, f'{name}/get_state')
    client.spin_until(service.service_is_ready, 'the service')
    future = service.call_async(GetState.Request())
    client.spin_until(future.done, 'an answer')
    client.node.destroy_client(service)


def test_nothing_is_drawn_without_a_subscriber(client, node, drawings):
    debug = DebugImage(node, CLASS_NAMES, 100.0)
    ticks = []
    timer = node.create_timer(0.01, lambda: ticks.append(1))
    for is_subscribed in (False, True, False, True, False):
        if is_subscribed:
            messages, subscription = client.subscribe(Image, 'debug_image')
            client.spin_until(lambda: put_frame(debug) and messages, 'a debug image')  # noqa: B023
            client.node.destroy_subscription(subscription)
            client.spin_until(
                lambda: client.node.count_subscribers('/debug_image') == 0, 'no subscriber'
            )
            # The publisher learns of the unsubscription by an event, soon after the graph changed.
            client.spin_until(lambda: not debug.has_subscriber, 'the event')
            count = -1

            def settled():
                nonlocal count
                before, count = count, len(drawings)
                del ticks[:]
                put_frame(debug)
                client.spin_until(lambda: len(ticks) >= 5, 'five ticks')
                return before == len(drawings)

            client.spin_until(settled, 'the end of drawing')
        before = len(drawings)
        for _ in range(5):
            assert put_frame(debug)() is None, 'a frame is kept without a subscriber'
            del ticks[:]
            client.spin_until(lambda: len(ticks) >= 3, 'three ticks')
        assert len(drawings) == before
    assert drawings
    node.destroy_timer(timer)
    debug.close()
    debug.close()


def test_result_after_close_is_ignored(watched):
    debug, _ = watched
    debug.close()
    assert put_frame(debug)() is None, 'a frame is kept after close'
    assert not debug_image_threads()


def test_services_answer_while_an_image_is_drawn(client, node, watched, held_drawing):
    debug, messages = watched
    begun, release = held_drawing
    client.spin_until(lambda: put_frame(debug) and begun.is_set(), 'a drawing')
    call_get_state(client, node.get_fully_qualified_name())
    assert not release.is_set()
    before = len(messages)
    release.set()
    client.spin_until(lambda: len(messages) > before, 'the image whose drawing waited')


def test_only_the_newest_waiting_image_is_drawn(client, watched, held_drawing):
    debug, messages = watched
    begun, release = held_drawing
    client.spin_until(lambda: put_frame(debug, 'first') and begun.is_set(), 'a drawing')
    del messages[:]
    for name in ('second', 'third', 'last'):
        put_frame(debug, name)
    release.set()
    client.spin_until(
        lambda: [m for m in messages if m.header.frame_id == 'last'], 'the last image'
    )
    # The drawing that waited may be of an image before "first".
    names = [m.header.frame_id for m in messages]
    assert names[-1] == 'last'
    assert not {'second', 'third'} & set(names)


def test_errors_while_drawing_are_logged_and_drawing_continues(
    client, watched, monkeypatch, capfd
):
    debug, messages = watched
    draw, failures = drawing.draw_detections, []
    errors = itertools.cycle([MemoryError(), ValueError('bad'), KeyError(7)])

    def fail(*arguments):
        failures.append(1)
        raise next(errors)

    monkeypatch.setattr(drawing, 'draw_detections', fail)
    begun = time.monotonic()
    client.spin_until(lambda: put_frame(debug) and len(failures) >= 6, 'six failures')
    monkeypatch.setattr(drawing, 'draw_detections', draw)
    client.spin_until(
        lambda: (
            put_frame(debug, 'after') and [m for m in messages if m.header.frame_id == 'after']
        ),
        'a debug image after the failures',
    )
    seconds = time.monotonic() - begun
    lines = re.findall(r'^\[(?:WARN|ERROR)\]', capfd.readouterr().err, re.MULTILINE)
    assert 1 <= len(lines) <= 1 + seconds / 5, 'more than one line in 5 s'


def test_publisher_is_destroyed_after_the_last_image_is_sent(
    client, node, watched, held_drawing, monkeypatch
):
    debug, _ = watched
    begun, release = held_drawing
    order = []
    publish, destroy = debug_image.publish_unlocked, node.destroy_publisher
    monkeypatch.setattr(
        debug_image, 'publish_unlocked', lambda *given: publish(*given) or order.append('sent')
    )
    monkeypatch.setattr(
        node, 'destroy_publisher', lambda given: order.append('destroyed') or destroy(given)
    )
    client.spin_until(lambda: put_frame(debug) and begun.is_set(), 'a drawing')
    del order[:]
    closing = threading.Thread(target=debug.close)
    closing.start()
    closing.join(0.3)  # a close that does not wait would return within this time
    assert order == []
    release.set()
    closing.join(DEADLINE_S)
    assert order == ['sent', 'destroyed']
    assert not debug_image_threads()


def test_thread_exists_as_long_as_the_publisher(node):
    assert not debug_image_threads()
    debug = DebugImage(node, CLASS_NAMES, 1e-10)
    assert len(debug_image_threads()) == 1
    debug.close()
    assert not debug_image_threads()
    DebugImage(node, CLASS_NAMES, 0.0).close()
    assert not debug_image_threads()


def test_extremely_low_rate_still_sends_the_first_image(client, node):
    debug = DebugImage(node, CLASS_NAMES, 1e-310)
    messages, subscription = client.subscribe(Image, 'debug_image')
    client.spin_until(lambda: put_frame(debug) and messages, 'the first image')
    put_frame(debug)
    assert debug_image_threads()[0].is_alive()
    debug.close()
    client.node.destroy_subscription(subscription)


def test_failed_thread_start_leaves_no_publisher(node, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    before = list(node.publishers)
    monkeypatch.setattr(threading.Thread, 'start', refuse)
    with pytest.raises(RuntimeError, match='new thread'):
        CameraPublishers(node, CLASS_NAMES, ParameterValues())
    assert list(node.publishers) == before


def test_debug_images_are_not_counted_as_frames(detector):
    messages = detector.subscribe(Image, 'debug_image')
    publish_until_drawn(detector, messages, picture_of(COLOR))
    _, values = detector.wait_for_status(
        lambda _, values: values['in flight'] == '0', 'nothing in flight'
    )
    counts = frame_counts(values)
    assert counts['received'] == counts['published'] + sum(counts['dropped'].values())
