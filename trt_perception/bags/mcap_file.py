# SPDX-License-Identifier: Apache-2.0
"""Read an MCAP file: from its index, or as a stream where the index is missing or damaged.

The package mcap parses the records. Its own readers are not used, because they hold all chunks
that overlap in time, read chunks of any length, and give up at the first damaged chunk.
Guarantees: memory is bounded by constants, whatever lengths, times and counts the file states. A
damaged chunk costs only its own messages.
Limitation: a wrong length of a record ends the reading of a file without an index. Without
checksums (rosbags writes none), flipped bits inside of messages are not detected.
"""

from __future__ import annotations

import io
import struct
from array import array
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np

from trt_perception.bags.bag import BagLoss, BagMessage, BagTopic
from trt_perception.bags.checksum import crc32
from trt_perception.bags.damage import MAX_RECORD_BYTES, DamageError
from trt_perception.bags.decompress import decompress
from trt_perception.bags.libraries import bag_library
from trt_perception.bags.parts import (
    Content,
    ContentCache,
    FilePart,
    Report,
    TopicTable,
    check_count,
)
from trt_perception.files.regular_files import open_regular

_MAGIC: Final = b'\x89MCAP0\r\n'
# Opcodes of https://mcap.dev/spec.
_FOOTER, _SCHEMA, _CHANNEL, _MESSAGE, _CHUNK, _MESSAGE_INDEX = 0x02, 0x03, 0x04, 0x05, 0x06, 0x07
_CHUNK_INDEX, _STATISTICS, _DATA_END = 0x08, 0x0B, 0x0F
# Opcodes from 0x80 on are for extensions, which are skipped.
_OPCODES: Final = frozenset([*range(0x01, 0x10), *range(0x80, 0x100)])
_RECORD_START: Final = struct.Struct('<BQ')
_MESSAGE_START: Final = struct.Struct('<HIQQ')
_FOOTER_CONTENT: Final = struct.Struct('<QQI')
# Opcode and size of the records that end the messages.
_ENDS: Final = ((_DATA_END, 4), (_FOOTER, _FOOTER_CONTENT.size))
# Start and end time of a chunk, its uncompressed size, checksum, and length of the compression.
_CHUNK_START: Final = struct.Struct('<QQQII')
_MAX_COMPRESSION_NAME_BYTES: Final = 64
# Records other than chunks and messages. Definitions with all types that they use have 30 KB.
_MAX_SMALL_RECORD_BYTES: Final = 2**20
# All schemas and channels of a file.
_MAX_DEFINITIONS_BYTES: Final = 64 * 2**20
# Losses found while a file without an index is opened.
_MAX_LOSSES: Final = 1000
# Messages outside of chunks are read in groups of this size.
_GROUP_BYTES: Final = 4 * 2**20
#: Enough for 3 TB in chunks of 768 KB, the default of the library's writers.
MAX_CHUNKS: Final = 2**22


class _Record(NamedTuple):
    opcode: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + _RECORD_START.size + self.size


class McapFile:
    """An MCAP file as a `BagFile`.

    Args:
        path: the file.
        name: name of the file in messages.

    Raises:
        DamageError: nothing of the file can be read.
        ConfigError: a package is not installed.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._records = bag_library('mcap.records')
        self._path = path
        self.name = name
        self._table = TopicTable()
        self._channels: dict[int, str | None] = {}
        self._definitions: dict[tuple[int, int], int] = {}
        self._schemas: dict[int, BagTopic] = {}
        self._definition_bytes = 0
        self.topics = self._table.topics
        self.refused = self._table.refused
        self.counts: Mapping[str, int] | None = None
        self.start_ns: int | None = None
        self.end_ns: int | None = None
        self.losses: list[BagLoss] = []
        #: Offset of the index; 0 if the file was read as a stream.
        self._summary = 0, 0
        #: Without an index: start, end, offset and size of each part.
        self._scanned = array('Q')
        with self._open() as file:
            if not self._read_summary(file):
                self._forget()
                self._scan(file)

    def _open(self) -> BinaryIO:
        try:
            file, status = open_regular(self._path)
        except OSError as error:
            raise DamageError(f'cannot be read: {error.strerror}') from error
        self._size = status.st_size
        return file

    def _forget(self) -> None:
        for known in (self.topics, self.refused, self._channels, self._definitions, self._schemas):
            known.clear()
        self._definition_bytes = 0
        self.counts = self.start_ns = self.end_ns = None

    # --- index -----------------------------------------------------------------------------------

    def _read_summary(self, file: BinaryIO) -> bool:
        """Read topics, times and counts from the index. Return whether the index is usable."""
        try:
            start, end = self._find_summary(file)
            statistics, offsets = None, array('Q')
            for record in _records(file, start, end):
                if record.opcode in (_SCHEMA, _CHANNEL):
                    self._define(record.opcode, _small(file, record))
                elif record.opcode == _STATISTICS:
                    statistics = self._parse('Statistics', _small(file, record))
                elif record.opcode == _CHUNK_INDEX:
                    index = self._parse('ChunkIndex', _small(file, record))
                    check_count(len(offsets) + 1, MAX_CHUNKS, 'chunks')
                    if index.chunk_start_offset + index.chunk_length > start:
                        return False
                    offsets.append(index.chunk_start_offset)
                    self._check_known(index.message_index_offsets)
            if statistics is None or statistics.chunk_count != len(offsets):
                return False
            # Messages outside of chunks have no index. An index may not repeat a chunk.
            has_chunks = len(offsets) or not statistics.message_count
            if not has_chunks or len(np.unique(offsets)) != len(offsets):
                return False
            self._check_known(statistics.channel_message_counts)
        except (DamageError, OSError):
            return False
        self.counts = self._counts_by_topic(statistics.channel_message_counts)
        if statistics.message_count:
            self.start_ns = statistics.message_start_time
            self.end_ns = statistics.message_end_time
        self._summary = start, end
        return True

    def _find_summary(self, file: BinaryIO) -> tuple[int, int]:
        """Return where the index starts and ends, after a check of its checksum."""
        footer_size = _RECORD_START.size + _FOOTER_CONTENT.size
        end = self._size - footer_size - len(_MAGIC)
        if end < 0:
            raise DamageError('no footer')
        file.seek(end)
        tail = file.read(footer_size + len(_MAGIC))
        if tail[footer_size:] != _MAGIC or tail[:9] != _RECORD_START.pack(
            _FOOTER, _FOOTER_CONTENT.size
        ):
            raise DamageError('no footer')
        start, _, checksum = _FOOTER_CONTENT.unpack_from(tail, _RECORD_START.size)
        if not 0 < start <= end:
            raise DamageError('no index')
        if checksum:
            file.seek(start)
            found, rest = 0, end + footer_size - 4 - start
            while rest and (step := file.read(min(rest, 2**20))):
                found = crc32(step, found)
                rest -= len(step)
            if rest or found != checksum:
                raise DamageError('wrong checksum of the index')
        return start, end

    def _check_known(self, channels: Collection[int]) -> None:
        if not self._channels.keys() >= set(channels):
            raise DamageError('the index has no definition of a channel')

    def _counts_by_topic(self, counts: Mapping[int, int]) -> dict[str, int]:
        found: dict[str, int] = {}
        for channel, count in counts.items():
            topic = self._channels[channel]
            if topic is not None:
                found[topic] = found.get(topic, 0) + count
        return found

    # --- stream ----------------------------------------------------------------------------------

    def _scan(self, file: BinaryIO) -> None:
        """Find the parts and topics of a file without a usable index."""
        group: list[int] = []
        pending: FilePart | None = None
        channels: set[int] = set()
        is_complete, reason = False, ''
        try:
            for record in _records(file, len(_MAGIC), self._size, is_strict=False):
                is_inside = record.end <= self._size
                if record.opcode == _MESSAGE_INDEX and pending is not None and is_inside:
                    channels.add(int.from_bytes(_head(file, record, 2), 'little'))
                    continue
                if pending is not None:
                    self._add_chunk(file, pending, channels)
                    pending, channels = None, set()
                if record.opcode == _CHUNK:
                    self._end_group(group)
                    pending = self._scan_chunk(file, record)
                    continue
                if not is_inside:
                    raise DamageError('it ends within a record')
                if (record.opcode, record.size) in _ENDS:
                    is_complete = True
                    break
                if record.opcode in (_SCHEMA, _CHANNEL):
                    self._scan_definition(file, record)
                elif record.opcode == _MESSAGE:
                    self._scan_message(file, record, group)
                elif record.opcode not in _OPCODES:
                    raise DamageError(f'no record begins at byte {record.offset}')
            # A truncated chunk is reported when its messages are read.
            if not is_complete and (pending is None or not self._is_truncated(pending)):
                raise DamageError('its end is missing: truncated, or the recorder was killed')
        except (DamageError, OSError) as error:
            reason = str(error)
        try:
            if pending is not None:
                self._add_chunk(file, pending, channels)
            self._end_group(group)
        except DamageError as error:
            reason = str(error)
        if reason:
            self._lose(reason)
        if self.losses and not self._scanned and not self._channels:
            raise DamageError(self.losses[0].reason)

    def _scan_chunk(self, file: BinaryIO, record: _Record) -> FilePart:
        start = _head(file, record, _CHUNK_START.size)
        if len(start) < _CHUNK_START.size:
            raise DamageError('it ends within a chunk')
        first, last, *_ = _CHUNK_START.unpack(start)
        return FilePart(first, last, record.offset, _RECORD_START.size + record.size)

    def _is_truncated(self, part: FilePart) -> bool:
        return part.offset + part.size > self._size

    def _scan_definition(self, file: BinaryIO, record: _Record) -> None:
        try:
            self._define(record.opcode, _small(file, record))
        except DamageError as error:  # costs only the messages of this channel
            self._lose(str(error))

    def _scan_message(self, file: BinaryIO, record: _Record, group: list[int]) -> None:
        start = _head(file, record, _MESSAGE_START.size)
        if len(start) < _MESSAGE_START.size:
            raise DamageError('a message is shorter than its header')
        log_ns = _MESSAGE_START.unpack(start)[2]
        if group and record.end - group[2] > _GROUP_BYTES:
            self._end_group(group)
        if not group:
            group[:] = log_ns, log_ns, record.offset, record.end
        group[:] = min(group[0], log_ns), max(group[1], log_ns), group[2], record.end

    def _end_group(self, group: list[int]) -> None:
        if group:
            first, last, offset, end = group
            self._add_part(FilePart(first, last, offset, end - offset))
            group.clear()

    def _add_part(self, part: FilePart) -> None:
        check_count(len(self._scanned) // len(part) + 1, MAX_CHUNKS, 'chunks')
        self._scanned.extend(part)
        if self.losses and self.losses[-1].end_ns is None:
            self.losses[-1] = replace(self.losses[-1], end_ns=part.start_ns)
        if part.start_ns <= part.end_ns:
            self._extend(part.start_ns, part.end_ns)

    def _lose(self, reason: str) -> None:
        """Record a loss after the parts so far, unless one is recorded there."""
        is_new = not self.losses or self.losses[-1].start_ns != self.end_ns
        if is_new and len(self.losses) < _MAX_LOSSES:
            self.losses.append(BagLoss(self.name, self.end_ns, None, reason))

    def _extend(self, first: int, last: int) -> None:
        self.start_ns = first if self.start_ns is None else min(self.start_ns, first)
        self.end_ns = last if self.end_ns is None else max(self.end_ns, last)

    def _add_chunk(self, file: BinaryIO, part: FilePart, channels: set[int]) -> None:
        """Add a chunk.

        The chunk is read for its definitions and times, unless its index has only known channels.
        Writers without an index of messages leave the times at 0.
        """
        times: list[int] = []
        if not channels or not self._channels.keys() >= channels:
            try:
                reason = self._define_from_chunk(file, part, times)
            except DamageError as error:
                reason = str(error)
            if not times:
                if reason:
                    self._lose(reason)
                return
            part = part._replace(start_ns=times[0], end_ns=times[1])
        self._add_part(part)

    def _define_from_chunk(self, file: BinaryIO, part: FilePart, times: list[int]) -> str:
        """Read the definitions of a chunk, and the first and last log time of its messages.

        Returns:
            why the rest of the chunk cannot be read; empty if it can.
        """
        data, reason = self._read_part(file, part)
        for opcode, start, end in _records_in(data):
            if opcode in (_SCHEMA, _CHANNEL):
                self._define(opcode, bytes(data[start:end]))
            elif opcode == _MESSAGE and end - start >= _MESSAGE_START.size:
                log_ns = _MESSAGE_START.unpack_from(data, start)[2]
                first, last = times or (log_ns, log_ns)
                times[:] = min(first, log_ns), max(last, log_ns)
        return reason

    # --- definitions -----------------------------------------------------------------------------

    def _parse(self, kind: str, content: bytes) -> Any:
        stream = bag_library('mcap.data_stream').ReadDataStream(io.BytesIO(content))
        try:
            record = getattr(self._records, kind).read(stream)
        # The package raises these for damaged records.
        except (bag_library('mcap.exceptions').McapError, ValueError, struct.error) as error:
            raise DamageError(f'a damaged record {kind}: {error}') from error
        # At the end of its input, the package returns less than the record declares.
        if stream.count > len(content):
            raise DamageError(f'a damaged record {kind}')
        return record

    def _define(self, opcode: int, content: bytes) -> None:
        """Store a schema or channel. A later definition with the same id must be the same.

        Raises:
            DamageError: it is damaged, or differs from the known one.
        """
        number = int.from_bytes(content[:2], 'little')
        key, digest = (opcode, number), crc32(content)
        if key in self._definitions:
            if self._definitions[key] != digest:
                raise DamageError(f'two definitions of one channel or schema ({number})')
            return
        self._definition_bytes += len(content)
        check_count(self._definition_bytes, _MAX_DEFINITIONS_BYTES, 'bytes of definitions')
        if opcode == _SCHEMA:
            schema = self._parse('Schema', content)
            text = schema.data.decode(errors='replace') if schema.encoding == 'ros2msg' else ''
            self._schemas[number] = BagTopic('', schema.name, text)
        else:
            channel = self._parse('Channel', content)
            if channel.schema_id and channel.schema_id not in self._schemas:
                raise DamageError(f'a channel without its schema ({number})')
            schema = self._schemas.get(channel.schema_id, BagTopic('', ''))
            topic = BagTopic(
                channel.topic,
                schema.type,
                schema.definition,
                channel.metadata.get('topic_type_hash', ''),
                channel.metadata.get('offered_qos_profiles', ''),
            )
            self._channels[number] = self._table.add(topic, channel.message_encoding)
        self._definitions[key] = digest

    # --- messages --------------------------------------------------------------------------------

    def parts(self, topics: Collection[str], start_ns: int, end_ns: int) -> Iterator[FilePart]:
        """Yield chunks, and groups of messages outside of chunks. See `BagFile.parts`."""
        found = self._indexed_parts(topics) if self._summary[1] else self._scanned_parts()
        # A chunk without messages may state an end before its start.
        return (part for part in found if part.start_ns < end_ns and part.end_ns >= start_ns)

    def _scanned_parts(self) -> Iterator[FilePart]:
        size = len(FilePart._fields)
        for place in range(0, len(self._scanned), size):
            yield FilePart(*self._scanned[place : place + size])

    def _indexed_parts(self, topics: Collection[str]) -> Iterator[FilePart]:
        with self._open() as file:
            for record in _records(file, *self._summary):
                if record.opcode != _CHUNK_INDEX:
                    continue
                index = self._parse('ChunkIndex', _small(file, record))
                # Without an index of messages, the chunk may have any topic.
                found = {self._channels.get(number) for number in index.message_index_offsets}
                if not found or not found.isdisjoint(topics):
                    yield FilePart(
                        index.message_start_time,
                        index.message_end_time,
                        index.chunk_start_offset,
                        index.chunk_length,
                    )

    def cursor(
        self,
        part: FilePart,
        topics: Collection[str],
        start_ns: int,
        end_ns: int,
        cache: ContentCache,
        report: Report,
    ) -> McapCursor:
        """Open a chunk, or a group of messages. See `BagFile.cursor`."""
        wanted = {n: topic for n, topic in self._channels.items() if topic in topics}

        def load() -> Content:
            with self._open() as file:
                data, damage = self._read_part(file, part)
            return self._find_messages(data, damage, wanted, (start_ns, end_ns))

        return McapCursor((self.name, part.offset), load, wanted, cache, report)

    def _read_part(self, file: BinaryIO, part: FilePart) -> tuple[memoryview, str]:
        """Return the records of a part, uncompressed, and why the rest is missing.

        Raises:
            DamageError: nothing of the part can be trusted.
        """
        try:
            file.seek(part.offset)
            check_count(min(part.size, self._size - part.offset), MAX_RECORD_BYTES, 'bytes')
            # A slice of a view copies nothing: a chunk with a raw image has megabytes.
            content = memoryview(file.read(min(part.size, max(0, self._size - part.offset))))
        except OSError as error:
            raise DamageError(f'cannot be read: {error.strerror}') from error
        missing = '' if len(content) == part.size else 'the file ends within a chunk'
        if content[:1] != bytes([_CHUNK]):
            if content[:1] != bytes([_MESSAGE]):
                raise DamageError('no chunk where the index states one')
            return content, missing
        return _chunk_records(content, missing)

    def _find_messages(
        self, data: memoryview, damage: str, wanted: Collection[int], range_ns: tuple[int, int]
    ) -> Content:
        times, offsets = array('Q'), array('Q')
        start_ns, end_ns = range_ns
        unpack, least = _MESSAGE_START.unpack_from, _MESSAGE_START.size
        try:
            for opcode, start, end in _records_in(data):
                if opcode == _MESSAGE:
                    if end - start < least:
                        raise DamageError('a message is shorter than its header')
                    channel, _, log_ns, _ = unpack(data, start)
                    if channel in wanted:
                        if start_ns <= log_ns < end_ns:
                            times.append(log_ns)
                            offsets.append(start)
                    elif channel not in self._channels:
                        raise DamageError(f'a message of an undefined channel ({channel})')
                elif opcode in (_SCHEMA, _CHANNEL):
                    self._define(opcode, bytes(data[start:end]))
        except DamageError as error:
            damage = damage or str(error)
        log_times = np.frombuffer(times, np.uint64) if times else np.empty(0, np.uint64)
        places = np.frombuffer(offsets, np.uint64) if offsets else np.empty(0, np.uint64)
        if (log_times[1:] < log_times[:-1]).any():
            order = np.argsort(log_times, kind='stable')
            log_times, places = log_times[order], places[order]
        return Content(data, log_times, places, damage)


class McapCursor:
    """Reads the messages of a chunk as a `Cursor`."""

    def __init__(
        self,
        key: tuple[str, int],
        load: Any,
        wanted: Mapping[int, str | None],
        cache: ContentCache,
        report: Report,
    ) -> None:
        self._key, self._load, self._cache, self._report = key, load, cache, report
        self._wanted = wanted
        self._place = 0
        content = cache.get(key, load)
        self.next_ns: int | None = int(content.times[0]) if len(content.times) else None
        if self.next_ns is None:
            self._end(content.damage)

    def take(self) -> BagMessage | None:
        """Return the next message, and move on. See `Cursor.take`."""
        try:
            content = self._cache.get(self._key, self._load)
        except DamageError as error:
            # The file was readable when the cursor was opened.
            self._report(self._key[1], str(error))
            content = None
        if content is None or self._place >= len(content.times):
            self.next_ns = None
            return None
        start = int(content.offsets[self._place])
        channel, _, log_ns, publish_ns = _MESSAGE_START.unpack_from(content.data, start)
        size = _RECORD_START.unpack_from(content.data, start - _RECORD_START.size)[1]
        self._place += 1
        more = self._place < len(content.times)
        self.next_ns = int(content.times[self._place]) if more else None
        # A copy: a message that views its chunk would keep the whole chunk in memory.
        data = bytes(content.data[start + _MESSAGE_START.size : start + size])
        if not more:
            self._end(content.damage)
        return BagMessage(str(self._wanted[channel]), log_ns, publish_ns, data)

    def _end(self, damage: str) -> None:
        if damage:
            self._report(self._key[1], damage)
        self.close()

    def close(self) -> None:
        """Free the chunk."""
        self._cache.drop(self._key)


def _chunk_records(content: memoryview, missing: str) -> tuple[memoryview, str]:
    """Return the records in a chunk, and why the rest is missing.

    Args:
        content: the record of the chunk with its opcode and length.
        missing: why its end is missing; empty if it is complete.
    """
    start = _RECORD_START.size
    if len(content) < start + _CHUNK_START.size:
        raise DamageError(missing or 'a chunk is shorter than its header')
    _, _, size, checksum, name_size = _CHUNK_START.unpack_from(content, start)
    check_count(size, MAX_RECORD_BYTES, 'bytes in a chunk')
    start += _CHUNK_START.size
    data_start = start + name_size + 8
    if name_size > _MAX_COMPRESSION_NAME_BYTES or data_start > len(content):
        raise DamageError(missing or 'a damaged chunk')
    data_size = int.from_bytes(content[data_start - 8 : data_start], 'little')
    if not missing and data_start + data_size != len(content):
        raise DamageError('a chunk and its record differ in size')
    compression = bytes(content[start : start + name_size]).decode(errors='replace')
    stored = content[data_start : data_start + data_size]
    found, damage = decompress(stored, compression, size)
    data = memoryview(found)
    if missing:
        return data, missing
    if damage or len(data) != size:
        raise DamageError(damage or f'a chunk has {len(data)} bytes instead of {size}')
    if checksum and crc32(data) != checksum:
        raise DamageError('a chunk has a wrong checksum')
    return data, ''


def _records(file: BinaryIO, start: int, end: int, *, is_strict: bool = True) -> Iterator[_Record]:
    """Yield the records between two positions.

    Args:
        is_strict: whether a record beyond the end raises an error. Otherwise it is the last one.

    Raises:
        DamageError: a record ends beyond `end`.
    """
    offset = start
    while offset + _RECORD_START.size <= end:
        file.seek(offset)
        content = file.read(_RECORD_START.size)
        if len(content) < _RECORD_START.size:
            raise DamageError('the file became shorter')
        record = _Record(content[0], offset, int.from_bytes(content[1:], 'little'))
        if record.end > end and is_strict:
            raise DamageError('a record ends beyond the index')
        yield record
        offset = record.end


def _records_in(data: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield opcode, start and end of each record's content.

    Raises:
        DamageError: a record ends beyond the data. The records before it were yielded.
    """
    offset, end, unpack = 0, len(data), _RECORD_START.unpack_from
    while offset < end:
        if offset + _RECORD_START.size > end:
            raise DamageError('a record is truncated')
        opcode, size = unpack(data, offset)
        start = offset + _RECORD_START.size
        offset = start + size
        if offset > end:
            raise DamageError('a record is truncated')
        yield opcode, start, offset


def _head(file: BinaryIO, record: _Record, size: int) -> bytes:
    """Return the first bytes of a record's content."""
    file.seek(record.offset + _RECORD_START.size)
    return file.read(min(size, record.size))


def _small(file: BinaryIO, record: _Record) -> bytes:
    """Return the content of a record, if its size is sensible."""
    check_count(record.size, _MAX_SMALL_RECORD_BYTES, 'bytes in a record')
    return _head(file, record, record.size)
