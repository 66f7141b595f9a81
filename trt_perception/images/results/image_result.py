# SPDX-License-Identifier: Apache-2.0
"""The base of the results for one image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from trt_perception.images.results.short_repr import ShortRepr

_Image = npt.NDArray[np.uint8]
#: Draws a result into an image in BGR order, in place.
_Draw = Callable[[_Image, Any], None]


class ImageResult(ShortRepr):
    """A result for one image. ``plot`` draws it if a Model returned it.

    The image is not part of the result's value: neither pickle nor copy keeps it.
    """

    _plotted: tuple[_Image, _Draw] | None = None

    def plot(self) -> _Image:
        """Return a copy of the image with the result drawn, as on the node's ``debug_image``.

        The image is not copied before this call. Changes since then are visible.

        Returns:
            uint8 (height, width, 3), BGR, for ``cv2.imwrite`` and ``cv2.imshow``.

        Raises:
            ValueError: the result was not returned by a Model, or was pickled or copied.
        """
        if self._plotted is None:
            raise ValueError(
                'the image of this result is unknown: only results that a Model returned '
                'can be plotted, and no pickled or copied ones'
            )
        image, draw = self._plotted
        # A slice or a turned image is not contiguous, which drawing needs.
        drawn = np.array(image, order='C')
        draw(drawn, self)
        return drawn

    def remember_image(self, image: _Image, draw: _Draw) -> None:
        """Remember the image, and the function that draws the result, for ``plot``.

        Args:
            image: uint8 (height, width, 3), BGR. It is not copied.
            draw: called with an image to change and the result.
        """
        # Results are frozen, and the image is no part of their value.
        object.__setattr__(self, '_plotted', (image, draw))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != '_plotted'}
