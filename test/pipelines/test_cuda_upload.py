# SPDX-License-Identifier: Apache-2.0
"""Tests of frame uploads to a real GPU: from the frame's memory or a copy, always complete.

The engine's model depends on every pixel. The expected input tensor is the host's preprocessing.
test/pipelines/test_cuda_slot.py does the same with a stand-in for the GPU.
"""

from __future__ import annotations

import gc
import threading
from dataclasses import replace

import numpy as np
import pytest

from support.gpu.gpu_support import needs_tensorrt
from support.gpu.patch_pipeline import expected_tensor, input_of, noise_frame, tensor_from_pipeline
from support.models.patch_model import CLASS_NAMES
from support.oracles.reference_images import ENCODINGS
from trt_perception.images.frame import Frame
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.warm_up import copy_to_pipeline_memory
from trt_perception.ros.intake.buffers import MessageBuffers

pytest_plugins = ['support.gpu.patch_pipeline_fixtures']
pytestmark = [needs_tensorrt, pytest.mark.ros]


def place_in_memory(memory, offset, frame):
    """Copy a frame's pixels to this offset of the memory. Return the new frame."""
    data = memory.array[offset:][: frame.data.size]
    data[:] = frame.data
    return replace(frame, data=data, memory=memory)


@pytest.mark.parametrize('encoding', sorted({*ENCODINGS.values()}))
@pytest.mark.parametrize(('integrated', 'graph'), [(False, True), (False, False), (True, True)])
def test_pixels_are_uploaded_directly_from_the_frame(
    open_patch_pipeline, integrated, graph, encoding
):
    pipeline = open_patch_pipeline(integrated=integrated, graph=graph)
    memory = pipeline.allocate(20_000)
    for seed, offset in enumerate([*range(0, 68, 4), 252, 256, 1000, 1, 7]):
        frame = place_in_memory(memory, offset, noise_frame(seed, encoding, padding=seed % 9))
        content = memory.array.copy()
        np.testing.assert_array_equal(
            tensor_from_pipeline(pipeline, frame), expected_tensor(pipeline, frame)
        )
        np.testing.assert_array_equal(memory.array, content)
    memory.close()


@pytest.mark.parametrize('integrated', [False, True])
def test_frames_in_other_memory_are_copied(open_patch_pipeline, integrated):
    pipeline = open_patch_pipeline(integrated=integrated)
    memory = pipeline.allocate(20_000)
    shifted = replace(
        place_in_memory(memory.buffer, pipeline.header_bytes - 4, noise_frame(3)), memory=memory
    )  # no room for the header
    content = memory.array.copy()
    for frame in (noise_frame(0), noise_frame(1, size=(64, 64)), noise_frame(2, 'nv12'), shifted):
        np.testing.assert_array_equal(
            tensor_from_pipeline(pipeline, frame), expected_tensor(pipeline, frame)
        )
    np.testing.assert_array_equal(memory.array, content)
    memory.close()


@pytest.mark.parametrize('integrated', [False, True])
@pytest.mark.parametrize('in_place', [False, True])
def test_larger_frame_gets_larger_memory(open_patch_pipeline, integrated, in_place):
    pipeline = open_patch_pipeline(integrated=integrated)
    frames = [
        noise_frame(seed, size=size)
        for seed, size in enumerate([(64, 48), (1920, 1080), (2100, 1400), (64, 48), (3840, 2160)])
    ]
    with copy_to_pipeline_memory(pipeline, frames) as placed:
        for index, frame in enumerate(placed if in_place else frames):
            found = tensor_from_pipeline(pipeline, frame, index % 2)
            np.testing.assert_array_equal(found, expected_tensor(pipeline, frame))


@pytest.mark.parametrize('integrated', [False, True])
def test_memory_used_by_a_slot_is_not_lent_again(open_patch_pipeline, integrated):
    """While large frames are uploaded, other frames borrow and fill free buffers."""
    depth = 4
    pipeline = open_patch_pipeline(integrated=integrated, depth=depth)
    buffers = MessageBuffers(pipeline.allocate)
    rng = np.random.default_rng(3)
    shape = {'width': 1920, 'height': 1080, 'step': 5760, 'encoding': 'bgr8'}
    images = [rng.integers(0, 256, 1080 * 5760, np.uint8) for _ in range(7)]
    expected = [expected_tensor(pipeline, Frame.view(image, **shape)) for image in images]

    def borrow(image):
        lease = buffers.lend(44 + image.size)
        data = lease.array()[44:][: image.size]
        data[:] = image
        return replace(Frame.view(data, **shape), memory=lease.memory)

    numbers = iter(range(10**6))
    for _ in range(10):
        flying = []
        for slot in range(depth):
            number = next(numbers) % 7
            pipeline.enqueue(slot, [borrow(images[number])], [Thresholds()])
            flying.append(number)
            borrow(np.full(1080 * 5760, 255 - number, np.uint8))  # no slot uses this buffer
        for slot, number in enumerate(flying):
            pipeline.collect(slot)
            np.testing.assert_array_equal(input_of(pipeline, slot), expected[number])
    assert buffers.count <= depth + 2
    gc.collect()
    buffers.close()
    assert buffers.count == 0


def test_any_thread_can_free_page_locked_memory_after_close(
    open_patch_pipeline,
):
    pipeline = open_patch_pipeline()
    buffers = MessageBuffers(pipeline.allocate)
    frames = [noise_frame(1, size=(640, 480))]
    lease = buffers.lend(frames[0].data.size)
    data = lease.array()[: frames[0].data.size]
    data[:] = frames[0].data
    kept = [Frame.view(data, width=640, height=480, step=frames[0].step, encoding='bgr8')]
    memory = lease.memory
    del lease, data
    buffers.close()
    pipeline.close()
    np.testing.assert_array_equal(kept[0].data, frames[0].data)
    assert memory.buffer.pointer
    freeing_thread = threading.Thread(target=kept.clear)
    freeing_thread.start()
    freeing_thread.join()
    assert memory.buffer.pointer == 0
    assert buffers.count == 0


def test_boxes_do_not_depend_on_the_frame_memory(open_patch_pipeline):
    pipeline = open_patch_pipeline()
    frames = [noise_frame(seed, size=(64 + 3 * seed, 48 + seed)) for seed in range(8)]
    with copy_to_pipeline_memory(pipeline, frames) as placed:
        for copied, there in zip(frames, placed, strict=True):
            for slot, frame in enumerate((copied, there)):
                pipeline.enqueue(slot, [frame], [Thresholds(0.2)])
            found = [pipeline.collect(slot)[0].detections for slot in (0, 1)]
            assert len(found[0])
            assert set(found[0].class_ids) <= set(range(len(CLASS_NAMES)))
            np.testing.assert_array_equal(found[0].xyxy, found[1].xyxy)
            np.testing.assert_array_equal(found[0].scores, found[1].scores)
