"""Picture files to pixels; what a file declares is checked before memory is taken for it.

Guarantees: a file of a few kilobytes cannot ask for gigabytes, whatever its name says; JPEG and
PNG that end too early are refused, never returned half grey; only formats listed here reach their
decoders. Non-guarantee: that pixels are what was photographed; nobody can tell.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ImageError
from trt_perception.files.regular_files import read_regular
from trt_perception.images.compressed import decode_checked, decode_picture
from trt_perception.images.frame import Frame
from trt_perception.images.picture_headers import declared_size

__all__ = ['MAX_BYTES', 'frame_of', 'read_picture']

#: As much as the largest picture has without compression, roughly.
MAX_BYTES: Final = 512 * 1024 * 1024

_TIFF_STARTS: Final = (b'II*\0', b'MM\0*')


def read_picture(path: Path, *, upright: bool = True) -> npt.NDArray[np.uint8]:
    """Decode a picture file.

    Args:
        path: the file.
        upright: turn the picture as its EXIF data say; else pixels are where the file has them.

    Returns:
        uint8 (height, width, 3), BGR.

    Raises:
        ImageError: ``not_decodable`` or ``too_large``; the message names the file.
    """
    try:
        content = np.frombuffer(read_regular(path, MAX_BYTES), np.uint8)
        size_wh = declared_size(content)
        if size_wh is None:
            return decode_picture(content, upright=upright)
        # OpenCV turns a TIFF as its tag says, whether it is asked to or not.
        turned = content[:4].tobytes() in _TIFF_STARTS
        return decode_checked(content, size_wh, upright=upright, turned=turned or upright)
    except ImageError as error:
        found = f'cannot be decoded as an image: {error}'
        raise ImageError(error.reason, str(path), found) from error
    except OSError as error:
        reason = 'too_large' if error.errno == errno.EFBIG else 'not_decodable'
        raise ImageError(reason, str(path), f'cannot be read: {error.strerror}') from error


def frame_of(bgr: npt.NDArray[np.uint8]) -> Frame:
    """Return a decoded picture, uint8 (height, width, 3), BGR, as a camera's frame."""
    height, width = bgr.shape[:2]
    pixels = np.ascontiguousarray(bgr).reshape(-1)
    return Frame.view(pixels, width=width, height=height, step=3 * width, encoding='bgr8')
