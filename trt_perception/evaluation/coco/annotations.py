"""COCO's annotation file, read with care, and detections written in COCO's forms.

Guarantee: Annotations that exist are whole: ids differ, each box is finite and belongs to an image
and a category that are listed. Segmentations and keypoints are left to ``true_shapes``.

Format: https://cocodataset.org/#format-data and #format-results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ConfigError
from trt_perception.evaluation.coco.run_lengths import MaskedDetections, RunLengths
from trt_perception.files.json_section import parse_json
from trt_perception.files.plain_text import MAX_CLASSES, MAX_PATH_LENGTH, name_fault, shown
from trt_perception.files.regular_files import read_given
from trt_perception.images.detections import Detections, oriented_corners

__all__ = [
    'Annotations',
    'CocoImage',
    'TrueBox',
    'coco_rows',
    'entries_of',
    'is_finite',
    'read_annotations',
    'read_json',
]

# The largest file of COCO's own has 470 MB; its reader needs several times as much memory.
MAX_BYTES: Final = 1024**3
_MAX_ID: Final = 2**53
# Scores of keypoints from which on they are called visible.
_VISIBLE: Final = 0.5


@dataclass(frozen=True)
class CocoImage:
    """One image that was annotated.

    Attributes:
        id: as other parts of the file name it.
        file_name: below the folder of images, with slashes.
        size_wh: in pixels, None where the file does not say.
    """

    id: int
    file_name: str
    size_wh: tuple[int, int] | None


@dataclass(frozen=True)
class TrueBox:
    """One annotated object.

    Attributes:
        category_id: what it is.
        xywh: left, top, width, height in source pixels; the size may be 0.
        area: square pixels, of the object's outline where the file has one.
        crowd: many objects in one box: it counts neither as found nor as missed, and detections
            within it are no mistakes.
        mask: where ``true_shapes`` read masks.
        keypoints: where it read them: x, y and visibility of each, 0 not labelled, in turns.
        oriented: where it read oriented boxes: centre x, centre y, width, height and angle.
    """

    category_id: int
    xywh: tuple[float, float, float, float]
    area: float
    crowd: bool
    mask: RunLengths | None = None
    keypoints: tuple[float, ...] | None = None
    oriented: tuple[float, ...] | None = None

    @property
    def is_ignored(self) -> bool:
        """Whether it counts neither as found nor as missed: a crowd, or no keypoint labelled."""
        return self.crowd or (self.keypoints is not None and not any(self.keypoints[2::3]))


@dataclass(frozen=True)
class Annotations:
    """What is in the images, according to a file.

    Attributes:
        path: the file.
        images: in the file's order.
        categories: names by id.
        boxes: the objects of each image by the image's id; an image without objects is missing.
    """

    path: Path
    images: tuple[CocoImage, ...]
    categories: Mapping[int, str]
    boxes: Mapping[int, tuple[TrueBox, ...]]


def read_annotations(path: Path) -> Annotations:
    """Read a COCO annotation file of boxes.

    Raises:
        ConfigError: it cannot be read, or something in it is missing, malformed or contradictory.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        found = f'a {type(content).__name__}'
        if isinstance(content, list):
            found = 'a list, as detections are written'
        raise ConfigError(str(path), found, expected='COCO annotations, a JSON object')
    images: dict[int, CocoImage] = {}
    for where, entry in entries_of(path, content, 'images'):
        image = CocoImage(_id(where, entry, 'id'), _file_name(where, entry), _size(where, entry))
        if image.id in images:
            raise ConfigError(where, f'id {image.id} is listed twice')
        images[image.id] = image
    categories = _categories(path, content)
    if not images or not categories:
        empty = 'images' if not images else 'categories'
        raise ConfigError(str(path), f'"{empty}" is empty, so there is nothing to compare with')
    boxes: dict[int, list[TrueBox]] = {}
    for where, entry in entries_of(path, content, 'annotations'):
        image_id, box = _id(where, entry, 'image_id'), _box(where, entry)
        for key, value, known in (
            ('image_id', image_id, images),
            ('category_id', box.category_id, categories),
        ):
            if value not in known:
                raise ConfigError(where, f'"{key}" {value} is not listed in the file')
        boxes.setdefault(image_id, []).append(box)
    if not boxes:
        raise ConfigError(str(path), '"annotations" is empty, so nothing can be measured')
    _check_form(path, images, boxes)
    whole = {image_id: tuple(found) for image_id, found in boxes.items()}
    return Annotations(path, tuple(images.values()), categories, whole)


def _categories(path: Path, content: dict[str, Any]) -> dict[int, str]:
    """Return the names of the categories by id."""
    categories: dict[int, str] = {}
    for where, entry in entries_of(path, content, 'categories', MAX_CLASSES):
        category_id, name = _id(where, entry, 'id'), entry.get('name')
        if fault := name_fault(name):
            raise ConfigError(f'{where}: "name"', **fault)
        if category_id in categories:
            raise ConfigError(where, f'id {category_id} is listed twice')
        categories[category_id] = str(name)
    return categories


def _check_form(
    path: Path, images: Mapping[int, CocoImage], boxes: Mapping[int, Sequence[TrueBox]]
) -> None:
    """Refuse boxes that other formats write: they would measure as 0 and nobody would know why."""
    every = [(images[id_].size_wh, box.xywh) for id_, found in boxes.items() for box in found]
    if all(max(xywh) <= 1 for _, xywh in every):
        raise ConfigError(
            f'{path}: "bbox"',
            f'fractions of the image, as {every[0][1]}',
            expected='pixels',
            fix='multiply them by its width and height',
        )
    sized = [(size, xywh) for size, xywh in every if size is not None]
    beyond = [
        (size, xywh)
        for size, xywh in sized
        if xywh[0] + xywh[2] > size[0] + 1 or xywh[1] + xywh[3] > size[1] + 1
    ]
    if 2 * len(beyond) > len(sized):
        (width, height), xywh = beyond[0]
        raise ConfigError(
            f'{path}: "bbox"',
            f'{len(beyond)} of {len(sized)} reach beyond their image, as {xywh} in '
            f'{width}x{height}',
            expected='[left, top, width, height]',
            fix='correct the boxes if they are [left, top, right, bottom], or the size of the '
            'images',
        )


def read_json(path: Path, limit: int = MAX_BYTES) -> Any:
    """Read a JSON file of limited size.

    Raises:
        ConfigError: it cannot be opened, is not a regular file, too large or not JSON.
    """
    try:
        return parse_json(read_given(path, limit))
    except ValueError as error:
        raise ConfigError(str(path), f'is not JSON: {error}') from error


def coco_rows(
    image_id: int,
    detections: Detections,
    category_ids: Sequence[int | None],
) -> list[dict[str, Any]]:
    """Return detections as COCO's results: image_id, category_id, bbox and score.

    Metrics are computed from these very rows, so whoever reads them again gets the same figures.

    Args:
        image_id: of the image.
        detections: in source pixels.
        category_ids: of each class of the model; detections of a class with None are left out.

    Returns:
        ``bbox`` is left, top, width, height in source pixels, to 1e-4; ``score`` to 1e-7. Of
        poses also ``keypoints``: x, y and COCO's visibility of each, 2 from a score of 0.5 on,
        else 1; and ``keypoint_scores``. Of oriented boxes, whose ``bbox`` is upright, also
        ``oriented_bbox``: centre x, centre y, width, height, angle in radians; and their corners
        as ``segmentation``, one polygon. Of ``MaskedDetections`` that is the run lengths.
    """
    xywh: npt.NDArray[np.float64] = detections.xyxy.astype(np.float64)
    xywh[:, 2:] -= xywh[:, :2]
    boxes: list[list[float]] = xywh.round(4).tolist()
    scores: list[float] = detections.scores.astype(np.float64).round(7).tolist()
    ids = [category_ids[class_id] for class_id in detections.class_ids]
    rows: list[dict[str, Any]] = [
        {'image_id': image_id, 'category_id': category_id, 'bbox': box, 'score': score}
        for category_id, box, score in zip(ids, boxes, scores, strict=True)
    ]
    if detections.keypoints is not None:
        points = detections.keypoints.astype(np.float64)
        visible = np.where(points[:, :, 2] >= _VISIBLE, 2, 1)
        for row, places, flags, likely in zip(
            rows,
            points[:, :, :2].round(4).tolist(),
            visible.tolist(),
            points[:, :, 2],
            strict=True,
        ):
            row['keypoints'] = [
                value for (x, y), flag in zip(places, flags, strict=True) for value in (x, y, flag)
            ]
            row['keypoint_scores'] = likely.round(7).tolist()
    if detections.oriented is not None:
        corners = oriented_corners(detections.oriented).astype(np.float64).reshape(-1, 8)
        turned = detections.oriented.astype(np.float64)
        for row, outline, box in zip(rows, corners.round(4), turned.round(6), strict=True):
            row['oriented_bbox'] = box.tolist()
            row['segmentation'] = [outline.tolist()]
    if isinstance(detections, MaskedDetections):
        for row, runs in zip(rows, detections.runs, strict=True):
            row['segmentation'] = runs
    return [row for row in rows if row['category_id'] is not None]


def entries_of(
    path: Path, content: dict[str, Any], key: str, most: int = _MAX_ID
) -> list[tuple[str, dict[str, Any]]]:
    """Return the objects of one list, each with the words that errors name it by."""
    entries = content.get(key)
    if not isinstance(entries, list):
        found = 'none' if entries is None else f'a {type(entries).__name__}'
        raise ConfigError(
            f'{path}: "{key}"',
            found,
            expected='a list; COCO annotations have the lists "images", "annotations" and '
            '"categories"',
        )
    if len(entries) > most:
        raise ConfigError(
            f'{path}: "{key}"', str(len(entries)), expected=f'at most {most} entries'
        )
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise ConfigError(f'{path}: {key}[{index}]', shown(entry), expected='a JSON object')
    return [(f'{path}: {key}[{index}]', entry) for index, entry in enumerate(entries)]


def _id(where: str, entry: dict[str, Any], key: str) -> int:
    value = entry.get(key)
    if type(value) is not int or abs(value) > _MAX_ID:
        raise ConfigError(f'{where}: "{key}"', shown(value), expected='a whole number')
    return value


def _file_name(where: str, entry: dict[str, Any]) -> str:
    name = entry.get('file_name')
    if fault := name_fault(name, MAX_PATH_LENGTH):
        raise ConfigError(f'{where}: "file_name"', **fault)
    return str(name).replace('\\', '/')  # as tools on Windows write it


def _size(where: str, entry: dict[str, Any]) -> tuple[int, int] | None:
    size = entry.get('width'), entry.get('height')
    if size == (None, None):
        return None
    if not all(type(side) is int and 1 <= side <= _MAX_ID for side in size):
        raise ConfigError(
            f'{where}: "width" and "height"',
            f'{shown(size[0])} and {shown(size[1])}',
            expected='whole pixels',
        )
    return int(size[0] or 0), int(size[1] or 0)


def _box(where: str, entry: dict[str, Any]) -> TrueBox:
    bbox = entry.get('bbox')
    if not isinstance(bbox, list) or len(bbox) != 4 or not all(map(is_finite, bbox)):
        raise ConfigError(
            f'{where}: "bbox"',
            shown(bbox),
            expected='[left, top, width, height], finite numbers in pixels',
        )
    left, top, width, height = (float(value) for value in bbox)
    if width < 0 or height < 0:
        raise ConfigError(f'{where}: "bbox"', shown(bbox), expected='no negative size')
    area = entry.get('area')
    if area is None:
        area = width * height
    if not is_finite(area) or area < 0:
        raise ConfigError(
            f'{where}: "area"', shown(area), expected='a finite number, not negative'
        )
    crowd = entry.get('iscrowd', 0)
    if crowd not in (0, 1):
        raise ConfigError(f'{where}: "iscrowd"', shown(crowd), expected='0 or 1')
    category_id = _id(where, entry, 'category_id')
    return TrueBox(category_id, (left, top, width, height), float(area), bool(crowd))


def is_finite(value: object) -> bool:
    """Tell whether JSON's value is a number that a float can hold."""
    try:
        return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    except OverflowError:  # JSON's whole numbers have no limit
        return False
