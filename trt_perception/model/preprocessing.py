# SPDX-License-Identifier: Apache-2.0
"""The preprocessing that turns pixels into the input tensor of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from trt_perception.files.json_records import (
    OMIT_DEFAULT,
    FieldReader,
    choice_reader,
    integer_reader,
    optional_reader,
)
from trt_perception.files.json_section import JsonSection
from trt_perception.files.plain_text import Mistake, short_repr
from trt_perception.images.frame import MAX_SIDE
from trt_perception.images.letterbox import CropRounding, Letterbox, ResizeMode, SizeRounding
from trt_perception.model.tensors import INPUT_DTYPES, MAX_TENSOR_VALUES

ResizeFilter = Literal['bilinear', 'bicubic']
RESIZE_FILTERS: Final[tuple[ResizeFilter, ...]] = get_args(ResizeFilter)
RESIZE_MODES: Final[tuple[ResizeMode, ...]] = get_args(ResizeMode)
COLOR_ORDERS: Final = ('rgb', 'bgr')
LAYOUTS: Final = ('nchw', 'nhwc')
_ALLOWED_RANGES: Final = {'scale': (1e-6, 1e3), 'mean': (-1e6, 1e6), 'std': (1e-6, 1e6)}

_MAX_INPUT_PIXELS: Final = MAX_TENSOR_VALUES // 3
# Largest input that an image may need, as a multiple of the pixels of `input_size`. The memory of
# attention grows with the square of the pixels. A square `input_size` allows images up to 4:1.
_MAX_DERIVED_FACTOR: Final = 4


def input_size_mistake(size: Sequence[float]) -> Mistake | None:
    """Return why numbers cannot be the width and height of an input; None if they can.

    Args:
        size: width and height in pixels.
    """
    whole = len(size) == 2 and all(side == int(side) and 1 <= side <= MAX_SIDE for side in size)
    if whole and size[0] * size[1] <= _MAX_INPUT_PIXELS:
        return None
    return Mistake(
        found=short_repr(list(size)),
        expected=f'[width, height] in whole pixels, each from 1 to {MAX_SIDE}, and at most '
        f'{_MAX_INPUT_PIXELS} pixels together',
    )


def number_mistake(key: str, values: Sequence[float]) -> Mistake | None:
    """Return why values of ``scale``, ``mean`` or ``std`` are invalid; None if they are valid.

    Within the allowed ranges, float32 holds each factor and each input value.

    Args:
        key: ``scale``, ``mean`` or ``std``.
    """
    low, high = _ALLOWED_RANGES[key]
    for value in values:
        if not low <= value <= high:  # also refuses NaN
            return Mistake(found=short_repr(value), expected=f'a number from {low:g} to {high:g}')
    return None


def uint8_input_mistake(
    preprocessing: Preprocessing, format_field: Callable[[str], str] = '"{}"'.format
) -> Mistake | None:
    """Return why a preprocessing is invalid for a uint8 input; None if it is valid.

    A uint8 input takes pixels unchanged, so it allows no scale, mean and standard deviation.

    Args:
        preprocessing: the preprocessing of the model, with any data type.
    """
    plain = preprocessing.scale, preprocessing.mean, preprocessing.std
    if preprocessing.dtype != 'uint8' or plain == (1, (0, 0, 0), (1, 1, 1)):
        return None
    return Mistake(
        found=', '.join(map(str, plain)),
        expected=f'{format_field("scale")} 1, {format_field("mean")} 0 and '
        f'{format_field("std")} 1, because a uint8 input takes pixels as they are',
    )


def _read_numbers(section: JsonSection, key: str, count: int) -> tuple[float, ...]:
    values = section.items(key)
    if len(values) != count:
        raise section.wrong_value_error(key, values, f'{count} numbers')
    return tuple(section.finite(value, key) for value in values)


def _read_size(section: JsonSection, key: str) -> tuple[int, int]:
    width, height = section.check_value(key, _read_numbers(section, key, 2), input_size_mistake)
    return int(width), int(height)


def _read_scale(section: JsonSection, key: str) -> float:
    return section.check_value(
        key, section.number(key), lambda scale: number_mistake(key, [scale])
    )


def _read_triple(section: JsonSection, key: str) -> tuple[float, ...]:
    numbers = _read_numbers(section, key, 3)
    return section.check_value(key, numbers, lambda values: number_mistake(key, values))


def _read_pad_value(section: JsonSection, key: str) -> int | None:
    # The key must be present, because a missing key must not be read as null.
    is_null = key in section.unread_keys() and not section.has(key)
    return None if is_null else section.integer(key, 0, 255)


def _read_with_default(read: FieldReader, default: Any) -> FieldReader:
    # Manifests of earlier releases lack the key, so it is optional.
    return lambda section, key: read(section, key) if key in section.unread_keys() else default


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of images: y = (x * scale - mean) / std per channel, with x in 0…255.

    Attributes:
        input_size: width and height of the network's input in pixels.
        resize: one of RESIZE_MODES, which trt_perception.images.letterbox defines.
        pad_value: value of the padding in all channels, 0…255. None if the padding is 0 in the
            tensor, after scale, mean and standard deviation.
        color_order: ``rgb`` or ``bgr``, the order of the tensor's channels.
        scale: factor for pixel values.
        mean: mean of each channel in the tensor's order, in scaled units.
        std: standard deviation of each channel in the tensor's order, in scaled units.
        layout: ``nchw`` or ``nhwc``.
        dtype: one of INPUT_DTYPES. ``uint8`` requires scale 1, mean 0 and std 1.
        antialias: when an image shrinks, a pixel is the mean of all pixels that it covers, as in
            PIL's resize. If False, a bilinear pixel comes from four pixels and a bicubic pixel
            from sixteen, as in ``cv2.resize``.
        round_pixels: resized pixels are rounded to whole numbers, as in a resize of bytes. If
            False, they keep their fractions, as in a resize of floats. ``uint8`` always rounds.
        filter: one of RESIZE_FILTERS. ``bicubic`` has the coefficient a = -0.5 with antialiasing,
            as in PIL and torch, else a = -0.75, as in OpenCV and torch.
        shorter_side: for ``center_crop``: length of the image's shorter side after resizing, in
            pixels. None: the shorter side of ``input_size``.
        crop_rounding: for ``center_crop``: see ``Letterbox.crop``.
        size_multiple: the model's own processing derives the size of the input from the image,
            with sides that are multiples of this number: see ``size_for``. None: the size is
            fixed.
        size_rounding: how a letterbox rounds the resized sides: see ``SizeRounding``. Manifests
            without this key are written without it again.
        keeps_aspect_ratio: for ``stretch``: the model's own processing keeps the aspect ratio of
            images, except for the rounding of the sides, as YOLOS does. Images of another aspect
            ratio than the input's are stretched, and the log has a warning. Manifests without
            this key are written without it again.
    """

    input_size: Annotated[tuple[int, int], _read_size]
    resize: Annotated[ResizeMode, choice_reader(*RESIZE_MODES)] = 'letterbox'
    pad_value: Annotated[int | None, _read_pad_value] = 114
    color_order: Annotated[str, choice_reader(*COLOR_ORDERS)] = 'rgb'
    scale: Annotated[float, _read_scale] = 1 / 255
    mean: Annotated[tuple[float, float, float], _read_triple] = (0.0, 0.0, 0.0)
    std: Annotated[tuple[float, float, float], _read_triple] = (1.0, 1.0, 1.0)
    layout: Annotated[str, choice_reader(*LAYOUTS)] = 'nchw'
    dtype: Annotated[str, choice_reader(*INPUT_DTYPES)] = 'float32'
    antialias: Annotated[bool, _read_with_default(JsonSection.boolean, False)] = False
    round_pixels: Annotated[bool, _read_with_default(JsonSection.boolean, True)] = True
    filter: Annotated[
        ResizeFilter, _read_with_default(choice_reader(*RESIZE_FILTERS), 'bilinear')
    ] = 'bilinear'
    shorter_side: Annotated[int | None, optional_reader(integer_reader(1, MAX_SIDE))] = None
    crop_rounding: Annotated[
        CropRounding, _read_with_default(choice_reader(*get_args(CropRounding)), 'half_even')
    ] = 'half_even'
    size_multiple: Annotated[int | None, optional_reader(integer_reader(1, MAX_SIDE))] = None
    size_rounding: Annotated[
        SizeRounding, _read_with_default(choice_reader(*get_args(SizeRounding)), 'half_up')
    ] = field(default='half_up', metadata=OMIT_DEFAULT)
    keeps_aspect_ratio: Annotated[bool, _read_with_default(JsonSection.boolean, False)] = field(
        default=False, metadata=OMIT_DEFAULT
    )

    def size_for(self, source_wh: tuple[int, int]) -> tuple[int, int]:
        """Return width and height of the input for an image of ``source_wh`` pixels.

        With ``size_multiple``, the image keeps its aspect ratio. One of its sides gets the length
        in ``input_size``: the side that is scaled less. Source: ``get_resize_output_image_size``
        of transformers' DPT processor (``keep_aspect_ratio``, ``ensure_multiple_of``).
        """
        multiple = self.size_multiple
        if multiple is None:
            return self.input_size
        scale_x, scale_y = (self.input_size[axis] / source_wh[axis] for axis in (0, 1))
        scale = min(scale_y, scale_x, key=lambda factor: abs(1 - factor))
        width, height = (max(1, round(scale * side / multiple)) * multiple for side in source_wh)
        return width, height

    def derived_size_mistake(self, source_wh: tuple[int, int]) -> Mistake | None:
        """Return why an image of ``source_wh`` pixels needs too large an input; None if not."""
        size = self.size_for(source_wh)
        most = min(_MAX_DERIVED_FACTOR * math.prod(self.input_size), _MAX_INPUT_PIXELS)
        if math.prod(size) <= most and max(size) <= MAX_SIDE:
            return None
        return Mistake(
            found='{} x {}, which needs an input of {} x {}'.format(*source_wh, *size),
            expected=f'an image that needs an input of at most {most} pixels, with sides of '
            f'at most {MAX_SIDE}',
        )

    def letterbox(self, source_wh: tuple[int, int]) -> Letterbox:
        """Return the position of an image of ``source_wh`` pixels in the network's input."""
        if self.resize == 'center_crop':
            shorter_side = self.shorter_side or min(self.input_size)
            return Letterbox.crop(source_wh, self.input_size, shorter_side, self.crop_rounding)
        return Letterbox.fit(source_wh, self.input_size, self.resize, self.size_rounding)

    def gain_and_bias(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return gain and bias, each float32 (3,): tensor = pixel * gain + bias per channel."""
        std = np.array(self.std, np.float64)
        gain = (self.scale / std).astype(np.float32)
        return gain, (-np.array(self.mean, np.float64) / std).astype(np.float32)

    def padding(self) -> npt.NDArray[np.float32]:
        """Return the value of the padding in each channel of the tensor: float32 (3,)."""
        if self.pad_value is None:
            return np.zeros(3, np.float32)
        gain, bias = self.gain_and_bias()
        return np.float32(self.pad_value) * gain + bias

    def summary(self) -> str:
        """Return one line for logs with all values but size and data type."""
        values = f'{self.color_order} x {self.scale:.6g}'
        if any(self.mean) or self.std != (1, 1, 1):
            values = f'({values} - {list(self.mean)}) / {list(self.std)}'
        padding = '' if self.resize == 'stretch' else f' on {pad_value_text(self.pad_value)}'
        if self.resize == 'center_crop':
            shorter_side = self.shorter_side or min(self.input_size)
            if shorter_side >= max(self.input_size):
                padding = ''
            padding = f' of shorter side {shorter_side}{padding}'
        bicubic = ', bicubic' if self.filter == 'bicubic' else ''
        antialiased = ', antialiased' if self.antialias else ''
        rounded = '' if self.round_pixels else ', not rounded'
        return f'{self.resize}{padding}{bicubic}{antialiased}{rounded}, {values}'


def pad_value_text(pad_value: int | None) -> str:
    """Return the text of a pad value for messages."""
    return '0 after normalisation' if pad_value is None else str(pad_value)


def fields_text(fields: Mapping[str, Any]) -> str:
    """Describe fields of Preprocessing for messages, such as ``resize stretch, scale 1.0``."""
    return ', '.join(
        f'{key} {pad_value_text(value) if key == "pad_value" else value}'
        for key, value in fields.items()
    )
