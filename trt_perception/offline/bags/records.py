# SPDX-License-Identifier: Apache-2.0
"""Files of raw results: what a model found in the images of one part of a bag.

Each record is the result of one image, before a tracker. A file is complete or does not exist. Its
last entry is the report of the part. Each entry is a frame of Zstandard with a checksum, behind
its length. Arrays are little-endian.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.bags.bag import BagLoss
from trt_perception.bags.damage import DamageError
from trt_perception.bags.decompress import decompress
from trt_perception.bags.libraries import bag_library
from trt_perception.errors import ConfigError, WriteError
from trt_perception.images.detections import Detections
from trt_perception.images.results.image_limits import MAX_RESULT_PIXELS
from trt_perception.wire.cdr import HeaderFields, StampFields

_MAGIC: Final = b'detect_bag part 1\n'
_LENGTHS: Final = struct.Struct('<II')
# The largest result: a depth map of float32, and a mask image or a second map.
_MAX_ENTRY_BYTES: Final = 8 * MAX_RESULT_PIXELS
#: Zstandard's fastest level: 1080p depth takes 10 ms.
_LEVEL: Final = 1
_ARRAYS: Final = ('xyxy', 'scores', 'class_ids', 'keypoints', 'oriented')

_AGAIN: Final = 'call the same command again'
_FREE_SPACE: Final = f'free space on this disk, and {_AGAIN}'
_MAKE_WRITABLE: Final = f'make its folder writable, and {_AGAIN}'
_FIXES_BY_ERRNO: Final = {
    errno.ENOENT: f'{_AGAIN}, which makes the folder',
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EACCES: _MAKE_WRITABLE,
    errno.EPERM: _MAKE_WRITABLE,
    errno.EROFS: _MAKE_WRITABLE,
}


@dataclass(frozen=True)
class StoredMasks:
    """An image of mask numbers, as ``NumberedMasks`` describes it.

    Attributes:
        numbers: uint16 (height, width).
    """

    numbers: npt.NDArray[np.uint16]

    def number(self, out: npt.NDArray[np.uint16]) -> None:
        """Copy the numbers."""
        np.copyto(out, self.numbers)


@dataclass(frozen=True)
class FrameRecord:
    """The result of one image.

    Attributes:
        camera: name of the camera.
        log_ns: time at which the image was recorded, in ns since the epoch.
        header: header of the image.
        size_wh: width and height of the image in pixels.
        found: the objects, before a tracker; None if the model describes the whole image.
        messages: names of topics, and their serialised messages, which no tracker changes.
        skipped: number of images of masks or maps that are missing. Not stored.
    """

    camera: str
    log_ns: int
    header: HeaderFields
    size_wh: tuple[int, int]
    found: Detections | None = None
    messages: tuple[tuple[str, bytes], ...] = ()
    skipped: int = 0


@dataclass
class PartReport:
    """What happened to the images of one part.

    Attributes:
        images: number of images with a result.
        unread: number of images without a result, by reason.
        examples: one sentence about the first image of each reason.
        skipped: number of images of masks or maps that are missing: they would be too large, or a
            GPU had no memory for them.
        losses: damaged ranges of the bag.
    """

    images: int = 0
    unread: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    skipped: int = 0
    losses: list[BagLoss] = field(default_factory=list)

    def count_unread(self, reason: str, sentence: str) -> None:
        """Count an image without a result."""
        self.unread[reason] = self.unread.get(reason, 0) + 1
        self.examples.setdefault(reason, sentence)

    def add(self, other: PartReport) -> None:
        """Add the report of another part."""
        self.images += other.images
        self.skipped += other.skipped
        for reason, count in other.unread.items():
            self.unread[reason] = self.unread.get(reason, 0) + count
            self.examples.setdefault(reason, other.examples.get(reason, ''))
        self.losses += [loss for loss in other.losses if loss not in self.losses]

    @property
    def seen_images(self) -> int:
        """Number of images that were read, or could not be read."""
        return self.images + sum(self.unread.values())

    @property
    def is_complete(self) -> bool:
        """Whether each image has a result."""
        return not self.unread and not self.losses and not self.skipped

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> PartReport:
        """Inverse of ``as_dict``.

        Raises:
            ValueError, KeyError or TypeError: the content is no report.
        """
        losses = [BagLoss(**loss) for loss in content['losses']]
        report = cls(**{**content, 'losses': losses})
        if not isinstance(report.unread, dict) or not isinstance(report.examples, dict):
            raise TypeError('a report has a value of another type')
        times = [ns for loss in losses for ns in (loss.start_ns, loss.end_ns) if ns is not None]
        for count in (report.images, report.skipped, *report.unread.values(), *times):
            checked_integer(count)
        texts = [*report.examples.values()]
        texts += [text for loss in losses for text in (loss.file, loss.reason)]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError('a report has a value of another type')
        return report


def checked_integer(value: Any, lowest: int = 0, highest: int = 2**64 - 1) -> int:
    """Return a whole number that a file states.

    Raises:
        ValueError: the value is no such number.
    """
    if type(value) is not int or not lowest <= value <= highest:
        raise ValueError(f'expected a number from {lowest} to {highest}')
    return value


class PartWriter(contextlib.AbstractContextManager['PartWriter']):
    """Writes a file of raw results. The file appears when ``finish`` returns.

    Raises:
        WriteError: the file cannot be written. No temporary file remains.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f'.{path.name}.{os.getpid()}')
        self._compressor = bag_library('zstandard').ZstdCompressor(
            level=_LEVEL, write_checksum=True
        )
        self._file: IO[bytes] | None = None
        with self._write_errors():
            self._file = open(self._temporary, 'wb')  # noqa: SIM115 - closed by __exit__
            self._file.write(_MAGIC)

    def add(self, record: FrameRecord) -> None:
        """Append the result of an image."""
        arrays = _arrays(record)
        head = {
            'camera': record.camera,
            'log_ns': record.log_ns,
            'stamp': [*record.header.stamp],
            'frame_id': record.header.frame_id,
            'size': record.size_wh,
            'found': record.found is not None,
            'left_out': record.found.left_out if record.found is not None else 0,
            'arrays': [(name, each.dtype.str, each.shape) for name, each in arrays],
            'messages': [(name, len(message)) for name, message in record.messages],
        }
        parts = [np.ascontiguousarray(each).tobytes() for _, each in arrays]
        self._append(head, [*parts, *(message for _, message in record.messages)])

    def finish(self, report: PartReport) -> None:
        """Append the report, and give the file its name."""
        self._append({'report': report.as_dict()}, [])
        assert self._file is not None
        with self._write_errors():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._temporary.replace(self._path)

    def _append(self, head: dict[str, Any], parts: Sequence[bytes]) -> None:
        text = json.dumps(head).encode()
        content = b''.join((struct.pack('<I', len(text)), text, *parts))
        packed = self._compressor.compress(content)
        assert self._file is not None
        with self._write_errors():
            self._file.write(_LENGTHS.pack(len(packed), len(content)))
            self._file.write(packed)

    @contextlib.contextmanager
    def _write_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            found = f'cannot be written: {error.strerror}'
            fix = _FIXES_BY_ERRNO.get(error.errno or 0, _AGAIN)
            raise WriteError(str(self._path), found, fix=fix) from error

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk: the error is already raised
                self._file.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)


class PartReader(contextlib.AbstractContextManager['PartReader']):
    """Reads a file of raw results.

    Raises:
        ConfigError: the file is damaged.

    Attributes:
        report: the report of the part. Valid after all records were read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        bag_library('zstandard')
        self._file = open(path, 'rb')  # noqa: SIM115 - closed by __exit__
        self.report = PartReport()

    def __iter__(self) -> Iterator[FrameRecord]:
        """Yield the records in their order."""
        try:
            if self._file.read(len(_MAGIC)) != _MAGIC:
                raise ValueError('another format')
            while True:
                content = self._next_entry()
                length = struct.unpack_from('<I', content)[0]
                head = json.loads(content[4 : 4 + length])
                if 'report' in head:
                    self.report = PartReport.from_dict(head['report'])
                    return
                yield _record(head, memoryview(content)[4 + length :])
        except (
            ValueError,
            KeyError,
            TypeError,
            struct.error,
            RecursionError,
            DamageError,
        ) as error:
            raise self.error(str(error)) from error

    def error(self, reason: str) -> ConfigError:
        """Return the error for a damaged file, for the caller to raise."""
        fix = 'remove this file, and start again'
        return ConfigError(str(self._path), f'damaged: {reason}', fix=fix)

    def _next_entry(self) -> bytes:
        packed, size = _LENGTHS.unpack(self._file.read(_LENGTHS.size))
        left = os.fstat(self._file.fileno()).st_size - self._file.tell()
        if packed > left or size > _MAX_ENTRY_BYTES:
            raise ValueError('an impossible length')
        content, damage = decompress(self._file.read(packed), 'zstd', size)
        if damage or len(content) != size:
            raise ValueError(damage or 'a wrong length')
        return content

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _arrays(record: FrameRecord) -> list[tuple[str, npt.NDArray[Any]]]:
    """Return the arrays of the objects by name, without those that are None."""
    if record.found is None:
        return []
    found = record.found
    arrays = [(name, getattr(found, name)) for name in _ARRAYS]
    if isinstance(found.numbered, StoredMasks):
        arrays.append(('numbers', found.numbered.numbers))
    return [(name, each) for name, each in arrays if each is not None]


def _record(head: dict[str, Any], content: memoryview) -> FrameRecord:
    place = 0
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, dtype, shape in head['arrays']:
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(content, kind, count, place).reshape(shape)
        place += count * kind.itemsize
    messages = []
    for name, size in head['messages']:
        messages.append((name, bytes(content[place : place + size])))
        place += size
    numbers = arrays.pop('numbers', None)
    masks = None if numbers is None else StoredMasks(numbers)
    found = None
    if head['found']:
        fields: dict[str, Any] = {**arrays}
        found = Detections(**fields, numbered=masks, left_out=head['left_out'])
    return FrameRecord(
        str(head['camera']),
        checked_integer(head['log_ns']),
        HeaderFields(StampFields(*_stamp(*head['stamp'])), str(head['frame_id'])),
        (checked_integer(head['size'][0]), checked_integer(head['size'][1])),
        found,
        tuple(messages),
    )


def _stamp(sec: Any, nanosec: Any) -> tuple[int, int]:
    """Return the checked values of a stamp."""
    sec = checked_integer(sec, -(2**31), 2**31 - 1)
    return sec, checked_integer(nanosec, 0, 2**32 - 1)
