# SPDX-License-Identifier: Apache-2.0
"""Decompress zstd and lz4 with limits, and files of bags that are compressed as a whole.

Guarantee: no call allocates much more memory than the limit, whatever sizes the data declare.
"""

from __future__ import annotations

import contextlib
import io
import shutil
from pathlib import Path
from typing import IO, Final, TypeVar

from trt_perception.bags.damage import MAX_RECORD_BYTES, DamageError
from trt_perception.bags.libraries import bag_library
from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import short_repr, size_text
from trt_perception.files.regular_files import open_regular

#: The first bytes of each zstd frame. A CDR message begins with a zero byte.
ZSTD_START: Final = b'\x28\xb5\x2f\xfd'
# zstd's own default limit. Frames with a larger window are refused.
_MAX_WINDOW_BYTES: Final = 2**27
_STEP_BYTES: Final = 2**20
# Files in the temporary folder leave this space free for other programs.
_KEPT_FREE_BYTES: Final = 2**30

_Data = TypeVar('_Data', bytes, memoryview)


def decompress(
    data: _Data, compression: str, limit: int = MAX_RECORD_BYTES
) -> tuple[bytes | _Data, str]:
    """Decompress a chunk of an MCAP file, or a message.

    Args:
        data: compressed bytes.
        compression: ``zstd``, ``lz4`` or empty.
        limit: largest result in bytes.

    Returns:
        The bytes before the first damage, and the reason of the damage; empty if there is none.
        Without compression, the bytes are `data` itself.

    Raises:
        DamageError: the compression is unknown, or the result exceeds the limit.
        ConfigError: the library is not installed.
    """
    found: bytes | _Data
    if not compression:
        found, reason = data, ''
    elif compression == 'zstd':
        found, reason = _decompress_zstd(data, limit)
    elif compression == 'lz4':
        found, reason = _decompress_lz4(data, limit)
    else:
        raise DamageError(f'unknown compression {short_repr(compression)}')
    if len(found) > limit:
        raise DamageError(f'more than {limit} bytes after decompression')
    return found, reason


def _decompress_zstd(data: bytes | memoryview, limit: int) -> tuple[bytes, str]:
    zstandard = bag_library('zstandard')
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    # A complete frame that states its size is decompressed at once: reading is four times as fast.
    with contextlib.suppress(zstandard.ZstdError, MemoryError):
        if 0 < zstandard.get_frame_parameters(data).content_size <= limit:
            return decompressor.decompress(data, allow_extra_data=False), ''
    steps, size, reason = [], 0, ''
    with decompressor.stream_reader(io.BytesIO(data)) as stream:
        try:
            while size <= limit and (step := stream.read(min(_STEP_BYTES, limit + 1 - size))):
                steps.append(step)
                size += len(step)
        except (zstandard.ZstdError, MemoryError) as error:
            reason = f'zstd: {error}'
    return b''.join(steps), reason


def _decompress_lz4(data: bytes | memoryview, limit: int) -> tuple[bytes, str]:
    decompressor = bag_library('lz4.frame').LZ4FrameDecompressor()
    rest: bytes | memoryview = data
    steps, size, reason = [], 0, ''
    try:
        while size <= limit and not decompressor.eof:
            step = decompressor.decompress(rest, max_length=min(_STEP_BYTES, limit + 1 - size))
            if not step and decompressor.needs_input:
                break
            rest = b''  # the decompressor keeps what it has not read
            steps.append(step)
            size += len(step)
    except (RuntimeError, EOFError, MemoryError) as error:
        reason = f'lz4: {error}'
    return b''.join(steps), reason


def decompress_message(data: bytes) -> bytes:
    """Return a message, decompressed if it is a zstd frame (``compression_mode: MESSAGE``).

    Raises:
        DamageError: the frame is damaged or too large.
        ConfigError: zstandard is not installed.
    """
    if not data.startswith(ZSTD_START):
        return data
    found, reason = decompress(data, 'zstd')
    if reason or not found:
        raise DamageError(f'a compressed message is damaged: {reason or "it is empty"}')
    return found


def decompress_file(path: Path, target: Path) -> str:
    """Decompress a file that was compressed as a whole (``compression_mode: FILE``).

    Args:
        path: a file of zstd frames.
        target: the file to write.

    Returns:
        The reason why the file could not be read to its end; empty if it could.

    Raises:
        ConfigError: the disk has not enough free space, or zstandard is not installed.
        OSError: a file cannot be read or written.
    """
    zstandard = bag_library('zstandard')
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    source, _ = open_regular(path)
    with source, open(target, 'wb') as output:
        # A truncated frame raises no error here. The reader of the result finds its end missing.
        stream = decompressor.stream_reader(source, read_across_frames=True)
        try:
            written = _copy_while_free(stream, output, path)
        except zstandard.ZstdError as error:
            return f'zstd: {error}'
    return '' if written else 'it contains no data'


def _copy_while_free(stream: IO[bytes], output: IO[bytes], path: Path) -> int:
    """Copy a stream to a file while the disk has space. Return the number of bytes."""
    written = 0
    while step := stream.read(16 * _STEP_BYTES):
        folder = Path(output.name).parent
        free = shutil.disk_usage(folder).free - _KEPT_FREE_BYTES
        if len(step) > free:
            needed = size_text(written + len(step))
            raise ConfigError(
                str(path),
                f'needs at least {needed} in the temporary folder {folder}, whose disk must keep '
                f'{_KEPT_FREE_BYTES >> 30} GiB free',
                fix='set TMPDIR to a folder on a larger disk, or decompress the file: '
                f'unzstd {path}',
            )
        output.write(step)
        written += len(step)
    return written
