# SPDX-License-Identifier: Apache-2.0
"""Reads and checks COCO annotation files.

Guarantee: annotations are consistent. Ids are unique. Each box is finite and refers to a listed
image and category. ``read_shapes`` reads segmentations and keypoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import MAX_CLASSES, MAX_PATH_LENGTH, name_mistake, short_repr
from trt_perception.offline.evaluation.coco.run_lengths import RunLengths
from trt_perception.offline.evaluation.coco.section import (
    MAX_COORDINATE,
    MAX_ID,
    CocoSection,
    is_finite,
    read_coco,
)


@dataclass(frozen=True)
class CocoImage:
    """One annotated image.

    Attributes:
        file_name: path below the image folder, with slashes.
        size_wh: width and height in pixels; None if the file does not contain them.
    """

    id: int
    file_name: str
    size_wh: tuple[int, int] | None


@dataclass(frozen=True)
class AnnotatedObject:
    """One annotated object.

    Attributes:
        xywh: left, top, width, height in source pixels. Width and height may be 0.
        area: square pixels, from the file; if missing, of the box, mask or oriented box.
        crowd: whether the box contains many objects. A crowd is never found or missed, and
            detections inside it are not mistakes.
        mask: run lengths; None if ``read_shapes`` read no masks.
        keypoints: x, y and visibility of each keypoint; visibility 0 means unlabelled.
            None if ``read_shapes`` read no keypoints.
        oriented: centre x, centre y, width, height and angle; None if ``read_shapes`` read
            no oriented boxes.
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
        """Whether the object is neither found nor missed: a crowd, or no keypoint is labelled."""
        return self.crowd or (self.keypoints is not None and not any(self.keypoints[2::3]))


@dataclass(frozen=True)
class Annotations:
    """Content of an annotation file.

    Attributes:
        images: annotated images, in the file's order.
        objects: objects of each image by image id. Images without objects have no entry.
    """

    path: Path
    images: tuple[CocoImage, ...]
    categories: Mapping[int, str]
    objects: Mapping[int, tuple[AnnotatedObject, ...]]


def read_annotations(path: Path) -> Annotations:
    """Read images, categories and boxes of a COCO annotation file.

    Raises:
        ConfigError: the file cannot be read, or a value is missing, malformed or contradictory.
    """
    content = read_coco(path)
    images: dict[int, CocoImage] = {}
    for entry in content.entries('images'):
        image = CocoImage(entry.read_id('id'), _read_file_name(entry), _read_size(entry))
        if image.id in images:
            raise ConfigError(entry.location, f'id {image.id} is listed twice')
        images[image.id] = image
    categories = _read_categories(content)
    if not images or not categories:
        empty = 'images' if not images else 'categories'
        raise ConfigError(str(path), f'"{empty}" is empty, so nothing can be measured')
    boxes: dict[int, list[AnnotatedObject]] = {}
    for entry in content.entries('annotations'):
        image_id, box = entry.read_id('image_id'), _read_object(entry)
        for key, value, known in (
            ('image_id', image_id, images),
            ('category_id', box.category_id, categories),
        ):
            if value not in known:
                raise ConfigError(entry.location, f'"{key}" {value} is not listed in the file')
        boxes.setdefault(image_id, []).append(box)
    if not boxes:
        raise ConfigError(str(path), '"annotations" is empty, so nothing can be measured')
    _check_box_format(path, images, boxes)
    whole = {image_id: tuple(found) for image_id, found in boxes.items()}
    return Annotations(path, tuple(images.values()), categories, whole)


def _read_categories(content: CocoSection) -> dict[int, str]:
    """Return category names by id."""
    categories: dict[int, str] = {}
    for entry in content.entries('categories', MAX_CLASSES):
        category_id, name = entry.read_id('id'), entry.get('name')
        entry.check_value('name', name, name_mistake)
        if category_id in categories:
            raise ConfigError(entry.location, f'id {category_id} is listed twice')
        categories[category_id] = name
    return categories


def _check_box_format(
    path: Path, images: Mapping[int, CocoImage], boxes: Mapping[int, Sequence[AnnotatedObject]]
) -> None:
    """Refuse boxes in formats of other tools, because no detection would match them."""
    every = [(images[id_].size_wh, box.xywh) for id_, found in boxes.items() for box in found]
    if all(max(xywh) <= 1 for _, xywh in every):
        raise ConfigError(
            f'{path}: "bbox"',
            f'fractions of the image, such as {every[0][1]}',
            expected='pixels',
            fix='multiply the boxes by width and height of their image',
        )
    sized = [(size, xywh) for size, xywh in every if size is not None]
    outside = [
        (size, xywh)
        for size, xywh in sized
        if xywh[0] + xywh[2] > size[0] + 1 or xywh[1] + xywh[3] > size[1] + 1
    ]
    if 2 * len(outside) > len(sized):
        (width, height), xywh = outside[0]
        raise ConfigError(
            f'{path}: "bbox"',
            f'{len(outside)} of {len(sized)} boxes exceed their image, such as {xywh} in '
            f'{width}x{height}',
            expected='[left, top, width, height]',
            fix='correct the boxes if they are [left, top, right, bottom], or the size of the '
            'images',
        )


def _read_file_name(entry: CocoSection) -> str:
    name: str = entry.check_value(
        'file_name', entry.get('file_name'), lambda name: name_mistake(name, MAX_PATH_LENGTH)
    )
    return name.replace('\\', '/')  # some tools on Windows write backslashes


def _read_size(entry: CocoSection) -> tuple[int, int] | None:
    size = entry.get('width'), entry.get('height')
    if size == (None, None):
        return None
    if not all(type(side) is int and 1 <= side <= MAX_ID for side in size):
        raise ConfigError(
            f'{entry.location}: "width" and "height"',
            f'{short_repr(size[0])} and {short_repr(size[1])}',
            expected='whole pixels',
        )
    return size


def _read_object(entry: CocoSection) -> AnnotatedObject:
    bbox = entry.get('bbox')
    if not isinstance(bbox, list) or len(bbox) != 4 or not all(map(is_finite, bbox)):
        expected = '[left, top, width, height], finite numbers in pixels'
        raise entry.wrong_value_error('bbox', bbox, expected)
    if max(map(abs, bbox)) > MAX_COORDINATE:
        expected = f'pixels, from {-MAX_COORDINATE:g} to {MAX_COORDINATE:g}'
        raise entry.wrong_value_error('bbox', bbox, expected)
    left, top, width, height = map(float, bbox)
    if width < 0 or height < 0:
        raise entry.wrong_value_error('bbox', bbox, 'a width and height of 0 or more')
    area = entry.get('area')
    if area is None:
        area = width * height
    if not is_finite(area) or area < 0:
        raise entry.wrong_value_error('area', area, 'a finite number of 0 or more')
    crowd = entry.get('iscrowd', 0)
    if crowd not in (0, 1):
        raise entry.wrong_value_error('iscrowd', crowd, '0 or 1')
    category_id = entry.read_id('category_id')
    return AnnotatedObject(category_id, (left, top, width, height), float(area), bool(crowd))
