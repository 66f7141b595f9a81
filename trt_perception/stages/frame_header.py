# SPDX-License-Identifier: Apache-2.0
"""Write frame headers and batch tables for the GPU kernels.

A header precedes each frame, with its size, geometry, thresholds and pixel address. A batch table
has the number of frames and the addresses of their headers. The kernels read both on the device,
so changes need no new CUDA graph. The layouts are equal to ``FrameHeader`` and ``Batch`` in
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
from trt_perception.model.input_layout import MAX_BATCH
from trt_perception.model.thresholds import FrameParameters, Thresholds

#: Size of the frame count before the addresses, in bytes. Each byte holds the same count, so that
#: one memset can change it.
BATCH_COUNT_BYTES: Final = 8

#: The number of each pixel format in the kernels, by canonical name.
FORMAT_NUMBERS: Final = {
    name: number for number, name in enumerate(sorted({f.name for f in PIXEL_FORMATS.values()}))
}
# Pixels after a header start at a multiple of this size, for aligned memory transactions.
_PIXEL_ALIGNMENT_BYTES: Final = 256

#: Names of the float32 parameters in the header, in order.
FRAME_PARAMETERS: Final = tuple(field.name for field in dataclasses.fields(FrameParameters))
# The fields of the C struct in order: sizes and geometry as integers, the offset of the pixels,
# ratios, and parameters.
_HEADER_STRUCT: Final = struct.Struct(f'<10iq2f2d{len(FRAME_PARAMETERS)}f')
_PIXEL_OFFSET_STRUCT: Final = struct.Struct('<q')
_POSITION_OF_PIXEL_OFFSET: Final = 40


def batch_table(headers: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Return the table that describes a batch to the kernels.

    Args:
        headers: device addresses of the headers of all frames, 0 for a frame without memory.

    Returns:
        uint8: the number of frames, then the addresses.
    """
    assert len(headers) <= MAX_BATCH
    count = np.full(BATCH_COUNT_BYTES, len(headers), np.uint8)
    return np.concatenate([count, np.array(headers, '<u8').view(np.uint8)])


class FrameHeaderWriter:
    """Writes frame headers for one model.

    Args:
        classes: number of the model's classes; 0 if the task has none.

    Attributes:
        size: bytes to reserve for a header.
        class_words: number of 32-bit words in the class filter.
    """

    def __init__(self, classes: int) -> None:
        # At least one word, because C has no arrays without elements.
        self.class_words = max(1, (classes + 31) // 32)
        self.size = (
            -(-(_HEADER_STRUCT.size + 4 * self.class_words) // _PIXEL_ALIGNMENT_BYTES)
            * _PIXEL_ALIGNMENT_BYTES
        )

    def content(
        self, frame: Frame, letterbox: Letterbox, thresholds: Thresholds
    ) -> npt.NDArray[np.uint8]:
        """Return a header without the pixel offset, so that several frames can share it.

        Returns:
            The header's bytes: uint8, at most ``size`` bytes.
        """
        # Divide in float32, as in Letterbox.to_source.
        source, resized = letterbox.source_wh, letterbox.resized_wh
        ratio_x, ratio_y = np.array(source, np.float32) / np.array(resized, np.float32)
        fields = _HEADER_STRUCT.pack(
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
            # Invert the inverse ratio in double precision, as in cv2.resize, to round equally.
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
            target: uint8, at least ``size`` bytes, usually page-locked memory.
            content: result of ``content`` for the frame.
            pixels: the first pixel's device address minus the header's device address.
        """
        target[: content.size] = content
        _PIXEL_OFFSET_STRUCT.pack_into(target.data, _POSITION_OF_PIXEL_OFFSET, pixels)
