"""What travels in front of the pixels to the GPU: size, encoding, geometry, thresholds.

The kernels read it on the device, so that none of this needs a new CUDA graph. The layout is that
of FrameHeader in stages/kernels/frame.cuh.
"""

from __future__ import annotations

from typing import Any
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.config import Thresholds
from trt_perception.frame import PIXEL_FORMATS
from trt_perception.frame import Frame
from trt_perception.letterbox import Letterbox

__all__ = ['FORMAT_NUMBERS', 'FrameHeader']

#: The number by which kernels know a pixel format, by its canonical name.
FORMAT_NUMBERS: Final = {
    name: number for number, name in enumerate(sorted({f.name for f in PIXEL_FORMATS.values()}))
}
# Pixels start at a multiple of this, as memory transactions like it.
_ALIGNMENT: Final = 256


class FrameHeader:
    """Writes headers for one model.

    Args:
        classes: how many the model has.

    Attributes:
        dtype: the header's fields.
        size: bytes from the start of the header to the first pixel.
        class_words: 32-bit words of the class filter.
    """

    def __init__(self, classes: int) -> None:
        self.class_words = (classes + 31) // 32
        self.dtype = np.dtype(
            [
                *((name, '<i4') for name in ('width', 'height', 'step', 'format', 'big_endian')),
                *((name, '<i4') for name in ('resized_width', 'resized_height', 'pad_left')),
                *(
                    (name, '<i4')
                    for name in ('pad_top', 'filter_classes', 'reserved0', 'reserved1')
                ),
                *((name, '<f4') for name in ('to_source_x', 'to_source_y', 'confidence', 'iou')),
                *((name, '<f8') for name in ('scale_x', 'scale_y')),
                ('class_bits', '<u4', (self.class_words,)),
            ]
        )
        self.size = -(-self.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT

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
        fields: Any = target[: self.dtype.itemsize].view(self.dtype)[0]
        ratio = np.array(letterbox.source_wh, np.float32) / np.array(
            letterbox.resized_wh, np.float32
        )
        fields['width'], fields['height'], fields['step'] = frame.width, frame.height, frame.step
        fields['format'] = FORMAT_NUMBERS[frame.format.name]
        fields['big_endian'] = frame.big_endian
        fields['resized_width'], fields['resized_height'] = letterbox.resized_wh
        fields['pad_left'], fields['pad_top'] = letterbox.pad_left, letterbox.pad_top
        fields['to_source_x'], fields['to_source_y'] = ratio
        # As cv2.resize: the inverse of the inverse, in double.
        fields['scale_x'], fields['scale_y'] = (
            1.0 / (resized / source)
            for resized, source in zip(letterbox.resized_wh, letterbox.source_wh, strict=True)
        )
        fields['confidence'], fields['iou'] = thresholds.confidence, thresholds.iou
        fields['filter_classes'] = bool(thresholds.class_ids)
        bits = fields['class_bits']
        bits[:] = 0
        for class_id in thresholds.class_ids:
            bits[class_id // 32] |= np.uint32(1 << class_id % 32)
