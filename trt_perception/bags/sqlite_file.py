# SPDX-License-Identifier: Apache-2.0
"""Read an SQLite file (.db3) of rosbag2.

Python's sqlite3 is used instead of the reader of rosbags, because that one reads the whole file to
open it, loads messages of any size, and gives up at the first damaged page.
Guarantees: the file is opened read-only. Memory is bounded by constants, and the work by the size
of the file. Messages on damaged pages are skipped, and the others are read.
The index of timestamps is used only if it has the same rows as the table.
SQLite reads zeros after the end of a file that ends within a page. A message that continues there
is a loss.
Limitations: SQLite has no checksums, so flipped bits inside of messages are not detected. If a
file ends within zeros of a message that is longer than a page, an earlier message with the same
zeros may be the loss instead.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple
from urllib.parse import quote

from trt_perception.bags.bag import BagLoss, BagMessage, BagTopic
from trt_perception.bags.damage import MAX_RECORD_BYTES, DamageError
from trt_perception.bags.parts import ContentCache, FilePart, Report, TopicTable
from trt_perception.files.regular_files import open_regular

_MAX_TOPICS: Final = 2**16
_MAX_TEXT_BYTES: Final = 2**20
_MAX_TEXTS_BYTES: Final = 64 * 2**20
# A row of the table messages, with its cell pointer, header and values.
_LEAST_ROW_BYTES: Final = 8
# SQLite's instructions between two checks of the limit, and the limit itself. A scan needs about
# 20 instructions for each row. Without a limit, damaged pages could let a scan go on for ever.
_CHECKED_STEPS: Final = 100_000
_LEAST_STEPS: Final = 20_000_000
_STEPS_PER_BYTE: Final = 64
_COLUMNS: Final = {
    'topics': ('id', 'name', 'type', 'serialization_format'),
    'messages': ('id', 'topic_id', 'timestamp', 'data'),
}
_MAX_ID: Final = 2**63 - 1
_MAX_NS: Final = 2**63 - 1
# Sums of the remainders fit into 64 bits. A flipped bit always changes the remainder, because a
# power of two is never a multiple of this prime.
_PRIME: Final = 2**32 - 5
_SETTINGS: Final = (
    # Views, triggers and indexes of the file may not call functions with side effects.
    'trusted_schema=OFF',
    'cell_size_check=ON',
    'mmap_size=0',
    # Despite its name, this lets SQLite open a truncated file for reading.
    'writable_schema=ON',
)
# Damaged ranges of ids that are skipped in one file.
_MAX_GAPS: Final = 2000
_LEAST_USABLE_BYTES: Final = 480
# First byte of a page with rows of a table.
_TABLE_LEAF: Final = b'\x0d'
# A page with a further part of a long message starts with the number of the next page.
_PAGE_NUMBER_BYTES: Final = 4
_CUT_MESSAGE: Final = 'the file ends within a message'


# Python decodes SQLite's message, which quotes the file, before it raises the error.
_SQLITE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)


class _Row(NamedTuple):
    """A message without its data."""

    timestamp: int
    id: int
    topic_id: int
    size: int


class _Gap(NamedTuple):
    """Rows that cannot be read by their id.

    Attributes:
        start: the first id that cannot be read.
        reason: what is damaged.
    """

    start: int
    reason: str


class _CutPage(NamedTuple):
    """The last page of a file that ends within this page.

    See "B-tree Pages" and "Cell Payload Overflow Pages" in SQLite's description of its file format
    for the formulas.

    Attributes:
        content: the bytes that the file has.
        usable: bytes of a complete page without reserved bytes.
        number: number of the page, from 1.
        cut_rows: by id of each row whose first part is cut in this page, the number of zeros that
            SQLite reads at the end of the row. It is 0 for a row with further pages, because the
            number of the next page is cut, too.
    """

    content: bytes
    usable: int
    number: int
    cut_rows: Mapping[int, int]

    def has_part_of(self, row: _Row, data: bytes) -> bool:
        """Return whether the message is cut here, so that SQLite reads zeros in its data."""
        zeros = self.cut_rows.get(row.id)
        if zeros is not None and not data[max(0, len(data) - zeros) :].strip(b'\0'):
            return True
        # Otherwise, a further part of a long message may be cut.
        following = int.from_bytes(self.content[:_PAGE_NUMBER_BYTES], 'big')
        header = 4 + ((2 * len(data) + 12).bit_length() + 6) // 7
        header += _integer_bytes(row.topic_id) + _integer_bytes(row.timestamp)
        first = _first_part_bytes(header + len(data), self.usable) - header
        if first >= len(data) or following > self.number:
            return False  # SQLite refuses a page number after the end of the file
        room = self.usable - _PAGE_NUMBER_BYTES
        last = first + (len(data) - first - 1) // room * room
        starts = range(first, last, room) if following else (last,)
        part = self.content[_PAGE_NUMBER_BYTES:]
        return any(
            data.startswith(part, start)
            and start + len(part) < min(start + room, len(data))
            and not data[start + len(part) : start + room].strip(b'\0')
            for start in starts
        )


class SqliteFile:
    """An SQLite file as a `BagFile`.

    Args:
        path: the file.
        name: name of the file in messages.

    Raises:
        DamageError: nothing of the file can be read.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self.name = name
        self._table = TopicTable()
        self._names: dict[int, str | None] = {}
        self.topics = self._table.topics
        self.refused = self._table.refused
        self.counts: Mapping[str, int] | None = None
        self.start_ns: int | None = None
        self.end_ns: int | None = None
        self.losses: list[BagLoss] = []
        with contextlib.closing(self._connect()) as connection, _damage():
            _check_columns(connection)
            self._read_topics(connection)
        self._index_damage = ''
        self._read_range()

    def _connect(self) -> sqlite3.Connection:
        try:
            file, status = open_regular(self._path)
            with file:
                self._size = status.st_size
                self._cut_page = _read_cut_page(file, self._size)
            log = Path(f'{self._path}-wal')
            has_log = log.is_file() and log.stat().st_size > 0
        except OSError as error:
            raise DamageError(f'cannot be read: {error.strerror}') from error
        # An immutable file needs no lock and no other file. Changes in a write-ahead log, which a
        # killed recorder leaves, need both.
        if has_log:
            with contextlib.suppress(*_SQLITE_ERRORS):
                return self._open('mode=ro')
        with _damage():
            return self._open('immutable=1')

    def _open(self, mode: str) -> sqlite3.Connection:
        address = f'file:{quote(str(self._path.absolute()))}?{mode}'
        connection = sqlite3.connect(address, uri=True, check_same_thread=False)
        connection.text_factory = _decode_text
        try:
            if sys.version_info >= (3, 11):
                limit = MAX_RECORD_BYTES + _MAX_TEXT_BYTES
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limit)
            for setting in _SETTINGS:
                connection.execute(f'PRAGMA {setting}')
            connection.execute('SELECT count(*) FROM sqlite_master')
        except BaseException:
            connection.close()
            raise
        left = _LEAST_STEPS + _STEPS_PER_BYTE * self._size

        def is_beyond_limit() -> bool:
            nonlocal left
            left -= _CHECKED_STEPS
            return left < 0

        connection.set_progress_handler(is_beyond_limit, _CHECKED_STEPS)
        return connection

    def _read_topics(self, connection: sqlite3.Connection) -> None:
        columns = _column_names(connection, 'topics')
        definitions = self._read_definitions(connection)
        optional = ['offered_qos_profiles', 'type_description_hash']
        wanted = [*_COLUMNS['topics'], *(name for name in optional if name in columns)]
        texts = 0
        for row in _bounded_rows(connection, 'topics', wanted, _MAX_TOPICS):
            number, name, kind, serialization, *rest = row
            values = dict(zip(wanted[4:], rest, strict=True))
            texts += sum(len(value) for value in row[1:] if isinstance(value, str))
            if texts > _MAX_TEXTS_BYTES:
                raise DamageError(f'more than {_MAX_TEXTS_BYTES} bytes of topics')
            if not isinstance(number, int):
                continue
            type_name, type_hash = _text(kind), _text(values.get('type_description_hash'))
            topic = BagTopic(
                _text(name),
                type_name,
                definitions.get(type_name, ''),
                type_hash,
                _text(values.get('offered_qos_profiles')),
            )
            self._names[number] = self._table.add(topic, _text(serialization))

    def _read_definitions(self, connection: sqlite3.Connection) -> dict[str, str]:
        """Return the definitions by type. Older releases of rosbag2 store none."""
        names = ['topic_type', 'encoding', 'encoded_message_definition']
        found: dict[str, str] = {}
        texts = 0
        with contextlib.suppress(*_SQLITE_ERRORS, DamageError):
            if not set(names) <= _column_names(connection, 'message_definitions'):
                return found
            for row in _bounded_rows(connection, 'message_definitions', names, _MAX_TOPICS):
                type_name, encoding, text = map(_text, row)
                texts += len(text)
                if encoding == 'ros2msg' and texts <= _MAX_TEXTS_BYTES:
                    found[type_name] = text
        return found

    def _read_range(self) -> None:
        """Read the first and last log time. A damaged file gets the widest range."""
        times: list[int | None]
        try:
            with contextlib.closing(self._connect()) as connection:
                times = self._range_of_index(connection)
        except (*_SQLITE_ERRORS, DamageError) as error:
            self._index_damage = str(error)
            with contextlib.closing(self._connect()) as connection:
                rows = self._rows_by_id(connection, (), self._index_damage, lambda *_: None)
                times = [row.timestamp for row in _first_and_last(rows)]
            if not times:  # otherwise a cursor reports it
                self.losses.append(BagLoss(self.name, None, None, f'SQLite: {error}'))
        if times:
            self.start_ns, self.end_ns = times[0], times[-1]

    def _range_of_index(self, connection: sqlite3.Connection) -> list[int | None]:
        """Return the first and last log time; None without a message.

        SQLite does not compare the index with the table. A search for a time that meets a damaged
        entry may end early without an error, and equal files gave different results.

        Raises:
            DamageError: the index of timestamps has other rows than the table.
        """
        if self._cut_page:
            raise DamageError('the file ends within a page')
        query = (
            'SELECT min(timestamp), max(timestamp), count(*), '
            f'sum(timestamp % {_PRIME}), sum(id % {_PRIME}) FROM messages {{}} '
            f"WHERE timestamp BETWEEN 0 AND {_MAX_NS} AND typeof(timestamp) = 'integer'"
        )
        # One statement reads one state of a file that is being written.
        both = f'{query.format("")} UNION ALL {query.format("NOT INDEXED")}'
        of_index, of_table = connection.execute(both)
        if of_index != of_table:
            raise DamageError('the index is damaged')
        return list(of_index[:2])

    def parts(self, topics: Collection[str], start_ns: int, end_ns: int) -> Iterator[FilePart]:
        """Yield the whole file as one part. See `BagFile.parts`."""
        if self.start_ns is None or self.end_ns is None or not topics:
            return
        if self.start_ns < end_ns and self.end_ns >= start_ns:
            yield FilePart(self.start_ns, self.end_ns, 0, self._size)

    def cursor(
        self,
        part: FilePart,
        topics: Collection[str],
        start_ns: int,
        end_ns: int,
        cache: ContentCache,
        report: Report,
    ) -> SqliteCursor:
        """Open the file. See `BagFile.cursor`."""
        del part, cache
        connection = self._connect()
        wanted = {number: name for number, name in self._names.items() if name in topics}
        first, last = min(start_ns, _MAX_NS), min(end_ns - 1, _MAX_NS)
        rows = self._rows(connection, wanted, (first, last), report)
        return SqliteCursor(connection, rows, wanted, self._cut_page, report)

    def _rows(
        self,
        connection: sqlite3.Connection,
        wanted: Collection[int],
        range_ns: tuple[int, int],
        report: Report,
    ) -> Iterator[_Row]:
        """Yield rows by timestamp, then by id. After damage, by the order of ids."""
        previous = _Row(-1, -1, 0, 0)
        try:
            if self._index_damage:
                raise DamageError(self._index_damage)
            for row in self._rows_by_time(connection, range_ns):
                if row[:2] <= previous[:2]:
                    raise DamageError('the index is damaged')
                previous = row
                if row.topic_id in wanted:
                    yield row
            return
        except (*_SQLITE_ERRORS, DamageError) as error:
            reason = str(error)
        first, last = range_ns
        with contextlib.closing(self._connect()) as other:
            found = self._rows_by_id(other, wanted, reason, report)
            in_range = (row for row in found if first <= row.timestamp <= last)
            yield from _sorted_on_disk(row for row in in_range if row[:2] > previous[:2])

    def _rows_by_time(
        self, connection: sqlite3.Connection, range_ns: tuple[int, int]
    ) -> Iterator[_Row]:
        query = (
            'SELECT timestamp, id, topic_id, length(data) FROM messages '
            'WHERE timestamp BETWEEN ? AND ? ORDER BY timestamp, id'
        )
        for count, row in enumerate(connection.execute(query, range_ns), 1):
            if count > self._size // _LEAST_ROW_BYTES:
                raise DamageError('pages that contain each other')
            if all(isinstance(value, int) for value in row):
                yield _Row(*row)

    def _rows_by_id(
        self,
        connection: sqlite3.Connection,
        wanted: Collection[int],
        reason: str,
        report: Report,
    ) -> Iterator[_Row]:
        """Yield the rows that can be read by their id, without the index of timestamps.

        The range of a loss is that of the rows next to it. Recorders write rows by time.

        Args:
            wanted: ids of topics; all topics if empty.
            reason: why the index cannot be used. It is reported if no other damage is found.
        """
        before_ns: int | None = None
        gaps: list[_Gap] = []
        has_gaps = False
        for found in self._rows_and_gaps(connection):
            if isinstance(found, _Gap):
                gaps.append(found)
                has_gaps = True
                continue
            for gap in gaps:
                first_ns = None if before_ns is None else min(before_ns, found.timestamp)
                report(gap.start, gap.reason, (first_ns, max(before_ns or 0, found.timestamp)))
            gaps.clear()
            before_ns = found.timestamp
            if not wanted or found.topic_id in wanted:
                yield found
        for gap in gaps:
            report(gap.start, gap.reason, (before_ns, None))
        if not has_gaps:
            # Without the index, it is unknown whether rows are missing. A file that was cut lacks
            # the last ones.
            report(0, f'SQLite: {reason}', (before_ns if self._cut_page else None, None))

    def _rows_and_gaps(self, connection: sqlite3.Connection) -> Iterator[_Row | _Gap]:
        """Yield all rows that can be read by their id, and where rows cannot be read."""
        query = (
            'SELECT timestamp, id, topic_id, length(data) FROM messages NOT INDEXED '
            'WHERE id >= ? ORDER BY id'
        )
        start, gaps, count = 0, 0, 0
        while True:
            try:
                for row in connection.execute(query, (start,)):
                    count += 1
                    if not isinstance(row[1], int) or row[1] < start:
                        raise DamageError('ids are not sorted')
                    start = row[1] + 1
                    if count > self._size // _LEAST_ROW_BYTES:
                        return
                    is_valid = all(isinstance(value, int) for value in row) and row[0] >= 0
                    if self._is_cut(connection, _Row(*row), is_valid=is_valid):
                        yield _Gap(row[1], f'SQLite: {_CUT_MESSAGE}')
                    elif is_valid:
                        yield _Row(*row)
                return
            except (*_SQLITE_ERRORS, DamageError) as error:
                yield _Gap(start, f'SQLite: {error}')
            gaps += 1
            next_start = _next_readable_id(connection, query, start)
            if next_start is None or gaps > _MAX_GAPS:
                return
            start = next_start

    def _is_cut(self, connection: sqlite3.Connection, row: _Row, *, is_valid: bool) -> bool:
        """Return whether the file ends within the first part of a row.

        SQLite reads zeros there, also in the timestamp.
        """
        if self._cut_page is None or row.id not in self._cut_page.cut_rows:
            return False
        try:
            return not is_valid or self._cut_page.has_part_of(row, _read_data(connection, row))
        except (*_SQLITE_ERRORS, DamageError):
            return True


class SqliteCursor:
    """Reads the messages of a file as a `Cursor`."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        rows: Iterator[_Row],
        names: Mapping[int, str | None],
        cut_page: _CutPage | None,
        report: Report,
    ) -> None:
        self._connection, self._rows, self._names = connection, rows, names
        self._cut_page, self._report = cut_page, report
        self._row: _Row | None = None
        self.next_ns: int | None = None
        self._advance()

    def _advance(self) -> None:
        self._row = next(self._rows, None)
        self.next_ns = None if self._row is None else self._row.timestamp
        if self._row is None:
            self.close()

    def take(self) -> BagMessage | None:
        """Return the next message, and move on. See `Cursor.take`."""
        row = self._row
        assert row is not None
        message = None
        try:
            data = self._read_data(row)
            message = BagMessage(
                str(self._names[row.topic_id]), row.timestamp, row.timestamp, data
            )
        except (*_SQLITE_ERRORS, DamageError) as error:
            self._report(row.id, f'SQLite: {error}')
        self._advance()
        return message

    def _read_data(self, row: _Row) -> bytes:
        data = _read_data(self._connection, row)
        if self._cut_page and self._cut_page.has_part_of(row, data):
            self._cut_page = None  # no other message has the end of the file
            raise DamageError(_CUT_MESSAGE)
        return data

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(*_SQLITE_ERRORS):
            self._connection.close()


def _read_data(connection: sqlite3.Connection, row: _Row) -> bytes:
    """Return the data of a message.

    Raises:
        DamageError: the message is too long or missing.
    """
    if row.size > MAX_RECORD_BYTES:
        raise DamageError(f'a message of {row.size} bytes, and {MAX_RECORD_BYTES} are allowed')
    found = connection.execute(
        "SELECT data FROM messages WHERE id = ? AND typeof(data) = 'blob' AND length(data) = ?",
        (row.id, row.size),
    ).fetchone()
    if found is None or not isinstance(found[0], bytes):
        raise DamageError('a message is missing')
    return found[0]


def _read_cut_page(file: BinaryIO, size: int) -> _CutPage | None:
    """Return the last page of a file if it is incomplete."""
    header = file.read(21).ljust(21, b'\0')
    page_size = int.from_bytes(header[16:18], 'big')
    if page_size == 1:  # stands for 65536, which needs 17 bits
        page_size = 2**16
    usable = page_size - header[20]
    if usable < _LEAST_USABLE_BYTES or size % page_size == 0:  # SQLite refuses a smaller page
        return None
    file.seek(size - size % page_size)
    content = file.read(page_size)
    return _CutPage(content, usable, size // page_size + 1, _cut_rows(content, usable))


def _cut_rows(content: bytes, usable: int) -> dict[int, int]:
    """Return `_CutPage.cut_rows` of a page that may have rows of a table."""
    rows: dict[int, int] = {}
    if not content.startswith(_TABLE_LEAF):
        return rows
    count = int.from_bytes(content[3:5], 'big')
    for place in range(8, min(8 + 2 * count, len(content) - 1), 2):
        start = int.from_bytes(content[place : place + 2], 'big')
        payload, start = _read_varint(content, start)
        number, start = _read_varint(content, start)
        first = _first_part_bytes(payload, usable)
        has_more = first < payload
        missing = start + first + has_more * _PAGE_NUMBER_BYTES - len(content)
        if missing > 0:
            rows[number] = 0 if has_more else missing
    return rows


def _read_varint(content: bytes, start: int) -> tuple[int, int]:
    """Return an integer of variable length, and its end. Zeros follow the content."""
    value = 0
    for place in range(start, start + 8):
        byte = content[place] if place < len(content) else 0
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + 1
    return value << 8 | int.from_bytes(content[start + 8 : start + 9], 'big'), start + 9


def _first_part_bytes(payload: int, usable: int) -> int:
    """Return how many bytes of a row are not in further pages."""
    if payload <= usable - 35:
        return payload
    least = (usable - 12) * 32 // 255 - 23
    first = least + (payload - least) % (usable - _PAGE_NUMBER_BYTES)
    return first if first <= usable - 35 else least


def _integer_bytes(value: int) -> int:
    """Return how many bytes SQLite stores for an integer."""
    bits = (value if value >= 0 else ~value).bit_length() + 1
    return 0 if value in (0, 1) else next(size for size in (1, 2, 3, 4, 6, 8) if bits <= 8 * size)


def _decode_text(content: bytes) -> str:
    return content.decode(errors='replace')


def _text(value: object) -> str:
    return value if isinstance(value, str) else ''


@contextlib.contextmanager
def _damage() -> Iterator[None]:
    """Convert SQLite's errors."""
    try:
        yield
    except _SQLITE_ERRORS as error:
        raise DamageError(f'SQLite: {error}') from error


def _column_names(connection: sqlite3.Connection, table: str) -> set[str]:
    """Return the columns of a table that store values. A view or virtual table has none."""
    query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND rootpage > 0 AND name = ?"
    if connection.execute(query, (table,)).fetchone()[0] != 1:
        return set()
    rows = connection.execute('SELECT name, hidden FROM pragma_table_xinfo(?)', (table,))
    # Generated columns could compute values of any size.
    return {name for name, hidden in rows.fetchmany(100) if not hidden}


def _check_columns(connection: sqlite3.Connection) -> None:
    for table, columns in _COLUMNS.items():
        if missing := set(columns) - _column_names(connection, table):
            names = ', '.join(sorted(missing))
            raise DamageError(f'no bag of rosbag2: its table {table} lacks {names}')


def _bounded_rows(
    connection: sqlite3.Connection, table: str, columns: Sequence[str], most: int
) -> Iterator[Sequence[Any]]:
    """Yield rows of a small table. Texts that are too long are None."""
    values = (f'CASE WHEN length({name}) <= {_MAX_TEXT_BYTES} THEN {name} END' for name in columns)
    query = f'SELECT {", ".join(values)} FROM {table} ORDER BY rowid LIMIT {most}'
    yield from connection.execute(query)


def _first_and_last(rows: Iterator[_Row]) -> list[_Row]:
    """Return the rows with the first and the last timestamp."""
    ends: list[_Row] = []
    for row in rows:
        ends = [min(ends[0], row), max(ends[-1], row)] if ends else [row, row]
    return ends


def _next_readable_id(connection: sqlite3.Connection, query: str, start: int) -> int | None:
    """Return the first id after a damaged one whose row can be read; None if there is none."""

    def can_read(number: int) -> bool | None:
        try:
            row = connection.execute(f'{query} LIMIT 1', (number,)).fetchone()
        except _SQLITE_ERRORS:
            return False
        return None if row is None else bool(row[1] >= number)

    unreadable, step = start, 1
    while start + step <= _MAX_ID:
        readable = can_read(start + step)
        if readable is None:
            break  # no row from here on: the damage may hide rows before
        if readable:
            break
        unreadable, step = start + step, step * 2
    else:
        return None
    # The first id after `unreadable` from which a row can be read, or where the rows end.
    readable_from = start + step
    while readable_from - unreadable > 1:
        middle = (readable_from + unreadable) // 2
        if can_read(middle) is False:
            unreadable = middle
        else:
            readable_from = middle
    return readable_from


def _sorted_on_disk(rows: Iterator[_Row]) -> Iterator[_Row]:
    """Sort rows in a temporary database, which moves to the disk as it grows."""
    with contextlib.closing(sqlite3.connect('')) as connection:
        connection.execute('CREATE TABLE found (timestamp, id, topic_id, size)')
        connection.executemany('INSERT INTO found VALUES (?, ?, ?, ?)', rows)
        for row in connection.execute('SELECT * FROM found ORDER BY timestamp, id'):
            yield _Row(*row)
