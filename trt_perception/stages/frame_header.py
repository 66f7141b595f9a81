"""What travels in front of a frame to the GPU: its size, geometry, thresholds, where pixels are.

The kernels read it on the device, so that none of this needs a new CUDA graph, and neither does
where the frames of a batch are and how many. The layouts are those of FrameHeader and Batch in
stages/kernels/frame.cuh.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.images.frame import PIXEL_FORMATS, Frame
from trt_perception.images.letterbox import Letterbox
from trt_perception.parameters.frame import FrameParameters, Thresholds
from trt_perception.stages.batch_sizes import MAX_BATCH

__all__ = [
    *(
        'BATCH_COUNT_BYTES',
        'FORMAT_NUMBERS',
        'FRAME_PARAMETERS',
        'FrameHeaderWriter',
        'batch_table',
    ),
]

#: So many bytes, each of which is the number of frames, stand in front of their addresses.
BATCH_COUNT_BYTES: Final = 8

#: The number by which kernels know a pixel format, by its canonical name.
FORMAT_NUMBERS: Final = {
    name: number for number, name in enumerate(sorted({f.name for f in PIXEL_FORMATS.values()}))
}
# What follows starts at a multiple of this, as memory transactions like it.
_ALIGNMENT: Final = 256

#: Names of the parameters in the header, each a float32, in their order there.
FRAME_PARAMETERS: Final = tuple(field.name for field in dataclasses.fields(FrameParameters))
# Sizes and geometry as integers, where the pixels are, then ratios and parameters; in the order of
# the C struct.
_FIELDS: Final = struct.Struct(f'<10iq2f2d{len(FRAME_PARAMETERS)}f')
_PIXELS: Final = struct.Struct('<q')
_PIXELS_OFFSET: Final = 40


def batch_table(headers: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Return what tells the kernels of a batch.

    Args:
        headers: device addresses of the headers of all frames, 0 where a frame has no place yet.

    Returns:
        uint8: the number of frames, then the addresses.
    """
    assert len(headers) <= MAX_BATCH
    count = np.full(BATCH_COUNT_BYTES, len(headers), np.uint8)
    return np.concatenate([count, np.array(headers, '<u8').view(np.uint8)])


class FrameHeaderWriter:
    """Makes headers for one model.

    Args:
        classes: how many the model has.

    Attributes:
        size: bytes that a header has room in.
        class_words: 32-bit words of the class filter.
    """

    def __init__(self, classes: int) -> None:
        self.class_words = (classes + 31) // 32
        self.size = -(-(_FIELDS.size + 4 * self.class_words) // _ALIGNMENT) * _ALIGNMENT

    def content(
        self, frame: Frame, letterbox: Letterbox, thresholds: Thresholds
    ) -> npt.NDArray[np.uint8]:
        """Return all of a frame's header but where its pixels are: that of all frames like it.

        Args:
            frame: the image.
            letterbox: its geometry.
            thresholds: of this frame.

        Returns:
            uint8, at most ``size`` bytes.
        """
        # In float32, as Letterbox.to_source divides.
        source, resized = letterbox.source_wh, letterbox.resized_wh
        ratio_x, ratio_y = np.array(source, np.float32) / np.array(resized, np.float32)
        fields = _FIELDS.pack(
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
            ratio_x,
            ratio_y,
            # As cv2.resize: the inverse of the inverse, in double.
            1.0 / (resized[0] / source[0]),
            1.0 / (resized[1] / source[1]),
            *(getattr(thresholds, name) for name in FRAME_PARAMETERS),
        )
        bits = np.zeros(self.class_words, '<u4')
        for class_id in thresholds.class_ids:
            bits[class_id // 32] |= np.uint32(1 << class_id % 32)
        return np.frombuffer(fields + bits.tobytes(), np.uint8)

    def write(
        self, target: npt.NDArray[np.uint8], content: npt.NDArray[np.uint8], pixels: int
    ) -> None:
        """Write the header of one frame.

        Args:
            target: uint8, at least ``size`` bytes; page-locked memory as a rule.
            content: of the frame.
            pixels: bytes from the header's start to the first pixel, as the device counts them.
        """
        target[: content.size] = content
        _PIXELS.pack_into(target.data, _PIXELS_OFFSET, pixels)
