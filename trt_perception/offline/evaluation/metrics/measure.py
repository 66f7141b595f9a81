# SPDX-License-Identifier: Apache-2.0
"""Compares objects by their boxes. Subclasses compare masks, keypoints or oriented boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from trt_perception.errors import ConfigError
from trt_perception.offline.evaluation.coco.annotations import AnnotatedObject
from trt_perception.offline.evaluation.coco.section import CocoSection
from trt_perception.offline.evaluation.metrics.shapes import (
    Floats,
    Shapes,
    box_areas,
    box_iou,
    ratio,
    shared_areas,
)

#: Fix for annotations that lack the measured shapes.
BOXES_ONLY_FIX: Final = 'annotate them, or measure boxes only (evaluate_engine --boxes-only)'


@dataclass(frozen=True)
class Measure:
    """Measures objects by their boxes. A subclass measures another shape.

    Attributes:
        kind: name of the measured shape in reports.
        similarity: name of the similarity in reports, such as IoU.
        coco_kind: name of the shape in pycocotools.
        has_shapes: whether other shapes than boxes are compared, and must be read.
        has_masks: whether masks are compared.
        has_angles: whether the angles of boxes are compared.
    """

    kind: ClassVar[str] = 'boxes'
    similarity: ClassVar[str] = 'IoU'
    coco_kind: ClassVar[str] = 'bbox'
    has_shapes: ClassVar[bool] = False
    has_masks: ClassVar[bool] = False
    has_angles: ClassVar[bool] = False

    @classmethod
    def for_model(
        cls,
        keypoint_names: Sequence[str],  # noqa: ARG003
        sigmas: Sequence[float],
    ) -> Measure:
        """Return the measure of a model.

        Args:
            keypoint_names: names of the model's keypoints; empty if its task has none.
            sigmas: sigmas of OKS, one for each keypoint or one for all; empty for the default.

        Raises:
            ConfigError: sigmas are given for a model without keypoints, their number is wrong, or
                a value is out of range.
        """
        if sigmas:
            raise ConfigError(
                '--oks-sigma', 'the model has no keypoints', fix='leave out this option'
            )
        return cls()

    @property
    def title(self) -> str:
        """Title of the metrics table."""
        return self.kind

    def as_dict(self) -> dict[str, Any]:
        """Return the measure as a JSON object."""
        return {'of': self.kind}

    def check_category(self, category: CocoSection) -> None:
        """Check that the keypoints of an annotated category fit the model.

        Raises:
            ConfigError: the category differs from the model.
        """

    def read_shape(
        self,
        entry: CocoSection,  # noqa: ARG002
        box: AnnotatedObject,
        size_wh: tuple[int, int] | None,  # noqa: ARG002
    ) -> AnnotatedObject:
        """Return a copy of an object with its measured shape.

        Args:
            entry: the object in the annotation file.
            box: the object without the shape.
            size_wh: width and height of the image in pixels; None if unknown.

        Raises:
            ConfigError: the shape is missing, malformed or of another size.
        """
        return box

    def shape_area(self, box: AnnotatedObject) -> float:
        """Return the area of an object's shape in square pixels, used if the file has no area."""
        return box.area

    def extra_pycocotools_fields(self, box: AnnotatedObject) -> dict[str, Any]:  # noqa: ARG002
        """Return the fields of an annotated object that pycocotools needs besides its box."""
        return {}

    def detection_area(self, row: Mapping[str, Any]) -> float:
        """Return the area of a detection in square pixels; ``row`` is in COCO's results format."""
        width, height = row['bbox'][2:]
        return float(width * height)

    def configure(self, evaluation: Any) -> None:
        """Configure an evaluation of pycocotools, a ``COCOeval``."""

    def figures(self, values: Sequence[float | None]) -> dict[str, float | None]:
        """Map the name of each figure of pycocotools to its value, in the order of the reports."""
        names = 'mAP', 'mAP50', 'mAP75', 'mAP_small', 'mAP_medium', 'mAP_large'
        return {**dict(zip(names, values, strict=False)), 'AR100': values[8]}

    def overlaps(self, one: Shapes, other: Shapes) -> Floats:
        """Return the similarity of all pairs: float64 (n, m), 0 to 1."""
        return box_iou(one.xyxy, other.xyxy)

    def share_inside(self, one: Shapes, regions: Shapes) -> Floats:
        """Return the share of each object inside each region: float64 (n, m), 0 to 1."""
        return ratio(shared_areas(one.xyxy, regions.xyxy), box_areas(one.xyxy)[:, None])


#: The measure of boxes. It can also compare models with other shapes.
BOXES: Final = Measure()
