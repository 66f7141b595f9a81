# SPDX-License-Identifier: Apache-2.0
"""Tests of uploads from the memory of an intake: pixels are complete, and all memory is freed.

A stand-in for CUDA does all work as late as CUDA may.
"""

import gc
import sys
import threading

import numpy as np
import pytest
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Image

from support.gpu import fake_cuda
from support.gpu.host_kernels import needs_compiler
from support.gpu.late_gpu import expected_tensor, tensor_from_pipeline
from support.oracles.reference_images import ENCODINGS, random_frame
from trt_perception.errors import CudaError
from trt_perception.model.thresholds import Thresholds
from trt_perception.ros.camera.messages import frame_from_image
from trt_perception.ros.intake.buffers import MessageBuffers
from trt_perception.ros.intake.intake import SerializedMessage

pytest_plugins = ['support.gpu.late_gpu_fixtures']
pytestmark = needs_compiler


@pytest.fixture(autouse=True)
def unraisable(monkeypatch):
    """Fail if a finaliser raises an exception."""
    raised = []
    monkeypatch.setattr(sys, 'unraisablehook', raised.append)
    yield raised
    gc.collect()
    assert [str(each.exc_value) for each in raised] == []


def image(seed, encoding='bgr8', size=(38, 24), frame_id='camera', padding=6):
    """Return an image of noise as a message and as a frame."""
    frame = random_frame(np.random.default_rng(seed), encoding, *size, padding)
    message = Image(width=size[0], height=size[1], step=frame.step, encoding=encoding)
    message.header.frame_id = frame_id
    message.data = frame.data.tobytes()
    return message, frame


def taken(buffers, message):
    """Return a SerializedMessage in memory of `buffers`, as an intake delivers it."""
    content = np.frombuffer(serialize_message(message), np.uint8)
    lease = buffers.lend(content.size)
    data = lease.array()[: content.size]
    data[:] = content
    return SerializedMessage(data, content.size, lease)


def buffers_of(pipeline):
    return MessageBuffers(pipeline.allocate)


@pytest.mark.parametrize('encoding', sorted({*ENCODINGS.values()}))
@pytest.mark.parametrize('integrated', [False, True])
def test_message_is_uploaded_from_the_memory_of_the_intake(
    open_late_pipeline, integrated, encoding
):
    gpu, pipeline = open_late_pipeline(integrated=integrated)
    buffers = buffers_of(pipeline)
    for seed in range(9):
        message, expected = image(seed, encoding, frame_id='f' * seed)
        arrived = taken(buffers, message)
        memory = arrived.lease.memory
        frame = frame_from_image(arrived)
        assert frame.memory is memory
        np.testing.assert_array_equal(
            tensor_from_pipeline(gpu, pipeline, frame), expected_tensor(expected)
        )
        start = memory.buffer.pointer
        end = frame.data.ctypes.data + frame.data.size - start
        assert gpu.uploads == ([] if integrated else [(start, end)])
        gpu.uploads.clear()
    del arrived, frame
    assert buffers.count == 2
    buffers.close()


def test_message_of_rclpy_is_copied_and_uploaded(open_late_pipeline):
    gpu, pipeline = open_late_pipeline()
    message, expected = image(1)
    frame = frame_from_image(message)
    assert frame.memory is None
    np.testing.assert_array_equal(
        tensor_from_pipeline(gpu, pipeline, frame), expected_tensor(expected)
    )


@pytest.mark.parametrize('integrated', [False, True])
def test_memory_in_a_slot_is_not_lent_again(open_late_pipeline, integrated):
    gpu, pipeline = open_late_pipeline(integrated=integrated)
    buffers = buffers_of(pipeline)
    numbers = iter(range(1, 100))
    for turn in range(5):
        expected = []
        for slot in (0, 1):
            message, frame = image(next(numbers), size=(64 + 2 * turn, 48))
            pipeline.enqueue(slot, [frame_from_image(taken(buffers, message))], [Thresholds()])
            expected.append(expected_tensor(frame))
        # More messages arrive than buffers exist, and are released.
        for _ in range(2):
            others = [taken(buffers, image(next(numbers))[0]) for _ in range(4)]
            del others
        for slot in (0, 1):
            pipeline.collect(slot)
            np.testing.assert_array_equal(gpu.input_of(pipeline.slots[slot]), expected[slot])
    assert buffers.count <= 6
    buffers.close()
    assert buffers.count == 0


def test_frames_left_by_a_fault_are_freed_with_the_pipeline(open_late_pipeline):
    gpu, pipeline = open_late_pipeline()
    buffers = buffers_of(pipeline)
    runtime = gpu.modules[2]
    synchronize = runtime.cudaEventSynchronize
    pipeline.enqueue(0, [frame_from_image(taken(buffers, image(1)[0]))], [Thresholds()])
    runtime.cudaEventSynchronize = lambda _: (fake_cuda.cudaError_t.cudaErrorInvalidValue,)
    with pytest.raises(CudaError):
        pipeline.collect(0)
    runtime.cudaEventSynchronize = synchronize
    gc.collect()
    assert taken(buffers, image(2)[0]).lease.memory.buffer.pointer not in (
        source for source, _ in gpu.uploads
    )
    gc.collect()
    buffers.close()
    assert buffers.count == 1  # the upload may still be in progress
    pipeline.close()
    assert buffers.count == 0
    assert gpu.host_bytes == {}


@pytest.mark.parametrize('where', ['here', 'thread', 'garbage'])
def test_last_reader_frees_memory_after_the_pipeline_was_closed(open_late_pipeline, where):
    gpu, pipeline = open_late_pipeline()
    buffers = buffers_of(pipeline)
    message, expected = image(1)
    frames = [frame_from_image(taken(buffers, message))]
    tensor_from_pipeline(gpu, pipeline, frames[0])
    buffers.close()
    pipeline.close()
    assert len(gpu.host_bytes) == buffers.count == 1
    np.testing.assert_array_equal(frames[0].data, expected.data)
    if where == 'here':
        frames.clear()
    elif where == 'thread':
        last = threading.Thread(target=frames.clear)
        last.start()
        last.join()
    else:
        frames.append(frames)
        del frames
        gc.collect()
    assert gpu.host_bytes == {}
    assert buffers.count == 0


def test_memory_of_a_lost_gpu_is_released_silently(open_late_pipeline):
    gpu, pipeline = open_late_pipeline()
    buffers = buffers_of(pipeline)
    kept = [taken(buffers, image(seed)[0]) for seed in range(3)]
    del kept[1:]
    runtime = gpu.modules[2]
    lost = (fake_cuda.cudaError_t.cudaErrorIllegalAddress,)
    working = {name: getattr(runtime, name) for name in ('cudaFreeHost', 'cudaSetDevice')}
    for name, call in working.items():
        # Calls fail after the GPU is lost. The stand-in must still count the memory as freed.
        setattr(runtime, name, lambda *given, call=call: (call(*given), lost)[1])
    with pytest.raises(CudaError) as caught:
        buffers.close()
    assert caught.value.sticky
    assert buffers.count == 1
    kept.clear()
    assert buffers.count == 0
    for name, call in working.items():
        setattr(runtime, name, call)
