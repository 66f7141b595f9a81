"""The debug image: there while somebody looks, and no work while nobody does."""

import itertools
import re
import threading
import time
import weakref

import numpy as np
import pytest
from lifecycle_msgs.srv import GetState
from sensor_msgs.msg import Image
from std_msgs.msg import Header

from support.models.tiny_model import CLASS_NAMES
from support.nodes.graph import Detector, counts_of, picture_of
from support.programs import DEADLINE_S
from trt_perception.images import drawing
from trt_perception.images.detections import Detections
from trt_perception.images.frame import Frame
from trt_perception.parameters.config import DetectorConfig
from trt_perception.ros.camera import debug_image
from trt_perception.ros.camera.debug_image import DebugImage
from trt_perception.ros.camera.outputs import DetectorOutputs

pytest_plugins = ['support.nodes.graph_fixtures']

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


def until_drawn(detector, messages, image):
    """Publish until its debug image comes: one that came before somebody looked is not kept.

    The image gets a name of its own; one of the test before may still be on its way.
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
    drawn = until_drawn(detector, messages, image)
    assert drawn.header == image.header
    assert (drawn.encoding, drawn.width, drawn.height, drawn.step) == ('bgr8', 128, 96, 384)
    assert len(drawn.data) == 96 * 384
    differs = (pixels(drawn) != pixels(image)).any(axis=2)
    # The green box of the model: centre (48, 12), size 10 x 9, at twice the network's size.
    assert differs[33, 86:106].all(), 'the lower edge of the green box'
    assert not differs[60:, :40].any(), 'nothing is drawn where nothing is'


def test_other_encodings_are_shown_as_bgr8(detector):
    image = picture_of(COLOR)
    messages = detector.subscribe(Image, 'debug_image')
    image.encoding = 'rgb8'
    drawn = pixels(until_drawn(detector, messages, image))
    # The bytes say blue, green, red, but they are called red, green, blue.
    assert tuple(drawn[-1, 0]) == (200, 120, 60)


def test_empty_result_shows_the_picture_itself(detector):
    image = picture_of((9, 8, 7))
    messages = detector.subscribe(Image, 'debug_image')
    assert (pixels(until_drawn(detector, messages, image)) == pixels(image)).all()


def test_zero_rate_offers_none(start_detector, model):
    settings = {'engine_path': str(model), 'autostart': True, 'debug_image.max_rate_hz': 0}
    detector = start_detector(settings)
    detector.connect()
    assert detector.ask(picture_of(COLOR)).detections
    assert detector.client.node.count_publishers(detector.topic('detections')) == 1
    assert detector.client.node.count_publishers(detector.topic('debug_image')) == 0


def test_subscriber_before_the_node_and_across_transitions(start_detector, model):
    detector = start_detector({'engine_path': str(model), **PARAMETERS, 'autostart': False})
    messages = detector.subscribe(Image, 'debug_image')
    for _ in range(2):
        detector.to('configure', 'activate')
        detector.connect()
        until_drawn(detector, messages, picture_of(COLOR))
        detector.to('deactivate', 'activate')
        detector.connect()
        until_drawn(detector, messages, picture_of(COLOR))
        detector.to('deactivate', 'cleanup')
    topic = detector.topic('debug_image')
    # The others hear of it a little later.
    detector.client.spin_until(
        lambda: not detector.client.node.count_publishers(topic), 'the end of the publisher'
    )


# In this process, to see what is not done.


@pytest.fixture
def drawings(monkeypatch):
    """Count the pictures that are converted for drawing."""
    made = []
    convert = debug_image.frame_to_bgr

    def count(*arguments, **options):
        made.append(1)
        return convert(*arguments, **options)

    monkeypatch.setattr(debug_image, 'frame_to_bgr', count)
    return made


def offer(debug, name=''):
    """Offer a frame; return what tells whether somebody still has it."""
    data = bytes(12 * 16 * 3)
    frame = Frame.view(data, width=16, height=12, step=48, encoding='bgr8')
    debug.put(Header(frame_id=name), frame, Detections.empty())
    return weakref.ref(frame)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == 'debug_image']


@pytest.fixture
def watched(client, node):
    """A DebugImage that somebody looks at; the list fills with the names of what comes."""
    debug = DebugImage(node, CLASS_NAMES, 100.0)
    messages, subscription = client.subscribe(Image, 'debug_image')
    client.spin_until(lambda: offer(debug) and messages, 'a debug image')
    yield debug, messages
    debug.close()
    client.node.destroy_subscription(subscription)


@pytest.fixture
def held(monkeypatch):
    """Hold the next drawing until it is released; it begins when the first event is set."""
    begun, release, draw = threading.Event(), threading.Event(), drawing.draw_detections

    def wait(*arguments):
        begun.set()
        assert release.wait(DEADLINE_S), 'the drawing was never released'
        draw(*arguments)

    monkeypatch.setattr(drawing, 'draw_detections', wait)
    yield begun, release
    release.set()


def ask(client, name):
    """Ask a node of this process for its state; spin until it answers."""
    service = client.node.create_client(GetState, f'{name}/get_state')
    client.spin_until(service.service_is_ready, 'the service')
    future = service.call_async(GetState.Request())
    client.spin_until(future.done, 'an answer')
    client.node.destroy_client(service)


def test_nothing_is_done_while_nobody_looks(client, node, drawings):
    debug = DebugImage(node, CLASS_NAMES, 100.0)
    ticks = []
    timer = node.create_timer(0.01, lambda: ticks.append(1))
    for looks in (False, True, False, True, False):
        if looks:
            messages, subscription = client.subscribe(Image, 'debug_image')
            client.spin_until(lambda: offer(debug) and messages, 'a debug image')  # noqa: B023
            client.node.destroy_subscription(subscription)
            client.spin_until(
                lambda: client.node.count_subscribers('/debug_image') == 0, 'no subscriber'
            )
            # The unsubscription reaches the drawing side by an event, soon after the graph.
            count = -1

            def settled():
                nonlocal count
                before, count = count, len(drawings)
                del ticks[:]
                offer(debug)
                client.spin_until(lambda: len(ticks) >= 5, 'five ticks')
                return before == len(drawings)

            client.spin_until(settled, 'drawing to stop')
        before = len(drawings)
        for _ in range(5):
            assert offer(debug)() is None, 'a frame is kept that nobody will see'
            del ticks[:]
            client.spin_until(lambda: len(ticks) >= 3, 'three ticks')
        assert len(drawings) == before
    assert drawings
    node.destroy_timer(timer)
    debug.close()
    debug.close()


def test_late_result_after_close_is_harmless(watched):
    debug, _ = watched
    debug.close()
    assert offer(debug)() is None, 'a frame is kept that nobody will draw'
    assert not threads()


def test_services_are_answered_while_a_picture_is_drawn(client, node, watched, held):
    debug, messages = watched
    begun, release = held
    client.spin_until(lambda: offer(debug) and begun.is_set(), 'a drawing')
    ask(client, node.get_fully_qualified_name())
    assert not release.is_set()
    before = len(messages)
    release.set()
    client.spin_until(lambda: len(messages) > before, 'the picture that was held')


def test_the_newest_is_drawn_and_those_before_it_never(client, watched, held):
    debug, messages = watched
    begun, release = held
    client.spin_until(lambda: offer(debug, 'first') and begun.is_set(), 'a drawing')
    del messages[:]
    for name in ('second', 'third', 'last'):
        offer(debug, name)
    release.set()
    client.spin_until(lambda: [m for m in messages if m.header.frame_id == 'last'], 'the last')
    # What is held, and comes before, may be an image from before the test.
    names = [m.header.frame_id for m in messages]
    assert names[-1] == 'last'
    assert not {'second', 'third'} & set(names)


def test_what_goes_wrong_while_drawing_is_logged_and_ends_nothing(
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
    client.spin_until(lambda: offer(debug) and len(failures) >= 6, 'six failures')
    monkeypatch.setattr(drawing, 'draw_detections', draw)
    client.spin_until(
        lambda: offer(debug, 'after') and [m for m in messages if m.header.frame_id == 'after'],
        'a debug image after the failures',
    )
    seconds = time.monotonic() - begun
    lines = re.findall(r'^\[(?:WARN|ERROR)\]', capfd.readouterr().err, re.MULTILINE)
    assert 1 <= len(lines) <= 1 + seconds / 5, 'one line in five seconds'


def test_publisher_is_destroyed_after_the_last_picture_was_sent(
    client, node, watched, held, monkeypatch
):
    debug, _ = watched
    begun, release = held
    order = []
    publish, destroy = debug_image.publish_unlocked, node.destroy_publisher
    monkeypatch.setattr(
        debug_image, 'publish_unlocked', lambda *given: publish(*given) or order.append('sent')
    )
    monkeypatch.setattr(
        node, 'destroy_publisher', lambda given: order.append('destroyed') or destroy(given)
    )
    client.spin_until(lambda: offer(debug) and begun.is_set(), 'a drawing')
    del order[:]
    closing = threading.Thread(target=debug.close)
    closing.start()
    closing.join(0.3)  # one that does not wait would be through by then
    assert order == []
    release.set()
    closing.join(DEADLINE_S)
    assert order == ['sent', 'destroyed']
    assert not threads()


def test_thread_ends_with_the_publisher_and_is_not_there_without_one(node):
    assert not threads()
    debug = DebugImage(node, CLASS_NAMES, 1e-10)
    assert len(threads()) == 1
    debug.close()
    assert not threads()
    DebugImage(node, CLASS_NAMES, 0.0).close()
    assert not threads()


def test_rate_of_once_in_centuries(client, node):
    debug = DebugImage(node, CLASS_NAMES, 1e-310)
    messages, subscription = client.subscribe(Image, 'debug_image')
    client.spin_until(lambda: offer(debug) and messages, 'the first image')
    offer(debug)
    assert threads()[0].is_alive()
    debug.close()
    client.node.destroy_subscription(subscription)


def test_nothing_is_left_where_the_thread_cannot_start(node, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    before = list(node.publishers)
    monkeypatch.setattr(threading.Thread, 'start', refuse)
    with pytest.raises(RuntimeError, match='new thread'):
        DetectorOutputs(node, CLASS_NAMES, DetectorConfig())
    assert list(node.publishers) == before


def test_debug_images_do_not_count_as_frames(detector):
    messages = detector.subscribe(Image, 'debug_image')
    until_drawn(detector, messages, picture_of(COLOR))
    _, values = detector.wait_for_status(
        lambda _, values: values['in flight'] == '0', 'nothing in flight'
    )
    counts = counts_of(values)
    assert counts['received'] == counts['published'] + sum(counts['dropped'].values())
