# SPDX-License-Identifier: Apache-2.0
"""Measures masks by the IoU of their pixels.

An annotation has ``segmentation``: polygons or run lengths (text or numbers), in the size of the
image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np

from trt_perception.images.compressed import MAX_PIXELS
from trt_perception.images.frame import MAX_SIDE
from trt_perception.offline.evaluation.coco.annotations import AnnotatedObject
from trt_perception.offline.evaluation.coco.library import check_pycocotools, pycocotools_module
from trt_perception.offline.evaluation.coco.run_lengths import (
    RunLengths,
    decode_counts,
    encode_counts,
)
from trt_perception.offline.evaluation.coco.section import CocoSection, is_finite
from trt_perception.offline.evaluation.metrics.measure import BOXES_ONLY_FIX, Measure
from trt_perception.offline.evaluation.metrics.shapes import Floats, Shapes, box_iou

_MASK_KEY: Final = 'segmentation'
# Maximum length of an object's outline. pycocotools samples five points per pixel and needs about
# 50 bytes per pixel.
_MAX_OUTLINE_PIXELS: Final = 2**22
# Maximum number of characters or integers in a mask's run lengths. Each needs 100 bytes.
_MAX_RUNS: Final = 2**24


@dataclass(frozen=True)
class Masks(Measure):
    """Measures objects by their masks."""

    kind: ClassVar[str] = 'masks'
    coco_kind: ClassVar[str] = 'segm'
    has_shapes: ClassVar[bool] = True
    has_masks: ClassVar[bool] = True

    @classmethod
    def for_model(cls, keypoint_names: Sequence[str], sigmas: Sequence[float]) -> Measure:
        """Return the measure of a model; see ``Measure.for_model``.

        Raises:
            ConfigError: pycocotools is not installed.
        """
        check_pycocotools()
        return super().for_model(keypoint_names, sigmas)

    def read_shape(
        self, entry: CocoSection, box: AnnotatedObject, size_wh: tuple[int, int] | None
    ) -> AnnotatedObject:
        """Return a copy of an object with its mask, as text of run lengths."""
        outline = entry.get(_MASK_KEY)
        if outline in (None, []):
            raise entry.error_at(_MASK_KEY, 'none', 'polygons or run lengths', BOXES_ONLY_FIX)
        if size_wh is None:
            raise entry.error_at(
                _MASK_KEY, 'the image has no "width" and "height"', '', 'add both to the image'
            )
        width, height = size_wh
        # pycocotools needs 4 bytes per pixel, and aborts the process if the allocation fails.
        if width * height > MAX_PIXELS or max(size_wh) > MAX_SIDE:
            expected = f'at most {MAX_PIXELS} pixels, and {MAX_SIDE} a side'
            raise entry.error_at(_MASK_KEY, f'an image of {width}x{height}', expected)
        read = _check_run_lengths if isinstance(outline, dict) else _fill_polygons
        return replace(box, mask=read(entry, outline, size_wh))

    def shape_area(self, box: AnnotatedObject) -> float:
        """Return the number of pixels of the mask."""
        return float(pycocotools_module('mask').area(box.mask))

    def extra_pycocotools_fields(self, box: AnnotatedObject) -> dict[str, Any]:
        """Return the mask."""
        return {_MASK_KEY: box.mask}

    def detection_area(self, row: Mapping[str, Any]) -> float:
        """Return the number of pixels of the mask."""
        return float(pycocotools_module('mask').area(row[_MASK_KEY]))

    def overlaps(self, one: Shapes, other: Shapes) -> Floats:
        """Return the IoU of masks, or of the boxes if both masks are empty."""
        area = pycocotools_module('mask').area
        own, others = (np.array(area(list(side.masks)), np.float64) for side in (one, other))
        empty = own[:, None] + others == 0
        iou = _mask_iou(one.masks, other.masks, relative_to_first=False)
        return np.where(empty, box_iou(one.xyxy, other.xyxy), iou) if empty.any() else iou

    def share_inside(self, one: Shapes, regions: Shapes) -> Floats:
        """Return the share of each mask's pixels inside each region."""
        return _mask_iou(one.masks, regions.masks, relative_to_first=True)


def _mask_iou(
    one: Sequence[RunLengths], other: Sequence[RunLengths], *, relative_to_first: bool
) -> Floats:
    """Return the IoU of all pairs: float64 (n, m).

    Args:
        relative_to_first: whether to divide by the area of the first mask instead of the union.
    """
    if not one or not other:
        return np.zeros((len(one), len(other)))
    iou = pycocotools_module('mask').iou(
        list(one), list(other), [int(relative_to_first)] * len(other)
    )
    # pycocotools returns NaN for the share of an empty mask.
    return np.nan_to_num(np.asarray(iou, np.float64))


def _fill_polygons(entry: CocoSection, outline: Any, size_wh: tuple[int, int]) -> RunLengths:
    width, height = size_wh
    polygons = outline if isinstance(outline, list) else [None]
    for polygon in polygons:
        if (
            not isinstance(polygon, list)
            or len(polygon) < 6
            or len(polygon) % 2
            or not all(map(is_finite, polygon))
        ):
            expected = 'polygons of at least three points, as lists x, y, x, y …; or run lengths'
            raise entry.wrong_value_error(_MASK_KEY, polygon, expected)
        # Drawing a polygon takes time and memory in proportion to the length of its outline.
        if min(polygon) < -max(size_wh) or max(polygon) > 2 * max(size_wh):
            expected = f'points within {width}x{height} pixels'
            raise entry.error_at(_MASK_KEY, 'a point far outside the image', expected)
    if sum(map(_outline_length, polygons)) > _MAX_OUTLINE_PIXELS:
        expected = f'an outline of at most {_MAX_OUTLINE_PIXELS} pixels'
        raise entry.error_at(_MASK_KEY, 'a longer outline', expected)
    mask = pycocotools_module('mask')
    runs = mask.merge(mask.frPyObjects(polygons, height, width))
    return {'size': [height, width], 'counts': runs['counts'].decode('ascii')}


def _outline_length(polygon: Sequence[float]) -> float:
    """Return the length of a polygon's outline in pixels."""
    points = np.array(polygon, np.float64).reshape(-1, 2)
    return float(np.abs(points - np.roll(points, 1, axis=0)).max(axis=1).sum())


def _check_run_lengths(
    entry: CocoSection, outline: dict[str, Any], size_wh: tuple[int, int]
) -> RunLengths:
    """Return valid run lengths as text. pycocotools reads out of bounds if a text is invalid."""
    size, counts = outline.get('size'), outline.get('counts')
    width, height = size_wh
    if size != [height, width]:
        found = f'a mask of the size {entry.format_value(size)}'
        expected = f'[{height}, {width}], height and width of the image'
        raise entry.error_at(
            _MASK_KEY, found, expected, 'use annotations made for images of this size'
        )
    try:
        runs = _read_counts(counts, width * height)
    except ValueError as error:
        expected = f'run lengths of {width * height} pixels in total'
        where = f'{entry.subject(_MASK_KEY)}: "counts"'
        raise entry.error(where, str(error), expected=expected) from error
    return {'size': [height, width], 'counts': encode_counts(runs)}


def _read_counts(counts: object, pixels: int) -> Any:
    """Return run lengths, int64 (r,), whose sum is ``pixels``.

    Raises:
        ValueError: the run lengths are invalid.
    """
    if isinstance(counts, str | list) and len(counts) > _MAX_RUNS:
        raise ValueError(f'more than {_MAX_RUNS} run lengths')
    if isinstance(counts, str):
        runs = decode_counts(counts)
    elif isinstance(counts, list) and all(type(one) is int for one in counts):
        # Clip first, because an integer in JSON may exceed 64 bits.
        runs = np.array([max(-1, min(one, pixels + 1)) for one in counts], np.int64)
    else:
        raise ValueError('neither text nor integers')
    if not runs.size or runs.min() < 0 or runs.max() > pixels:
        raise ValueError('a run longer than the image')
    if runs.sum() != pixels:
        raise ValueError(f'{runs.sum()} pixels')
    return runs
