# SPDX-License-Identifier: Apache-2.0
"""Measures the results of one model against labels, for tasks that describe the whole image."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ConfigError
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.class_scores import ClassScores
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.model.tasks.classify import Classify
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tasks.semantic import Semantic

#: Value of pixels without a class in labels.
IGNORED_LABEL: Final = 255
# A label in millimetres has at most 16 bits.
_MAX_LABELLED_DEPTH_M: Final = 65.535


class ImageMeasure(ABC):
    """Collects the figures of one model, image after image.

    Args:
        class_names: names of the model's classes.
        class_map: maps a class name to the name of its folder of images, if the names differ.

    Attributes:
        main_figure: name of the figure that decides whether a model is accurate enough. A higher
            value is better.
    """

    main_figure: ClassVar[str]

    def __init__(
        self,
        class_names: Sequence[str],
        class_map: Mapping[str, str | None],  # noqa: ARG002
    ) -> None:
        self._class_names = class_names

    @abstractmethod
    def add(self, found: Any, label: Any) -> None:
        """Add one image.

        Args:
            found: result of the task.
            label: what ``LabelledImage.read_label`` returns.

        Raises:
            ConfigError: the label has an invalid value.
        """

    @abstractmethod
    def figures(self) -> dict[str, float | None]:
        """Return the figures by name. A figure without labels is None."""

    def class_figures(self) -> dict[str, float | None]:
        """Return the main figure of each class by class name; empty if there is none."""
        return {}


class ClassificationMeasure(ImageMeasure):
    """Share of images whose class is the best (``top1``) or one of the best five (``top5``).

    Several classes may share a folder. Each class of the image's folder is a correct result.
    Source: Russakovsky et al., "ImageNet Large Scale Visual Recognition Challenge", 2015.
    """

    main_figure: ClassVar[str] = 'top1'

    def __init__(self, class_names: Sequence[str], class_map: Mapping[str, str | None]) -> None:
        super().__init__(class_names, class_map)
        self._folders = [class_map.get(name, name) for name in class_names]
        self._ranks: list[int] = []

    def add(self, found: ClassScores, label: str) -> None:
        """See ImageMeasure. The label is the name of the folder."""
        if label not in self._folders:
            raise ConfigError(
                f'folder {label}',
                'no class of the model',
                expected='the same classes in all models',
                fix='map class names to folders with --class-map',
            )
        ids, _ = found.best(len(found.scores))
        self._ranks.append([self._folders[class_id] for class_id in ids].index(label))

    def figures(self) -> dict[str, float | None]:
        ranks = np.array(self._ranks)
        return {
            f'top{count}': float(np.mean(ranks < count)) if len(ranks) else None
            for count in (1, 5)
        }


class SegmentationMeasure(ImageMeasure):
    """Mean IoU of the classes (``mIoU``) and share of correct pixels (``pixel_accuracy``).

    The IoU of a class is TP / (TP + FP + FN), counted in pixels over all images. The mean leaves
    out classes that neither labels nor results contain. Pixels with the label 255 are ignored.
    Source: Long et al., "Fully Convolutional Networks for Semantic Segmentation", 2015.
    """

    main_figure: ClassVar[str] = 'mIoU'

    def __init__(self, class_names: Sequence[str], class_map: Mapping[str, str | None]) -> None:
        super().__init__(class_names, class_map)
        # Rows are classes of the labels, columns are classes of the results.
        self._pixels = np.zeros((len(class_names),) * 2, np.int64)

    def add(self, found: ClassMap, label: npt.NDArray[np.uint8]) -> None:
        """See ImageMeasure. The label has a class id in each pixel."""
        is_measured = label != IGNORED_LABEL
        truth, classes = label[is_measured].astype(np.int64), len(self._class_names)
        if truth.size and truth.max() >= classes:
            raise ConfigError(
                'the label',
                f'class {truth.max()}',
                expected=f'class ids from 0 to {classes - 1}, or {IGNORED_LABEL} for no class',
            )
        pairs = truth * classes + found.class_ids()[is_measured]
        counts = np.bincount(pairs, minlength=classes * classes)
        self._pixels += counts.reshape(classes, classes)

    def figures(self) -> dict[str, float | None]:
        known = [iou for iou in self.class_figures().values() if iou is not None]
        total = self._pixels.sum()
        return {
            'mIoU': float(np.mean(known)) if known else None,
            'pixel_accuracy': float(np.trace(self._pixels) / total) if total else None,
        }

    def class_figures(self) -> dict[str, float | None]:
        """See ImageMeasure. The IoU of each class."""
        right = np.diag(self._pixels)
        union = self._pixels.sum(0) + self._pixels.sum(1) - right
        return {
            name: float(right[class_id] / union[class_id]) if union[class_id] else None
            for class_id, name in enumerate(self._class_names)
        }


class DepthMeasure(ImageMeasure):
    """Errors of depth ``d`` against labels ``t``: means over the pixels, then over the images.

    ``AbsRel`` is the mean of |d - t| / t. ``delta1`` is the share of pixels with
    max(d / t, t / d) < 1.25. Relative depth is first aligned with ``align_inverse_depth``. A depth
    that is not finite or below 0 counts as 0.
    Source: Eigen et al., "Depth Map Prediction from a Single Image using a Multi-Scale Deep
    Network", 2014.
    """

    main_figure: ClassVar[str] = 'delta1'

    def __init__(self, class_names: Sequence[str], class_map: Mapping[str, str | None]) -> None:
        super().__init__(class_names, class_map)
        self._errors: list[tuple[float, float]] = []

    def add(self, found: DepthMap, label: npt.NDArray[np.uint16]) -> None:
        """See ImageMeasure. The label has millimetres in each pixel, 0 if unknown."""
        if label.dtype != np.uint16:
            raise ConfigError('the label', '8 bits per pixel', expected='millimetres in 16 bits')
        is_known = label > 0
        if not is_known.any():
            return
        truth = label[is_known] / 1000
        depth = np.nan_to_num(found.depth()[is_known].astype(np.float64), posinf=0, neginf=0)
        if not found.is_metric:
            depth = align_inverse_depth(depth, truth)
        depth = np.maximum(depth, 0)
        with np.errstate(divide='ignore'):  # a depth of 0 has an infinite ratio
            ratio = np.maximum(depth / truth, truth / depth)
        self._errors.append(
            (float(np.mean(np.abs(depth - truth) / truth)), float(np.mean(ratio < 1.25)))
        )

    def figures(self) -> dict[str, float | None]:
        means = np.mean(self._errors, axis=0).tolist() if self._errors else (None, None)
        return dict(zip(('AbsRel', 'delta1'), means, strict=True))


def align_inverse_depth(
    relative: npt.NDArray[np.float64],
    truth: npt.NDArray[np.float64],
    of: npt.NDArray[np.float64] | None = None,
) -> npt.NDArray[np.float64]:
    """Return relative depth in metres, with the scale and shift that fit the labels best.

    The values are proportional to inverse depth except for a shift. Least squares find s and t
    that minimise the sum of (s * relative + t - 1 / truth)^2. The depth is 1 / (s * relative + t),
    at most 65.535 m, the largest depth of a label.
    Source: Ranftl et al., "Towards Robust Monocular Depth Estimation: Mixing Datasets for
    Zero-shot Cross-dataset Transfer", 2020.

    Args:
        relative: float64 (n,), larger values are nearer.
        truth: float64 (n,), metres, above 0.
        of: float64 of any shape, the values to convert; None for ``relative``.
    """
    terms = np.stack([relative, np.ones_like(relative)], axis=1)
    scale, shift = np.linalg.lstsq(terms, 1 / truth, rcond=None)[0]
    inverse = (relative if of is None else of) * scale + shift
    depth: npt.NDArray[np.float64] = 1 / np.maximum(inverse, 1 / _MAX_LABELLED_DEPTH_M)
    return depth


#: Maps the name of a task to its measure.
IMAGE_MEASURES: Final[Mapping[str, type[ImageMeasure]]] = {
    Classify.name: ClassificationMeasure,
    Semantic.name: SegmentationMeasure,
    Depth.name: DepthMeasure,
}
