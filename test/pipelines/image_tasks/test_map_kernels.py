# SPDX-License-Identifier: Apache-2.0
"""Class and depth maps, made by kernels that are emulated on the CPU, equal the host's."""

import dataclasses

import numpy as np
import pytest

from support.gpu.emulated_kernels import emulated_kernels
from support.gpu.host_kernels import needs_compiler
from support.gpu.host_machine import DEVICE, HostMachine, use_host_memory
from support.oracles.map_outputs import (
    ALL_TOPICS,
    CASES,
    assert_same_maps,
    make_maps,
    map_outputs,
    map_spec,
    maps_on_host,
)
from trt_perception.errors import OutputError
from trt_perception.images.results import image_limits
from trt_perception.images.results.kernel_maps import HEADER_ROOM
from trt_perception.model.decoder import Sky
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.cuda import pinned_images
from trt_perception.pipelines.cuda.maps import MapDecoder
from trt_perception.pipelines.cuda.pinned_images import ImagePool

pytestmark = needs_compiler

#: The padding of these images ends at the border of a cell, nowhere, and inside a cell.
SIZES = [(96, 48), (131, 87), (77, 91)]

# Conversions of float16 are PTX instructions, which only a GPU has.
EMULATED_CASES = [name for name, (_, _, dtype) in CASES.items() if dtype != 'float16']


@pytest.fixture(autouse=True)
def _host_memory(monkeypatch):
    use_host_memory(monkeypatch)


@pytest.mark.parametrize('resize', ['stretch', 'letterbox'])
@pytest.mark.parametrize('name', EMULATED_CASES)
def test_maps_equal_those_of_the_host(name, resize):
    spec = map_spec(name, resize, (96, 64), 5, batch=4)
    kernels = emulated_kernels(spec)
    outputs = map_outputs(np.random.default_rng(3), spec)
    for map_size, size_wh in (('source', None), ('50x70', (50, 70))):
        found, geometries = make_maps(
            kernels, HostMachine(), spec, outputs, SIZES, ImagePool(DEVICE), map_size
        )
        expected = maps_on_host(spec, outputs, geometries)
        for by_kernels, on_host in zip(found, expected, strict=True):
            assert_same_maps(by_kernels, on_host, size_wh)


@pytest.mark.parametrize('depth_m', [80.0, np.nan])
@pytest.mark.parametrize('focal_length_px', [0.0, 450.0])
def test_sky_and_focal_length_are_used_as_on_the_host(focal_length_px, depth_m):
    spec = map_spec('depth and sky', 'stretch', (96, 64), 5, batch=4)
    outputs = map_outputs(np.random.default_rng(3), spec)
    thresholds = dataclasses.replace(
        ALL_TOPICS, focal_length_px=focal_length_px, sky=Sky(threshold=0.2, depth_m=depth_m)
    )
    found, geometries = make_maps(
        *(emulated_kernels(spec), HostMachine(), spec, outputs, SIZES, ImagePool(DEVICE)),
        thresholds=thresholds,
    )
    for by_kernels, on_host in zip(
        found, maps_on_host(spec, outputs, geometries, thresholds), strict=True
    ):
        assert by_kernels.is_metric == bool(focal_length_px)
        assert_same_maps(by_kernels, on_host)


@pytest.mark.parametrize(
    ('wanted', 'made'),
    [
        ([], set()),
        (['segmentation/camera_info'], set()),
        (['segmentation/mask'], {'class_ids'}),
        (['debug_image'], {'class_ids'}),
        (['segmentation/confidence'], {'class_ids', 'confidence'}),
    ],
)
def test_only_wanted_maps_are_made(wanted, made):
    spec = map_spec('logits', 'stretch', (96, 64), 5, batch=1)
    outputs = map_outputs(np.random.default_rng(0), spec)
    (found,), _ = make_maps(
        emulated_kernels(spec),
        HostMachine(),
        spec,
        outputs,
        SIZES[:1],
        ImagePool(DEVICE),
        thresholds=Thresholds(wanted_topics=frozenset(wanted)),
    )
    assert set(found.maps) == made


def test_a_map_lies_behind_room_for_a_header():
    spec = map_spec('logits', 'stretch', (96, 64), 5, batch=1)
    outputs = map_outputs(np.random.default_rng(0), spec)
    (found,), _ = make_maps(
        emulated_kernels(spec), HostMachine(), spec, outputs, SIZES[:1], ImagePool(DEVICE)
    )
    memory = found.maps['class_ids'].memory()
    assert memory[HEADER_ROOM:].tolist() == found.image('class_ids').reshape(-1).tolist()


@pytest.mark.parametrize(
    ('name', 'tensor', 'value'),
    [
        ('logits', 0, np.nan),
        ('logits', 0, -np.inf),
        ('ids of the input', 0, 5),
        ('ids of the input', 0, -1),
        ('depth and field of view', 1, 180),
        ('depth and field of view', 1, np.nan),
    ],
)
def test_impossible_values_are_an_error_of_their_image(name, tensor, value):
    spec = map_spec(name, 'stretch', (96, 64), 5, batch=3)
    outputs = map_outputs(np.random.default_rng(0), spec)
    of_second = outputs[tensor][1:2]
    of_second.reshape(-1)[-1] = value
    found, geometries = make_maps(
        emulated_kernels(spec), HostMachine(), spec, outputs, SIZES, ImagePool(DEVICE)
    )
    expected = maps_on_host(spec, outputs, geometries)
    assert [isinstance(one, OutputError) for one in found] == [False, True, False]
    assert [isinstance(one, OutputError) for one in expected] == [False, True, False]


@pytest.mark.parametrize('name', ['logits', 'ids of the input', 'depth and sky'])
@pytest.mark.parametrize('map_size', ['source', '96x49'])
def test_no_map_above_the_limit_is_made(monkeypatch, name, map_size):
    monkeypatch.setattr(image_limits, 'MAX_RESULT_PIXELS', 96 * 48)
    spec = map_spec(name, 'stretch', (96, 64), 5, batch=4)
    outputs = map_outputs(np.random.default_rng(0), spec)
    found, _ = make_maps(
        *(emulated_kernels(spec), HostMachine(), spec, outputs, SIZES, ImagePool(DEVICE)),
        map_size,
    )
    # The first image has exactly as many pixels as the limit.
    assert [bool(one.maps) for one in found] == [map_size == 'source', False, False]


@pytest.mark.parametrize('name', ['logits', 'depth and sky'])
def test_frame_gets_all_its_large_maps_or_none(monkeypatch, name):
    monkeypatch.setattr(image_limits, 'LARGE_RESULT_PIXELS', 1)
    room = {'logits': 3 * (HEADER_ROOM + 96 * 48), 'depth and sky': HEADER_ROOM + 4 * 96 * 48}
    monkeypatch.setattr(pinned_images, 'MAX_LARGE_BYTES', room[name])
    spec = map_spec(name, 'stretch', (96, 64), 5, batch=4)
    letterbox, wanted = spec.preprocessing.letterbox(SIZES[0]), ALL_TOPICS.wanted_topics
    with HostMachine() as at:
        decoder = MapDecoder(emulated_kernels(spec), spec, at.stream, ImagePool(DEVICE), 'source')
        for _ in range(2):
            made = [decoder.new_maps(letterbox, wanted) for _ in range(3)]
            # The memory has room for one frame with two maps, or with one depth map.
            assert [len(maps) for maps in made] == [2 if name == 'logits' else 1, 0, 0]
            made.clear()
        decoder.close()
