# SPDX-License-Identifier: Apache-2.0
"""Tests of mask images: which memory is reused, and when."""

import gc
import threading

import numpy as np
import pytest

from trt_perception.images.results import image_limits
from trt_perception.images.results.image_limits import MAX_RESULT_PIXELS
from trt_perception.images.results.kernel_maps import HEADER_ROOM
from trt_perception.pipelines.cuda import pinned_images
from trt_perception.pipelines.cuda.pinned_images import ImagePool


class Buffer:
    live = 0

    def __init__(self, size, device):
        self.size = size
        self.array = np.zeros(size, np.uint8)
        self.pointer = self.device_pointer = id(self)
        Buffer.live += 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        Buffer.live -= 1


class Event:
    """A stand-in for an event. It is done after `synchronize`, or when the test sets it."""

    def __init__(self, *, blocking):
        self.blocking = blocking
        self.pending = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def record(self, stream):
        self.pending = True

    def is_done(self):
        return not self.pending

    def synchronize(self):
        self.pending = False


class Device:
    integrated = True


@pytest.fixture
def images(monkeypatch):
    monkeypatch.setattr(pinned_images, 'PinnedBuffer', Buffer)
    monkeypatch.setattr(pinned_images, 'Event', Event)
    images = ImagePool(Device)
    yield images
    images.close()
    gc.collect()
    assert Buffer.live == 0


def drawn(images, size_wh, number):
    """Return a mask image filled with a number, as by a kernel."""
    image = images.lend(size_wh, 'uint16')
    image.memory()[HEADER_ROOM:].view(np.uint16)[:] = number
    image.record(None)
    return image


def test_mask_image_is_copied_to_the_given_array(images):
    image = drawn(images, (3, 2), 7)
    out = np.zeros((2, 3), np.uint16)
    image.number(out)
    assert out.tolist() == [[7] * 3] * 2


def test_memory_of_a_used_image_is_not_reused(images):
    first, second = drawn(images, (3, 2), 1), drawn(images, (3, 2), 2)
    assert first.device_pointer != second.device_pointer
    out = np.zeros((2, 3), np.uint16)
    first.number(out)
    assert out.max() == 1
    place = first.device_pointer
    del first
    assert images.lend((3, 2), 'uint16').device_pointer == place
    assert Buffer.live == 2


def test_memory_that_the_gpu_may_still_write_is_not_lent(images):
    unread = drawn(images, (3, 2), 1)
    event, place = unread._buffer.written, unread.device_pointer
    del unread  # released before its event is done
    other = images.lend((3, 2), 'uint16')
    assert other.device_pointer != place
    event.pending = False
    assert images.lend((3, 2), 'uint16').device_pointer == place


def test_memory_may_be_returned_during_a_search(images):
    """The garbage collector may release an image at any point of the search."""
    free, ending = drawn(images, (3, 2), 1), [drawn(images, (3, 2), 2)]
    place, event = free.device_pointer, free._buffer.written
    del free

    def done():
        ending.clear()
        return True

    event.is_done = done
    taken = []
    looking = threading.Thread(
        target=lambda: taken.append(images.lend((3, 2), 'uint16')), daemon=True
    )
    looking.start()
    looking.join(30)
    assert [image.device_pointer for image in taken] == [place]
    assert len(images._free) == 1
    del event.is_done
    taken.clear()


def test_larger_image_replaces_the_smaller_memory(images):
    for size_wh in ((3, 2), (30, 20), (4, 4), (30, 20)):
        image = images.lend(size_wh, 'uint16')
        assert len(image.memory()) == HEADER_ROOM + 2 * size_wh[0] * size_wh[1]
        del image
    assert Buffer.live == 1


def test_mask_image_outlives_its_pipeline(images):
    image = drawn(images, (3, 2), 7)
    images.lend((5, 5), 'uint16')
    images.close()
    assert Buffer.live == 1
    out = np.zeros((2, 3), np.uint16)
    reader = threading.Thread(target=image.number, args=(out,))
    reader.start()
    reader.join()
    assert out.max() == 7
    del image, reader
    gc.collect()
    assert Buffer.live == 0


@pytest.fixture
def large_images(images, monkeypatch):
    """A pool with room for two images of 8 x 8 pixels. Images above 32 pixels are large."""
    monkeypatch.setattr(image_limits, 'LARGE_RESULT_PIXELS', 32)
    monkeypatch.setattr(pinned_images, 'MAX_LARGE_BYTES', 2 * (HEADER_ROOM + 2 * 64))
    return images


def held_bytes(pool, lent):
    return sum(buffer.memory.size for buffer in (*pool._free, *(one._buffer for one in lent)))


@pytest.mark.parametrize('dtype', ['uint8', 'uint16', 'float32'])
@pytest.mark.parametrize('size_wh', [(8192, 4097), (12_000, 11_000), (32_767, 32_767)])
def test_no_memory_is_allocated_for_images_above_the_limit(images, size_wh, dtype):
    assert size_wh[0] * size_wh[1] > MAX_RESULT_PIXELS
    assert images.lend(size_wh, dtype) is None
    assert Buffer.live == 0


def test_memory_of_large_images_is_bounded(large_images):
    lent = [large_images.lend((8, 8), 'uint16') for _ in range(2)]
    assert all(lent)
    for _ in range(3):
        assert large_images.lend((8, 8), 'uint16') is None
    small = [large_images.lend((8, 4), 'uint16') for _ in range(9)]
    assert all(small)  # small images have no limit
    del lent[0]
    lent.append(large_images.lend((8, 8), 'uint16'))
    assert all(lent)
    assert large_images.lend((8, 8), 'uint16') is None
    assert Buffer.live == 2 + 9


def test_small_image_does_not_use_the_memory_of_large_images(large_images):
    del [large_images.lend((8, 8), 'uint16') for _ in range(2)][:]
    small = [large_images.lend((8, 4), 'uint16') for _ in range(9)]
    assert all(small)
    lent = [large_images.lend((8, 8), 'uint16') for _ in range(2)]
    assert all(lent)


def test_memory_of_large_images_is_bounded_while_their_sizes_change(large_images):
    for size in ((8, 5), (8, 8), (8, 6), (9, 10), (8, 5), (16, 16), (8, 8)):
        lent = [image for _ in range(4) if (image := large_images.lend(size, 'uint16'))]
        assert lent
        for image in lent:
            image.memory()
        assert held_bytes(large_images, lent) <= pinned_images.MAX_LARGE_BYTES
        del lent[:], image


def test_failed_allocation_of_a_large_image_reserves_no_memory(large_images, monkeypatch):
    def fail(size, device):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(pinned_images, 'PinnedBuffer', fail)
        for _ in range(3):
            with pytest.raises(MemoryError):
                large_images.lend((8, 8), 'uint16')
    lent = [large_images.lend((8, 8), 'uint16') for _ in range(2)]
    assert all(lent)
