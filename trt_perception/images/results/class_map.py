# SPDX-License-Identifier: Apache-2.0
"""The class of each pixel of an image."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.image_limits import is_large_result, row_strips
from trt_perception.images.results.image_result import ImageResult
from trt_perception.images.results.map_resize import (
    checked_size,
    image_part,
    resize_map,
    without_shared_memory,
)

#: A pixel of a class map has 8 bits.
MAX_MAP_CLASSES = 256

_Best = tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]


@dataclass(frozen=True, repr=False)
class ClassMap(ImageResult):
    """The semantic segmentation of one image. The maps are computed when a method is called.

    Several threads may call the methods. The best classes of the last map size are kept, unless
    the map has more than LARGE_RESULT_PIXELS.

    Attributes:
        grid: the network's output, a copy. Either class ids, uint8 (rows, columns), or the logits
            of each class, float32 (classes, rows, columns). It covers the network's input.

    >>> found = tp.load('digits_semantic.onnx', task='semantic')(cv2.imread('image.jpg'))
    >>> class_ids, confidence = found.class_ids(), found.confidence()
    >>> class_ids.shape, class_ids.dtype, confidence.dtype
    ((480, 640), dtype('uint8'), dtype('uint8'))
    >>> found.class_ids((64, 48)).shape
    (48, 64)
    """

    grid: npt.NDArray[np.uint8] | npt.NDArray[np.float32]
    letterbox: Letterbox

    def __reduce__(self) -> tuple[type[ClassMap], tuple[npt.NDArray[Any], Letterbox]]:
        return type(self), (self.grid, self.letterbox)  # neither pickle nor copy what is kept

    @cached_property
    def _lock(self) -> threading.Lock:
        """Lets a second thread wait for the best classes instead of computing them, too."""
        return threading.Lock()

    @cached_property
    def _best(self) -> dict[tuple[int, int], _Best]:
        """The result of `_best_classes` for the last map size."""
        return {}

    @property
    def has_confidence(self) -> bool:
        """Whether the network outputs logits, which give a confidence."""
        return self.grid.ndim == 3

    def class_ids(self, size_wh: tuple[int, int] | None = None) -> npt.NDArray[np.uint8]:
        """Return the class of each pixel.

        Logits are resized bilinearly before the best class is chosen, as in transformers'
        ``post_process_semantic_segmentation``. The lower id wins ties. Ids are resized to the
        nearest pixel.

        Args:
            size_wh: width and height of the map; None for the size of the image.

        Returns:
            uint8 (height, width), class ids.

        Raises:
            ValueError: the size is impossible.
        """
        wanted_wh = checked_size(size_wh, self.letterbox)
        if self.has_confidence:
            ids = self._best_classes(wanted_wh)[0]
            return ids if is_large_result(wanted_wh) else ids.copy()
        part = image_part(self.grid, self.letterbox, 'nearest')
        return without_shared_memory(resize_map(part, wanted_wh, 'nearest'), self.grid)

    def confidence(self, size_wh: tuple[int, int] | None = None) -> npt.NDArray[np.uint8] | None:
        """Return the softmax probability of each pixel's class, in 1/255.

        Args:
            size_wh: width and height of the map; None for the size of the image.

        Returns:
            uint8 (height, width); None if the network outputs ids only.

        Raises:
            ValueError: the size is impossible.
        """
        wanted_wh = checked_size(size_wh, self.letterbox)
        if not self.has_confidence:
            return None
        _, best = self._best_classes(wanted_wh)
        # The softmax probability of the best class is 1 / sum(exp(logit - best)).
        total = np.zeros_like(best)
        for class_id in range(len(self.grid)):
            self._add_exponentials(class_id, wanted_wh, best, total)
        found = np.empty(total.shape, np.uint8)
        for rows in row_strips(wanted_wh):
            found[rows] = np.rint(255 / total[rows]).astype(np.uint8)
        return found

    def image(
        self, kind: str, size_wh: tuple[int, int] | None = None
    ) -> npt.NDArray[np.uint8] | None:
        """Return the map ``class_ids`` or ``confidence``, as the method of this name does."""
        return {'class_ids': self.class_ids, 'confidence': self.confidence}[kind](size_wh)

    def _best_classes(self, size_wh: tuple[int, int]) -> _Best:
        """Return the class with the highest logit of each pixel, and this logit."""
        if is_large_result(size_wh):
            return self._find_best_classes(size_wh)
        with self._lock:
            kept = self._best.get(size_wh)
            if kept is None:
                kept = self._find_best_classes(size_wh)
                self._best.clear()
                self._best[size_wh] = kept
            return kept

    def _find_best_classes(self, size_wh: tuple[int, int]) -> _Best:
        # One class at a time, because all resized logits of a large image need gigabytes.
        ids = np.zeros(size_wh[::-1], np.uint8)
        best = without_shared_memory(self._resized_logits(0, size_wh), self.grid)
        for class_id in range(1, len(self.grid)):
            self._raise_best(class_id, size_wh, ids, best)
        return ids, best

    def _raise_best(
        self,
        class_id: int,
        size_wh: tuple[int, int],
        ids: npt.NDArray[np.uint8],
        best: npt.NDArray[np.float32],
    ) -> None:
        """Write class id and logit into the pixels where the logit is above the best one."""
        logits = self._resized_logits(class_id, size_wh)
        for rows in row_strips(size_wh):
            ids[rows][logits[rows] > best[rows]] = class_id
            np.maximum(best[rows], logits[rows], out=best[rows])

    def _add_exponentials(
        self,
        class_id: int,
        size_wh: tuple[int, int],
        best: npt.NDArray[np.float32],
        total: npt.NDArray[np.float32],
    ) -> None:
        """Add exp(logit - best) of a class to the total of each pixel."""
        logits = self._resized_logits(class_id, size_wh)
        for rows in row_strips(size_wh):
            total[rows] += np.exp(logits[rows] - best[rows])

    def _resized_logits(self, class_id: int, size_wh: tuple[int, int]) -> npt.NDArray[np.float32]:
        part = image_part(self.grid[class_id], self.letterbox, 'bilinear')
        return resize_map(part, size_wh, 'bilinear')
