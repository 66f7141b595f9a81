"""Reads and checks the masks, keypoints or oriented boxes of annotated objects."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from trt_perception.errors import ConfigError
from trt_perception.offline.evaluation.coco.annotations import Annotations
from trt_perception.offline.evaluation.coco.library import check_pycocotools
from trt_perception.offline.evaluation.coco.section import read_coco
from trt_perception.offline.evaluation.metrics.measure import Measure


def read_shapes(
    annotations: Annotations, measure: Measure, categories: Collection[int]
) -> Annotations:
    """Read the annotated shapes that a measure compares.

    Args:
        annotations: annotations without shapes. Their file is read again.
        measure: measure of the models. For boxes, the annotations are returned unchanged.
        categories: ids of the measured categories. Objects of other categories stay unchanged.

    Returns:
        The annotations with ``mask``, ``keypoints`` or ``oriented`` for each object. An object
        without area in the file gets the area of its mask or oriented box.

    Raises:
        ConfigError: the shape of an object is missing, malformed or of another size, or
            pycocotools is not installed.
    """
    if not measure.has_shapes:
        return annotations
    check_pycocotools()
    content = read_coco(annotations.path)
    for category in content.entries('categories'):
        if category.get('id') in categories:
            measure.check_category(category)
    sizes = {image.id: image.size_wh for image in annotations.images}
    objects = {image_id: list(boxes) for image_id, boxes in annotations.objects.items()}
    seen = dict.fromkeys(objects, 0)
    for entry in content.entries('annotations'):
        image_id = entry.get('image_id')
        if (
            type(image_id) is not int
            or image_id not in seen
            or seen[image_id] >= len(objects[image_id])
        ):
            raise ConfigError(str(annotations.path), 'changed while it was read')
        place = seen[image_id]
        seen[image_id] += 1
        box = objects[image_id][place]
        if box.category_id in categories:
            box = measure.read_shape(entry, box, sizes[image_id])
            if entry.get('area') is None:
                box = replace(box, area=measure.shape_area(box))
            objects[image_id][place] = box
    return replace(annotations, objects={key: tuple(found) for key, found in objects.items()})
