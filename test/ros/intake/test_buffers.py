# SPDX-License-Identifier: Apache-2.0
"""Tests of buffers for messages: memory returns after its last reader, and is then reused."""

import gc
import random
import threading
from typing import ClassVar

import numpy as np
import pytest

from trt_perception.errors import CudaError
from trt_perception.images.memory import NumpyMemory
from trt_perception.ros.intake.buffers import MessageBuffers

pytestmark = pytest.mark.each_distro


class Counted(NumpyMemory):
    open = open_bytes = 0
    allocated: ClassVar = []

    def __init__(self, size):
        super().__init__(size)
        Counted.open += 1
        Counted.open_bytes += size
        Counted.allocated.append(size)

    def close(self):
        Counted.open -= 1
        Counted.open_bytes -= self.size
        super().close()


@pytest.fixture(autouse=True)
def reset_counts():
    Counted.open = Counted.open_bytes = 0
    Counted.allocated.clear()


def test_memory_is_lent_until_the_last_view_is_gone():
    buffers = MessageBuffers()
    lease = buffers.lend(1000)
    place = lease.memory.pointer
    view = lease.array()[10:20][::2].reshape(5, 1)
    view[...] = 7
    del lease
    other = buffers.lend(1000)
    assert other.memory.pointer != place
    other.array()[:] = 9
    assert view.ravel().tolist() == [7] * 5
    del view
    assert buffers.lend(1000).memory.pointer == place
    assert buffers.count == 2


def test_array_of_a_lease_writes_into_the_lent_memory():
    lease = MessageBuffers().lend(100)
    assert lease.memory.size >= 100
    array = lease.array()
    assert array.ctypes.data == lease.memory.pointer
    assert array.dtype == np.uint8
    array[255:258] = 1, 2, 3
    assert lease.array()[255:258].tolist() == [1, 2, 3]


def test_smaller_buffers_are_freed_when_a_larger_one_is_needed():
    buffers = MessageBuffers(Counted)
    for size in (1000, 10**5, 1000, 3 * 10**5, 10):
        assert buffers.lend(size).memory.size >= size
    assert buffers.count == Counted.open == 1
    buffers.close()
    assert buffers.count == Counted.open == 0


def test_memory_lent_at_close_is_freed_when_it_returns():
    buffers = MessageBuffers(Counted)
    kept, back = buffers.lend(), buffers.lend()
    view = kept.array()[:4]
    del kept, back
    buffers.close()
    assert buffers.count == Counted.open == 1
    view[:] = 3
    del view
    assert buffers.count == Counted.open == 0
    buffers.close()


def test_memory_returns_from_threads_and_reference_cycles():
    buffers = MessageBuffers()
    for number in range(200):
        lease = buffers.lend(5000)
        array = lease.array()
        array[:] = number % 256

        def read(array=array, number=number):
            ring = [array]
            ring.append(ring)  # a reference cycle, which only garbage collection frees
            assert (array == number % 256).all()

        reader = threading.Thread(target=read)
        reader.start()
        del lease, array, read
        reader.join()
        del reader
    gc.collect()
    count = buffers.count
    lent = [buffers.lend(5000) for _ in range(count)]
    assert buffers.count == count
    assert len({lease.memory.pointer for lease in lent}) == count


def test_slightly_larger_message_allocates_a_margin():
    """Compressed images differ in size, and a slightly larger image must not need a new buffer."""
    buffers = MessageBuffers(Counted)
    sizes = {buffers.lend(size).memory.size for size in range(100_000, 400_000, 500)}
    assert len(sizes) <= 8
    assert max(sizes) <= 1.25 * 400_000
    buffers.close()


USUAL_BYTES, LARGE_BYTES = 300_000, 100_000_000


def lend_and_return(buffers, *sizes):
    """Lend memory for each message, and take it back at once."""
    for size in sizes:
        buffers.lend(size)


@pytest.fixture
def camera_buffers():
    """Return the buffers of a camera after 7 single images and 3 images at the same time."""
    buffers = MessageBuffers(Counted)
    lend_and_return(buffers, *[USUAL_BYTES] * 7)
    lent = [buffers.lend(USUAL_BYTES) for _ in range(3)]
    lent.clear()
    assert (buffers.count, Counted.open) == (3, 3)
    yield buffers
    buffers.close()
    assert Counted.open == 0


@pytest.mark.parametrize('count', [1, 4])
def test_buffers_of_unusually_large_messages_are_freed_when_they_return(camera_buffers, count):
    large = [camera_buffers.lend(LARGE_BYTES) for _ in range(count)]
    assert Counted.open_bytes >= count * LARGE_BYTES

    large.clear()

    assert Counted.open_bytes < 3 * 1.25 * USUAL_BYTES
    assert camera_buffers.lend().memory.size < 1.25 * USUAL_BYTES


def test_buffers_of_refused_images_are_freed_when_they_return(camera_buffers):
    for _ in range(50):
        large = camera_buffers.lend(LARGE_BYTES)
        large.message_bytes = 0
        del large
        assert Counted.open_bytes < 3 * 1.25 * USUAL_BYTES

    assert camera_buffers.lend().memory.size < 1.25 * USUAL_BYTES


def test_first_image_that_is_refused_leaves_no_buffer():
    buffers = MessageBuffers(Counted)
    large = buffers.lend(LARGE_BYTES)
    large.message_bytes = 0

    del large

    assert Counted.open_bytes == 0


def test_buffers_follow_a_camera_that_changes_its_resolution(camera_buffers):
    for size in (2_000_000, USUAL_BYTES):
        lend_and_return(camera_buffers, *[size] * 20)
        Counted.allocated.clear()
        lend_and_return(camera_buffers, *[size] * 20)

        assert Counted.allocated == []
        assert size <= Counted.open_bytes <= 3 * 1.25 * size


def test_images_of_usual_sizes_need_no_new_buffer(camera_buffers):
    rng = random.Random(1)
    Counted.allocated.clear()

    for _ in range(200):
        lease = camera_buffers.lend()
        lease.message_bytes = rng.randrange(USUAL_BYTES // 2, USUAL_BYTES)
        del lease

    assert Counted.allocated == []


class PageLocked(NumpyMemory):
    """Page-locked memory. Allocations above `left` bytes fail."""

    left = 0
    sticky = False

    def __init__(self, size):
        if size > PageLocked.left:
            raise CudaError('cudaHostAlloc', 'failed', sticky=PageLocked.sticky)
        super().__init__(size)


def test_smaller_messages_get_memory_after_a_failed_allocation(monkeypatch):
    monkeypatch.setattr(PageLocked, 'left', 200_000)
    buffers = MessageBuffers(PageLocked)
    for _ in range(3):
        buffers.lend(100_000)
        with pytest.raises(MemoryError, match='cudaHostAlloc'):
            buffers.lend(1_000_000)
        assert buffers.count == 0
    monkeypatch.setattr(PageLocked, 'left', 2_000_000)
    assert buffers.lend(1_000_000).memory.size >= 1_000_000
    monkeypatch.setattr(PageLocked, 'left', 0)
    monkeypatch.setattr(PageLocked, 'sticky', True)
    with pytest.raises(CudaError) as caught:
        buffers.lend(3_000_000)
    assert caught.value.sticky
    buffers.close()


def test_small_messages_get_memory_after_one_large_message(monkeypatch):
    """Otherwise the next message of any camera would end the intake."""
    monkeypatch.setattr(PageLocked, 'left', 2_000_000)
    buffers = MessageBuffers(PageLocked)
    large = buffers.lend(1_900_000)
    monkeypatch.setattr(PageLocked, 'left', 300_000)
    lent = [buffers.lend(), buffers.lend(100_000), buffers.lend(200_000)]
    assert buffers.lend().memory.size >= 2**16
    assert large.memory.size >= 1_900_000
    # The buffers accept a message even without memory for the margin.
    assert buffers.lend(299_000).memory.size >= 299_000
    with pytest.raises(MemoryError, match='cudaHostAlloc'):
        buffers.lend(300_001)
    lent.clear()
    del large
    buffers.close()
    assert buffers.count == 0


def test_all_memory_is_freed_if_freeing_one_buffer_fails():
    class Broken(Counted):
        def close(self):
            super().close()
            raise CudaError('cudaFreeHost', 'failed')

    buffers = MessageBuffers(Broken)
    lent = [buffers.lend() for _ in range(3)]
    last = lent.pop()
    lent.clear()
    with pytest.raises(CudaError):
        buffers.close()
    assert buffers.count == Counted.open == 1
    del last  # logs nothing
    assert buffers.count == Counted.open == 0
