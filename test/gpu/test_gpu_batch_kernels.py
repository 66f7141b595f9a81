# SPDX-License-Identifier: Apache-2.0
"""The kernels give each frame of a batch exactly the values of a batch with one frame."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from test_gpu_kernels import frame_of, picture, random_output, run_decode, run_letterbox, spec_for

from support.gpu.gpu_support import from_device, needs_gpu, to_device
from trt_perception import gpu
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.decoders.anchors import Dense
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.thresholds import Thresholds
from trt_perception.stages.frame_header import batch_table
from trt_perception.stages.gpu_kernels import HEAD_DTYPE, ROW_DTYPE, FrameKernels

pytestmark = needs_gpu

# The encoding and the size of each frame. The missing frame simulates a decoding failure.
FRAMES = [
    ('bgr8', (801, 603)),
    ('nv12', (640, 360)),
    None,
    ('mono16', (64, 48)),
    ('bayer_rggb8', (1280, 720)),
    ('yuyv', (320, 900)),
    ('rgba8', (7, 5)),
    ('bgr8', (801, 603)),
]
GEOMETRIES = [(1920, 1080), (333, 777), (640, 640)]


@pytest.fixture(scope='module')
def device():
    return gpu.Device(0)


def header_of(kernels, spec, frame, thresholds=Thresholds()):  # noqa: B008
    geometry = spec.preprocessing.letterbox((frame.width, frame.height))
    head = np.zeros(kernels.header.size, np.uint8)
    content = kernels.header.content(frame, geometry, thresholds)
    kernels.header.write(head, content, kernels.header.size)
    return head


@pytest.mark.parametrize('dtype', ['float32', 'float16'])
@pytest.mark.parametrize('antialias', [False, True])
@pytest.mark.parametrize('count', [1, 2, 3, 8])
def test_letterbox_of_a_batch_equals_single_frames(device, count, antialias, dtype):
    spec = spec_for(Preprocessing((96, 64), antialias=antialias, dtype=dtype))
    max_batch = 8
    kernels = FrameKernels(device, spec, DecodingLimits())
    frames = [entry and frame_of(picture(*entry[1], seed=3), entry[0], 2) for entry in FRAMES][
        :count
    ]
    shape = (max_batch, *spec.input.shape[1:])
    poison = np.full(int(np.prod(shape)) * np.dtype(dtype).itemsize, 0xFF, np.uint8)
    with contextlib.ExitStack() as stack:
        addresses = []
        for frame in frames:
            if frame is None:
                addresses.append(0)
                continue
            content = np.concatenate([header_of(kernels, spec, frame), frame.data])
            addresses.append(stack.enter_context(to_device(content)).pointer)
        batch = stack.enter_context(to_device(batch_table(addresses)))
        tensor = stack.enter_context(to_device(poison))
        stream = stack.enter_context(gpu.Stream())
        kernels.letterbox(batch.pointer, tensor.pointer, max_batch, stream)
        stream.synchronize()
        found = from_device(tensor.pointer, dtype, shape)
    for place in range(max_batch):
        frame = frames[place] if place < count else None
        if frame is None:  # the kernel writes nothing here
            assert np.isnan(found[place]).all()
        else:
            expected = run_letterbox(kernels, spec, frame)[0]
            np.testing.assert_array_equal(found[place], expected)
    kernels.close()


@pytest.mark.parametrize(
    'decoder',
    [
        Dense(),
        Dense(objectness=True, transposed=True),
        Dense(transposed=True),
    ],
)
@pytest.mark.parametrize('count', [1, 2, 3, 8])
def test_decoding_of_a_batch_equals_single_frames(device, count, decoder):
    max_batch, classes, anchors = 8, 11, 2100
    spec = spec_for(Preprocessing((640, 640)), classes, anchors, decoder)
    kernels = FrameKernels(device, spec, DecodingLimits(100))
    rng = np.random.default_rng(count)
    # From zero boxes to more than NMS accepts. Each frame has its own geometry and thresholds.
    passing = [0, 1, 900, 2100, 300, 40, 1500, 7]
    outputs = [random_output(rng, classes, anchors, boxes, decoder) for boxes in passing]
    geometries = [
        Letterbox.fit(GEOMETRIES[place % 3], (640, 640), 'letterbox') for place in range(max_batch)
    ]
    thresholds = [
        Thresholds(0.25 + 0.05 * place, 0.3 + 0.05 * place, class_ids=((), (0, 3, 5))[place % 2])
        for place in range(max_batch)
    ]
    with contextlib.ExitStack() as stack:

        def put(array):
            return stack.enter_context(to_device(array)).pointer

        headers = []
        for place in range(count):
            width, height = geometries[place].source_wh
            frame = frame_of(np.zeros((height, width, 3), np.uint8), 'bgr8')
            head = header_of(kernels, spec, frame, thresholds[place])
            headers.append(0 if place == 2 else put(head))
        size = kernels.result_bytes
        batch, tensor = put(batch_table(headers)), put(np.concatenate(outputs))
        scratch = put(np.zeros(max_batch * kernels.scratch_bytes, np.uint8))
        result = put(np.full(max_batch * size, 0xFF, np.uint8))
        stream = stack.enter_context(gpu.Stream())
        for _ in range(2):  # the second run starts with the scratch memory of the first run
            kernels.decode(batch, tensor, scratch, result, max_batch, stream)
            stream.synchronize()
        found = from_device(result, np.uint8, (max_batch, size))
    for place in range(max_batch):
        rows = found[place]
        if place >= count or place == 2:
            assert (rows == 0xFF).all()
            continue
        (expected,) = run_decode(
            kernels, spec, outputs[place], geometries[place], thresholds[place]
        )
        detections = int(rows[:4].view(np.int32)[0])
        assert detections == len(expected)
        result_rows = rows[HEAD_DTYPE.itemsize :].view(ROW_DTYPE)[:detections]
        assert result_rows.tobytes() == expected.tobytes()
    kernels.close()
