# SPDX-License-Identifier: Apache-2.0
"""Decode JPEGs with NVIDIA's nvJPEG through its C interface.

Names, numbers and layouts come from nvjpeg.h of release 13.3.2, and are equal in release 12. If
nvJPEG refuses a file, functions return the reason instead of raising, because callers then use
another decoder.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import CudaError
from trt_perception.gpu.bindings import Resource
from trt_perception.gpu.streams import Stream

# The fix for a missing library.
_INSTALL_NVJPEG: Final = (
    'python3 -m pip install nvidia-nvjpeg (CUDA 12: nvidia-nvjpeg-cu12), or on a Jetson '
    'sudo apt install libnvjpeg-13-2, or your version'
)

# Newest first. JetPack also has a different libnvjpeg.so without a version number. It lacks the
# functions of this module, and is skipped.
_LIBRARY_NAMES: Final = ('libnvjpeg.so.13', 'libnvjpeg.so.12', 'libnvjpeg.so')
# Folders of NVIDIA's wheels, below the Python package `nvidia`, and of the CUDA toolkit.
_WHEEL_FOLDERS: Final = ('cu13/lib', 'nvjpeg/lib')
_TOOLKIT_FOLDER: Final = Path('/usr/local/cuda/lib64')

_STATUS_NAMES: Final = (
    'NVJPEG_STATUS_SUCCESS',
    'NVJPEG_STATUS_NOT_INITIALIZED',
    'NVJPEG_STATUS_INVALID_PARAMETER',
    'NVJPEG_STATUS_BAD_JPEG',
    'NVJPEG_STATUS_JPEG_NOT_SUPPORTED',
    'NVJPEG_STATUS_ALLOCATOR_FAILURE',
    'NVJPEG_STATUS_EXECUTION_FAILED',
    'NVJPEG_STATUS_ARCH_MISMATCH',
    'NVJPEG_STATUS_INTERNAL_ERROR',
    'NVJPEG_STATUS_IMPLEMENTATION_NOT_SUPPORTED',
    'NVJPEG_STATUS_INCOMPLETE_BITSTREAM',
)
_BACKEND_DEFAULT: Final = 0
_OUTPUT_BGRI: Final = 6
# Refuse files that violate the specification, instead of decoding them to arbitrary pixels.
_STRICT_BITSTREAM_FLAG: Final = 1 << 2
# Interpolate chroma between samples, as libjpeg does.
_INTERPOLATION_FLAG: Final = 1 << 5
_FIRST_RELEASE_WITH_INTERPOLATION: Final = (12, 1)
_OLDEST_SUPPORTED_RELEASE: Final = (12, 0)
_MAX_COMPONENTS: Final = 4
# Size of the first file buffer.
_INITIAL_FILE_BUFFER_BYTES: Final = 2**20

_POINTER_TYPE = ctypes.c_void_p
_INT_TYPE = ctypes.c_int
_SIZE_TYPE = ctypes.c_size_t
_OUT_POINTER_TYPE = ctypes.POINTER(ctypes.c_void_p)
_INT_ARRAY_TYPE = ctypes.POINTER(ctypes.c_int)


class _NvjpegImage(ctypes.Structure):
    """nvjpegImage_t: addresses and pitches of the planes. Interleaved pixels use the first one."""

    _fields_ = (
        ('channel', _POINTER_TYPE * _MAX_COMPONENTS),
        ('pitch', _SIZE_TYPE * _MAX_COMPONENTS),
    )


_ARGUMENT_TYPES_BY_FUNCTION: Final[dict[str, tuple[Any, ...]]] = {
    'nvjpegGetProperty': (_INT_TYPE, _INT_ARRAY_TYPE),
    'nvjpegCreateEx': (_INT_TYPE, _POINTER_TYPE, _POINTER_TYPE, ctypes.c_uint, _OUT_POINTER_TYPE),
    'nvjpegDestroy': (_POINTER_TYPE,),
    'nvjpegJpegStateCreate': (_POINTER_TYPE, _OUT_POINTER_TYPE),
    'nvjpegJpegStateDestroy': (_POINTER_TYPE,),
    'nvjpegGetImageInfo': (
        _POINTER_TYPE,
        _POINTER_TYPE,
        _SIZE_TYPE,
        _INT_ARRAY_TYPE,
        _INT_ARRAY_TYPE,
        _INT_ARRAY_TYPE,
        _INT_ARRAY_TYPE,
    ),
    'nvjpegDecode': (
        _POINTER_TYPE,
        _POINTER_TYPE,
        _POINTER_TYPE,
        _SIZE_TYPE,
        _INT_TYPE,
        ctypes.POINTER(_NvjpegImage),
        _POINTER_TYPE,
    ),
}


class NvJpeg(Resource):
    """The nvJPEG library with a handle. Several threads may share an instance.

    Requires a current device.

    Attributes:
        version: (major, minor, patch) of the library.

    Raises:
        CudaError: nvJPEG is not installed, or does not work with this GPU.
    """

    def __init__(self) -> None:
        self._handle = _POINTER_TYPE()
        self.library, self.version = load_nvjpeg()
        flags = _STRICT_BITSTREAM_FLAG | (
            _INTERPOLATION_FLAG if self.version >= _FIRST_RELEASE_WITH_INTERPOLATION else 0
        )
        status = self.library.nvjpegCreateEx(
            _BACKEND_DEFAULT, None, None, flags, ctypes.byref(self._handle)
        )
        if status:
            self._handle = _POINTER_TYPE()
            raise CudaError(
                'nvjpegCreateEx failed',
                _status_name(status),
                fix='install nvJPEG of a CUDA release that the driver supports',
                status=_status_name(status),
            )

    def read_size(self, pointer: int, size: int) -> tuple[int, int] | str:
        """Return the width and height that nvJPEG reads in a file, or the name of its error.

        Args:
            pointer: address of the file on the host.
            size: bytes of the file.
        """
        components, subsampling = _INT_TYPE(), _INT_TYPE()
        widths, heights = (_INT_TYPE * _MAX_COMPONENTS)(), (_INT_TYPE * _MAX_COMPONENTS)()
        status = self.library.nvjpegGetImageInfo(
            self._handle, pointer, size, components, subsampling, widths, heights
        )
        return _status_name(status) if status else (widths[0], heights[0])

    def decoder(self) -> JpegDecoder:
        """Return a decoder, which only one thread may use at a time.

        Raises:
            CudaError: nvJPEG cannot create the decoder.
        """
        return JpegDecoder(self, self._handle)

    def close(self) -> None:
        """Free the handle. The caller must close all decoders first."""
        if self._handle:
            handle, self._handle = self._handle, _POINTER_TYPE()
            self.library.nvjpegDestroy(handle)


class JpegDecoder(Resource):
    """The state of one decoding: a buffer for the file, and nvJPEG's own memory.

    Both grow to the largest file so far.
    """

    def __init__(self, nvjpeg: NvJpeg, handle: Any) -> None:
        self._nvjpeg = nvjpeg
        self._handle = handle
        self._state = _POINTER_TYPE()
        self._file: npt.NDArray[np.uint8] = np.empty(_INITIAL_FILE_BUFFER_BYTES, np.uint8)
        self._pointer: int = self._file.ctypes.data
        # Headers of the last file, and the size that nvJPEG read in them.
        self._last_headers: tuple[bytes | memoryview | None, tuple[int, int]] | None = None
        status = nvjpeg.library.nvjpegJpegStateCreate(handle, ctypes.byref(self._state))
        if status:
            self._state = _POINTER_TYPE()
            raise CudaError(
                'nvjpegJpegStateCreate failed', _status_name(status), status=_status_name(status)
            )

    def decode(
        self,
        jpeg: Sequence[bytes | memoryview],
        size_wh: tuple[int, int],
        pointer: int,
        pitch: int,
        stream: Stream,
    ) -> str:
        """Decode a file to BGR pixels on the device. Uses a CPU core, and releases the GIL.

        Args:
            jpeg: the file as consecutive parts, which are copied. The first of several parts must
                contain all headers.
            size_wh: width and height in pixels. nvJPEG must read the same size in the file.
            pointer: device address of ``size_wh[1] * pitch`` bytes.
            pitch: bytes from one row to the next, at least three for each pixel.
            stream: the stream for the GPU's part of the work. Must be idle: on some GPUs the
                decoder writes before earlier work on the stream has ended.

        Returns:
            Empty if successful. Otherwise the reason: nvJPEG's status, or a different size.
        """
        size = self._join_parts(jpeg)
        headers = jpeg[0] if len(jpeg) > 1 else None
        if headers is None or self._last_headers != (headers, size_wh):
            found = self._nvjpeg.read_size(self._pointer, size)
            if isinstance(found, str):
                return found
            if found != size_wh:
                return 'nvJPEG reads a different size in the headers'
            self._last_headers = headers, size_wh
        image = _NvjpegImage()
        image.channel[0], image.pitch[0] = pointer, pitch
        status = self._nvjpeg.library.nvjpegDecode(
            self._handle,
            self._state,
            self._pointer,
            size,
            _OUTPUT_BGRI,
            image,
            stream.handle,
        )
        return _status_name(status) if status else ''

    def _join_parts(self, jpeg: Sequence[bytes | memoryview]) -> int:
        """Copy a file's parts into the buffer, without the GIL. Return the file's size in bytes.

        The stream is idle, so no earlier decoding still reads the buffer.
        """
        size = sum(map(len, jpeg))
        if size > self._file.size:
            self._file = np.empty(size + size // 4, np.uint8)
            self._pointer = self._file.ctypes.data
        at = 0
        for part in jpeg:
            self._file[at : at + len(part)] = np.frombuffer(part, np.uint8) if part else 0
            at += len(part)
        return size

    def close(self) -> None:
        """Free nvJPEG's memory. The work on the stream must be done."""
        if self._state:
            state, self._state = self._state, _POINTER_TYPE()
            self._nvjpeg.library.nvjpegJpegStateDestroy(state)


@functools.cache
def load_nvjpeg() -> tuple[Any, tuple[int, ...]]:
    """Load nvJPEG once, and return the library and its version (major, minor, patch).

    Raises:
        CudaError: no usable library exists. The message names the first unusable library.
    """
    failures = []
    for path in _library_paths():
        try:
            library = ctypes.CDLL(path)
            for name, kinds in _ARGUMENT_TYPES_BY_FUNCTION.items():
                function = getattr(library, name)
                function.argtypes, function.restype = kinds, _INT_TYPE
        except OSError as error:
            if Path(
                path
            ).is_absolute():  # for a bare name, the error only says that the file is missing
                failures.append(str(error))
            continue
        except AttributeError as error:  # a different library with the same name
            failures.append(str(error))
            continue
        version = tuple(_version_number(library, kind) for kind in range(3))
        if version >= _OLDEST_SUPPORTED_RELEASE:
            return library, version
        failures.append(f'{path}: version {".".join(map(str, version))} is too old')
    found = next(iter(failures), 'libnvjpeg is not installed')
    raise CudaError('nvJPEG', found, fix=_INSTALL_NVJPEG)


def _version_number(library: Any, kind: int) -> int:
    """Return one number of the version. ``kind`` is a libraryPropertyType, 0 for major."""
    number = _INT_TYPE()
    library.nvjpegGetProperty(kind, ctypes.byref(number))
    return number.value


def _library_paths() -> Iterator[str]:
    """Yield paths in NVIDIA's wheels, names for the loader, and paths in the CUDA toolkit."""
    spec = None
    with contextlib.suppress(ImportError, ValueError):  # the package `nvidia` is broken
        spec = importlib.util.find_spec('nvidia')
    for root in (spec and spec.submodule_search_locations) or ():
        for folder in _WHEEL_FOLDERS:
            yield from (
                str(path) for name in _LIBRARY_NAMES if (path := Path(root, folder, name)).exists()
            )
    yield from _LIBRARY_NAMES
    yield from (str(path) for name in _LIBRARY_NAMES if (path := _TOOLKIT_FOLDER / name).exists())


def _status_name(status: int) -> str:
    """Return the name of a status in nvjpeg.h."""
    return (
        _STATUS_NAMES[status] if 0 <= status < len(_STATUS_NAMES) else f'nvjpegStatus_t {status}'
    )
