# SPDX-License-Identifier: Apache-2.0
"""Decode JPEG and PNG files on the CPU. Callers must check the structure of the files first.

Guarantees with simplejpeg: nothing is printed for a damaged JPEG, and a truncated JPEG is refused,
also if it ends with an EOI marker. Without simplejpeg, OpenCV decodes JPEGs. It may print a line
for a damaged file, and may return the missing part in grey.
Pillow decodes PNGs, and JPEGs with chroma samplings that simplejpeg does not support, because
OpenCV also prints a line for each of these files that is damaged.
Non-guarantees: a progressive JPEG that ends between two scans is decoded with lower quality. If
the compressed pixels of a PNG end early but all checksums are right, the other pixels are black.
A JPEG with unusual chroma sampling that lacks a few bytes of its last block may be decoded.
"""

from __future__ import annotations

import functools
import io
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.errors import ImageError
from trt_perception.images.results.image_limits import row_strips

if TYPE_CHECKING:
    from PIL import Image

#: The fix if simplejpeg is missing.
INSTALL_SIMPLEJPEG: Final = 'python3 -m pip install simplejpeg'
#: The report about a PNG whose grey pixels have 16 bits.
SIXTEEN_BIT_WARNING: Final = (
    'a PNG has grey pixels of 16 bits, and only their upper 8 bits are used: a depth image or a '
    'dim image becomes dark'
)
#: Pillow's modes for grey pixels of 16 bits.
GREY_16_BIT_MODES: Final = frozenset(('I', 'I;16', 'I;16B', 'I;16L'))

# Parts of libjpeg's messages, in lower case. libjpeg reports only the first problem of a file.
_TRUNCATION_MESSAGES: Final = ('premature end', 'found marker 0xd9 instead of rst')
# simplejpeg 1.9 supports only 4:4:4, 4:2:2, 4:2:0, 4:1:1, 4:4:0 and 4:4:1.
_UNUSUAL_SAMPLING_MESSAGE: Final = 'could not determine subsampling'
# Bytes that can be coded pixels and contain no marker. Their bits hardly ever continue a block as
# the zeros do that libjpeg uses for missing pixels.
_ARBITRARY_BYTES: Final = bytes(number * 89 % 255 for number in range(64))
_EOI_MARKER: Final = b'\xff\xd9'


class _Defect(Enum):
    """The defect of a file, according to an error of simplejpeg."""

    TRUNCATED = auto()
    UNUSUAL_SAMPLING = auto()
    OTHER = auto()  # perhaps harmless


class DecodedImage(NamedTuple):
    """The pixels of an image file.

    Attributes:
        bgr: uint8 (height, width, 3), BGR.
        warning: the report about a decoded file; empty without a report.
    """

    bgr: npt.NDArray[np.uint8]
    warning: str = ''


@functools.cache
def load_simplejpeg() -> tuple[Any, str]:
    """Return the module simplejpeg, or None and why it cannot be imported."""
    try:
        import simplejpeg
    # A module that was compiled for another NumPy raises ValueError or AttributeError.
    except Exception as error:
        return None, f'{type(error).__name__}: {error}'
    return simplejpeg, ''


def jpeg_defect(defect: str) -> str:
    """Return the report about a decoded JPEG with a defect."""
    return f'a JPEG has a defect, but was decoded: {defect}'


def decode_jpeg(file: bytes, size_wh: tuple[int, int], has_end: bool = True) -> DecodedImage:
    """Decode a JPEG with simplejpeg, or with OpenCV if simplejpeg is missing.

    Args:
        size_wh: width and height in the file's header, in pixels.
        has_end: whether the end marker is from the file. If not, the file may be truncated. It
            is then decoded only if simplejpeg reports no problem at all.

    Raises:
        ImageError: the file is truncated or cannot be decoded (reason ``not_decodable``).
    """
    simplejpeg, _ = load_simplejpeg()
    if simplejpeg is None and not has_end:
        found = 'no end marker, so only simplejpeg can tell whether pixels are missing'
        raise ImageError('not_decodable', 'JPEG', found, fix=INSTALL_SIMPLEJPEG)
    if simplejpeg is None:
        return DecodedImage(_decode_with_opencv(file))
    width, height = size_wh
    bgr = np.empty((height, width, 3), np.uint8)
    try:
        decoded = simplejpeg.decode_jpeg(file, 'BGR', buffer=bgr, strict=True)
        return DecodedImage(decoded, '' if has_end else jpeg_defect('its end marker is missing'))
    except ValueError as error:
        warning, defect = str(error), _defect_of(error)
    if defect is _Defect.TRUNCATED:
        raise ImageError('not_decodable', 'JPEG', f'truncated file: {warning}')
    if not has_end:
        found = f'no end marker, and perhaps not all pixels: {warning}'
        raise ImageError('not_decodable', 'JPEG', found)
    if defect is _Defect.UNUSUAL_SAMPLING:
        return DecodedImage(_decode_unusual_jpeg(file))
    # Many USB cameras write spare bytes before a marker, which is harmless.
    try:
        decoded = simplejpeg.decode_jpeg(file, 'BGR', buffer=bgr, strict=False)
    except ValueError as error:
        raise ImageError('not_decodable', 'JPEG', f'damaged file: {error}') from error
    return DecodedImage(decoded, jpeg_defect(warning))


def _defect_of(error: ValueError) -> _Defect:
    """Return the defect that an error of simplejpeg describes. The error has only a text."""
    text = str(error).lower()
    if any(part in text for part in _TRUNCATION_MESSAGES):
        return _Defect.TRUNCATED
    return _Defect.UNUSUAL_SAMPLING if _UNUSUAL_SAMPLING_MESSAGE in text else _Defect.OTHER


def _decode_with_opencv(file: bytes) -> npt.NDArray[np.uint8]:
    content = np.frombuffer(file, np.uint8)
    try:
        bgr = cv2.imdecode(content, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        found = f'OpenCV cannot decode the image: {error}'
        raise ImageError('not_decodable', 'JPEG', found) from error
    if bgr is None:
        raise ImageError('not_decodable', 'JPEG', 'damaged file: OpenCV cannot decode it')
    return bgr.astype(np.uint8, copy=False)


def _decode_unusual_jpeg(file: bytes) -> npt.NDArray[np.uint8]:
    """Decode a JPEG with any chroma sampling. The pixels are those of OpenCV, except in CMYK.

    Pillow does not report a truncated file that ends with an EOI marker. But in such a file, bytes
    in front of this marker are read as pixels. In a whole file, they change nothing.
    """
    data = memoryview(file)
    if file.endswith(_EOI_MARKER):
        data = data[: -len(_EOI_MARKER)]
    bgr, extended = (
        _decode_with_pillow(b''.join((data, end)), 'JPEG')
        for end in (_EOI_MARKER, _ARBITRARY_BYTES + _EOI_MARKER)
    )
    if not np.array_equal(bgr, extended):
        raise ImageError('not_decodable', 'JPEG', 'truncated file: coded pixels are missing')
    return bgr


def decode_png(file: bytes) -> DecodedImage:
    """Decode a PNG with Pillow. Grey images of 16 bits keep their upper 8 bits.

    Args:
        file: the whole file. The caller has checked its size.

    Raises:
        ImageError: Pillow is missing or cannot decode the file (reason ``not_decodable``).
    """
    bits, color = file[24:26]  # of the header, which the caller has checked
    warning = SIXTEEN_BIT_WARNING if (bits, color) == (16, 0) else ''
    return DecodedImage(_decode_with_pillow(file, 'PNG'), warning)


def _decode_with_pillow(file: bytes, kind: str) -> npt.NDArray[np.uint8]:
    try:
        # Image.open would also check the size, with a limit that is global in the process.
        from PIL.JpegImagePlugin import JpegImageFile
        from PIL.PngImagePlugin import PngImageFile
    except ImportError as error:
        fix = 'sudo apt install python3-pil'
        raise ImageError('not_decodable', kind, f'needs Pillow: {error}', fix=fix) from error
    try:
        with (PngImageFile if kind == 'PNG' else JpegImageFile)(io.BytesIO(file)) as image:
            return pillow_to_bgr(image)
    # Pillow raises a dozen exception types for damaged files, including OSError.
    except Exception as error:
        found = f'damaged file: Pillow cannot decode it: {error}'
        raise ImageError('not_decodable', kind, found) from error


def pillow_to_bgr(image: Image.Image) -> npt.NDArray[np.uint8]:
    """Return the pixels of an image of Pillow as uint8 (height, width, 3), BGR."""
    width, height = image.size
    bgr = np.empty((height, width, 3), np.uint8)
    # Pillow needs four bytes for most pixels. Whole copies in RGB would need 1.3 GB more.
    for rows in row_strips(image.size):
        strip = image.crop((0, rows.start, width, rows.stop))
        if image.mode in GREY_16_BIT_MODES:
            # As in OpenCV. Pillow's own conversion clips values above 255.
            pixels, code = (np.asarray(strip) >> 8).astype(np.uint8), cv2.COLOR_GRAY2BGR
        else:
            pixels, code = np.asarray(strip.convert('RGB')), cv2.COLOR_RGB2BGR
        cv2.cvtColor(pixels, code, dst=bgr[rows])
    return bgr
