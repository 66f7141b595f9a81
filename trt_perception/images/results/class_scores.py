# SPDX-License-Identifier: Apache-2.0
"""The scores of all classes for a whole image."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trt_perception.images.results.image_result import ImageResult


@dataclass(frozen=True, repr=False)
class ClassScores(ImageResult):
    """The classification of one image.

    Attributes:
        scores: float32 (classes,), the probability of each class, in the order of the model's
            class names.

    >>> scores = tp.load('digits_classify.onnx', task='classify')(cv2.imread('image.jpg'))
    >>> class_ids, best = scores.best(2)
    >>> class_ids.tolist(), [f'{score:.2f}' for score in best]
    ([0, 6], ['0.88', '0.06'])
    """

    scores: npt.NDArray[np.float32]

    def best(self, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return the classes with the highest scores, best first. The lower id wins ties.

        Returns:
            Class ids, int64 (n,), and their scores, float32 (n,).

        Raises:
            ValueError: the count is negative.
        """
        if operator.index(count) < 0:
            raise ValueError(f'the number of classes must be at least 0 (got {count})')
        ids = np.argsort(-self.scores, kind='stable')[:count]
        return ids, self.scores[ids]
