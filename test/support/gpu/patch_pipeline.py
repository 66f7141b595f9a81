# SPDX-License-Identifier: Apache-2.0
"""Run frames through a pipeline of a patch model on a real GPU; compute the expected input."""

import numpy as np

from support.gpu.gpu_support import from_device
from support.oracles.reference_images import random_frame
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.pipeline import detect_one
from trt_perception.stages.host_preprocess import HostPreprocessor


def noise_frame(seed, encoding='bgr8', size=(37, 23), padding=5):
    width, height = size if encoding == 'bgr8' else (size[0] & ~1, size[1] & ~1)
    return random_frame(np.random.default_rng(seed), encoding, width, height, padding)


def expected_tensor(pipeline, frame):
    """Return the expected input tensor of a frame."""
    return HostPreprocessor(pipeline.spec.preprocessing)(frame)[0].copy()


def input_of(pipeline, slot):
    return from_device(pipeline.slots[slot].input, np.float32, pipeline.spec.input.shape)


def tensor_from_pipeline(pipeline, frame, slot=0):
    """Return the input tensor that the pipeline makes from a frame."""
    detect_one(pipeline, frame, Thresholds(0.3), slot)
    return input_of(pipeline, slot)
