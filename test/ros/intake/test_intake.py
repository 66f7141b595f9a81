# SPDX-License-Identifier: Apache-2.0
"""Tests of the intake over DDS: images are complete and in order, even if buffers grow."""

import time

import pytest

from support.nodes.graph import command_image, image_message, picture_of
from support.nodes.intake_taker import VGA, image_number, intakes
from trt_perception.errors import CudaError, ImageError
from trt_perception.ros.camera.messages import frame_from_image
from trt_perception.ros.intake.buffers import MessageBuffers
from trt_perception.ros.wire.rcl import WaitSet

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro


# Which images arrive.


def test_all_images_arrive_while_buffers_grow(make_taker):
    taker = make_taker(image_qos_depth=10)
    numbers = []
    taker.open(lambda arrived: numbers.append(image_number(arrived)))
    taker.camera(VGA, '1920x1080', '3840x2160', '16x12', hz=10, count=8)
    taker.client.spin_until(lambda: len(numbers) == 8, 'all images')
    assert numbers == list(range(1, 9))
    assert taker.input.not_delivered == 0


@pytest.mark.parametrize('image_intake', ['auto', 'rclpy'])
def test_delays_of_an_image_last_from_its_publication_to_its_take(make_taker, image_intake):
    taker = make_taker(image_intake=image_intake)
    taken_ns = []
    taker.open(lambda _: taken_ns.append(time.time_ns()))
    camera = taker.publisher()
    begun_ns = time.time_ns()
    camera.publish(command_image(1, 1))
    taker.client.spin_until(lambda: taken_ns, 'the image')
    transport_ns, intake_ns = taker.input.transport_ns, taker.input.intake_ns
    assert min(transport_ns, intake_ns) > 0
    assert transport_ns + intake_ns <= taken_ns[0] - begun_ns
    taker.client.node.destroy_publisher(camera)


def test_image_above_the_limit_is_refused_and_the_next_one_arrives(make_taker):
    taker = make_taker(image_qos_depth=10)
    taker.buffers = MessageBuffers(limit=2_000_000)
    taker.open()
    camera = taker.publisher()
    large = image_message(bytes(3 * 1920 * 1080), 1920, 1080, 'bgr8', step=3 * 1920)
    for number in range(1, 4):
        camera.publish(command_image(number, number))
        taker.wait(2 * number - 1)
        assert frame_from_image(taker.images[-1]).data[0] == number
        camera.publish(large)
        taker.wait(2 * number)
        with pytest.raises(ImageError) as caught:
            frame_from_image(taker.images[-1])
        assert caught.value.reason == 'too_large'
        assert taker.images[-1].size > 6_000_000
    # The images were received, so they do not count as lost.
    assert taker.input.not_delivered == 0
    taker.client.node.destroy_publisher(camera)


class Scarce(MessageBuffers):
    """Buffers that lend memory for all messages, for small messages only, or for none."""

    available = 'any'

    def lend(self, message_bytes=0):
        if self.available == 'none' or (self.available == 'small' and message_bytes):
            raise MemoryError('no memory is left')
        return super().lend(message_bytes)


def test_image_without_memory_is_dropped_and_the_next_one_arrives(make_taker):
    taker = make_taker()
    taker.buffers = Scarce()
    taker.open()
    camera = taker.publisher()
    large = image_message(bytes(3840 * 960), 1280, 960, 'bgr8', step=3840)
    for count, available in enumerate(('small', 'any'), 1):
        taker.buffers.available = available
        camera.publish(large)
        taker.wait(count)
    assert [image.lease is None for image in taker.images] == [True, False]
    assert taker.input.not_delivered == 0
    assert not taker.logged
    taker.client.node.destroy_publisher(camera)


def test_thread_ends_without_memory_and_resumes_later(make_taker):
    taker = make_taker()
    taker.buffers = Scarce()
    taker.open()
    camera = taker.publisher()
    taker.buffers.available = 'none'
    camera.publish(command_image(1, 1))
    taker.client.spin_until(lambda: not intakes(), 'the end of the thread')
    assert 'no memory is left' in taker.logged[0]
    taker.buffers.available = 'any'
    assert taker.input.resubscribe_if_lost()
    taker.client.spin_until(camera.get_subscription_count, 'the subscription')
    camera.publish(command_image(2, 2))
    taker.wait(1)
    taker.client.node.destroy_publisher(camera)


def test_gpu_that_is_lost_during_an_allocation_is_a_fault(make_taker):
    class Lost(MessageBuffers):
        def lend(self, message_bytes=0):
            raise CudaError('cudaHostAlloc', 'cudaErrorIllegalAddress', sticky=True)

    taker = make_taker()
    taker.buffers = Lost()
    taker.open()
    camera = taker.publisher()
    camera.publish(command_image(1, 1))
    taker.client.spin_until(lambda: not intakes(), 'the end of the thread')
    assert [error.sticky for error in taker.faults] == [True]
    assert not taker.logged  # only the fault handler reports the error
    taker.client.node.destroy_publisher(camera)


def test_invalid_message_is_taken_and_refused_by_the_reader(make_taker):
    taker = make_taker()
    taker.open()
    camera = taker.publisher()
    invalid_messages = [b'\0\1\0\0', b'\xff' * 1000, b'rubbish' * 20000, bytes(5)]
    for number, content in enumerate(invalid_messages, 1):
        camera.publish(content)
        taker.wait(number)
        with pytest.raises(ImageError) as caught:
            frame_from_image(taker.images[-1])
        assert caught.value.reason == 'bad_message'
    camera.publish(command_image(7, 3))
    taker.wait(len(invalid_messages) + 1)
    assert frame_from_image(taker.images[-1]).data[0] == 7
    taker.client.node.destroy_publisher(camera)


def test_buffers_follow_a_camera_that_sends_smaller_images(make_taker):
    taker = make_taker()
    sizes = []  # keeps no image, so that the buffers return
    taker.open(lambda image: sizes.append(image.lease.memory.size))
    camera = taker.publisher()
    for width_height in [(640, 480)] * 3 + [(64, 48)] * 12:
        count = len(sizes)
        camera.publish(picture_of((0, 0, 0), width_height))
        taker.client.spin_until(lambda count=count: len(sizes) > count, 'the image')
    assert sizes[2] >= 3 * 640 * 480
    assert sizes[-1] < 3 * 640 * 480
    taker.client.node.destroy_publisher(camera)


def test_images_after_an_empty_message_arrive_if_both_queues_are_equally_deep(make_taker):
    """Fast DDS does not deliver messages of 0 bytes between processes, but expects them in order.

    It therefore keeps the next images until the empty message leaves the camera's queue. Then it
    delivers the newest images, as many as fit into the subscription's queue.
    """
    taker = make_taker(image_qos_depth=5)
    numbers = []
    taker.open(lambda arrived: numbers.append(image_number(arrived)))

    taker.camera('64x48', 'empty', *['64x48'] * 8, depth=5, hz=10, count=20)

    taker.client.spin_until(
        lambda: len(numbers) + taker.input.not_delivered == 20, 'a count of all images'
    )
    assert numbers == sorted(set(numbers))
    # How many of the next images fit into the queues depends on the speed of both processes.
    assert [number for number in numbers if 2 < number < 12]
    assert numbers[-1] == 20


def test_images_of_this_process_and_of_another_process_arrive(make_taker):
    taker = make_taker(image_qos_depth=10)
    taker.open()
    camera = taker.publisher()
    camera.publish(command_image(5, 9))
    taker.wait(1)
    assert frame_from_image(taker.images[0]).data[0] == 5
    taker.camera(VGA, hz=20, count=3)
    taker.wait(4)
    assert [image_number(image) for image in taker.images[1:]] == [1, 2, 3]
    taker.client.node.destroy_publisher(camera)


# Images are complete.


def test_no_image_is_torn_by_overload_or_slow_readers(make_taker):
    taker = make_taker(image_qos_depth=1)
    kept_images, checked, reopen_at = [], 0, 50
    newest = []
    taker.open(newest.append)
    taker.camera('800x600', VGA, hz=0, depth=1)
    while checked < 200:  # without images, the time limit of the test ends this loop
        taker.client.spin_for(0.002)
        kept_images += newest[-2:]
        newest.clear()
        if len(kept_images) > 8:
            checked += len([image_number(image) for image in kept_images])
            del kept_images[:5]
        if checked >= reopen_at:
            reopen_at += 50  # Let images arrive first, because discovery needs time.
            taker.input.close()  # Readers keep their images.
            taker.open(newest.append)
    assert len({image_number(image) for image in kept_images}) == len(kept_images)


# Cameras that start, end and change.


def test_images_of_a_restarted_camera_arrive(make_taker):
    taker = make_taker()
    taker.open()
    for _ in range(3):
        camera = taker.camera(VGA, hz=50)
        before = len(taker.images)
        taker.wait(before + 5)
        camera.close()
        assert image_number(taker.images[-1]) >= 5


def test_best_effort_camera_changes_the_subscription(make_taker):
    taker = make_taker()
    taker.open()
    reliable_camera = taker.publisher()
    reliable_camera.publish(command_image(1, 1))
    taker.wait(1)
    assert taker.input.reliability == 'reliable'
    for _ in range(3):  # Three publishers at once cause only one change.
        # Small images, because best effort loses images above the shared memory of 512 KiB.
        taker.camera('64x48', reliability='best_effort', hz=20)
    taker.client.spin_until(lambda: taker.input.reliability == 'best_effort', 'the change')
    taker.wait(len(taker.images) + 3)
    assert len(taker.logged) == 1
    assert intakes() == 1
    taker.client.node.destroy_publisher(reliable_camera)


# CPU time.


def test_intake_sleeps_while_no_image_arrives(make_taker, monkeypatch):
    waits, wait = [], WaitSet.wait
    monkeypatch.setattr(WaitSet, 'wait', lambda own: waits.append(1) or wait(own))
    taker = make_taker(image_qos_reliability='reliable')
    taker.open()
    camera = taker.publisher()
    taker.camera(
        VGA, reliability='best_effort', hz=100
    )  # this camera causes an event, but no image
    camera.publish(command_image(1, 1))
    taker.wait(1)
    taker.client.spin_until(lambda: taker.logged, 'the log line about the incompatible camera')

    def sleeps():
        before = len(waits)
        taker.client.spin_for(0.2)
        return len(waits) == before

    # Discovery may still wake the thread a few times. A busy loop would wake it continuously.
    taker.client.spin_until(sleeps, '0.2 s without a wake-up of the thread')
    taker.client.node.destroy_publisher(camera)
