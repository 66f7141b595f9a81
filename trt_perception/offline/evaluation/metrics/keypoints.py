# SPDX-License-Identifier: Apache-2.0
"""Measures keypoints by their similarity OKS (https://cocodataset.org/#keypoints-eval).

An annotation has ``keypoints``: x, y and visibility of each keypoint. Visibility is 0 if not
labelled, 1 if hidden, 2 if visible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import join_first_items
from trt_perception.offline.evaluation.coco.annotations import AnnotatedObject
from trt_perception.offline.evaluation.coco.section import MAX_COORDINATE, CocoSection, is_finite
from trt_perception.offline.evaluation.metrics.measure import BOXES_ONLY_FIX, Measure
from trt_perception.offline.evaluation.metrics.shapes import Floats, Shapes, ratio

#: Sigmas of COCO's 17 keypoints of a person.
_COCO_SIGMAS: Final = (
    *(0.026, 0.025, 0.025, 0.035, 0.035, 0.079, 0.079, 0.072, 0.072, 0.062, 0.062),
    *(0.107, 0.107, 0.087, 0.087, 0.089, 0.089),
)
#: Default for other keypoints: about the median of COCO's sigmas.
OKS_SIGMA: Final = 0.05
_EPSILON: Final = np.spacing(1)


@dataclass(frozen=True)
class Keypoints(Measure):
    """Measures objects by their keypoints.

    Attributes:
        names: names of an object's keypoints, in the model's order.
        sigmas: for OKS, the standard deviation of each keypoint's annotations, divided by the
            square root of the object's area.
    """

    kind: ClassVar[str] = 'keypoints'
    similarity: ClassVar[str] = 'OKS'
    coco_kind: ClassVar[str] = 'keypoints'
    has_shapes: ClassVar[bool] = True

    names: tuple[str, ...]
    sigmas: tuple[float, ...]

    @classmethod
    def for_model(cls, keypoint_names: Sequence[str], sigmas: Sequence[float]) -> Keypoints:
        """Return the measure of a model; see ``Measure.for_model``.

        The default sigmas are COCO's for 17 keypoints, else 0.05.
        """
        count = len(keypoint_names)
        if not sigmas:
            sigmas = _COCO_SIGMAS if count == len(_COCO_SIGMAS) else (OKS_SIGMA,)
        if len(sigmas) == 1:
            sigmas = tuple(sigmas) * count
        if len(sigmas) != count:
            expected = f'one value, or one for each of the {count} keypoints'
            raise ConfigError('--oks-sigma', f'{len(sigmas)} values', expected=expected)
        if wrong := [sigma for sigma in sigmas if not (math.isfinite(sigma) and 0 < sigma <= 1)]:
            raise ConfigError('--oks-sigma', str(wrong[0]), expected='above 0, at most 1')
        return cls(tuple(keypoint_names), tuple(sigmas))

    @property
    def title(self) -> str:
        """Title of the metrics table, with the range of the sigmas."""
        low, high = min(self.sigmas), max(self.sigmas)
        values = f'{low:g}' if low == high else f'{low:g} to {high:g}'
        return f'{self.kind} (OKS sigma {values})'

    def as_dict(self) -> dict[str, Any]:
        """Return the measure as a JSON object, with the sigmas."""
        return {'of': self.kind, 'oks_sigmas': list(self.sigmas)}

    def check_category(self, category: CocoSection) -> None:
        """Refuse keypoints in another order than the model's, which would not match."""
        names = category.get('keypoints')
        if not isinstance(names, list) or names == list(self.names):
            return
        texts = list(map(str, names))
        if set(texts) == set(self.names):
            expected = f'the order of the model: {join_first_items(self.names, 5)}'
            fix = 'write the keypoints of all annotations in that order'
            raise category.error_at('keypoints', join_first_items(texts, 5), expected, fix)

    def read_shape(
        self,
        entry: CocoSection,
        box: AnnotatedObject,
        size_wh: tuple[int, int] | None,  # noqa: ARG002
    ) -> AnnotatedObject:
        """Return a copy of an object with its keypoints. A crowd may have no keypoints."""
        key, count = 'keypoints', len(self.names)
        points = entry.get(key)
        if points is None and box.crowd:
            return replace(box, keypoints=(0.0,) * 3 * count)
        if points is None:
            raise entry.error_at(key, 'none', 'a list', BOXES_ONLY_FIX)
        if not isinstance(points, list) or not all(map(is_finite, points)):
            raise entry.wrong_value_error(key, points, 'a list of numbers')
        if len(points) != 3 * count:
            expected = (
                f'{3 * count} numbers: x, y and visibility of each of the {count} keypoints of '
                'the model'
            )
            fix = 'use annotations of the keypoints that the model was trained with'
            raise entry.error_at(key, f'{len(points)} numbers', expected, fix)
        if max(map(abs, points)) > MAX_COORDINATE:
            raise entry.error_at(key, 'a point far outside the image', 'pixels')
        if wrong := [flag for flag in points[2::3] if flag not in (0, 1, 2)]:
            expected = '0 (not labelled), 1 (hidden) or 2 (visible)'
            raise entry.error_at(key, f'a visibility of {wrong[0]}', expected)
        return replace(box, keypoints=tuple(map(float, points)))

    def extra_pycocotools_fields(self, box: AnnotatedObject) -> dict[str, Any]:
        """Return keypoints, number of labelled keypoints, and whether the object is ignored."""
        points = box.keypoints or ()
        labelled = sum(flag > 0 for flag in points[2::3])
        ignored = int(box.is_ignored)
        return {'keypoints': list(points), 'num_keypoints': labelled, 'ignore': ignored}

    def configure(self, evaluation: Any) -> None:
        """Set the sigmas."""
        evaluation.params.kpt_oks_sigmas = np.array(self.sigmas)

    def figures(self, values: Sequence[float | None]) -> dict[str, float | None]:
        """Map names of figures to values. COCO defines no keypoint figure of small objects."""
        m_ap, m_ap50, m_ap75, medium, large, recall = values[:6]
        return {
            'mAP': m_ap,
            'mAP50': m_ap50,
            'mAP75': m_ap75,
            'mAP_small': None,
            'mAP_medium': medium,
            'mAP_large': large,
            'AR20': recall,
        }

    def overlaps(self, one: Shapes, other: Shapes) -> Floats:
        """Return OKS of all pairs: float64 (n, m); 0 if no keypoint is labelled.

        Areas come from ``other``. Only keypoints that are labelled in ``other`` count.
        """
        apart = one.keypoints[:, None, :, :2] - other.keypoints[None, :, :, :2]
        spread = 2 * (2 * np.array(self.sigmas)) ** 2 * (other.areas[:, None] + _EPSILON)
        near = np.exp(-(apart**2).sum(axis=3) / spread)
        counts = other.keypoints[:, :, 2] > 0
        return ratio((near * counts).sum(axis=2), counts.sum(axis=1)[None].astype(np.float64))
