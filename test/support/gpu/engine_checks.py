# SPDX-License-Identifier: Apache-2.0
"""Check each step of a pipeline on a GPU, with an engine of patch_model, against the host.

The input tensor is compared with OpenCV's letterbox, the output tensor with ONNX Runtime on the
same pixels, and the boxes with NumPy's decoding of that output.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime

from support.gpu.gpu_support import from_device
from support.models.open_model import open_by_parameters
from support.oracles.dense_decoding import decode_dense
from trt_perception.images.frame import Frame
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.pipeline import detect_one
from trt_perception.stages.host_preprocess import HostPreprocessor

# Largest allowed errors of input values, of box sides in pixels, and of scores.
TOLERANCES = {
    'float32': (1 / 255 + 1e-6, 1e-3, 1e-4),
    'float16': (1 / 255 + 2.0**-11, 0.15, 0.01),
    'bfloat16': (1 / 255 + 2.0**-8, 1.2, 0.08),
}
THRESHOLDS = Thresholds(0.3, 0.45)


def colour_blocks(width, height, seed=0):
    """Return blocks of random colours, so that adjacent patches differ."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (-(-height // 9), -(-width // 7), 3), np.uint8)
    bgr = np.ascontiguousarray(blocks.repeat(9, axis=0).repeat(7, axis=1)[:height, :width])
    return Frame.view(bgr.reshape(-1), width=width, height=height, step=3 * width, encoding='bgr8')


def tensor_from_device(pointer, tensor):
    """Copy a tensor of the pipeline from the device, and return it as float32."""
    if tensor.dtype == 'bfloat16':
        bits = from_device(pointer, np.uint16, tensor.shape).astype(np.uint32) << 16
        return bits.view(np.float32)
    return from_device(pointer, tensor.dtype, tensor.shape).astype(np.float32)


def run_reference(onnx_bytes, tensor):
    session = onnxruntime.InferenceSession(onnx_bytes, providers=['CPUExecutionProvider'])
    return session.run(None, {'images': tensor})[0]


def check_frame(pipeline, frame, reference):
    """Run one frame and compare each step with the host; return the number of boxes."""
    spec, slot = pipeline.spec, pipeline.slots[0]
    found = detect_one(pipeline, frame, THRESHOLDS).detections
    pixels, box, score = map(max, TOLERANCES[spec.input.dtype], TOLERANCES[spec.outputs[0].dtype])
    exact = replace(spec.preprocessing, dtype='float32')
    tensor, letterbox = HostPreprocessor(exact)(frame)
    seen = tensor_from_device(slot.input, spec.input)
    assert np.abs(seen - tensor).max() <= pixels
    expected = run_reference(reference, tensor)
    output = tensor_from_device(slot.outputs['output'], spec.outputs[0])
    assert output.shape == expected.shape
    rows = np.abs(output - expected)[0]
    rows = rows.T if spec.decoder.transposed else rows
    assert rows[:4].max() <= box, rows[:4].max()
    assert rows[4:].max() <= score, rows[4:].max()
    same = decode_dense(output, spec.decoder, letterbox, THRESHOLDS, max_detections=300)
    np.testing.assert_array_equal(found.class_ids, same.class_ids)
    np.testing.assert_allclose(found.scores, same.scores, atol=1e-6, rtol=0)
    np.testing.assert_allclose(found.xyxy, same.xyxy, atol=1e-3, rtol=0)
    return len(found)


def check_engine(path, reference, sizes=((64, 48), (200, 90), (1919, 1079))):
    pipeline = open_by_parameters(ParameterValues(engine_path=str(path), pipeline_depth=2))
    try:
        counts = [
            check_frame(pipeline, colour_blocks(*size, seed=index), reference)
            for index, size in enumerate(sizes)
        ]
    finally:
        pipeline.close()
    assert sum(counts) >= 5, counts
