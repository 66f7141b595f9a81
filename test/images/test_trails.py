# SPDX-License-Identifier: Apache-2.0
"""Tests that trails show the last second of each tracked object, and that ids are drawn."""

import numpy as np
import pytest

from trt_perception.images.detections import Detections
from trt_perception.images.drawing import draw_detections
from trt_perception.images.trails import Trails

SIZE_WH = (320, 240)


def objects_at(*rows):
    """Return objects of 10 x 10 pixels, from rows of centre x, centre y and id."""
    centers = np.array([row[:2] for row in rows], np.float32).reshape(-1, 2)
    return Detections(
        np.concatenate([centers - 5, centers + 5], axis=1),
        np.full(len(rows), 0.5, np.float32),
        np.zeros(len(rows), np.int32),
        ids=np.array([row[2] for row in rows], np.int64),
    )


def trail_image(trails, found, stamp_s, size_wh=SIZE_WH):
    """Return the image in which only trails are drawn."""
    bgr = np.zeros((size_wh[1], size_wh[0], 3), np.uint8)
    trails.draw(bgr, found, stamp_s)
    return bgr


def columns_of(bgr):
    """Return the first and last column with a trail; None without a trail."""
    columns = np.flatnonzero(bgr.any(axis=(0, 2)))
    return (columns[0], columns[-1]) if len(columns) else None


def test_trail_is_the_line_of_the_last_second():
    trails = Trails()
    for step in range(31):
        bgr = trail_image(trails, objects_at((20 + 5 * step, 120, 1)), step / 10)
    # 10 steps of 5 pixels up to x = 170, on one line, with room for the line's width.
    first, last = columns_of(bgr)
    assert (first, last) == (pytest.approx(120, abs=3), pytest.approx(170, abs=3))
    rows = np.flatnonzero(bgr.any(axis=(1, 2)))
    assert (rows[0], rows[-1]) == (pytest.approx(120, abs=3), pytest.approx(120, abs=3))


def test_each_object_has_its_own_trail_and_colour():
    trails = Trails()
    for step in range(5):
        found = objects_at((20 + 9 * step, 60, 1), (200 - 9 * step, 180, 2), (100, 120, -1))
        bgr = trail_image(trails, found, step / 10)
    upper, lower = bgr[60, 30:50], bgr[180, 170:190]
    assert upper.any(axis=1).all()
    assert lower.any(axis=1).all()
    assert (upper[0] != lower[0]).any()
    assert not bgr[90:150].any(), 'an object without a track has no trail'


def test_gap_of_an_object_is_bridged_and_the_trail_of_another_is_not():
    trails = Trails()
    trail_image(trails, objects_at((20, 60, 1), (20, 180, 2)), 0.0)
    trail_image(trails, objects_at(), 0.2)
    bgr = trail_image(trails, objects_at((80, 60, 1)), 0.4)
    assert bgr[60, 25:75].any(axis=1).all()
    assert not bgr[150:].any()


@pytest.mark.parametrize(('stamp_s', 'scale'), [(-0.5, 1), (0.1, 2)], ids=['back', 'size'])
def test_trails_begin_again_at_a_cut(stamp_s, scale):
    trails = Trails()
    trail_image(trails, objects_at((20, 60, 1)), 0.0)
    size_wh = SIZE_WH[0] * scale, SIZE_WH[1] * scale
    assert columns_of(trail_image(trails, objects_at((90, 60, 1)), stamp_s, size_wh)) is None
    found = objects_at((110, 60, 1))
    first, last = columns_of(trail_image(trails, found, stamp_s + 0.1, size_wh))
    assert (first, last) == (pytest.approx(90, abs=3), pytest.approx(110, abs=3))


def test_trails_are_limited_at_equal_stamps():
    """Otherwise each image of a camera without a clock would need more memory and time."""
    trails = Trails()
    for step in range(300):
        bgr = trail_image(trails, objects_at((10 + step, 120, 1)), 0.0)
    # 240 positions one pixel apart, up to x = 309.
    first, last = columns_of(bgr)
    assert (first, last) == (pytest.approx(70, abs=3), pytest.approx(309, abs=3))


def test_results_without_ids_have_no_trails():
    trails = Trails()
    trail_image(trails, objects_at((20, 60, 1)), 0.0)
    found = objects_at((90, 60, 1))
    without = Detections(found.xyxy, found.scores, found.class_ids)
    assert columns_of(trail_image(trails, without, 0.1)) is None
    assert columns_of(trail_image(trails, found, 0.2)) is None


def drawn(found):
    bgr = np.zeros((SIZE_WH[1], SIZE_WH[0], 3), np.uint8)
    draw_detections(bgr, found, ['cat'])
    return bgr


def test_each_id_has_its_colour_and_is_part_of_the_label():
    colors = []
    for id_ in (1, 2, -1):
        bgr = drawn(objects_at((160, 120, id_)))
        colors.append(tuple(bgr[125, 160].tolist()))
    assert len(set(colors)) == 3
    widths = [
        np.ptp(np.flatnonzero(drawn(objects_at((160, 120, id_)))[:114].any(axis=(0, 2))))
        for id_ in (-1, 1, 100)
    ]
    assert widths[0] < widths[1] < widths[2]


def test_masks_are_tinted_in_the_colour_of_the_id():
    class Numbers:
        def number(self, out):
            out[:] = 0
            out[200:220, 100:140] = 1

    found = objects_at((40, 60, 2))
    whole = Detections(
        found.xyxy, found.scores, found.class_ids, numbered=Numbers(), ids=found.ids
    )
    bgr = drawn(whole)
    outline = bgr[65, 40].astype(int)
    assert np.abs(bgr[210, 120].astype(int) - outline // 2).max() <= 1


def test_trail_outside_of_the_range_of_opencv_is_drawn():
    trails = Trails()
    trail_image(trails, objects_at((1e9, 60, 1)), 0.0)
    bgr = trail_image(trails, objects_at((100, 60, 1)), 0.1)
    assert columns_of(bgr) is not None
