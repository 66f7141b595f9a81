# SPDX-License-Identifier: Apache-2.0
"""The decoding kernels, emulated on the CPU, equal the host's decoding."""

import numpy as np
import pytest

from support.gpu.emulated_kernels import emulated_kernels
from support.gpu.host_kernels import needs_compiler
from support.gpu.host_machine import DEVICE, HostMachine, use_host_memory
from support.oracles.task_outputs import (
    TASKS,
    assert_same,
    check_invalid_outputs,
    decode_on_host,
    decode_with_kernels,
    random_outputs,
    spec_of,
)
from trt_perception.images.results import image_limits
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.cuda.pinned_images import ImagePool
from trt_perception.stages.decode import decode
from trt_perception.stages.frame_header import FRAME_PARAMETERS

pytestmark = needs_compiler

SIZES = [(333, 277), (64, 48), (97, 301)]
#: For each frame parameter, a value that changes the boxes.
CHANGED_THRESHOLDS = {'confidence_threshold': 0.6, 'iou_threshold': 0.9}
THRESHOLDS = [Thresholds(0.25, 0.45), Thresholds(0.3, 0.7, class_ids=(0, 2)), Thresholds(0.5, 0.1)]


@pytest.fixture(autouse=True)
def _host_memory(monkeypatch):
    use_host_memory(monkeypatch)


@pytest.mark.parametrize(
    ('name', 'transposed'), [*((name, False) for name in TASKS), ('detect', True), ('obb', True)]
)
def test_detections_equal_those_of_the_host(name, transposed):
    spec = spec_of(TASKS[name], (96, 64), 5, 700, batch=4, transposed=transposed)
    kernels = emulated_kernels(spec, max_detections=12, class_agnostic=False)
    parameters = ParameterValues(max_detections=12)
    rng = np.random.default_rng(len(name))
    for passing in (0, 1, 31, 33, 700):
        outputs = random_outputs(rng, spec, passing)
        found, geometries = decode_with_kernels(
            kernels, HostMachine(), spec, outputs, SIZES, THRESHOLDS
        )
        expected = decode_on_host(outputs, spec, geometries, THRESHOLDS, parameters)
        for by_kernels, on_host in zip(found, expected, strict=True):
            assert_same(by_kernels, on_host)
        assert (sum(map(len, expected)) > 10) == (passing > 30)
    if spec.task.has_masks:
        assert (found[0].masks.whole() == expected[0].masks.whole()).all()


@pytest.mark.parametrize('name', ['detect', 'obb'])
def test_kernels_and_host_find_the_same_invalid_outputs(name):
    spec = spec_of(TASKS[name], (96, 64), 5, 70, batch=4)
    kernels = emulated_kernels(spec, max_detections=12, class_agnostic=False)
    check_invalid_outputs(kernels, HostMachine(), spec, ParameterValues(max_detections=12))


# Compiling kernels takes longer than running them, so the tests with one image share kernels.


def in_one_image(name, limits, passing, thresholds):
    """Check that kernels and host give the same detections for one image; return them."""
    spec = spec_of(TASKS[name], (96, 64), 3, 1200)
    outputs = random_outputs(np.random.default_rng(passing), spec, passing)
    kernels, sizes = emulated_kernels(spec, **vars(limits)), SIZES[:1]
    (found,), geometries = decode_with_kernels(
        kernels, HostMachine(), spec, outputs, sizes, [thresholds], times=1
    )
    (expected,) = decode(outputs, spec, geometries, [thresholds], limits)
    assert_same(found, expected)
    assert found.left_out == max(0, valid_boxes(spec, outputs, thresholds) - limits.max_candidates)
    return found


def valid_boxes(spec, outputs, thresholds):
    """Count the boxes above the threshold one by one, in the first image."""
    classes, count = len(spec.class_names), 0
    for anchor in outputs[0][0].T.astype(float):
        scores = anchor[4 : 4 + classes]
        passes = scores.max() > np.float32(thresholds.confidence_threshold)
        has_area = anchor[2] > 0 and anchor[3] > 0
        is_wanted = not thresholds.class_ids or scores.argmax() in thresholds.class_ids
        count += passes and has_area and is_wanted and np.isfinite(anchor).all()
    return count


@pytest.mark.parametrize('name', ['detect', 'obb'])
@pytest.mark.parametrize('parameter', FRAME_PARAMETERS)
def test_kernels_obey_each_frame_parameter(parameter, name):
    changed = Thresholds(**{parameter: CHANGED_THRESHOLDS[parameter]})
    counts = [
        len(in_one_image(name, DecodingLimits(300), 300, thresholds))
        for thresholds in (Thresholds(), changed)
    ]

    assert 0 not in counts
    assert counts[0] != counts[1]


@pytest.mark.parametrize('name', ['detect', 'obb'])
def test_boxes_of_all_classes_suppress_each_other(name):
    apart, together = (
        len(in_one_image(name, DecodingLimits(300, class_agnostic=agnostic), 250, Thresholds()))
        for agnostic in (False, True)
    )
    assert 10 < together < apart


@pytest.mark.parametrize('name', ['detect', 'obb'])
@pytest.mark.parametrize(
    ('limits', 'passing'),
    [
        (DecodingLimits(300, max_candidates=32), (5, 20, 25, 31, 32, 33, 40, 97, 700)),
        (DecodingLimits(17, max_candidates=96, class_agnostic=True), (90, 96, 97, 700)),
        (DecodingLimits(300), (5, 40, 60, 90, 300, 1100)),
    ],
    ids=str,
)
def test_limits_of_candidates_and_detections_are_obeyed(name, limits, passing):
    """The box count is below, at and above each limit."""
    counts = [len(in_one_image(name, limits, count, THRESHOLDS[0])) for count in passing]
    assert max(counts) > 5


# In this order: padding at the top, at the left, nowhere, and up to the middle of a prototype
# pixel; unequal padding of 37 and 38 pixels; an image that is one prototype pixel high.
IMAGES = [(128, 48), (31, 200), (96, 64), (123, 77), (97, 301), (500, 20)]


def test_mask_numbers_equal_those_of_the_host():
    spec = spec_of(TASKS['segment'], (96, 64), 3, 600, batch=len(IMAGES))
    kernels = emulated_kernels(spec, max_detections=300, class_agnostic=False)
    assert kernels.has_mask_kernel
    thresholds = [Thresholds(0.25, 1.0)] * len(IMAGES)
    for count in (300, 7, 0):
        outputs = random_outputs(np.random.default_rng(count), spec, count)
        images = ImagePool(DEVICE)
        found, geometries = decode_with_kernels(
            kernels, HostMachine(), spec, outputs, IMAGES, thresholds, images
        )
        expected = decode_on_host(outputs, spec, geometries, thresholds)
        for by_kernels, on_host, size in zip(found, expected, IMAGES, strict=True):
            assert_same(by_kernels, on_host)
            assert by_kernels.masks is None
            numbers, expected_numbers = (np.full(size[::-1], 0xFFFF, np.uint16) for _ in range(2))
            by_kernels.numbered.number(numbers)
            on_host.masks.number(expected_numbers)
            # The sums have another order, so a logit of about 1e-6 may change its sign.
            assert (numbers != expected_numbers).sum() <= 1e-4 * numbers.size
            assert (numbers.max() > 0) == (count > 0)


@pytest.mark.parametrize('topic', ['masks', 'annotations', 'debug_image', 'label_info', None])
def test_masks_are_drawn_only_for_topics_that_show_them(topic):
    spec = spec_of(TASKS['segment'], (96, 64), 3, 600)
    kernels = emulated_kernels(spec, max_detections=300, class_agnostic=False)
    outputs = random_outputs(np.random.default_rng(7), spec, 7)
    wanted = Thresholds(wanted_topics=frozenset(filter(None, [topic])))
    [found], _ = decode_with_kernels(
        kernels,
        HostMachine(),
        spec,
        outputs,
        IMAGES[:1],
        [Thresholds(0.25, 1.0)],
        ImagePool(DEVICE),
        wanted=wanted,
    )
    assert len(found) > 0
    assert (found.pictured is not None) == (topic in ('masks', 'annotations', 'debug_image'))


def test_no_mask_image_above_the_limit_is_drawn(monkeypatch):
    monkeypatch.setattr(image_limits, 'MAX_RESULT_PIXELS', 128 * 48)
    spec = spec_of(TASKS['segment'], (96, 64), 3, 600, batch=len(IMAGES))
    kernels = emulated_kernels(spec, max_detections=300, class_agnostic=False)
    outputs = random_outputs(np.random.default_rng(0), spec, 7)
    thresholds = [Thresholds(0.25, 1.0)] * len(IMAGES)
    found, _ = decode_with_kernels(
        kernels, HostMachine(), spec, outputs, IMAGES, thresholds, ImagePool(DEVICE)
    )
    drawn = [one.numbered is not None for one in found]
    assert drawn == [width * height <= 128 * 48 for width, height in IMAGES]
    assert 0 < sum(drawn) < len(IMAGES)
