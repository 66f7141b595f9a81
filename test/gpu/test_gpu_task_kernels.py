# SPDX-License-Identifier: Apache-2.0
"""The kernels for keypoints, oriented boxes, masks and maps equal the host's decoding on a GPU.

``test_task_kernels.py`` and ``test_map_kernels.py`` compare emulated kernels with the host.
"""

import numpy as np
import pytest

from support.gpu.gpu_support import Gpu, needs_gpu
from support.oracles.map_outputs import CASES as MAP_CASES
from support.oracles.map_outputs import (
    assert_same_maps,
    make_maps,
    map_outputs,
    map_spec,
    maps_on_host,
)
from support.oracles.task_outputs import (
    TASKS,
    assert_same,
    check_invalid_outputs,
    decode_on_host,
    decode_with_kernels,
    random_outputs,
    spec_of,
)
from trt_perception import gpu
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.cuda.pinned_images import ImagePool
from trt_perception.stages.gpu_kernels import FrameKernels

pytestmark = needs_gpu

SIZES = [(1920, 1080), (333, 277), (64, 48)]
THRESHOLDS = [Thresholds(0.25, 0.45), Thresholds(0.3, 0.7, class_ids=(0, 2)), Thresholds(0.5, 0.1)]


@pytest.fixture(scope='module')
def device():
    return gpu.Device(0)


@pytest.mark.parametrize('dtype', ['float32', 'float16'])
@pytest.mark.parametrize('passing', [0, 1, 33, 900, 3000])
@pytest.mark.parametrize('name', TASKS)
def test_detections_equal_those_of_the_host(device, name, passing, dtype):
    """The cases with 33 boxes are small: scripts/sanitize runs them under compute-sanitizer."""
    spec = spec_of(TASKS[name], (640, 384), 20, 5040, batch=4, dtype=dtype)
    kernels = FrameKernels(device, spec, DecodingLimits(class_agnostic=passing == 900))
    parameters = ParameterValues(class_agnostic_nms=passing == 900)
    outputs = random_outputs(np.random.default_rng(passing), spec, passing)
    found, geometries = decode_with_kernels(kernels, Gpu(), spec, outputs, SIZES, THRESHOLDS)
    expected = decode_on_host(outputs, spec, geometries, THRESHOLDS, parameters)
    for on_gpu, on_host in zip(found, expected, strict=True):
        assert_same(on_gpu, on_host)
        if on_gpu.masks is not None and passing == 33:
            assert (on_gpu.masks.whole() == on_host.masks.whole()).all()
    kernels.close()


@pytest.mark.parametrize('name', ['detect', 'obb'])
def test_kernels_and_host_find_the_same_invalid_outputs(device, name):
    spec = spec_of(TASKS[name], (640, 384), 20, 5040, batch=4)
    kernels = FrameKernels(device, spec, DecodingLimits())
    check_invalid_outputs(kernels, Gpu(), spec, ParameterValues())
    kernels.close()


# In this order: padding at the top, at the left, nowhere, and up to a place within a prototype
# pixel; two images that are enlarged, with padding at the left and at the top.
IMAGES = [(1280, 720), (310, 2000), (640, 384), (1231, 771), (97, 301), (500, 20)]


@pytest.mark.parametrize('dtype', ['float32', 'float16'])
@pytest.mark.parametrize('count', [0, 7, 300])
def test_mask_numbers_equal_those_of_the_host(device, count, dtype):
    """scripts/sanitize runs the cases with 7 boxes under compute-sanitizer."""
    spec = spec_of(TASKS['segment'], (640, 384), 3, 5040, batch=len(IMAGES), dtype=dtype)
    kernels = FrameKernels(device, spec, DecodingLimits())
    thresholds = [Thresholds(0.25, 1.0)] * len(IMAGES)
    outputs = random_outputs(np.random.default_rng(count), spec, count)
    with ImagePool(device) as images:
        found, geometries = decode_with_kernels(
            kernels, Gpu(), spec, outputs, IMAGES, thresholds, images
        )
        expected = decode_on_host(outputs, spec, geometries, thresholds)
        for on_gpu, on_host, size in zip(found, expected, IMAGES, strict=True):
            assert_same(on_gpu, on_host)
            numbers, expected_numbers = (np.full(size[::-1], 0xFFFF, np.uint16) for _ in range(2))
            on_gpu.numbered.number(numbers)
            on_host.masks.number(expected_numbers)
            # The sums have another order, so a logit of about 1e-6 may change its sign.
            assert (numbers != expected_numbers).sum() <= 1e-4 * numbers.size
            assert (numbers.max() > 0) == (count > 0)
        del found, on_gpu
    kernels.close()


MAP_SIZES = [(1920, 1080), (517, 333), (333, 517)]


@pytest.mark.parametrize('resize', ['stretch', 'letterbox'])
@pytest.mark.parametrize(
    ('name', 'classes'), [*((name, 5) for name in MAP_CASES), ('logits', 19), ('logits', 150)]
)
def test_maps_equal_those_of_the_host(device, name, classes, resize):
    """scripts/sanitize runs these cases under compute-sanitizer."""
    device.use()
    spec = map_spec(name, resize, (512, 256), classes, batch=4)
    kernels = FrameKernels(device, spec, DecodingLimits())
    outputs = map_outputs(np.random.default_rng(3), spec)
    with ImagePool(device) as images:
        for map_size, size_wh in (('source', None), ('500x307', (500, 307))):
            found, geometries = make_maps(
                kernels, Gpu(), spec, outputs, MAP_SIZES, images, map_size
            )
            expected = maps_on_host(spec, outputs, geometries)
            for on_gpu, on_host in zip(found, expected, strict=True):
                assert_same_maps(on_gpu, on_host, size_wh)
            del found, on_gpu
    kernels.close()
