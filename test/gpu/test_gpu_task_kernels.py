"""The kernels of keypoints, oriented boxes and masks on a GPU, against the host's decoding.

``test/stages/test_task_kernels.py`` does the same with the kernels emulated.
"""

from contextlib import ExitStack

import numpy as np
import pytest

from support.gpu.gpu_support import needs_gpu, to_device
from support.oracles.task_outputs import (
    TASKS,
    assert_same,
    decode_on_host,
    decode_with_kernels,
    random_outputs,
    spec_of,
)
from trt_perception import gpu
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.parameters.config import DetectorConfig
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.mask_images import MaskImagePool
from trt_perception.stages.gpu_kernels import FrameKernels

pytestmark = needs_gpu

SIZES = [(1920, 1080), (333, 277), (64, 48)]
FOR_ALL = [Thresholds(0.25, 0.45), Thresholds(0.3, 0.7, class_ids=(0, 2)), Thresholds(0.5, 0.1)]


class Gpu:
    """A machine whose kernels work on the memory of the device."""

    def __enter__(self):
        self._own = ExitStack()
        self.stream = self._own.enter_context(gpu.Stream())
        self.synchronize = self.stream.synchronize
        return self

    def __exit__(self, *_):
        self._own.close()

    def put(self, array):
        return self._own.enter_context(to_device(array)).pointer


@pytest.fixture(scope='module')
def device():
    return gpu.Device(0)


@pytest.mark.parametrize('dtype', ['float32', 'float16'])
@pytest.mark.parametrize('passing', [0, 1, 33, 900, 3000])
@pytest.mark.parametrize('name', TASKS)
def test_what_is_found_is_what_the_host_finds(device, name, passing, dtype):
    """Those of 33 are small enough for compute-sanitizer: scripts/sanitize."""
    spec = spec_of(TASKS[name], (640, 384), 20, 5040, batch=4, dtype=dtype)
    kernels = FrameKernels(device, spec, DecodingLimits(class_agnostic=passing == 900))
    config = DetectorConfig(class_agnostic_nms=passing == 900)
    outputs = random_outputs(np.random.default_rng(passing), spec, passing)
    found, geometries = decode_with_kernels(kernels, Gpu(), spec, outputs, SIZES, FOR_ALL)
    expected = decode_on_host(outputs, spec, geometries, FOR_ALL, config)
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)
        if one.masks is not None and passing == 33:
            assert (one.masks.whole() == other.masks.whole()).all()
    kernels.close()


# Padding at the top, at the left, none, a border within a prototype pixel, less than one row.
IMAGES = [(1280, 720), (310, 2000), (640, 384), (1231, 771), (97, 301), (500, 20)]


@pytest.mark.parametrize('dtype', ['float32', 'float16'])
@pytest.mark.parametrize('count', [0, 7, 300])
def test_numbers_of_masks_are_those_of_the_host(device, count, dtype):
    """Those of 7 are run under compute-sanitizer, too."""
    spec = spec_of(TASKS['segment'], (640, 384), 3, 5040, batch=len(IMAGES), dtype=dtype)
    kernels = FrameKernels(device, spec, DecodingLimits())
    thresholds = [Thresholds(0.25, 1.0)] * len(IMAGES)
    outputs = random_outputs(np.random.default_rng(count), spec, count)
    with MaskImagePool(device) as images:
        found, geometries = decode_with_kernels(
            kernels, Gpu(), spec, outputs, IMAGES, thresholds, images
        )
        expected = decode_on_host(outputs, spec, geometries, thresholds)
        for one, other, size in zip(found, expected, IMAGES, strict=True):
            assert_same(one, other)
            numbers, told = (np.full(size[::-1], 0xFFFF, np.uint16) for _ in range(2))
            one.numbered.number(numbers)
            other.masks.number(told)
            # Sums in another order: a logit of 1e-6 may be on the other side of 0.
            assert (numbers != told).sum() <= 1e-4 * numbers.size
            assert (numbers.max() > 0) == (count > 0)
        del found, one
    kernels.close()
