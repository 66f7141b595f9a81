# SPDX-License-Identifier: Apache-2.0
"""Read image files, for the tools. The node does not use this module.

Pillow reads all formats except the pixels of a JPEG, which ``compressed`` decodes.
Guarantees: files whose header declares more than ``MAX_PIXELS`` are not decoded. Truncated files
are refused. Only decoders of the formats in this module are used.
Limitation: a file can still cost more time and memory than its pixels need.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError, _imaging

from trt_perception.errors import ConfigError, ImageError
from trt_perception.files.regular_files import read_regular, read_user_file
from trt_perception.images.bag_images import (
    parse_bag_image,
    read_bag_image,
    read_bag_message,
)
from trt_perception.images.compressed import (
    JPEG_START,
    MAX_PIXELS,
    check_image_file,
    check_image_size,
    unsupported_error,
)
from trt_perception.images.decompress import GREY_16_BIT_MODES, pillow_to_bgr

#: Largest image file: roughly the size of the largest image without compression.
MAX_IMAGE_FILE_BYTES: Final = 512 * 1024 * 1024

_PILLOW_FORMATS: Final = ('JPEG', 'PNG', 'BMP', 'TIFF', 'WEBP', 'PPM')
_ORIENTATION_TAG: Final = 0x112
#: Pillow's pixel modes that convert to RGB without a choice of a value range or a profile.
_CONVERTIBLE_MODES: Final = frozenset(
    ('1', 'L', 'LA', 'La', 'P', 'PA', 'RGB', 'RGBA', 'RGBa', 'RGBX', 'CMYK', 'YCbCr')
)

# Pillow warns about images above this limit, and refuses images above twice the limit.
# ``check_image_size`` refuses both, and the message names the file.
Image.MAX_IMAGE_PIXELS = MAX_PIXELS
warnings.filterwarnings('ignore', module=r'PIL\.')
# libtiff writes to standard error without naming the file. The exception has the reason.
with contextlib.suppress(OSError, AttributeError):
    ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(None)


def read_image_file(path: Path, *, upright: bool = True) -> npt.NDArray[np.uint8]:
    """Decode the first image in a file. Grey images of 16 bits keep their upper 8 bits.

    Args:
        path: a JPEG, PNG, BMP, TIFF, WebP, PPM or PGM file. Its suffix does not matter. Or the
            path of an image in a bag, as ``bag_images`` defines it.
        upright: apply the orientation in the EXIF or XMP data. If False, only for a TIFF.

    Returns:
        uint8 (height, width, 3), BGR.

    Raises:
        ImageError: with the reason ``not_decodable`` or ``too_large``. The message names the file.
    """
    if name := parse_bag_image(path):
        return read_bag_image(path, name)
    return _read(path, functools.partial(_bgr_pixels, upright=upright))


def read_image_bytes(path: Path) -> bytes:
    """Return the bytes of an image file, or the serialised message of an image in a bag.

    Raises:
        ConfigError: the file or message cannot be read, or is too large.
    """
    name = parse_bag_image(path)
    if name is None:
        return read_user_file(path, MAX_IMAGE_FILE_BYTES)
    try:
        return read_bag_message(path, name)
    except ImageError as error:
        raise ConfigError(error.subject, error.found, fix=error.fix) from error


def read_label_file(path: Path) -> npt.NDArray[np.uint8] | npt.NDArray[np.uint16]:
    """Read the values of an image with one channel, such as class ids or depth.

    Args:
        path: usually a PNG. The values of a palette image are the indices of its colours.

    Returns:
        uint8 (height, width), or uint16 for 16 bits.

    Raises:
        ImageError: with the reason ``not_decodable`` or ``too_large``. The message names the file.
    """
    return _read(path, _label_values)


def _read(
    path: Path, convert: Callable[[Image.Image, bytes], npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    try:
        return _decode(read_regular(path, MAX_IMAGE_FILE_BYTES), convert)
    except ImageError as error:
        found = f'cannot be decoded as an image: {error}'
        raise ImageError(error.reason, str(path), found) from error
    except OSError as error:
        reason = 'too_large' if error.errno == errno.EFBIG else 'not_decodable'
        raise ImageError(reason, str(path), f'cannot be read: {error.strerror}') from error


def _decode(
    content: bytes, convert: Callable[[Image.Image, bytes], npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    try:
        with Image.open(io.BytesIO(content), formats=_PILLOW_FORMATS) as image:
            check_image_size(*image.size)
            return convert(image, content)
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        found = f'a file that begins with {content[:8].hex(" ") or "nothing"}'
        expected = 'a whole JPEG, PNG, BMP, TIFF, WebP, PPM or PGM'
        raise unsupported_error('image', found, expected) from error
    except Image.DecompressionBombError as error:
        raise ImageError('too_large', 'image', str(error)) from error
    # Pillow raises a dozen exception types for damaged files, including OSError.
    except Exception as error:
        raise ImageError('not_decodable', 'image', f'Pillow cannot decode it: {error}') from error


def _bgr_pixels(image: Image.Image, content: bytes, *, upright: bool) -> npt.NDArray[np.uint8]:
    if image.mode not in _CONVERTIBLE_MODES | GREY_16_BIT_MODES:
        expected = '8 or 16 bits and one to four channels'
        raise unsupported_error(
            'image', f'pixels of the mode {image.mode}', expected, 'convert it'
        )
    must_turn = upright and image.getexif().get(_ORIENTATION_TAG, 1) != 1
    if content.startswith(JPEG_START):
        # As in the node. Pillow would decode a truncated JPEG to a half grey image.
        bgr = check_image_file(np.frombuffer(content, np.uint8)).decode().bgr
        if not must_turn:
            return bgr
        stored = Image.fromarray(bgr)
        stored.info.update(image.info)
        return np.array(ImageOps.exif_transpose(stored))
    return pillow_to_bgr(ImageOps.exif_transpose(image) if must_turn else image)


def _label_values(image: Image.Image, _: bytes) -> npt.NDArray[np.uint8] | npt.NDArray[np.uint16]:
    if image.mode in GREY_16_BIT_MODES:
        return np.asarray(image).astype(np.uint16)
    if image.mode not in ('L', 'P'):
        expected = 'one channel of 8 or 16 bits'
        raise unsupported_error('image', f'pixels of the mode {image.mode}', expected)
    return np.array(image)
