# SPDX-License-Identifier: Apache-2.0
"""A data set for evaluation: images and their annotated objects."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trt_perception.errors import ConfigError
from trt_perception.offline.evaluation.coco.annotations import (
    AnnotatedObject,
    Annotations,
    read_annotations,
)
from trt_perception.offline.evaluation.coco.classes import ClassMap, match_classes
from trt_perception.offline.evaluation.coco.images import match_images
from trt_perception.offline.evaluation.coco.library import check_pycocotools
from trt_perception.offline.evaluation.coco.section import read_coco
from trt_perception.offline.evaluation.metrics.measure import BOXES, Measure


@dataclass(frozen=True)
class DatasetImage:
    """One image of a data set.

    Attributes:
        id: id in the annotations; without annotations, a number from 1 on.
        size_wh: annotated width and height in pixels; None if unknown.
    """

    id: int
    path: Path
    size_wh: tuple[int, int] | None


@dataclass(frozen=True)
class Dataset:
    """Images, and their annotated objects if there are annotations.

    Attributes:
        images: at least one image.
        annotations: the ground truth; None without annotations.
    """

    images: tuple[DatasetImage, ...]
    annotations: Annotations | None = None
    measure: Measure = BOXES

    @classmethod
    def read(
        cls,
        images: Sequence[Path],
        annotations: Path | None = None,
        *,
        allow_missing: bool = False,
    ) -> Dataset:
        """Read the annotations and find the file of each annotated image.

        Args:
            images: image files. Files that the annotations do not list are skipped.
            annotations: COCO annotation file; None compares models only with each other.
            allow_missing: whether to skip annotated images that have no file.

        Raises:
            ConfigError: there are no images, or the images do not fit the annotations.
        """
        if not images:
            raise ConfigError('images for the evaluation', 'none', fix='give at least one image')
        if annotations is None:
            return cls(tuple(DatasetImage(n, path, None) for n, path in enumerate(images, 1)))
        truth = read_annotations(annotations)
        pairs = match_images(truth, images, allow_missing=allow_missing)
        return cls(
            tuple(DatasetImage(image.id, path, image.size_wh) for image, path in pairs), truth
        )

    @property
    def missing_file_names(self) -> tuple[str, ...]:
        """Names of annotated images that have no file."""
        here = {image.id for image in self.images}
        annotated = self.annotations.images if self.annotations else ()
        return tuple(image.file_name for image in annotated if image.id not in here)

    def ground_truth(self, image: DatasetImage) -> tuple[AnnotatedObject, ...]:
        """Return the annotated objects of an image; empty without annotations."""
        return self.annotations.objects.get(image.id, ()) if self.annotations else ()

    def with_shapes(self, measure: Measure, categories: Collection[int]) -> Dataset:
        """Return a copy with the annotated shapes that a measure compares.

        Raises:
            ConfigError: the mask, keypoints or oriented box of an object is missing or invalid.
        """
        truth = self.annotations and read_shapes(self.annotations, measure, categories)
        return replace(self, annotations=truth, measure=measure)

    def class_map(
        self,
        class_names: Sequence[str],
        class_map: Mapping[str, str | None] | None = None,
        *,
        allow_subset: bool = False,
        model: str = 'the model',
    ) -> ClassMap | None:
        """Match a model's classes with the annotated categories. Return None without annotations.

        ``match_classes`` explains the arguments.

        Raises:
            ConfigError: names do not match, or pycocotools is not installed.
        """
        if self.annotations is None:
            return None
        check_pycocotools()
        return match_classes(
            class_names,
            self.annotations,
            class_map=class_map,
            allow_subset=allow_subset,
            model=model,
        )


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
