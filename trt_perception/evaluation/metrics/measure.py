"""What of an object accuracy is measured by. The base measures boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from trt_perception.errors import ConfigError
from trt_perception.evaluation.coco.annotations import AnnotatedObject
from trt_perception.evaluation.coco.section import CocoSection
from trt_perception.evaluation.metrics.shapes import (
    Floats,
    Shapes,
    box_areas,
    box_iou,
    ratio,
    shared_areas,
)

__all__ = ['BOXES', 'BOXES_ONLY_FIX', 'Measure']

#: What to do where annotations lack what is measured.
BOXES_ONLY_FIX: Final = 'annotate them, or measure boxes only (evaluate_engine --boxes-only)'


@dataclass(frozen=True)
class Measure:
    """Measures objects by their boxes. A subclass measures something else.

    Attributes:
        kind: what is measured, in reports.
        similarity: what takes the place of IoU there.
        coco_kind: pycocotools' name for it.
        has_shapes: the annotations of an object have more to read than its box.
        has_masks: masks are compared.
        has_angles: the angles of boxes are compared.
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
            keypoint_names: of the model's objects; empty if they have none.
            sigmas: for OKS, one for each keypoint or one for all; empty: the default.

        Raises:
            ConfigError: there are sigmas without keypoints, another number of them, or one is out
                of range.
        """
        if sigmas:
            raise ConfigError('--oks-sigma', 'the model has no keypoints', fix='leave it out')
        return cls()

    @property
    def title(self) -> str:
        """What a table of figures is about."""
        return self.kind

    def as_dict(self) -> dict[str, Any]:
        """Return what is measured, as JSON has it."""
        return {'of': self.kind}

    def check_category(self, category: CocoSection) -> None:
        """Refuse a category that describes its objects in another way than the model.

        Raises:
            ConfigError: it does.
        """

    def read_shape(
        self,
        entry: CocoSection,  # noqa: ARG002
        box: AnnotatedObject,
        size_wh: tuple[int, int] | None,  # noqa: ARG002
    ) -> AnnotatedObject:
        """Return an object with the shape that is measured.

        Args:
            entry: the object in the file.
            box: the object without a shape.
            size_wh: of the image in pixels, None if unknown.

        Raises:
            ConfigError: the shape is missing, malformed or of another size.
        """
        return box

    def shape_area(self, box: AnnotatedObject) -> float:
        """Return an object's area in square pixels, for a file that does not have it."""
        return box.area

    def ground_truth_fields(self, box: AnnotatedObject) -> dict[str, Any]:  # noqa: ARG002
        """Return what pycocotools needs of an annotated object besides its box."""
        return {}

    def detection_area(self, row: Mapping[str, Any]) -> float:
        """Return the area in square pixels of a detection in COCO's form."""
        width, height = row['bbox'][2:]
        return float(width * height)

    def configure(self, evaluation: Any) -> None:
        """Set up pycocotools' evaluation, a ``COCOeval``."""

    def figures(self, values: Sequence[float | None]) -> dict[str, float | None]:
        """Return pycocotools' figures by name, in the order of our reports."""
        names = 'mAP', 'mAP50', 'mAP75', 'mAP_small', 'mAP_medium', 'mAP_large'
        return {**dict(zip(names, values, strict=False)), 'AR100': values[8]}

    def overlaps(self, one: Shapes, other: Shapes) -> Floats:
        """Return how far all pairs are the same: float64 (n, m), 0 to 1."""
        return box_iou(one.xyxy, other.xyxy)

    def share_inside(self, one: Shapes, regions: Shapes) -> Floats:
        """Return the share of each object that lies in each region: float64 (n, m)."""
        return ratio(shared_areas(one.xyxy, regions.xyxy), box_areas(one.xyxy)[:, None])


#: Boxes, whatever else there is.
BOXES: Final = Measure()
