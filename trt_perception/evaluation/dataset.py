"""The images that models are measured on, and the objects in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trt_perception.errors import ConfigError
from trt_perception.evaluation.annotated_shapes import read_shapes
from trt_perception.evaluation.coco.annotations import (
    AnnotatedObject,
    Annotations,
    read_annotations,
)
from trt_perception.evaluation.coco.classes import ClassMap, match_classes
from trt_perception.evaluation.coco.images import match_images
from trt_perception.evaluation.coco.library import check_pycocotools
from trt_perception.evaluation.metrics.measure import BOXES, Measure

__all__ = ['Dataset', 'DatasetImage']


@dataclass(frozen=True)
class DatasetImage:
    """One image to run.

    Attributes:
        id: the annotated image's, or a number from 1 on.
        path: its file.
        size_wh: annotated size in pixels, None where it is not known.
    """

    id: int
    path: Path
    size_wh: tuple[int, int] | None


@dataclass(frozen=True)
class Dataset:
    """Images, and the objects in them where they are annotated.

    Attributes:
        images: at least one.
        annotations: the truth, None where there is none.
        measure: what of the objects is compared.
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
        """Read the annotations and find their images.

        Args:
            images: files; with annotations, those that nobody annotated are left out.
            annotations: COCO's file, None to compare models with each other only.
            allow_missing: leave annotated images that have no file out.

        Raises:
            ConfigError: there are no images, or annotations and files do not belong together.
        """
        if not images:
            raise ConfigError(
                'images to compare models on', 'there are none', fix='name at least one'
            )
        if annotations is None:
            return cls(tuple(DatasetImage(n, path, None) for n, path in enumerate(images, 1)))
        truth = read_annotations(annotations)
        pairs = match_images(truth, images, allow_missing=allow_missing)
        return cls(
            tuple(DatasetImage(image.id, path, image.size_wh) for image, path in pairs), truth
        )

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the annotated images that have no file."""
        here = {image.id for image in self.images}
        annotated = self.annotations.images if self.annotations else ()
        return tuple(image.file_name for image in annotated if image.id not in here)

    def ground_truth(self, image: DatasetImage) -> tuple[AnnotatedObject, ...]:
        """Return an image's objects; none without annotations."""
        return self.annotations.objects.get(image.id, ()) if self.annotations else ()

    def with_shapes(self, measure: Measure, categories: Collection[int]) -> Dataset:
        """Return the data set with what is measured, and with the shapes of annotated objects.

        Args:
            measure: of the models.
            categories: ids of those that are measured.

        Raises:
            ConfigError: an object has no mask, keypoints or oriented box, or a wrong one.
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
        """Find the categories of a model's classes, None without annotations.

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
