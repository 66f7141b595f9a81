# SPDX-License-Identifier: Apache-2.0
"""Tests that boxes are drawn at their positions with readable labels."""

from dataclasses import replace

import cv2
import numpy as np
import pytest

from trt_perception.images.detections import Detections
from trt_perception.images.drawing import (
    draw_class_list,
    draw_class_map,
    draw_depth,
    draw_detections,
)

NAMES = ['cat', 'dog', 'a name that is much longer than its box is wide', 'Zwölf 十二']


def drawn(rows, size=(320, 240), background=0):
    """Draw rows of box, score and class. Return the image and its changed pixels."""
    picture = np.full((size[1], size[0], 3), background, np.uint8)
    detections = Detections(
        np.array([row[0] for row in rows], np.float32).reshape(-1, 4),
        np.array([row[1] for row in rows], np.float32),
        np.array([row[2] for row in rows], np.int32),
    )
    draw_detections(picture, detections, NAMES)
    return picture, (picture != background).any(axis=2)


def test_image_without_detections_is_not_changed():
    picture, changed = drawn([])
    assert not changed.any()
    assert picture.shape == (240, 320, 3)


def test_outline_follows_the_box_and_leaves_its_inside_visible():
    picture, changed = drawn([([60.4, 100.2, 200.3, 180.6], 0.5, 0)])
    outline = [
        picture[100, 60:201],
        picture[181, 60:201],
        picture[100:182, 60],
        picture[100:182, 200],
    ]
    colors = {tuple(pixel) for line in outline for pixel in line.tolist()}
    assert len(colors) == 1
    assert colors != {(0, 0, 0)}
    # The inside stays visible. Only the label is drawn outside the box.
    assert not changed[102:180, 62:199].any()
    assert not changed[183:].any()
    assert not changed[:, :59].any()
    assert not changed[:, 202:].any()
    assert changed[80:99, 60:80].any()
    assert not changed[:75].any()


@pytest.mark.parametrize('box', [[60, 0, 200, 100], [60, 3, 200, 100]])
def test_label_is_inside_the_box_at_the_top_border(box):
    _, changed = drawn([(box, 0.5, 0)])
    top = box[1]
    assert changed[top + 2 : top + 12, 62:90].any()
    assert not changed[top + 2 : 98, 150:198].any()


def dark(picture):
    # The label's text is dark. All other pixels are white or bright (a sum of at least 433).
    return picture.sum(axis=2) < 300


@pytest.mark.parametrize('left', [-30, 0, 290, 318])
def test_label_is_complete_at_the_side_borders(left):
    inside, _ = drawn([([60, 100, 90, 180], 0.5, 0)], background=255)
    at_the_edge, _ = drawn([([left, 100, left + 30, 180], 0.5, 0)], background=255)
    assert dark(at_the_edge[70:99]).sum() == dark(inside[70:99]).sum() > 20


def test_label_contains_class_and_score():
    def label(score, class_id):
        picture, _ = drawn([([60, 100, 200, 180], score, class_id)], background=255)
        return dark(picture[70:99])

    assert label(0.5, 0).sum() > 20
    assert np.array_equal(label(0.5, 0), label(0.504, 0))  # labels show two decimals
    assert not np.array_equal(label(0.5, 0), label(0.51, 0))
    assert not np.array_equal(label(0.5, 0), label(0.5, 1))


def class_colors(class_ids):
    """Return the colours of the boxes of classes: uint8 (n, 3), BGR."""
    colors = []
    for class_id in class_ids:
        picture = np.zeros((100, 100, 3), np.uint8)
        box = np.array([[10, 50, 90, 90]], np.float32)
        found = Detections(box, np.array([0.5], np.float32), np.array([class_id], np.int32))
        draw_detections(picture, found, [''] * (class_id + 1))
        colors.append(picture[90, 50])
    return np.array(colors)


def test_first_20_classes_have_bright_colours_that_differ_clearly():
    colors = class_colors(range(20)).astype(np.float32) / 255
    lab = cv2.cvtColor(colors[None], cv2.COLOR_BGR2LAB)[0]
    assert lab[:, 0].min() > 55  # black text is readable
    distances = np.linalg.norm(lab[:, None] - lab, axis=-1)
    # A distance of 2.3 in CIELAB is just noticeable.
    assert distances[~np.eye(20, dtype=bool)].min() > 30


def test_neighbours_of_later_classes_have_different_bright_colours():
    colors = class_colors(range(19, 40)).astype(int)
    assert (colors.max(axis=1) == 255).all()
    assert (np.abs(np.diff(colors, axis=0)).max(axis=1) > 20).all()


def test_each_of_several_boxes_is_drawn_in_the_colour_of_its_class():
    rows = [([10 + 30 * i, 100, 30 + 30 * i, 120], 0.9, i % len(NAMES)) for i in range(9)]

    together, _ = drawn(rows)

    for index, row in enumerate(rows):
        bottom = np.s_[120, 10 + 30 * index : 30 + 30 * index]
        alone, changed = drawn([row])
        assert changed[bottom].all()
        assert np.array_equal(together[bottom], alone[bottom])


@pytest.mark.parametrize('size', [(1, 1), (3, 2), (40, 30), (4000, 20)])
@pytest.mark.parametrize('class_id', range(len(NAMES)))
def test_images_and_names_of_all_sizes_can_be_drawn(size, class_id):
    width, height = size
    picture, _ = drawn([([0, 0, width, height], 1.0, class_id)], size)
    assert picture.shape == (height, width, 3)


def test_lines_and_label_grow_with_the_image():
    widths, heights = [], []
    for side in (320, 1280, 3840):
        box = [0.2 * side, 0.4 * side, 0.8 * side, 0.6 * side]
        _, changed = drawn([(box, 0.5, 0)], (side, side))
        widths.append(changed[round(0.5 * side), : side // 2].sum())
        label = changed[: round(0.4 * side) - widths[-1], round(0.2 * side) + 2 * widths[-1]]
        heights.append(label.sum())
    assert widths == sorted(set(widths))
    assert heights == sorted(set(heights))
    assert heights[0] > 8


def with_keypoints(points, skeleton):
    """Draw keypoints. Return the changed pixels outside the box and its label."""
    box = np.array([[200, 150, 210, 160]], np.float32)
    found = Detections(box, np.array([0.5], np.float32), np.array([0], np.int32))
    plain, changed = np.zeros((2, 240, 320, 3), np.uint8)
    draw_detections(plain, found, NAMES)
    points = np.array([points], np.float32)
    draw_detections(changed, replace(found, keypoints=points), NAMES, skeleton)
    return (plain != changed).any(axis=2)


def test_keypoints_and_boxes_do_not_cover_labels():
    boxes = np.array([[60, 100, 200, 180], [50, 60, 220, 92]], np.float32)
    found = Detections(boxes, np.array([0.9, 0.5], np.float32), np.array([0, 1], np.int32))
    corners = np.array([[60, 100, 1], [75, 92, 1], [200, 180, 1]], np.float32)
    plain, changed = np.zeros((2, 240, 320, 3), np.uint8)
    draw_detections(
        plain,
        replace(found, xyxy=boxes[:1], scores=found.scores[:1], class_ids=found.class_ids[:1]),
        NAMES,
    )
    draw_detections(
        changed, replace(found, keypoints=np.array([corners, corners])), NAMES, [(0, 1)]
    )
    label = np.s_[87:99, 61:110]  # the label of the first box
    assert (plain[label] > 0).any(axis=2).mean() > 0.5
    assert np.array_equal(plain[label], changed[label])


def test_keypoints_with_a_sufficient_score_are_drawn_and_joined():
    points = [(50, 40, 0.9), (100, 40, 0.25), (50, 200, 0.24)]
    changed = with_keypoints(points, ())
    assert changed[37:44, 47:54].any()
    assert changed[37:44, 97:104].any()
    assert not changed[:, 60:90].any(), 'no line joins the points'
    assert not changed[190:].any(), 'the keypoint below 0.25 is left out'
    changed = with_keypoints(points, ((0, 1), (0, 2)))
    assert changed[40, 50:101].all()
    assert not changed[60:].any()


def test_visible_parts_of_keypoints_at_the_border_are_drawn():
    changed = with_keypoints([(0, 0, 1), (320, 240, 1)], ())
    assert changed[0, 0]
    assert changed[239, 319]


def test_oriented_boxes_are_drawn_rotated():
    picture = np.zeros((240, 320, 3), np.uint8)
    square = np.array([[160, 120, 60, 60, np.pi / 4]], np.float32)
    found = Detections(
        np.array([[117, 77, 203, 163]], np.float32),
        np.array([0.5], np.float32),
        np.array([0], np.int32),
        oriented=square,
    )
    draw_detections(picture, found, NAMES)
    changed = picture.any(axis=2)
    reach = 30 * 2**0.5  # distance to a corner
    for x, y in [(160 + reach, 120), (160 - reach, 120), (160, 120 + reach)]:
        assert changed[round(y) - 2 : round(y) + 3, round(x) - 2 : round(x) + 3].any()
    assert changed[140:143, 180:183].any(), 'the middle of a side is drawn'
    assert not changed[150:, 190:].any(), 'the corner of the upright box is not drawn'
    assert not changed[115:125, 155:165].any()
    far = np.array([[160, 120, 1e30, 1e30, 0.3]], np.float32)
    draw_detections(picture, replace(found, oriented=far), NAMES)


def test_list_of_classes_shows_the_colour_of_each_class():
    bgr = np.zeros((480, 640, 3), np.uint8)
    draw_class_list(bgr, [f'class {index}' for index in range(5)], range(5))
    colors, counts = np.unique(bgr.reshape(-1, 3), axis=0, return_counts=True)
    bright = colors.max(1) == 255
    assert len(colors[bright & (counts > 300)]) == 5


def test_class_map_tints_each_pixel_and_lists_only_its_classes():
    bgr = np.full((480, 640, 3), 100, np.uint8)
    class_ids = np.zeros((480, 640), np.uint8)
    class_ids[240:] = 3
    draw_class_map(bgr, class_ids, ['sky', 'road', 'car', 'tree'])
    upper, lower = bgr[200, 300], bgr[400, 300]
    assert (upper != lower).any()
    assert (bgr[240:] == lower).all()
    colors, counts = np.unique(bgr[:240].reshape(-1, 3), axis=0, return_counts=True)
    assert len(colors[(colors.max(1) == 255) & (counts > 300)]) == 2


def test_background_keeps_its_pixels_and_is_not_listed():
    rng = np.random.default_rng(0)
    original = rng.integers(0, 99, (480, 640, 3)).astype(np.uint8)
    class_ids = np.zeros((480, 640), np.uint8)
    class_ids[240:] = 1
    drawn = {}
    for name in ('background', 'wall'):
        drawn[name] = original.copy()
        draw_class_map(drawn[name], class_ids, [name, 'road'])
    changed = (drawn['background'] != original).any(2)
    np.testing.assert_array_equal(drawn['background'][240:], drawn['wall'][240:])
    assert changed[240:].all()
    # Only the first of two rows of the list is drawn.
    assert changed[:25].any()
    assert not changed[25:240].any()


def test_depth_is_drawn_from_blue_to_red_and_unknown_depth_is_black():
    bgr = np.zeros((480, 640, 3), np.uint8)
    depth = np.tile(np.linspace(1, 9, 640, dtype='f4'), (480, 1))
    depth[300:, :100] = np.nan
    depth[300:, 100:200] = np.inf
    draw_depth(bgr, depth, ' m')
    blue, _, red = bgr[200, 640 * 7 // 8]
    assert red > blue
    blue, _, red = bgr[200, 640 // 8]
    assert blue > red
    assert not bgr[300:, :200].any()


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('largest', [3e38, 1e20, 1e-20, 1e-38])
def test_depth_of_any_magnitude_has_the_same_colours(largest):
    levels = np.tile(np.linspace(-1, 1, 640, dtype='f4'), (480, 1))
    levels[:9] = np.nan
    usual, extreme = (np.zeros((480, 640, 3), np.uint8) for _ in range(2))
    draw_depth(usual, levels)
    draw_depth(extreme, levels * np.float32(largest))
    difference = np.abs(usual[100:].astype(int) - extreme[100:])
    if largest < 1e-9:  # a flat depth has one colour
        assert (extreme[100:] == extreme[100, 0]).all()
    else:
        assert difference.max() <= 10  # neighbouring colours of the map


@pytest.mark.parametrize('size', [(1, 1), (1, 40), (40, 1), (2, 2)])
def test_depth_of_a_narrow_image_is_drawn(size):
    bgr = np.full((*size, 3), 7, np.uint8)
    draw_depth(bgr, np.ones(size, np.float32), ' m')
    assert (bgr != 7).any()
