# SPDX-License-Identifier: Apache-2.0
"""Draw detections, classes and depth into an image."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.images.detections import Detections, NumberedMasks, oriented_corners
from trt_perception.images.results.image_limits import row_strips
from trt_perception.images.text import drawable_name, put_text, text_size

#: The positions of keypoints with lower scores are arbitrary.
MIN_KEYPOINT_SCORE = 0.25
# The legend of a class map lists at most this many classes.
_MAX_LEGEND_CLASSES = 12
# BGR colours of the first classes. In CIELAB, two colours differ by at least 32, and within the
# first 11 by at least 47. The lightness is at least 60, so that black text is readable on them.
_FIRST_COLORS = (
    *((0, 90, 255), (255, 150, 0), (45, 255, 75), (255, 0, 255), (165, 255, 225)),
    *((255, 240, 30), (240, 150, 255), (0, 255, 255), (120, 90, 255), (120, 180, 255)),
    *((165, 255, 0), (255, 195, 195), (0, 165, 255), (255, 105, 195), (180, 165, 255)),
    *((195, 60, 255), (90, 225, 255), (255, 195, 45), (90, 255, 180), (210, 255, 150)),
)
_NO_TRACK_COLOR = (200, 200, 200)
# OpenCV computes in 32 bits. Points at this coordinate are outside all images.
_MAX_DRAWN_COORDINATE = 2.0**20


def draw_detections(
    bgr: npt.NDArray[np.uint8],
    detections: Detections,
    class_names: Sequence[str],
    skeleton: Sequence[tuple[int, int]] = (),
) -> None:
    """Draw masks, boxes or oriented boxes, class names, scores and keypoints into an image.

    Keypoints with a score below 0.25 are not drawn, nor are their lines. With a tracker, labels
    begin with the id, and each id has its own colour instead of each class.

    Args:
        bgr: uint8 (height, width, 3), BGR, contiguous. Changed in place.
        detections: the objects, in pixels of this image.
        skeleton: pairs of keypoint indices to connect by lines.
    """
    colors = object_colors(detections)
    numbered = detections.pictured
    if numbered is not None:
        _draw_masks(bgr, numbered, colors)
    turned = None if detections.oriented is None else oriented_corners(detections.oriented)
    for index, color in enumerate(colors):
        corners = None if turned is None else turned[index]
        draw_box(bgr, detections.xyxy[index], '', color, corners=corners)
    if detections.keypoints is not None:
        for points, color in zip(detections.keypoints, colors, strict=True):
            _draw_keypoints(bgr, points, skeleton, color)
    # Labels come last, because no line or keypoint may cover a label.
    ids = [-1] * len(detections) if detections.ids is None else detections.ids.tolist()
    rows = zip(detections.xyxy, detections.scores, detections.class_ids.tolist(), strict=True)
    for (xyxy, score, class_id), id_, color in zip(rows, ids, colors, strict=True):
        name = drawable_name(class_names[class_id], class_id)
        _draw_label(bgr, xyxy, object_label(name, score, id_), color)


def draw_trail(
    bgr: npt.NDArray[np.uint8], points: Sequence[tuple[float, float]], track_id: int
) -> None:
    """Draw a line through the positions of a tracked object, in the colour of its id.

    Args:
        bgr: uint8 (height, width, 3), BGR, contiguous. Changed in place.
        points: x and y in pixels, oldest first.
    """
    outline = np.rint(np.array(points).clip(-_MAX_DRAWN_COORDINATE, _MAX_DRAWN_COORDINATE))
    thickness = 2 * _line_width(bgr)
    line = [outline.astype(np.int32)]
    cv2.polylines(bgr, line, False, track_color(track_id), thickness, cv2.LINE_AA)


def object_label(name: str, score: float, track_id: int) -> str:
    """Return the label of an object: ``#3 person 0.87``; without the id if it is below 1."""
    number = f'#{track_id} ' if track_id > 0 else ''
    return f'{number}{name} {score:.2f}'


def object_colors(detections: Detections) -> list[tuple[int, int, int]]:
    """Return the BGR colour of each object: that of its class, or of its id with a tracker."""
    if detections.ids is None:
        return [class_color(class_id) for class_id in detections.class_ids.tolist()]
    return [track_color(id_) for id_ in detections.ids.tolist()]


def track_color(track_id: int) -> tuple[int, int, int]:
    """Return the BGR colour of an id; light grey for an object without a confirmed track."""
    return class_color(track_id - 1) if track_id > 0 else _NO_TRACK_COLOR


def _draw_masks(
    bgr: npt.NDArray[np.uint8],
    numbered: NumberedMasks,
    colors_of_masks: Sequence[tuple[int, int, int]],
) -> None:
    """Tint each pixel in the colour of its mask. The best mask wins."""
    numbers = np.empty(bgr.shape[:2], np.uint16)
    numbered.number(numbers)
    colors = np.array([(0, 0, 0), *colors_of_masks], np.uint8)
    for rows in row_strips(_size_wh(bgr)):
        strip, within = bgr[rows], numbers[rows] > 0
        strip[within] = strip[within] // 2 + colors[numbers[rows][within]] // 2


def draw_class_list(
    bgr: npt.NDArray[np.uint8], lines: Sequence[str], class_ids: Sequence[int]
) -> None:
    """Draw lines of text into the upper left corner, each on the colour of its class.

    Args:
        bgr: uint8 (height, width, 3), BGR, contiguous. Changed in place.
        lines: one text for each class.
    """
    row_height = 20 * _line_width(bgr)
    for row, (line, class_id) in enumerate(zip(lines, class_ids, strict=True)):
        bottom = (row + 1) * row_height
        _draw_label(bgr, (0, bottom, 0, bottom), line, class_color(class_id))


def draw_class_map(
    bgr: npt.NDArray[np.uint8], class_ids: npt.NDArray[np.uint8], class_names: Sequence[str]
) -> None:
    """Tint each pixel in the colour of its class, and list the classes with their shares.

    Pixels of a class named ``background`` keep their colours, and the list omits this class.

    Args:
        bgr: uint8 (height, width, 3), BGR, contiguous. Changed in place.
        class_ids: uint8 (height, width).
    """
    is_background = np.array([name.lower() == 'background' for name in class_names])
    colors = np.array([class_color(class_id) for class_id in range(len(class_names))], np.uint8)
    pixel_counts = np.zeros(len(class_names), np.int64)
    for rows in row_strips(_size_wh(bgr)):
        strip, ids = bgr[rows], class_ids[rows]
        is_tinted = ~is_background[ids]
        np.copyto(strip, strip // 2 + (colors // 2)[ids], where=is_tinted[..., None])
        pixel_counts += np.bincount(ids.ravel(), minlength=len(class_names))
    pixel_counts[is_background] = 0
    largest = np.argsort(-pixel_counts, kind='stable')[:_MAX_LEGEND_CLASSES]
    shown = [int(class_id) for class_id in largest if pixel_counts[class_id]]
    lines = [
        f'{drawable_name(class_names[id_], id_)}: {pixel_counts[id_] / class_ids.size:.1%}'
        for id_ in shown
    ]
    draw_class_list(bgr, lines, shown)


def draw_depth(bgr: npt.NDArray[np.uint8], depth: npt.NDArray[np.float32], unit: str = '') -> None:
    """Replace the pixels by colours from the lowest to the highest depth, below a scale.

    Pixels without a finite depth become black.

    Args:
        bgr: uint8 (height, width, 3), BGR, contiguous. Changed in place.
        depth: float32 (height, width).
        unit: text after the numbers of the scale.
    """
    low, high = _finite_limits(depth)
    for rows in row_strips(_size_wh(bgr)):
        strip, is_finite = bgr[rows], np.isfinite(depth[rows])
        # float32 cannot hold the difference of two very large depths.
        heights = np.subtract(depth[rows], low, dtype=np.float64)
        levels = np.where(is_finite, heights * (255 / max(float(high) - float(low), 1e-9)), 0)
        cv2.applyColorMap(levels.astype(np.uint8), cv2.COLORMAP_TURBO, strip)
        strip[~is_finite] = 0
    row_height = 20 * _line_width(bgr)
    width = bgr.shape[1]
    bar = np.linspace(0, 255, min(width, max(2, width // 3))).astype(np.uint8)[None]
    bgr[:row_height, : bar.size] = cv2.applyColorMap(bar, cv2.COLORMAP_TURBO)[0]
    for value, left in ((low, 0), (high, bar.size)):
        text_box = left, 2 * row_height, 0, 0
        _draw_label(bgr, text_box, f'{value:.2f}{unit}', (255, 255, 255))


def _finite_limits(depth: npt.NDArray[np.float32]) -> tuple[Any, Any]:
    """Return the lowest and the highest finite depth as float32; 0 and 0 if there is none."""
    limits = []
    for rows in row_strips(_size_wh(depth)):
        finite = depth[rows][np.isfinite(depth[rows])]
        if finite.size:
            limits += [finite.min(), finite.max()]
    return (min(limits), max(limits)) if limits else (0, 0)


def _size_wh(image: npt.NDArray[Any]) -> tuple[int, int]:
    return image.shape[1], image.shape[0]


def _draw_keypoints(
    bgr: npt.NDArray[np.uint8],
    points: npt.NDArray[np.float32],
    skeleton: Sequence[tuple[int, int]],
    color: tuple[int, int, int],
) -> None:
    """Draw the keypoints of one object, float32 (k, 3): x, y and score, and their lines."""
    thickness = _line_width(bgr)
    places = [(round(float(x)), round(float(y))) for x, y, _ in points]
    seen = points[:, 2] >= MIN_KEYPOINT_SCORE
    for first, second in skeleton:
        if seen[first] and seen[second]:
            cv2.line(bgr, places[first], places[second], color, thickness, cv2.LINE_AA)
    for place, is_seen in zip(places, seen, strict=True):
        if is_seen:
            cv2.circle(bgr, place, 3 * thickness, color, cv2.FILLED, cv2.LINE_AA)
            cv2.circle(bgr, place, thickness, (255, 255, 255), cv2.FILLED, cv2.LINE_AA)


def line_width(size_wh: tuple[int, int]) -> int:
    """Return the line width for an image in pixels: 1 per 640 pixels of its longer side."""
    return max(1, round(max(size_wh) / 640))


def _line_width(bgr: npt.NDArray[np.uint8]) -> int:
    return line_width(_size_wh(bgr))


def _rounded_box(xyxy: Iterable[float]) -> list[int]:
    """Return the sides of a box as coordinates that OpenCV can draw."""
    return [
        round(min(max(float(side), -_MAX_DRAWN_COORDINATE), _MAX_DRAWN_COORDINATE))
        for side in xyxy
    ]


def draw_box(
    bgr: npt.NDArray[np.uint8],
    xyxy: Iterable[float],
    label: str,
    color: tuple[int, int, int],
    weight: int = 1,
    corners: npt.NDArray[np.float32] | None = None,
) -> None:
    """Draw one box and its label into an image. Line and text sizes grow with the image.

    Args:
        bgr: uint8 (height, width, 3), BGR, contiguous. Changed in place.
        xyxy: left, top, right, bottom in pixels of this image.
        label: text above the box, or inside it at the top border of the image. Moved to the left
            at the right border. May be empty.
        color: BGR. Should be bright, because the label is black on this colour.
        weight: line width relative to the usual line of this image.
        corners: float32 (4, 2), corners of an oriented box to draw instead. The label stays at
            ``xyxy``.
    """
    thickness = _line_width(bgr)
    left, top, right, bottom = _rounded_box(xyxy)
    if corners is None:
        cv2.rectangle(bgr, (left, top), (right, bottom), color, weight * thickness)
    else:
        outline = np.rint(corners.clip(-_MAX_DRAWN_COORDINATE, _MAX_DRAWN_COORDINATE)).astype(
            np.int32
        )
        cv2.polylines(bgr, [outline], True, color, weight * thickness)
    if label:
        _draw_label(bgr, xyxy, label, color)


def _draw_label(
    bgr: npt.NDArray[np.uint8], xyxy: Iterable[float], label: str, color: tuple[int, int, int]
) -> None:
    """Draw the label of a box, with the arguments of `draw_box`."""
    thickness = _line_width(bgr)
    size = 0.45 * thickness
    left, top, _, _ = _rounded_box(xyxy)
    (width, height), below = text_size(label, size, thickness)
    base = top - below if top >= height + below else top + height
    left = max(0, min(left, bgr.shape[1] - width))
    cv2.rectangle(bgr, (left, base - height), (left + width, base + below), color, cv2.FILLED)
    put_text(bgr, label, (left, base), size, (0, 0, 0), thickness)


def class_color(class_id: int) -> tuple[int, int, int]:
    """Return the bright BGR colour of a class.

    From the 21st class on, the hues of consecutive classes differ by the golden angle.
    """
    if class_id < len(_FIRST_COLORS):
        return _FIRST_COLORS[class_id]
    red, green, blue = colorsys.hsv_to_rgb(class_id * 0.381966 % 1.0, 0.65, 1.0)
    return int(255 * blue), int(255 * green), int(255 * red)
