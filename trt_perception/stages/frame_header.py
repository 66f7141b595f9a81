"""What travels in front of the pixels to the GPU: size, encoding, geometry, thresholds.

The kernels read it on the device, so that none of this needs a new CUDA graph. The layout is that
of FrameHeader in stages/kernels/frame.cuh.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.config import Thresholds
from trt_perception.images.frame import PIXEL_FORMATS
from trt_perception.images.frame import Frame
from trt_perception.images.letterbox import Letterbox

__all__ = ['FORMAT_NUMBERS', 'FrameHeader']

#: The number by which kernels know a pixel format, by its canonical name.
FORMAT_NUMBERS: Final = {
    name: number for number, name in enumerate(sorted({f.name for f in PIXEL_FORMATS.values()}))
}
# Pixels start at a multiple of this, as memory transactions like it.
_ALIGNMENT: Final = 256


# Sizes and geometry as integers, then thresholds and ratios; in the order of the C struct.
_FIELDS: Final = struct.Struct('<12i4f2d')


class FrameHeader:
    """Writes headers for one model.

    Args:
        classes: how many the model has.

    Attributes:
        size: bytes from the start of the header to the first pixel.
        class_words: 32-bit words of the class filter.
    """

    def __init__(self, classes: int) -> None:
        self.class_words = (classes + 31) // 32
        self.size = -(-(_FIELDS.size + 4 * self.class_words) // _ALIGNMENT) * _ALIGNMENT

    def write(
        self,
        target: npt.NDArray[np.uint8],
        frame: Frame,
        letterbox: Letterbox,
        thresholds: Thresholds,
    ) -> None:
        """Write the header of one frame.

        Args:
            target: uint8, at least ``size`` bytes; pinned memory as a rule.
            frame: the image.
            letterbox: its geometry.
            thresholds: of this frame.
        """
        # In float32, as Letterbox.to_source divides.
        source, resized = letterbox.source_wh, letterbox.resized_wh
        ratio_x, ratio_y = np.array(source, np.float32) / np.array(resized, np.float32)
        _FIELDS.pack_into(
            target.data,
            0,
            frame.width,
            frame.height,
            frame.step,
            FORMAT_NUMBERS[frame.format.name],
            frame.big_endian,
            *resized,
            letterbox.pad_left,
            letterbox.pad_top,
            bool(thresholds.class_ids),
            0,
            0,
            ratio_x,
            ratio_y,
            thresholds.confidence,
            thresholds.iou,
            # As cv2.resize: the inverse of the inverse, in double.
            1.0 / (resized[0] / source[0]),
            1.0 / (resized[1] / source[1]),
        )
        if thresholds.class_ids:
            bits = np.zeros(self.class_words, '<u4')
            for class_id in thresholds.class_ids:
                bits[class_id // 32] |= np.uint32(1 << class_id % 32)
            target[_FIELDS.size :][: bits.nbytes] = bits.view(np.uint8)
