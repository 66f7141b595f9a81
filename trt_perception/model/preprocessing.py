"""How pixels become the input tensor of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trt_perception.images.letterbox import ResizeMode
from trt_perception.plain_text import shown

__all__ = ['COLOR_ORDERS', 'LAYOUTS', 'RESIZE_MODES', 'Preprocessing', 'size_fault']

RESIZE_MODES: Final[tuple[ResizeMode, ...]] = ('letterbox', 'letterbox_top_left', 'stretch')
COLOR_ORDERS: Final = ('rgb', 'bgr')
LAYOUTS: Final = ('nchw', 'nhwc')

_LONGEST_SIDE: Final = 32767
# 0.8 GB as float32: whoever asks for more has mistaken a number, and would lose the process to it.
_MOST_PIXELS: Final = 2**26


def size_fault(size: Sequence[float]) -> str:
    """Return what keeps numbers from being width and height of an input, as in 'must be …'.

    Args:
        size: in pixels.

    Returns:
        '' where nothing does.
    """
    whole = len(size) == 2 and all(
        side == int(side) and 1 <= side <= _LONGEST_SIDE for side in size
    )
    if whole and size[0] * size[1] <= _MOST_PIXELS:
        return ''
    return (
        f'must be [width, height] in whole pixels, each from 1 to {_LONGEST_SIDE}, and at most '
        f'{_MOST_PIXELS} pixels together (got {shown(list(size))})'
    )


@dataclass(frozen=True)
class Preprocessing:
    """How pixels become the input tensor: y = (x * scale - mean) / std per channel, x in 0…255.

    Attributes:
        input_size: width and height of the network's input in pixels.
        resize: one of RESIZE_MODES, as in trt_perception.images.letterbox.
        pad_value: what the padding is filled with, 0…255, in every channel.
        color_order: ``rgb`` or ``bgr``, the order of the tensor's channels.
        scale: factor on the pixel values.
        mean: per channel in the tensor's order, in scaled units.
        std: per channel in the tensor's order, in scaled units.
        layout: ``nchw`` or ``nhwc``.
        dtype: one of INPUT_DTYPES; ``uint8`` takes pixels as they are: scale 1, mean 0, std 1.
        antialias: a pixel of an image that shrinks is the mean of all that it covers, as in PIL's
            bilinear resize; else four pixels make one, as in ``cv2.resize``.
    """

    input_size: tuple[int, int]
    resize: ResizeMode = 'letterbox'
    pad_value: int = 114
    color_order: str = 'rgb'
    scale: float = 1 / 255
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    layout: str = 'nchw'
    dtype: str = 'float32'
    antialias: bool = False

    def in_words(self) -> str:
        """Return in one line for people what becomes of the pixels; size and type are left out."""
        values = f'{self.color_order} x {self.scale:.6g}'
        if any(self.mean) or self.std != (1, 1, 1):
            values = f'({values} - {list(self.mean)}) / {list(self.std)}'
        padding = '' if self.resize == 'stretch' else f' on {self.pad_value}'
        antialiased = ', antialiased' if self.antialias else ''
        return f'{self.resize}{padding}{antialiased}, {values}'
