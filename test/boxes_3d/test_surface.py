# SPDX-License-Identifier: Apache-2.0
"""Compare boxes in space with rendered scenes whose visible surfaces are known."""

import functools
import math

import numpy as np
import pytest

from support import rgbd_scenes as scenes
from support.properties import given, settings, st
from trt_perception.boxes_3d.calibration import Pinhole
from trt_perception.boxes_3d.depth_image import DepthImage
from trt_perception.boxes_3d.surface import ImageBox, Mask, find_surface

CAMERA = Pinhole(scenes.FOCAL, scenes.FOCAL, scenes.CX, scenes.CY, scenes.WIDTH, scenes.HEIGHT)
FACE = scenes.Shape('box', (0.3, -0.1, 2.2), (0.6, 0.4, 0.4))


@functools.cache
def scene(*shapes, noise=0.0, holes=False):
    return scenes.render(shapes, np.random.default_rng(0), noise=noise, holes=holes)


def millimetres(scene):
    return DepthImage((scene.depth * 1000).round().astype(np.uint16), 0.001)


def check(found, truth, relative):
    middle, extent = (truth.low + truth.high) / 2, truth.high - truth.low
    assert found.center[2] == pytest.approx(middle[2], rel=relative)
    assert found.center[:2] == pytest.approx(middle[:2], abs=relative * extent[:2].max())
    assert found.size[:2] == pytest.approx(extent[:2], rel=relative)


@pytest.mark.parametrize('has_mask', [False, True])
@pytest.mark.parametrize('is_float', [False, True])
def test_box_of_a_flat_face_has_its_place_and_size(has_mask, is_float):
    shape = scenes.Shape('box', (0.0, 0.0, 2.2), (0.6, 0.4, 0.4))
    rendered = scene(shape)
    depth = DepthImage(rendered.depth, 1.0) if is_float else millimetres(rendered)
    [truth] = rendered.objects
    mask = Mask(truth.mask) if has_mask else None
    found = find_surface(ImageBox(*truth.box), depth, CAMERA, mask=mask)
    assert found.center == pytest.approx((0, 0, 2.0), abs=0.02)
    assert found.size == pytest.approx((0.6, 0.4, 0.05), rel=0.02)
    assert found.theta == 0


@pytest.mark.parametrize('kind', ['person', 'bottle', 'box'])
def test_noise_holes_and_a_wall_behind_change_little(kind):
    sizes = {'person': (0.5, 1.8, 0.5), 'bottle': (0.1, 0.3, 0.1), 'box': FACE.size}
    middle = {'person': (-0.4, 0.2, 3.0), 'bottle': (0.2, 0.1, 1.1), 'box': FACE.middle}
    rendered = scene(scenes.Shape(kind, middle[kind], sizes[kind]), noise=0.0015, holes=True)
    [truth] = rendered.objects
    for mask in (None, Mask(scenes.detected_mask(truth, np.random.default_rng(1)))):
        found = find_surface(ImageBox(*truth.box), millimetres(rendered), CAMERA, mask=mask)
        check(found, truth, 0.1)
        middle_z = (truth.low[2] + truth.high[2]) / 2
        assert found.center[2] == pytest.approx(middle_z, rel=0.02)


def test_surface_of_a_turned_box_reaches_from_the_near_to_the_far_edge():
    rendered = scene(scenes.Shape('box', (0.0, 0.3, 3.0), (0.8, 0.6, 0.8), yaw=0.6))
    [truth] = rendered.objects
    found = find_surface(ImageBox(*truth.box), millimetres(rendered), CAMERA)
    check(found, truth, 0.05)
    assert found.size[2] == pytest.approx(truth.high[2] - truth.low[2], rel=0.15)


def test_of_two_objects_in_a_box_a_mask_chooses():
    front = scenes.Shape('box', (-0.1, 0, 1.6), (0.3, 0.5, 0.2))
    behind = scenes.Shape('box', (0.2, 0, 4.1), (0.9, 0.9, 0.2))
    rendered = scene(front, behind)
    box = ImageBox(320, 240, 220, 220)
    found = [
        find_surface(box, millimetres(rendered), CAMERA, mask=Mask(truth.mask))
        for truth in rendered.objects
    ]
    assert [each.center[2] for each in found] == pytest.approx([1.5, 4.0], rel=0.01)


@pytest.mark.parametrize('theta', [0.4, -1.2, math.pi / 2])
def test_oriented_box_has_the_size_along_its_own_axes(theta):
    x, y = np.meshgrid(np.arange(640) + 0.5 - 400, np.arange(480) + 0.5 - 200)
    along = x * math.cos(theta) + y * math.sin(theta)
    across = y * math.cos(theta) - x * math.sin(theta)
    values = np.where((abs(along) <= 60) & (abs(across) <= 20), 2.0, 5.0).astype(np.float32)
    found = find_surface(ImageBox(400, 200, 122, 42, theta), DepthImage(values, 1.0), CAMERA)
    pixel = 2.0 / scenes.FOCAL
    assert found.size[:2] == pytest.approx((120 * pixel, 40 * pixel), abs=2.5 * pixel)
    middle = (400 - 0.5 - scenes.CX) * pixel, (200 - 0.5 - scenes.CY) * pixel
    assert found.center[:2] == pytest.approx(middle, abs=pixel)
    assert found.theta == theta


def test_extent_along_z_is_never_below_the_least():
    depth = DepthImage(np.full((480, 640), 2.0, np.float32), 1.0)
    box = ImageBox(320, 240, 40, 40)
    assert find_surface(box, depth, CAMERA).size[2] == 0.05
    assert find_surface(box, depth, CAMERA, min_depth_m=0.3).size[2] == 0.3


def test_objects_with_too_few_pixels_are_left_out():
    values = np.zeros((480, 640), np.float32)
    values[240, 320:339] = 2.0
    depth, box = DepthImage(values, 1.0), ImageBox(330, 240, 60, 20)
    assert find_surface(box, depth, CAMERA) is None
    assert find_surface(box, depth, CAMERA, min_points=19) is not None
    values[240, 339] = 2.0
    assert find_surface(box, depth, CAMERA) is not None


@pytest.mark.parametrize('side', [-1, 1])
def test_surface_whose_far_end_is_nearer_to_the_axis_has_its_size(side):
    # A wall from x = 1 m, z = 2 m to x = 1.5 m, z = 4 m. Divided by z, x is 0.5 and 0.375.
    camera = Pinhole(400.0, 400.0, 0.0 if side > 0 else 319.0, 120.0, 320, 240)
    columns = np.arange(320, dtype=np.float32)
    tangents = (columns - camera.cx) / camera.fx * side
    with np.errstate(divide='ignore'):
        wall = 1 / (2 * tangents - 0.5)
    seen = (wall > 2) & (wall < 4)
    depth = np.where(seen, wall, 0).astype(np.float32) * np.ones((240, 1), np.float32)
    found = find_surface(ImageBox(160, 120, 320, 20), DepthImage(depth, 1.0), camera)
    assert found.center[0] == pytest.approx(side * 1.25, abs=0.04)
    assert found.size[0] == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize('unknown', [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_pixels_without_depth_do_not_count(unknown):
    values = np.full((480, 640), 2.0, np.float32)
    values[::2] = unknown
    found = find_surface(ImageBox(320, 240, 40, 40), DepthImage(values, 1.0), CAMERA)
    assert found.center[2] == pytest.approx(2, rel=0.01)
    values[:] = unknown
    assert find_surface(ImageBox(320, 240, 40, 40), DepthImage(values, 1.0), CAMERA) is None


def test_image_in_the_byte_order_of_another_machine_gives_the_same_box():
    rendered = scene(FACE)
    depth = millimetres(rendered)
    box = ImageBox(*rendered.objects[0].box)
    swapped = DepthImage(depth.values.astype('>u2'), 0.001)
    assert find_surface(box, swapped, CAMERA) == find_surface(box, depth, CAMERA)


numbers = st.one_of(
    st.floats(-2000, 2000), st.floats(), st.sampled_from([math.nan, math.inf, -math.inf, 1e308])
)
bits = st.integers(0, 2**32 - 1)


@settings(deadline=None, max_examples=200)
@given(st.tuples(numbers, numbers, numbers, numbers, numbers), st.lists(bits, min_size=1), bits)
def test_any_box_and_any_depth_give_a_finite_box_or_none(box, words, seed):
    random = np.random.default_rng(seed)
    values = random.choice(np.array(words, np.uint32), (48, 64)).view(np.float32)
    camera = Pinhole(50, 50, 32, 24, 64, 48)
    found = find_surface(ImageBox(*box), DepthImage(values, 1.0), camera, min_points=1)
    if found is not None:
        assert all(map(math.isfinite, (*found.center, *found.size, found.theta)))
        assert min(found.size) > 0
