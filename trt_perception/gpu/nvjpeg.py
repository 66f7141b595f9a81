"""NVIDIA's JPEG decoder, nvJPEG, through its C interface; the only module that knows it.

Names, numbers and layouts are those of nvjpeg.h of release 13.3.2; they are the same in 12. What
nvJPEG says against a file is data, not an exception: a caller has another decoder.
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

__all__ = ['JpegDecoder', 'NvJpeg', 'load_nvjpeg']

# What to do where the library is missing.
_MISSING: Final = (
    'python3 -m pip install nvidia-nvjpeg (CUDA 12: nvidia-nvjpeg-cu12), or on a Jetson '
    'sudo apt install libnvjpeg-13-2, or your version'
)

# Newest first. JetPack has another library named libnvjpeg.so, without a number, which is none of
# these: it lacks the functions, and is passed over.
_NAMES: Final = ('libnvjpeg.so.13', 'libnvjpeg.so.12', 'libnvjpeg.so')
# Below a folder `nvidia` of the Python path, as NVIDIA's wheels have it; and CUDA's own.
_WHEEL_FOLDERS: Final = ('cu13/lib', 'nvjpeg/lib')
_TOOLKIT: Final = Path('/usr/local/cuda/lib64')

_STATUS: Final = (
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
# Refuse what does not follow the specification to the letter, instead of making something of it.
_BITSTREAM_STRICT: Final = 1 << 2
# Interpolate chroma between its samples, as libjpeg does.
_INTERPOLATION: Final = 1 << 5
_INTERPOLATES: Final = (12, 1)
_OLDEST: Final = (12, 0)
_COMPONENTS: Final = 4
# Room for a file from the start.
_FIRST_FILE_BYTES: Final = 2**20

_POINTER = ctypes.c_void_p
_INT = ctypes.c_int
_SIZE = ctypes.c_size_t
_OUT = ctypes.POINTER(ctypes.c_void_p)
_INTS = ctypes.POINTER(ctypes.c_int)


class _NvjpegImage(ctypes.Structure):
    """nvjpegImage_t: where the planes go; an interleaved picture is the first."""

    _fields_ = (('channel', _POINTER * _COMPONENTS), ('pitch', _SIZE * _COMPONENTS))


_FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    'nvjpegGetProperty': (_INT, _INTS),
    'nvjpegCreateEx': (_INT, _POINTER, _POINTER, ctypes.c_uint, _OUT),
    'nvjpegDestroy': (_POINTER,),
    'nvjpegJpegStateCreate': (_POINTER, _OUT),
    'nvjpegJpegStateDestroy': (_POINTER,),
    'nvjpegGetImageInfo': (_POINTER, _POINTER, _SIZE, _INTS, _INTS, _INTS, _INTS),
    'nvjpegDecode': (
        *(_POINTER, _POINTER, _POINTER, _SIZE, _INT),
        *(ctypes.POINTER(_NvjpegImage), _POINTER),
    ),
}


class NvJpeg(Resource):
    """The library with a handle; threads may share it.

    Needs a current device.

    Attributes:
        library: with its functions declared.
        version: of the library, major, minor and patch.

    Raises:
        CudaError: it is not installed, or does not work with this GPU.
    """

    def __init__(self) -> None:
        self._handle = _POINTER()
        self.library, self.version = load_nvjpeg()
        flags = _BITSTREAM_STRICT | (_INTERPOLATION if self.version >= _INTERPOLATES else 0)
        status = self.library.nvjpegCreateEx(
            _BACKEND_DEFAULT, None, None, flags, ctypes.byref(self._handle)
        )
        if status:
            self._handle = _POINTER()
            raise CudaError(
                'nvjpegCreateEx failed',
                _name(status),
                fix='install nvJPEG of the CUDA release that the driver supports',
                status=_name(status),
            )

    def read_size(self, pointer: int, size: int) -> tuple[int, int] | str:
        """Return width and height that nvJPEG reads, or the name of the status that it gives.

        Args:
            pointer: address of the file on the host.
            size: bytes of it.
        """
        components, subsampling = _INT(), _INT()
        widths, heights = (_INT * _COMPONENTS)(), (_INT * _COMPONENTS)()
        status = self.library.nvjpegGetImageInfo(
            self._handle, pointer, size, components, subsampling, widths, heights
        )
        return _name(status) if status else (widths[0], heights[0])

    def decoder(self) -> JpegDecoder:
        """Return a decoder, for one thread at a time.

        Raises:
            CudaError: it could not be made.
        """
        return JpegDecoder(self, self._handle)

    def close(self) -> None:
        """Free the handle; after all decoders."""
        if self._handle:
            handle, self._handle = self._handle, _POINTER()
            self.library.nvjpegDestroy(handle)


class JpegDecoder(Resource):
    """What one decoding needs: the file in one piece, and memory of nvJPEG's own.

    Both grow to the largest file so far.
    """

    def __init__(self, nvjpeg: NvJpeg, handle: Any) -> None:
        self._nvjpeg = nvjpeg
        self._handle = handle
        self._state = _POINTER()
        self._file: npt.NDArray[np.uint8] = np.empty(_FIRST_FILE_BYTES, np.uint8)
        self._pointer: int = self._file.ctypes.data
        # Headers of the last file, and the size that nvJPEG has read in them.
        self._known: tuple[bytes | memoryview | None, tuple[int, int]] | None = None
        status = nvjpeg.library.nvjpegJpegStateCreate(handle, ctypes.byref(self._state))
        if status:
            self._state = _POINTER()
            raise CudaError('nvjpegJpegStateCreate failed', _name(status), status=_name(status))

    def decode(
        self,
        jpeg: Sequence[bytes | memoryview],
        size_wh: tuple[int, int],
        pointer: int,
        pitch: int,
        stream: Stream,
    ) -> str:
        """Decode a file to BGR pixels on the device; a core works, without the lock.

        Args:
            jpeg: the whole file, in parts that follow each other; they are copied. The first of
                several has all headers, which alone say the size.
            size_wh: width and height in pixels; nvJPEG must read the same in the file.
            pointer: device address of ``size_wh[1] * pitch`` bytes.
            pitch: bytes from one row to the next, at least three for each pixel.
            stream: what the GPU does is queued on it. It must be idle: on some GPUs the decoder
                writes before earlier work on the stream has ended.

        Returns:
            Empty, or why there are no pixels: nvJPEG's status, or that it reads another size.
        """
        size = self._put_together(jpeg)
        headers = jpeg[0] if len(jpeg) > 1 else None
        if headers is None or self._known != (headers, size_wh):
            found = self._nvjpeg.read_size(self._pointer, size)
            if isinstance(found, str):
                return found
            if found != size_wh:
                return 'another size than its header was found to say'
            self._known = headers, size_wh
        image = _NvjpegImage()
        image.channel[0], image.pitch[0] = pointer, pitch
        status = self._nvjpeg.library.nvjpegDecode(
            *(self._handle, self._state, self._pointer, size),
            *(_OUTPUT_BGRI, image, stream.handle),
        )
        return _name(status) if status else ''

    def _put_together(self, jpeg: Sequence[bytes | memoryview]) -> int:
        """Copy a file, without the interpreter's lock; return its size.

        The stream is idle: nobody reads the file before any more.
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
        """Free its memory; the stream's work must be done."""
        if self._state:
            state, self._state = self._state, _POINTER()
            self._nvjpeg.library.nvjpegJpegStateDestroy(state)


@functools.cache
def load_nvjpeg() -> tuple[Any, tuple[int, ...]]:
    """Return the library, its functions declared, and its version; loaded once.

    Raises:
        CudaError: there is none; the message says what was found.
    """
    faults = []
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
            for name, kinds in _FUNCTIONS.items():
                function = getattr(library, name)
                function.argtypes, function.restype = kinds, _INT
        except OSError as error:
            if Path(path).is_absolute():  # of a bare name it says that there is none
                faults.append(str(error))
            continue
        except AttributeError as error:  # another library of that name
            faults.append(str(error))
            continue
        version = tuple(_property(library, kind) for kind in range(3))
        if version >= _OLDEST:
            return library, version
        faults.append(f'{path}: version {".".join(map(str, version))} is too old')
    found = next(iter(faults), 'libnvjpeg is not installed')
    raise CudaError('nvJPEG', found, fix=_MISSING)


def _property(library: Any, kind: int) -> int:
    """Return one number of the version; kinds of libraryPropertyType begin with the major one."""
    number = _INT()
    library.nvjpegGetProperty(kind, ctypes.byref(number))
    return number.value


def _candidates() -> Iterator[str]:
    """Yield what may be the library: in NVIDIA's wheels, where the loader looks, in CUDA's."""
    spec = None
    with contextlib.suppress(ImportError, ValueError):  # a package `nvidia` that is none
        spec = importlib.util.find_spec('nvidia')
    for root in (spec and spec.submodule_search_locations) or ():
        for folder in _WHEEL_FOLDERS:
            yield from (
                str(path) for name in _NAMES if (path := Path(root, folder, name)).exists()
            )
    yield from _NAMES
    yield from (str(path) for name in _NAMES if (path := _TOOLKIT / name).exists())


def _name(status: int) -> str:
    """Return a status as nvjpeg.h names it."""
    return _STATUS[status] if 0 <= status < len(_STATUS) else f'nvjpegStatus_t {status}'
