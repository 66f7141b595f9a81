# SPDX-License-Identifier: Apache-2.0
"""Tests of shared intakes over DDS: changes of one camera do not affect the others."""

import threading
from collections import deque

import pytest
from sensor_msgs.msg import Image

from support.nodes.graph import command_image
from support.nodes.intake_taker import VGA, image_number, intakes
from trt_perception.ros.camera.messages import frame_from_image
from trt_perception.ros.intake.buffers import MessageBuffers
from trt_perception.ros.intake.intake import SerializedMessage
from trt_perception.ros.intake.shared_intake import CAMERAS_PER_THREAD, SharedIntake
from trt_perception.ros.wire import rcl
from trt_perception.ros.wire.rcl import RclError

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro


@pytest.fixture
def several(make_taker):
    """Return a function that makes takers with a shared intake, and opens all but the last."""

    def make(count, **settings):
        takers = [make_taker(image_qos_depth=100, **settings) for _ in range(count)]
        takers[0].open()
        for taker in takers[1:-1]:
            taker.open(intake=takers[0].intake)
        return takers

    return make


def send(taker, camera, *stamps):
    """Publish an image for each stamp, and wait until all have arrived."""
    for stamp in stamps:
        camera.publish(command_image(1, stamp))
    taker.wait(stamps[-1])


def stamp_of(message):
    frame_from_image(message)  # this call sets the header
    return message.header.stamp.sec


def image_thread():
    [thread] = [thread for thread in threading.enumerate() if thread.name == 'intake']
    return thread


def test_images_of_a_steady_camera_arrive_while_others_come_and_go(several):
    """The other camera subscribes and unsubscribes while images arrive."""
    steady, changing = several(2)
    camera = steady.publisher()
    thread = image_thread()
    changing.camera('64x48', hz=100, depth=1)
    for turn in range(40):
        changing.images.clear()
        camera.publish(command_image(1, 3 * turn + 1))
        changing.open(intake=steady.intake)
        camera.publish(command_image(1, 3 * turn + 2))
        if turn % 10 == 0:
            changing.wait(1)
        changing.client.spin_for(0.001 * (turn % 5))
        camera.publish(command_image(1, 3 * turn + 3))
        changing.input.close()
        seen = len(changing.images)
        steady.wait(3 * turn + 3)
        assert len(changing.images) == seen, 'a closed input received an image'
        assert image_thread() is thread
    assert [stamp_of(image) for image in steady.images] == [*range(1, 121)]
    assert steady.input.not_delivered == 0
    assert not steady.logged
    steady.client.node.destroy_publisher(camera)
    steady.input.close()
    assert intakes() == 0, 'the intake runs without a source'


def test_each_camera_gets_its_own_images(several):
    takers = several(4)
    takers[-1].open(intake=takers[0].intake)
    sizes = ['64x48', '320x240', VGA, '16x12']
    for taker, size in zip(takers, sizes, strict=True):
        taker.camera(size, hz=100)
    for taker, size in zip(takers, sizes, strict=True):
        taker.wait(10)
        width, height = map(int, size.split('x'))
        assert {image.size // 100 for image in taker.images} == {taker.images[0].size // 100}, (
            'of one camera'
        )
        assert width * height * 3 < taker.images[0].size < width * height * 3 + 200
        numbers = [image_number(image) for image in taker.images]
        assert numbers == sorted(set(numbers))
    assert intakes() == 1


def test_many_cameras_have_several_threads(several):
    takers = several(CAMERAS_PER_THREAD + 2)
    takers[-1].open(intake=takers[0].intake)
    assert intakes() == 2
    for taker in takers:
        taker.camera('64x48', hz=50)
    for taker in takers:
        taker.wait(5)
        numbers = [image_number(image) for image in taker.images]
        assert numbers == sorted(set(numbers))
    # A new subscription joins the thread with the fewest cameras. An empty thread ends.
    for taker in takers[:2]:
        taker.input.close()
        taker.images.clear()
        taker.open(intake=takers[0].intake)
        taker.wait(3)
    assert intakes() == 2
    for taker in takers[2:]:
        taker.input.close()
    assert intakes() <= 2
    for taker in takers[:2]:
        taker.wait(len(taker.images) + 3)
        taker.input.close()
    assert intakes() == 0


def test_images_are_complete_while_several_threads_lend_memory(several):
    takers = several(3)
    takers[0].input.close()
    takers[0].open()
    intake = takers[0].intake
    intake._cameras_per_thread = 1  # a separate thread for each camera
    for taker, size in zip(takers, ('320x240', VGA, '64x48'), strict=True):
        if taker.input is not None:
            taker.input.close()
        taker.images = deque(maxlen=2)
        taker.open(intake=intake)
        taker.camera(size, hz=100, depth=1)
    assert intakes() == 3
    held, checked = [], 0
    while checked < 300:
        for taker in takers:
            taker.wait(2)
            held += [taker.images.pop(), taker.images.pop()]
        if len(held) > 12:
            checked += len([image_number(image) for image in held])
            del held[:7]
    assert takers[0].buffers.count < 50


def test_receiver_that_raises_loses_only_its_own_subscription(several):
    well, broken = several(2)
    fault = threading.Event()
    fault.set()

    def receive(arrived):
        if fault.is_set():
            raise RuntimeError('the receiver broke')
        broken.images.append(arrived)

    broken.open(receive, intake=well.intake)
    camera = well.publisher()
    send(well, camera, 1, 2, 3)
    thread = image_thread()
    broken.camera('64x48', hz=100)
    camera.publish(command_image(1, 4))
    well.client.spin_until(lambda: broken.logged, 'the fault')
    assert 'the receiver broke' in broken.logged[0]
    assert broken.topic in broken.logged[0]
    send(well, camera, 5, 6, 7)
    assert len(broken.logged) == 1, 'the failed receiver is called again'
    assert not well.logged
    assert not well.input.resubscribe_if_lost()
    fault.clear()
    assert broken.input.resubscribe_if_lost()
    broken.wait(3)
    assert not broken.input.resubscribe_if_lost()
    send(well, camera, 8, 9)
    assert [stamp_of(image) for image in well.images] == [*range(1, 10)]
    assert image_thread() is thread
    well.client.node.destroy_publisher(camera)


def test_all_cameras_are_subscribed_again_if_the_thread_ends(several):
    class Scarce(MessageBuffers):
        there = True

        def lend(self, message_bytes=0):
            if not self.there:
                raise MemoryError('no memory is left')
            return super().lend(message_bytes)

    first, second = several(2)
    first.input.close()
    first.buffers = Scarce()
    first.open()
    second.open(intake=first.intake)
    for taker in (first, second):
        taker.camera('64x48', hz=100)
        taker.wait(2)
    first.buffers.there = False
    first.client.spin_until(lambda: not intakes(), 'the end of the thread')
    assert 'no memory is left' in first.logged[0]
    first.buffers.there = True
    for taker in (first, second):
        assert taker.input.resubscribe_if_lost()
        taker.wait(len(taker.images) + 2)
    assert intakes() == 1
    assert not first.input.resubscribe_if_lost()


def test_intake_that_ends_before_a_camera_is_added_is_replaced(several, monkeypatch):
    (taker,) = several(1)
    taker.input.close()
    running = taker.intake._running_intake

    def ended(node):
        monkeypatch.setattr(taker.intake, '_running_intake', running)
        intake = running(node)
        intake.close()  # the intake ends, as after a failure of its last camera
        return intake

    monkeypatch.setattr(taker.intake, '_running_intake', ended)
    taker.open(intake=taker.intake)
    camera = taker.publisher()
    camera.publish(command_image(1, 1))
    taker.wait(1)
    assert isinstance(taker.images[0], SerializedMessage)
    assert intakes() == 1
    assert not taker.intake.uses_rclpy
    assert not taker.logged
    taker.client.node.destroy_publisher(camera)


def test_large_images_of_one_camera_do_not_enlarge_the_buffers_of_another(several, monkeypatch):
    small, large = several(2)
    small.input.close()
    monkeypatch.setattr(small.intake, '_make_buffers', MessageBuffers)
    small.open(intake=small.intake)
    large_sizes = []  # keeps no image, so that the buffers return
    large.open(lambda image: large_sizes.append(image.lease.memory.size), intake=small.intake)
    camera = small.publisher()
    large.camera('1920x1080', hz=20)

    # More messages than the buffers remember.
    large.client.spin_until(lambda: len(large_sizes) >= 12, 'large images')
    send(small, camera, 1, 2, 3)

    assert {image.lease.memory.size for image in small.images} == {2**16}
    assert min(large_sizes) >= 1920 * 1080
    small.client.node.destroy_publisher(camera)


def test_rclpy_takes_all_images_if_rcl_differs(several, monkeypatch):
    first, second = several(2)
    second.open(intake=first.intake)
    monkeypatch.setattr(
        rcl.MessageTaker,
        'take',
        lambda *_: (_ for _ in ()).throw(RclError('a take', 'went wrong')),
    )
    cameras = [taker.publisher() for taker in (first, second)]
    cameras[1].publish(command_image(3, 1))
    first.client.spin_until(lambda: not intakes(), 'the end of the thread')
    assert len(first.logged) == 1
    assert first.intake.uses_rclpy
    for number, (taker, camera) in enumerate(zip((first, second), cameras, strict=True)):
        assert taker.input.resubscribe_if_lost()
        taker.client.spin_until(camera.get_subscription_count, 'the subscription')
        camera.publish(command_image(number + 4, 2))
        taker.wait(1)
        assert isinstance(taker.images[-1], Image)
        assert not isinstance(taker.images[-1], SerializedMessage)
        taker.client.node.destroy_publisher(camera)
    assert len(first.logged) == 1
    assert not second.logged
    assert intakes() == 0


@pytest.mark.parametrize('count', [0, 1, 2])
def test_description_counts_the_additional_participants(count, golden_messages):
    nodes = [object()] * count
    intake = SharedIntake(None, MessageBuffers, nodes, uses_rclpy=False, fault_handler=None)
    golden_messages.add(intake.description)
