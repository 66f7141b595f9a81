# SPDX-License-Identifier: Apache-2.0
"""Measures the agreement of two models' results, which needs no labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.class_scores import ClassScores
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.images.results.kernel_maps import KernelMaps
from trt_perception.model.tasks.classify import Classify
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tasks.semantic import Semantic
from trt_perception.model.tasks.task import TaskResult

#: What the agreement of each task means, for reports.
AGREEMENT_TITLES: Final = {
    Classify.name: 'images with the same best class',
    Semantic.name: 'pixels with the same class',
    Depth.name: '1 - relative difference of depth',
}


@dataclass(frozen=True)
class ImageAgreement:
    """Agreement of two models on the same images.

    Attributes:
        mean: mean of the images' agreements; 1 if all results are equal.
    """

    images: int
    mean: float
    lowest: float

    @classmethod
    def of_images(cls, agreements: Sequence[float]) -> ImageAgreement:
        """Return the agreement on all images, from the agreement on each image."""
        return cls(len(agreements), float(np.mean(agreements)), min(agreements))

    @property
    def figures(self) -> dict[str, float]:
        """The main figures by their titles in tables."""
        return {'agreement': self.mean}

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as a JSON object."""
        return {'images': self.images, 'mean': self.mean, 'lowest': self.lowest}


def image_agreement(one: TaskResult, other: TaskResult) -> float:
    """Return the agreement of two models' results for one image, 0 to 1.

    Class scores: 1 if both have the same best class, else 0. Class maps: the share of pixels with
    the same class. Depth: 1 minus the relative difference, but at least 0. The relative difference
    is the sum of the absolute differences divided by the sum of the absolute values of ``one``. A
    depth that is not finite counts as 0.

    Args:
        one: result of the reference: a ClassScores, ClassMap, DepthMap or KernelMaps.
        other: result of the same type for the same image. KernelMaps have the same maps.
    """
    if isinstance(one, ClassScores):
        assert isinstance(other, ClassScores)
        return float(one.best(1)[0][0] == other.best(1)[0][0])
    if isinstance(one, ClassMap | KernelMaps) and (ids := one.image('class_ids')) is not None:
        assert isinstance(other, ClassMap | KernelMaps)
        return float(np.mean(ids == other.image('class_ids')))
    # An unknown depth counts as 0, so that a pixel that only one map knows is different.
    values, others = map(_known_depth, (one, other))
    difference, total = np.abs(values - others).sum(), np.abs(values).sum()
    return 1.0 if difference == 0 else max(0.0, float(1 - difference / max(total, 1e-12)))


def _known_depth(found: TaskResult) -> npt.NDArray[np.float64]:
    """Return the depth of each pixel, float64 (height, width), with 0 if it is unknown."""
    assert isinstance(found, DepthMap | KernelMaps)
    depth = found.image('depth')
    assert depth is not None
    return np.nan_to_num(depth.astype(np.float64), posinf=0, neginf=0)
