"""COCO's annotation file, read with care.

Guarantee: Annotations that exist are whole: ids differ, each box is finite and belongs to an image
and a category that are listed. Segmentations and keypoints are left to ``annotated_shapes``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trt_perception.errors import ConfigError
from trt_perception.evaluation.coco.run_lengths import RunLengths
from trt_perception.evaluation.coco.section import MAX_ID, CocoSection, is_finite, read_coco
from trt_perception.files.plain_text import MAX_CLASSES, MAX_PATH_LENGTH, name_fault, short_repr

__all__ = ['AnnotatedObject', 'Annotations', 'CocoImage', 'read_annotations']


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
class AnnotatedObject:
    """One annotated object.

    Attributes:
        category_id: what it is.
        xywh: left, top, width, height in source pixels; the size may be 0.
        area: square pixels, of the object's outline where the file has one.
        crowd: many objects in one box: it counts neither as found nor as missed, and detections
            within it are no mistakes.
        mask: where ``annotated_shapes`` read masks.
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
        objects: the objects of each image by the image's id; an image without objects is missing.
    """

    path: Path
    images: tuple[CocoImage, ...]
    categories: Mapping[int, str]
    objects: Mapping[int, tuple[AnnotatedObject, ...]]


def read_annotations(path: Path) -> Annotations:
    """Read a COCO annotation file of boxes.

    Raises:
        ConfigError: it cannot be read, or something in it is missing, malformed or contradictory.
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
        raise ConfigError(str(path), f'"{empty}" is empty, so there is nothing to compare with')
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
    """Return the names of the categories by id."""
    categories: dict[int, str] = {}
    for entry in content.entries('categories', MAX_CLASSES):
        category_id, name = entry.read_id('id'), entry.get('name')
        entry.check_value('name', name, name_fault)
        if category_id in categories:
            raise ConfigError(entry.location, f'id {category_id} is listed twice')
        categories[category_id] = name
    return categories


def _check_box_format(
    path: Path, images: Mapping[int, CocoImage], boxes: Mapping[int, Sequence[AnnotatedObject]]
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
    outside = [
        (size, xywh)
        for size, xywh in sized
        if xywh[0] + xywh[2] > size[0] + 1 or xywh[1] + xywh[3] > size[1] + 1
    ]
    if 2 * len(outside) > len(sized):
        (width, height), xywh = outside[0]
        raise ConfigError(
            f'{path}: "bbox"',
            f'{len(outside)} of {len(sized)} reach beyond their image, as {xywh} in '
            f'{width}x{height}',
            expected='[left, top, width, height]',
            fix='correct the boxes if they are [left, top, right, bottom], or the size of the '
            'images',
        )


def _read_file_name(entry: CocoSection) -> str:
    name: str = entry.check_value(
        'file_name', entry.get('file_name'), lambda name: name_fault(name, MAX_PATH_LENGTH)
    )
    return name.replace('\\', '/')  # as tools on Windows write it


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
        raise entry.refusal('bbox', bbox, expected)
    left, top, width, height = map(float, bbox)
    if width < 0 or height < 0:
        raise entry.refusal('bbox', bbox, 'no negative size')
    area = entry.get('area')
    if area is None:
        area = width * height
    if not is_finite(area) or area < 0:
        raise entry.refusal('area', area, 'a finite number, not negative')
    crowd = entry.get('iscrowd', 0)
    if crowd not in (0, 1):
        raise entry.refusal('iscrowd', crowd, '0 or 1')
    category_id = entry.read_id('category_id')
    return AnnotatedObject(category_id, (left, top, width, height), float(area), bool(crowd))
