"""The intake over real DDS: no image is lost by growth, torn or left behind, however it ends."""

import ctypes
import functools
import gc
import itertools
import threading
import time

import numpy as np
import pytest
import rclpy
from graph import image_message
from graph import order
from numbered_camera import VALUES
from programs import Program
from programs import script
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSProfile
from rclpy.qos import ReliabilityPolicy
from sensor_msgs.msg import Image

from trt_perception.config import DetectorConfig
from trt_perception.errors import ImageError
from trt_perception.ros import image_input
from trt_perception.ros.image_input import ImageInput
from trt_perception.ros.intake import rcl
from trt_perception.ros.intake.buffers import MessageBuffers
from trt_perception.ros.intake.intake import Arrived
from trt_perception.ros.intake.intake import check_intake
from trt_perception.ros.intake.rcl import RclError
from trt_perception.ros.intake.subscriptions import IntakeSubscription
from trt_perception.ros.intake.subscriptions import TypedSubscription
from trt_perception.ros.messages import frame_from_image

pytest_plugins = ['graph_fixtures']

VGA, UHD = '640x480', '3840x2160'
_topics = (f'/intake_{number}/image' for number in itertools.count())


def intakes():
    return sum(thread.name == 'intake' for thread in threading.enumerate())


def spot(arrived):
    """Return an image's number, once every pixel that is looked at bears it."""
    frame = frame_from_image(arrived)
    number = arrived.header.stamp.sec
    seen = {*frame.data[::4099].tolist(), *frame.data[-2:].tolist()}
    assert seen == {number % VALUES}, f'image {number} (step {frame.step}): {seen}'
    return number


class Taker:
    """A node of this process with an ImageInput on a topic of its own."""

    def __init__(self, client, **settings):
        self.client = client
        self.topic = next(_topics)
        self.config = DetectorConfig(**settings)
        self.node = LifecycleNode(
            'taker',
            context=client.context,
            cli_args=['--ros-args', '-r', f'image:={self.topic}'],
        )
        client.add(self.node)
        self.images = []
        self.logged = []
        self.node.get_logger = lambda: self  # LifecycleNode's own asks rcl each time
        self.input = None
        self.programs = []

    def info(self, text, **_):
        self.logged.append(text)

    warning = error = info

    def open(self, receive=None):
        self.input = ImageInput(self.node, self.config, receive or self.images.append)
        return self.input

    def camera(self, *sizes, reliability='reliable', depth=10, hz=100.0, count=0):
        command = [*script('numbered_camera.py'), self.topic, reliability, depth, hz, count]
        program = Program([*command, *sizes])
        self.programs.append(program)
        return program

    def publisher(self, reliability=ReliabilityPolicy.RELIABLE):
        """Return a publisher of this process, which knows the intake."""
        qos = QoSProfile(depth=10, reliability=reliability)
        publisher = self.client.node.create_publisher(Image, self.topic, qos)
        self.client.spin_until(publisher.get_subscription_count, 'the subscription')
        return publisher

    def wait(self, count):
        try:
            self.client.spin_until(lambda: len(self.images) >= count, f'{count} images')
        except pytest.fail.Exception:
            print(f'{len(self.images)} came, {self.input.not_delivered} did not;', self.logged)
            raise

    def close(self):
        if self.input is not None:
            self.input.close()
            self.input.close()
        for program in self.programs:
            program.close()
        self.client.remove(self.node)
        self.node.destroy_node()


@pytest.fixture
def make_taker(client):
    takers = []

    def make(**settings):
        takers.append(Taker(client, **settings))
        return takers[-1]

    before = intakes()
    yield make
    for taker in takers:
        taker.close()
    assert intakes() == before


# What arrives.


def test_growth_loses_no_image(make_taker):
    taker = make_taker(image_qos_depth=10)
    numbers = []
    taker.open(lambda arrived: numbers.append(spot(arrived)))
    taker.camera(VGA, '1920x1080', UHD, '16x12', hz=10, count=8)
    taker.client.spin_until(lambda: len(numbers) == 8, 'all images')
    assert numbers == list(range(1, 9))
    assert taker.input.not_delivered == 0


def test_an_image_above_the_limit_is_too_large_and_the_next_one_is_fine(make_taker, monkeypatch):
    buffers = functools.partial(MessageBuffers, limit=2_000_000)
    monkeypatch.setattr(image_input, 'MessageBuffers', buffers)
    taker = make_taker(image_qos_depth=10)
    taker.open()
    taker.camera(VGA, '1920x1080', hz=20)
    taker.wait(6)
    numbers = [spot(image) for image in taker.images if image.data.size]
    assert len(numbers) >= 3
    assert all(number % 2 for number in numbers)
    too_large = [image for image in taker.images if not image.data.size]
    assert len(too_large) >= 2
    for image in too_large:
        with pytest.raises(ImageError) as caught:
            frame_from_image(image)
        assert caught.value.reason == 'too_large'
        assert image.size > 6_000_000
    assert taker.input.not_delivered == 0  # they were received


@pytest.fixture
def memory(monkeypatch):
    """Return what there is memory for: a message of any size, a small one, or none."""
    there = ['any']

    class Scarce(MessageBuffers):
        def lend(self, message_bytes=0):
            if there[-1] == 'none' or (there[-1] == 'small' and message_bytes):
                raise MemoryError('no memory is left')
            return super().lend(message_bytes)

    monkeypatch.setattr(image_input, 'MessageBuffers', Scarce)
    return there


def test_without_memory_to_grow_an_image_is_dropped_and_the_next_one_is_fine(make_taker, memory):
    taker = make_taker()
    taker.open()
    camera = taker.publisher()
    large = image_message(bytes(3840 * 960), 1280, 960, 'bgr8', step=3840)
    for count, there in enumerate(('small', 'any'), 1):
        memory.append(there)
        camera.publish(large)
        taker.wait(count)
    assert [image.lease is None for image in taker.images] == [True, False]
    assert taker.input.not_delivered == 0
    assert not taker.logged
    taker.client.node.destroy_publisher(camera)


def test_without_any_memory_the_thread_ends_until_there_is_some(make_taker, memory):
    taker = make_taker()
    taker.open()
    camera = taker.publisher()
    memory.append('none')
    camera.publish(order(1, 1))
    taker.client.spin_until(lambda: not intakes(), 'the end of the thread')
    assert 'no memory is left' in taker.logged[0]
    memory.append('any')
    assert taker.input.restore()
    taker.client.spin_until(camera.get_subscription_count, 'the subscription')
    camera.publish(order(2, 2))
    taker.wait(1)
    taker.client.node.destroy_publisher(camera)


def test_rubbish_is_taken_and_refused_when_it_is_read(make_taker):
    taker = make_taker()
    taker.open()
    camera = taker.publisher()
    rubbish = [b'\0\1\0\0', b'\xff' * 1000, b'rubbish' * 20000, bytes(5)]
    for number, content in enumerate(rubbish, 1):
        camera.publish(content)
        taker.wait(number)
        with pytest.raises(ImageError) as caught:
            frame_from_image(taker.images[-1])
        assert caught.value.reason == 'bad_message'
    camera.publish(order(7, 3))
    taker.wait(len(rubbish) + 1)
    assert frame_from_image(taker.images[-1]).data[0] == 7
    taker.client.node.destroy_publisher(camera)


def test_images_of_this_process_and_another_are_taken_alike(make_taker):
    taker = make_taker(image_qos_depth=10)
    taker.open()
    camera = taker.publisher()
    camera.publish(order(5, 9))
    taker.wait(1)
    assert frame_from_image(taker.images[0]).data[0] == 5
    taker.camera(VGA, hz=20, count=3)
    taker.wait(4)
    assert [spot(image) for image in taker.images[1:]] == [1, 2, 3]
    taker.client.node.destroy_publisher(camera)


# No torn image.


def test_no_image_is_torn_by_overload_nor_by_what_its_reader_keeps(make_taker):
    taker = make_taker(image_qos_depth=1)
    held, checked = [], 0
    newest = []
    taker.open(newest.append)
    taker.camera('800x600', VGA, hz=0, depth=1)
    end = time.monotonic() + 60
    while checked < 400:
        assert time.monotonic() < end
        taker.client.spin_for(0.002)
        held += newest[-2:]
        newest.clear()
        if len(held) > 8:
            checked += len([spot(image) for image in held])
            del held[:5]
        if checked and checked % 100 < 9:
            taker.input.close()  # readers keep theirs all the same
            taker.open(newest.append)
    assert len({spot(image) for image in held}) == len(held)


# Cameras come, go and change.


def test_a_camera_that_starts_again(make_taker):
    taker = make_taker()
    taker.open()
    for _ in range(3):
        camera = taker.camera(VGA, hz=50)
        before = len(taker.images)
        taker.wait(before + 5)
        camera.close()
        assert spot(taker.images[-1]) >= 5


def test_a_camera_that_offers_less(make_taker):
    taker = make_taker()
    taker.open()
    good = taker.publisher()
    good.publish(order(1, 1))
    taker.wait(1)
    assert taker.input.reliability == 'reliable'
    for _ in range(3):  # all at once: one change, and nothing to complain about
        taker.camera(VGA, reliability='best_effort', hz=20)
    taker.client.spin_until(lambda: taker.input.reliability == 'best_effort', 'the change')
    taker.wait(20)
    assert len(taker.logged) == 1
    assert intakes() == 1
    taker.client.node.destroy_publisher(good)


# Ends.


def test_a_hundred_ends_while_images_come(make_taker, monkeypatch):
    made = []

    class Known(MessageBuffers):
        def __init__(self):
            super().__init__()
            made.append(self)

    monkeypatch.setattr(image_input, 'MessageBuffers', Known)
    taker = make_taker()
    taker.camera('320x240', hz=0, depth=1)
    arrived = 0
    for number in range(100):
        images = []
        taker.open(images.append)
        if number % 10 == 0:
            taker.client.spin_until(lambda images=images: images, 'an image')
        time.sleep(0.0007 * (number % 7))
        taker.input.close()
        arrived += len(images)
        after = len(images)
        assert intakes() == 0
        time.sleep(0.002)
        assert len(images) == after
        del images[:]
    assert arrived >= 10
    taker.input = None
    gc.collect()
    assert len(made) == 100
    assert [buffers.count for buffers in made] == [0] * 100


@pytest.mark.parametrize('first', ['node', 'context', 'neither'])
def test_the_end_comes_in_any_order(first):
    context = rclpy.Context()
    rclpy.init(context=context)
    topic = next(_topics)
    remap = ['--ros-args', '-r', f'image:={topic}']
    node = LifecycleNode('ends', context=context, cli_args=remap)
    executor = SingleThreadedExecutor(context=context)
    images = []
    taken = ImageInput(node, DetectorConfig(), images.append)
    assert intakes() == 1
    camera = node.create_publisher(Image, topic, QoSProfile(depth=1))
    end = time.monotonic() + 30
    while not images:
        assert time.monotonic() < end
        camera.publish(order(1, 1))
        time.sleep(0.01)
    executor.shutdown()
    if first == 'node':
        node.destroy_node()
    elif first == 'context':
        rclpy.shutdown(context=context)
        while intakes():  # without a word from us
            assert time.monotonic() < end
            time.sleep(0.001)
    taken.close()
    assert intakes() == 0
    taken.close()
    assert frame_from_image(images[0]).data[0] == 1  # it is the reader's
    if first != 'node':
        node.destroy_node()
    rclpy.try_shutdown(context=context)


def test_a_receiver_that_raises_ends_the_thread_and_the_watch_subscribes_again(make_taker):
    taker = make_taker()
    broken = threading.Event()
    broken.set()

    def receive(arrived):
        if broken.is_set():
            raise RuntimeError('the receiver broke')
        taker.images.append(arrived)

    taker.open(receive)
    assert not taker.input.restore()
    taker.camera(VGA, hz=50)
    taker.client.spin_until(lambda: not intakes(), 'the end of the thread')
    assert 'the receiver broke' in taker.logged[0]
    broken.clear()
    assert taker.input.restore()
    taker.wait(3)
    assert not taker.input.restore()


def test_what_cannot_be_made_leaves_nothing_behind(make_taker, monkeypatch):
    taker = make_taker()
    node = taker.client.node

    def fail(*_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, 'start', fail)
        with pytest.raises(RuntimeError, match="can't start"):
            taker.open()
    assert intakes() == 0
    gc.collect()
    taker.client.spin_until(lambda: not node.count_subscribers(taker.topic), 'no subscription')
    taker.open()
    camera = taker.publisher()
    camera.publish(order(1, 1))
    taker.wait(1)
    node.destroy_publisher(camera)


# Where rcl is not the one expected.


class _Shorter(ctypes.Structure):
    """A wait set without its last member: what rcl writes lands behind it."""

    _fields_ = rcl._WaitSetStruct._fields_[:-1]


class _Longer(ctypes.Structure):
    """A message info with another member in front, so that all others are shifted."""

    _fields_ = [('new', ctypes.c_uint8 * 32), *rcl.SerializedArray._fields_]


@pytest.mark.parametrize('fault', ['wait set', 'array', 'function', 'library'])
def test_another_rcl_is_noticed_at_once_and_rclpy_takes_the_images(make_taker, monkeypatch, fault):
    if fault == 'wait set':
        monkeypatch.setattr(rcl, '_WaitSetStruct', _Shorter)
    elif fault == 'array':
        monkeypatch.setattr(rcl, 'SerializedArray', _Longer)
    elif fault == 'function':
        monkeypatch.setattr(rcl, '_SLOW', {'rcl_of_tomorrow': ()})
    else:

        def missing(name):
            raise OSError(f'{name}: cannot open shared object file')

        monkeypatch.setattr(ctypes, 'CDLL', missing)
    rcl.load.cache_clear()
    try:
        taker = make_taker()
        taker.open()
        with pytest.raises(RclError):  # doctor says so, too
            check_intake(taker.client.context)
    finally:
        rcl.load.cache_clear()
    assert len(taker.logged) == 1
    assert taker.logged[0].startswith('images are taken through rclpy')
    assert intakes() == 0
    assert taker.input.way == 'through rclpy'
    camera = taker.publisher()
    camera.publish(order(3, 1))
    taker.wait(1)
    assert isinstance(taker.images[0], Image)
    assert frame_from_image(taker.images[0]).data[0] == 3
    assert taker.client.node.count_subscribers(taker.topic) == 1
    taker.client.node.destroy_publisher(camera)


def test_another_rcl_that_is_noticed_late_is_left_for_rclpy(make_taker, monkeypatch):
    taker = make_taker()
    taker.open()
    monkeypatch.setattr(
        rcl.Taking, 'take', lambda *_: (_ for _ in ()).throw(RclError('a take', 'went wrong'))
    )
    camera = taker.publisher()
    camera.publish(order(3, 1))
    taker.client.spin_until(lambda: not intakes(), 'the end of the thread')
    assert taker.input.restore()
    taker.client.spin_until(camera.get_subscription_count, 'the subscription')
    camera.publish(order(4, 2))
    taker.wait(1)
    assert isinstance(taker.images[-1], Image)
    assert len(taker.logged) == 1
    taker.client.node.destroy_publisher(camera)


# What it costs.


def test_it_sleeps_while_nothing_comes(make_taker):
    taker = make_taker(image_qos_reliability='reliable')
    taker.open()
    camera = taker.publisher()
    taker.camera(VGA, reliability='best_effort', hz=100)  # an event, and nothing more
    camera.publish(order(1, 1))
    taker.wait(1)
    taker.client.spin_until(lambda: taker.logged, 'the word of the camera that is kept out')
    thread = next(t for t in threading.enumerate() if t.name == 'intake')
    clock = time.pthread_getcpuclockid(thread.ident)
    before = time.clock_gettime(clock)
    time.sleep(1.0)
    assert time.clock_gettime(clock) - before < 0.1
    taker.client.node.destroy_publisher(camera)


@pytest.mark.parametrize(
    ('intake', 'kind', 'message'),
    [('auto', IntakeSubscription, Arrived), ('rclpy', TypedSubscription, Image)],
)
def test_the_parameter_says_who_takes(make_taker, intake, kind, message):
    taker = make_taker(image_intake=intake)
    taker.open()
    assert isinstance(taker.input._subscription, kind)
    camera = taker.publisher()
    camera.publish(order(1, 1))
    taker.wait(1)
    assert isinstance(taker.images[0], message)
    assert np.array_equal(frame_from_image(taker.images[0]).data[:3], [1, 0, 0])
    taker.client.node.destroy_publisher(camera)
