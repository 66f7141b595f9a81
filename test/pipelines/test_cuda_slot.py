# SPDX-License-Identifier: Apache-2.0
"""Tests of frame uploads: from the frame's memory or a copy of the pixels, always complete.

The stand-in for the GPU does all work as late as CUDA may. The expected input tensor is the host's
preprocessing.
"""

from dataclasses import replace

import numpy as np
import pytest

from support.gpu.host_kernels import needs_compiler
from support.gpu.late_gpu import expected_tensor, tensor_from_pipeline
from support.oracles.reference_images import ENCODINGS, random_frame
from trt_perception.images.memory import NumpyMemory
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.warm_up import copy_to_pipeline_memory

pytest_plugins = ['support.gpu.late_gpu_fixtures']
pytestmark = needs_compiler

WAYS = [(integrated, graph) for integrated in (False, True) for graph in (True, False)]


def noise(seed, encoding='bgr8', width=37, height=23, padding=5):
    width, height = (width & ~1, height & ~1) if encoding != 'bgr8' else (width, height)
    return random_frame(np.random.default_rng(seed), encoding, width, height, padding)


def place_in_memory(memory, offset, frame):
    """Copy a frame's pixels to this offset of the memory. Return the new frame."""
    data = memory.array[offset:][: frame.data.size]
    data[:] = frame.data
    return replace(frame, data=data, memory=memory)


@pytest.mark.parametrize('encoding', sorted({*ENCODINGS.values()}))
@pytest.mark.parametrize(('integrated', 'graph'), WAYS)
def test_pixels_are_uploaded_directly_from_the_frame(
    open_late_pipeline, integrated, graph, encoding
):
    gpu, pipeline = open_late_pipeline(integrated=integrated, graph=graph)
    memory = pipeline.allocate(20_000)
    captures = gpu.captures
    for seed, offset in enumerate([0, 4, 8, 60, 64, 100, 252, 256, 1000, 1, 7]):
        frame = place_in_memory(memory, offset, noise(seed, encoding))
        content = memory.array.copy()
        expected = expected_tensor(frame)
        np.testing.assert_array_equal(tensor_from_pipeline(gpu, pipeline, frame), expected)
        # The pipeline wrote only the header before the pixels. One copy uploaded everything.
        np.testing.assert_array_equal(memory.array, content)
        size = pipeline.header_bytes + offset + frame.data.size
        assert gpu.uploads == ([] if integrated else [(memory.buffer.pointer, size)])
        gpu.uploads.clear()
    assert gpu.captures == captures
    memory.close()


@pytest.mark.parametrize('graph', [True, False])
@pytest.mark.parametrize('encoding', sorted({*ENCODINGS.values()}))
def test_unused_rows_are_not_uploaded(open_late_pipeline, graph, encoding):
    """The kernels must not need the rows that are not uploaded. These rows have older pixels."""
    gpu, pipeline = open_late_pipeline(graph=graph)
    memory = pipeline.allocate(8_000_000)
    for seed, (times, rows) in enumerate([(15, 1), (20, 2), (2, 2), (17, 1), (16, 2), (1, 1)]):
        shape = {'width': 64 * times, 'height': 48 * times, 'padding': 3 + seed}
        frame = place_in_memory(memory, 60, noise(seed, encoding, **shape))
        expected = expected_tensor(frame)
        np.testing.assert_array_equal(tensor_from_pipeline(gpu, pipeline, frame), expected)
        # Bayer patterns and chroma planes need the neighbouring rows.
        if times > 9 and not encoding.startswith(('bayer', 'nv')):
            first = pipeline.header_bytes + 60 + (times - rows) // 2 * frame.step
            parts = memory.buffer.pointer + first, (rows * frame.step, times * frame.step, 48)
            assert gpu.uploads == [(memory.buffer.pointer, pipeline.header_bytes), parts]
        else:
            size = pipeline.header_bytes + 60 + frame.data.size
            assert gpu.uploads == [(memory.buffer.pointer, size)]
        gpu.uploads.clear()
    memory.close()


@pytest.mark.parametrize('graph', [True, False])
def test_unchanged_header_is_not_uploaded_with_rows(open_late_pipeline, graph):
    """A changed header, another offset, or a frame in between needs a new header upload."""
    gpu, pipeline = open_late_pipeline(graph=graph, depth=1)
    memory = pipeline.allocate(8_000_000)
    usual, half = Thresholds(), Thresholds(0.5)
    turns = [
        *((15, 60, usual, True), (15, 60, usual, False), (15, 60, usual, False)),
        *((15, 64, usual, True), (15, 64, usual, False), (15, 60, usual, True)),
        *((15, 60, half, True), (15, 60, half, False), (15, 60, usual, True)),
        *((2, 60, usual, None), (15, 60, usual, True), (15, 60, usual, False)),
        # The largest frame gets new device memory.
        *((20, 60, usual, True), (20, 60, usual, False), (15, 60, usual, True)),
    ]
    for seed, (times, offset, thresholds, sent) in enumerate(turns):
        large = noise(seed, width=64 * times, height=48 * times, padding=3)
        frame = place_in_memory(memory, offset, large)
        expected = expected_tensor(frame)
        pipeline.enqueue(0, [frame], [thresholds])
        pipeline.collect(0)
        np.testing.assert_array_equal(gpu.input_of(pipeline.slots[0]), expected)
        if sent is not None:
            header = [(memory.buffer.pointer, pipeline.header_bytes)] * sent
            assert gpu.uploads[:-1] == header
        gpu.uploads.clear()
    memory.close()


def test_small_frame_is_uploaded_in_one_copy(open_late_pipeline):
    """A second copy would take longer than copying the unused rows."""
    gpu, pipeline = open_late_pipeline()
    frame = noise(1, width=192, height=144)
    with copy_to_pipeline_memory(pipeline, [frame]) as (placed,):
        np.testing.assert_array_equal(
            tensor_from_pipeline(gpu, pipeline, placed), expected_tensor(frame)
        )
    assert [size for _, size in gpu.uploads] == [pipeline.header_bytes + frame.data.size]


@pytest.mark.parametrize(('integrated', 'graph'), WAYS)
def test_frames_in_other_memory_are_copied(open_late_pipeline, integrated, graph):
    gpu, pipeline = open_late_pipeline(integrated=integrated, graph=graph)
    before = dict(gpu.host_bytes)
    plain = NumpyMemory(20_000)
    page_locked = pipeline.allocate(20_000)
    other = pipeline.allocate(20_000)
    shifted = replace(
        place_in_memory(page_locked.buffer, pipeline.header_bytes - 4, noise(3)),
        memory=page_locked,
    )  # no room for the header
    for frame in (
        noise(0),
        noise(1, width=64, height=64),  # larger
        place_in_memory(plain, 4096, noise(2)),
        shifted,
        replace(place_in_memory(page_locked, 4096, noise(4)), memory=other),  # the wrong memory
        replace(place_in_memory(page_locked, 4096, noise(5)), memory=None),
    ):
        content = page_locked.array.copy()
        expected = expected_tensor(frame)
        np.testing.assert_array_equal(tensor_from_pipeline(gpu, pipeline, frame), expected)
        np.testing.assert_array_equal(page_locked.array, content)
        own = {page_locked.pointer, other.pointer, plain.pointer}
        assert not own & {source for source, _ in gpu.uploads}
    page_locked.close()
    other.close()
    assert len(gpu.host_bytes) == len(before) + 1  # the one used slot allocated memory twice


@pytest.mark.parametrize('integrated', [False, True])
def test_larger_frame_gets_larger_memory(open_late_pipeline, integrated):
    gpu, pipeline = open_late_pipeline(integrated=integrated, depth=1)
    sizes = [(64, 48), (2100, 1400), (64, 48), (2100, 1500)]  # 8.8 MB and more
    frames = [noise(seed, 'bgr8', *size) for seed, size in enumerate(sizes)]
    captures = [gpu.captures]
    with copy_to_pipeline_memory(pipeline, frames) as placed:
        for frame in placed:
            np.testing.assert_array_equal(
                tensor_from_pipeline(gpu, pipeline, frame), expected_tensor(frame)
            )
            captures.append(gpu.captures)
    # The graph reads the frame's address from device memory, so it is not captured again.
    assert np.diff(captures).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize('integrated', [False, True])
def test_frames_of_two_slots_do_not_mix(open_late_pipeline, integrated):
    gpu, pipeline = open_late_pipeline(integrated=integrated)
    frames = [noise(seed) for seed in range(6)]
    with copy_to_pipeline_memory(pipeline, frames) as placed:
        for turn in range(0, 6, 2):
            for slot in (0, 1):
                # Slot 0 gets frames in memory of the pipeline. Slot 1 copies its frames there.
                frame = placed[turn + slot] if slot == 0 else frames[turn + slot]
                pipeline.enqueue(slot, [frame], [Thresholds()])
            assert not pipeline.is_done(0)
            for slot in (1, 0):
                pipeline.collect(slot)
                assert pipeline.is_done(slot)
                found = gpu.input_of(pipeline.slots[slot])
                np.testing.assert_array_equal(found, expected_tensor(frames[turn + slot]))


def test_changed_values_are_in_the_next_header(open_late_pipeline):
    gpu, pipeline = open_late_pipeline(depth=1)
    memory = pipeline.allocate(20_000)
    heads = []
    pixels = noise(1, 'mono16', 20, 10, 0)
    changes = [
        {},
        {'big_endian': True},
        {'format': noise(1, 'uyvy').format},
        {'width': 10, 'height': 20, 'step': 20},
        {},
    ]
    for thresholds in (Thresholds(), Thresholds(0.5), Thresholds(), Thresholds(class_ids=(1,))):
        for change in changes:
            frame = place_in_memory(memory, 64, replace(pixels, **change))
            expected = expected_tensor(frame)
            pipeline.enqueue(0, [frame], [thresholds])
            heads.append(memory.buffer.array[: pipeline.header_bytes].tobytes())
            pipeline.collect(0)
            np.testing.assert_array_equal(gpu.input_of(pipeline.slots[0]), expected)
            place = pipeline.slots[0].places[0]
            assert place.thresholds == thresholds
            assert place.letterbox.source_wh == (frame.width, frame.height)
    turns = [heads[start : start + 5] for start in range(0, 20, 5)]
    assert turns[0] == turns[2]
    for turn in turns:
        assert turn[0] == turn[4]
        assert len(set(turn)) == 4
    assert len(set(heads)) == 12
    memory.close()
