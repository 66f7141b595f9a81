"""Annotated masks, keypoints and oriented boxes, read with care once it is known what counts.

- Masks: ``segmentation``, polygons or run lengths (text or numbers), at the image's size.
- Keypoints: ``keypoints``, x, y and visibility (0 not labelled, 1 hidden, 2 visible) of each.
- Oriented boxes: ``oriented_bbox``, centre x, centre y, width, height and angle in radians of the
  width's axis, from x to y; else ``segmentation``, one polygon of four corners, of which the
  smallest box around them is taken.

Format: https://cocodataset.org/#format-data.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import cv2
import numpy as np

from trt_perception.errors import ConfigError
from trt_perception.evaluation.coco.annotations import (
    Annotations,
    TrueBox,
    entries_of,
    is_finite,
    read_json,
)
from trt_perception.evaluation.coco.run_lengths import RunLengths, counts_of, text_of
from trt_perception.evaluation.metrics.average_precision import check_pycocotools
from trt_perception.evaluation.metrics.measure import Measure
from trt_perception.files.plain_text import listed, shown
from trt_perception.images.compressed import MAX_PIXELS
from trt_perception.images.frame import MAX_SIDE

__all__ = ['read_shapes']

_BOXES_ONLY: Final = 'annotate them, or measure boxes only (evaluate_engine --boxes-only)'
# Pixels of an object's outline: pycocotools walks along it in fifths, and needs 50 bytes for each.
_LONGEST_OUTLINE: Final = 2**22
# Letters or numbers of a mask's run lengths: each costs a hundred bytes while they are read.
_MOST_RUNS: Final = 2**24
# What is further away is no pixel of any image; its square is still a number.
_FAR: Final = 1e9


def read_shapes(
    annotations: Annotations, measure: Measure, categories: Collection[int]
) -> Annotations:
    """Read what is measured of the objects.

    Args:
        annotations: whose file is read again.
        measure: what is measured; of boxes there is nothing more to read.
        categories: ids of those that are measured; other objects are left as they are.

    Returns:
        The annotations with ``mask``, ``keypoints`` or ``oriented`` of each object. An area that
        the file lacks is the mask's or the oriented box's.

    Raises:
        ConfigError: something of an object is missing, malformed or of another size, or
            pycocotools is not installed.
    """
    if measure.kind == 'boxes':
        return annotations
    check_pycocotools()
    path, content = annotations.path, read_json(annotations.path)
    if measure.kind == 'keypoints':
        _check_names(annotations, content, measure, categories)
    sizes = {image.id: image.size_wh for image in annotations.images}
    objects = {image_id: list(boxes) for image_id, boxes in annotations.boxes.items()}
    seen = dict.fromkeys(objects, 0)
    for where, entry in entries_of(path, content, 'annotations'):
        image_id = entry.get('image_id')
        if (
            type(image_id) is not int
            or image_id not in seen
            or seen[image_id] >= len(objects[image_id])
        ):
            raise ConfigError(str(path), 'it changed while it was read')
        place = seen[image_id]
        seen[image_id] += 1
        box = objects[image_id][place]
        if box.category_id in categories:
            objects[image_id][place] = _with_shape(where, entry, box, measure, sizes[image_id])
    return replace(annotations, boxes={key: tuple(found) for key, found in objects.items()})


def _with_shape(
    where: str,
    entry: Mapping[str, Any],
    box: TrueBox,
    measure: Measure,
    size_wh: tuple[int, int] | None,
) -> TrueBox:
    if measure.kind == 'keypoints':
        return replace(box, keypoints=_keypoints(where, entry, box, len(measure.keypoints)))
    if measure.kind == 'masks':
        runs = _mask(where, entry.get('segmentation'), size_wh)
        area = float(counts_of(runs['counts'])[1::2].sum())
        found = replace(box, mask=runs)
    else:
        oriented = _oriented(where, entry)
        area = oriented[2] * oriented[3]
        found = replace(box, oriented=oriented)
    return found if entry.get('area') is not None else replace(found, area=area)


def _check_names(
    annotations: Annotations, content: Any, measure: Measure, categories: Collection[int]
) -> None:
    """Refuse keypoints that are the model's in another order: they would measure as wrong."""
    for where, entry in entries_of(annotations.path, content, 'categories'):
        names = entry.get('keypoints')
        if entry.get('id') not in categories or not isinstance(names, list):
            continue
        if names != list(measure.keypoints) and set(map(str, names)) == set(measure.keypoints):
            raise ConfigError(
                f'{where}: "keypoints"',
                listed(list(map(str, names)), 5),
                expected=f'the order of the model: {listed(measure.keypoints, 5)}',
                fix='write the keypoints of all annotations in that order',
            )


def _keypoints(
    where: str, entry: Mapping[str, Any], box: TrueBox, count: int
) -> tuple[float, ...]:
    points = entry.get('keypoints')
    if points is None and box.crowd:
        return (0.0,) * 3 * count
    if points is None:
        raise ConfigError(f'{where}: "keypoints"', 'none', expected='a list', fix=_BOXES_ONLY)
    if not isinstance(points, list) or not all(map(is_finite, points)):
        raise ConfigError(f'{where}: "keypoints"', shown(points), expected='a list of numbers')
    if len(points) != 3 * count:
        raise ConfigError(
            f'{where}: "keypoints"',
            f'{len(points)} numbers',
            expected=f'{3 * count}: x, y and visibility of each of the {count} keypoints that '
            'the model has',
            fix='use annotations of the keypoints that the model was trained with',
        )
    if max(map(abs, points)) > _FAR:
        raise ConfigError(f'{where}: "keypoints"', 'a point far outside', expected='pixels')
    if wrong := [flag for flag in points[2::3] if flag not in (0, 1, 2)]:
        raise ConfigError(
            f'{where}: "keypoints"',
            f'a visibility of {wrong[0]}',
            expected='0 (not labelled), 1 (hidden) or 2 (visible)',
        )
    return tuple(map(float, points))


def _oriented(where: str, entry: Mapping[str, Any]) -> tuple[float, ...]:
    given = entry.get('oriented_bbox')
    if given is not None:
        if (
            not isinstance(given, list)
            or len(given) != 5
            or not all(map(is_finite, given))
            or min(given[2:4]) < 0
            or max(map(abs, given)) > _FAR
        ):
            raise ConfigError(
                f'{where}: "oriented_bbox"',
                shown(given),
                expected='[centre x, centre y, width, height, angle in radians]',
            )
        if abs(given[4]) > 2 * math.pi:
            raise ConfigError(
                f'{where}: "oriented_bbox"',
                f'an angle of {shown(given[4])}',
                expected='radians, from -2 pi to 2 pi',
                fix='if these are degrees, multiply all angles by pi / 180',
            )
        return tuple(map(float, given))
    outline = entry.get('segmentation')
    corners = outline[0] if isinstance(outline, list) and len(outline) == 1 else None
    if not isinstance(corners, list) or len(corners) != 8 or not all(map(is_finite, corners)):
        nothing = outline in (None, [])
        raise ConfigError(
            f'{where}: "oriented_bbox"',
            'none' if nothing else 'none, and something else in "segmentation"',
            expected='[centre x, centre y, width, height, angle in radians], or in "segmentation" '
            'one polygon of four corners, [[x, y, x, y, x, y, x, y]]',
            fix=_BOXES_ONLY,
        )
    points = np.clip(corners, -1e6, 1e6).astype(np.float32).reshape(4, 1, 2)
    (x, y), (width, height), degrees = cv2.minAreaRect(points)
    return x, y, width, height, float(np.radians(degrees))


def _mask(where: str, outline: Any, size_wh: tuple[int, int] | None) -> RunLengths:
    where = f'{where}: "segmentation"'
    if outline in (None, []):
        raise ConfigError(where, 'none', expected='polygons or run lengths', fix=_BOXES_ONLY)
    if size_wh is None:
        raise ConfigError(where, 'the image has no "width" and "height"', fix='add them')
    width, height = size_wh
    # pycocotools needs four bytes for each pixel, and ends the process where it gets none.
    if width * height > MAX_PIXELS or max(size_wh) > MAX_SIDE:
        raise ConfigError(
            where,
            f'an image of {width}x{height}',
            expected=f'at most {MAX_PIXELS} pixels, and {MAX_SIDE} a side',
        )
    if isinstance(outline, dict):
        return _run_lengths(where, outline, size_wh)
    return _of_polygons(where, outline, size_wh)


def _of_polygons(where: str, outline: Any, size_wh: tuple[int, int]) -> RunLengths:
    width, height = size_wh
    polygons = outline if isinstance(outline, list) else [None]
    for polygon in polygons:
        if (
            not isinstance(polygon, list)
            or len(polygon) < 6
            or len(polygon) % 2
            or not all(map(is_finite, polygon))
        ):
            raise ConfigError(
                where,
                shown(polygon),
                expected='polygons, lists of x, y, x, y … of three points or more; or run lengths',
            )
        # Work and memory of drawing it grow with its length.
        if min(polygon) < -max(size_wh) or max(polygon) > 2 * max(size_wh):
            raise ConfigError(
                where, 'a point far outside', expected=f'points within {width}x{height} pixels'
            )
    if sum(map(_length, polygons)) > _LONGEST_OUTLINE:
        raise ConfigError(
            where, 'a longer outline', expected=f'one of at most {_LONGEST_OUTLINE} pixels'
        )
    mask: Any = importlib.import_module('pycocotools.mask')
    runs = mask.merge(mask.frPyObjects(polygons, height, width))
    return {'size': [height, width], 'counts': runs['counts'].decode('ascii')}


def _length(polygon: Sequence[float]) -> float:
    """Return how many pixels a polygon's outline has."""
    points = np.array(polygon, np.float64).reshape(-1, 2)
    return float(np.abs(points - np.roll(points, 1, axis=0)).max(axis=1).sum())


def _run_lengths(where: str, outline: dict[str, Any], size_wh: tuple[int, int]) -> RunLengths:
    size, counts = outline.get('size'), outline.get('counts')
    width, height = size_wh
    if size != [height, width]:
        raise ConfigError(
            where,
            f'a mask of the size {shown(size)}',
            expected=f'[{height}, {width}], height and width of the image',
            fix='use annotations made for images of this size',
        )
    try:
        if isinstance(counts, str | list) and len(counts) > _MOST_RUNS:
            raise ValueError(f'more than {_MOST_RUNS} of them')
        if isinstance(counts, str):
            runs = counts_of(counts)
        elif isinstance(counts, list) and all(type(one) is int for one in counts):
            runs = np.array(counts, np.int64)
        else:
            raise ValueError('neither text nor whole numbers')
        if not runs.size or runs.min() < 0 or runs.max() > width * height:
            raise ValueError('a run longer than the image')
        if runs.sum() != width * height:
            raise ValueError(f'{runs.sum()} pixels')
    except (OverflowError, ValueError) as error:
        raise ConfigError(
            f'{where}: "counts"',
            str(error),
            expected=f'run lengths of {width * height} pixels together',
        ) from error
    return {'size': [height, width], 'counts': text_of(runs)}
