"""Tests of mask images: which memory is reused, and when."""

import gc
import threading

import numpy as np
import pytest

from trt_perception.images.results.kernel_maps import HEADER_ROOM
from trt_perception.pipelines import pinned_images
from trt_perception.pipelines.pinned_images import ImagePool


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
