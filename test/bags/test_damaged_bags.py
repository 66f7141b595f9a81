# SPDX-License-Identifier: Apache-2.0
"""Read damaged bags: all that is intact is returned, the rest is a loss, and memory is bounded."""

import contextlib
import json
import random
import re
import resource
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zstandard
from mcap.writer import CompressionType

from support.bags import (
    SECOND,
    START,
    messages,
    read_with_mcap,
    rows_of,
    write_folder,
    write_mcap,
)
from trt_perception.bags import file_bag, parts
from trt_perception.bags.bag import BagLoss
from trt_perception.bags.damage import MAX_RECORD_BYTES
from trt_perception.bags.open_bag import open_bag
from trt_perception.errors import ConfigError

ROWS = messages()
#: Opcode and length of the record after the last message.
DATA_END = b'\x0f\4\0\0\0\0\0\0\0'
TEST_FOLDER = Path(__file__).resolve().parents[1]
#: Interpreter, NumPy, the cache of chunks and one chunk that is read.
MEMORY_LIMIT = 900 * 2**20


def run(code, *arguments, limit=MEMORY_LIMIT):
    """Run Python code with limited memory, and return the JSON that it prints."""
    end = (
        '\nimport json\nfrom support.fuzz.bag_fuzz import peak_memory\n'
        'print(json.dumps([result, peak_memory()]))'
    )

    def limit_memory():
        resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))

    process = subprocess.run(
        [sys.executable, '-c', code + end, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=TEST_FOLDER,
        preexec_fn=limit_memory,
    )
    assert process.returncode == 0, process.stderr
    result, memory = json.loads(process.stdout)
    assert memory < limit
    return result


READ = """
import sys
from trt_perception.bags.open_bag import open_bag
bag = open_bag(sys.argv[1])
result = [sum(len(message.data) for message in bag.messages(bag.topics)), len(bag.losses)]
"""


def test_500_damaged_bags_are_read_or_refused(tmp_path):
    """See support/fuzz/bag_fuzz.py. A chunk with a checksum never returns a wrong message."""
    process = subprocess.run(
        [sys.executable, '-m', 'support.fuzz.bag_fuzz', str(tmp_path), '0', '500'],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=TEST_FOLDER,
    )
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)
    assert result['read'] + result['refused'] == 500
    assert result['read'] > 300
    assert result['partial'] > 100
    assert not result['wrong']
    # Files without checksums may have flipped bits in a message. All other losses are reported.
    silent = [entry for entry in result['silent'] if entry[4]]
    assert not silent
    assert result['memory'] < MEMORY_LIMIT


@pytest.mark.parametrize('compression', list(CompressionType))
@pytest.mark.parametrize('has_chunks', [True, False])
def test_truncated_mcap_file_is_read_to_its_last_complete_message(
    compression, has_chunks, tmp_path
):
    path = write_mcap(tmp_path / 'a.mcap', ROWS, compression=compression, use_chunking=has_chunks)
    content = path.read_bytes()
    end = content.rindex(DATA_END)
    cut = tmp_path / 'cut.mcap'
    counts = []
    for size in [*range(300, end, end // 40), end]:
        cut.write_bytes(content[:size])
        try:
            bag = open_bag(cut)
        except ConfigError:
            counts.append(0)
            continue
        found = rows_of(bag)
        assert found == ROWS[: len(found)]
        assert bag.losses
        assert bag.losses[-1].end_ns is None
        assert bag.losses[-1].start_ns is None or bag.losses[-1].start_ns >= START
        if compression == CompressionType.NONE:
            # The message after the last one that was read is incomplete.
            complete = sum(content.index(data) + len(data) <= size for _, _, data in ROWS)
            assert len(found) == complete
        counts.append(len(found))
    assert counts == sorted(counts)
    assert counts[-1] == len(ROWS)


def test_damaged_chunk_costs_only_its_messages(tmp_path):
    path = write_mcap(tmp_path / 'a.mcap', ROWS, compression=CompressionType.NONE)
    content = bytearray(path.read_bytes())
    content[content.index(ROWS[22][2])] ^= 4
    path.write_bytes(content)
    with pytest.raises(ValueError, match='crc'):
        read_with_mcap(path)
    bag = open_bag(path)
    found = rows_of(bag)
    lost = [index for index, row in enumerate(ROWS) if row not in found]
    assert 22 in lost
    assert len(lost) == 4  # a chunk of 8 KB
    assert found == [row for index, row in enumerate(ROWS) if index not in lost]
    (loss,) = bag.losses
    assert loss.start_ns == ROWS[lost[0] - 1][1]
    assert loss.end_ns == ROWS[lost[-1] + 1][1]
    assert loss.file == 'a.mcap'
    # Reading again finds the same loss.
    assert rows_of(bag) == found
    assert bag.losses == [loss]


def test_missing_end_is_a_loss(tmp_path):
    """A killed recorder wrote complete chunks, but no index."""
    path = write_mcap(tmp_path / 'a.mcap', ROWS)
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex(DATA_END)])
    bag = open_bag(path)
    assert rows_of(bag) == ROWS
    (loss,) = bag.losses
    assert (loss.start_ns, loss.end_ns) == (ROWS[-1][1], None)


def test_file_of_a_bag_that_cannot_be_read_is_a_loss(tmp_path):
    folder = tmp_path / 'bag'
    folder.mkdir()
    for number in range(3):
        write_mcap(folder / f'b_{number}.mcap', ROWS[number * 20 : number * 20 + 20])
    (folder / 'b_1.mcap').write_bytes(b'')
    bag = open_bag(folder)
    assert rows_of(bag) == ROWS[:20] + ROWS[40:]
    (loss,) = bag.losses
    assert (loss.file, loss.start_ns, loss.end_ns) == ('b_1.mcap', ROWS[19][1], ROWS[40][1])


# --- SQLite --------------------------------------------------------------------------------------


def pages_of_messages(path):
    """Return page size and the numbers of the leaf pages of the table messages."""
    content = path.read_bytes()
    size = int.from_bytes(content[16:18], 'big')
    leaves = []
    for number in range(1, len(content) // size):
        page = content[number * size : (number + 1) * size]
        # 13 is the leaf of a table. Its first cell refers to the payload of a message.
        if page[0] == 13 and int.from_bytes(page[3:5], 'big') > 0 and b'xxxxxxxx' in page:
            leaves.append(number)
    return size, leaves


def assert_losses_enclose_missing_rows(rows, found, losses):
    """Check that each missing row is in a loss, and that no loss has a row that was found."""

    def is_inside(log_ns, loss):
        start = -1 if loss.start_ns is None else loss.start_ns
        return start < log_ns < (loss.end_ns or 2**63)

    for row in rows:
        is_lost = any(is_inside(row[1], loss) for loss in losses)
        assert is_lost is (row not in found)


@pytest.mark.parametrize('damaged', [1, 2, 5])
def test_damaged_pages_of_sqlite_cost_only_their_messages(damaged, tmp_path):
    rows = messages(300, size=500)
    path = write_folder(tmp_path / 'bag', rows) / 'bag.db3'
    size, leaves = pages_of_messages(path)
    content = bytearray(path.read_bytes())
    for number in random.Random(damaged).sample(leaves[1:-1], damaged):
        content[number * size : (number + 1) * size] = b'\xff' * size
    path.write_bytes(content)
    bag = open_bag(path)
    found = rows_of(bag)
    assert found == [row for row in rows if row in found]
    assert len(rows) - 10 * damaged <= len(found) < len(rows)
    assert_losses_enclose_missing_rows(rows, found, bag.losses)
    # Reading a part of the time finds the losses of this part.
    part = open_bag(path)
    later = [row for row in found if row[1] >= rows[150][1]]
    assert rows_of(part, rows[150][1]) == later
    assert_losses_enclose_missing_rows(rows[150:], later, part.losses)
    # The library of rosbags and SQLite's own scan give up.
    with pytest.raises(sqlite3.DatabaseError):
        list(sqlite3.connect(path).execute('SELECT data FROM messages'))


def page_of_index(path):
    """Return the first byte and the end of the first page of the index of timestamps."""
    query = "SELECT rootpage FROM sqlite_master WHERE type = 'index' AND name = 'timestamp_idx'"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        ((root,),) = connection.execute(query)
        ((size,),) = connection.execute('PRAGMA page_size')
    return (root - 1) * size, root * size


def test_damaged_index_of_sqlite_costs_no_message(tmp_path):
    rows = messages(300, size=500)
    path = write_folder(tmp_path / 'bag', rows) / 'bag.db3'
    start, end = page_of_index(path)
    content = bytearray(path.read_bytes())
    content[start:end] = b'\xff' * (end - start)
    path.write_bytes(content)
    bag = open_bag(path)
    assert rows_of(bag) == rows
    # Nothing is known to be lost, so the loss has no times.
    (loss,) = bag.losses
    assert (loss.start_ns, loss.end_ns) == (None, None)


def test_flipped_bit_in_the_index_of_sqlite_changes_no_message(tmp_path):
    rows = messages(90, size=100)
    path = write_folder(tmp_path / 'bag', rows) / 'bag.db3'
    intact = path.read_bytes()
    rng = random.Random(0)
    losses = []
    for place in rng.sample(range(*page_of_index(path)), 200):
        content = bytearray(intact)
        content[place] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        for _ in range(2):
            bag = open_bag(path)
            assert rows_of(bag) == rows
            losses.append(bag.losses)
    # Equal files have equal losses. Many bits of a page are not used.
    assert losses[::2] == losses[1::2]
    assert 20 < sum(map(bool, losses[::2])) < 200


def test_truncated_sqlite_file_is_read(tmp_path):
    rows = messages(300, size=500)
    path = write_folder(tmp_path / 'bag', rows) / 'bag.db3'
    size, _ = pages_of_messages(path)
    content = path.read_bytes()
    pages = len(content) // size
    path.write_bytes(content[: pages // 2 * size])
    bag = open_bag(path)
    found = rows_of(bag)
    assert found == rows[: len(found)]
    assert len(found) > 50
    assert_losses_enclose_missing_rows(rows, found, bag.losses)


@pytest.mark.parametrize('size', [500, 3000, 9000])
def test_sqlite_file_that_ends_within_a_page_gives_no_message_with_zeros(size, tmp_path):
    rows = messages(120, size=size)
    path = write_folder(tmp_path / 'bag', rows) / 'bag.db3'
    content = path.read_bytes()
    rng = random.Random(size)
    for cut in rng.sample(range(len(content) // 2, len(content)), 40):
        path.write_bytes(content[:cut])
        bag = open_bag(path)
        found = rows_of(bag)
        assert found == [row for row in rows if row in found]
        assert len(found) > 30
        assert bag.losses


@pytest.mark.parametrize('size', [20, 500, 9000])
def test_cut_timestamp_in_sqlite_is_no_time_of_a_loss(size, tmp_path):
    """SQLite reads zeros after the end of the file, so it returns a wrong timestamp."""
    rows = messages(200, size=size)
    path = write_folder(tmp_path / 'bag', rows) / 'bag.db3'
    content = path.read_bytes()
    for _, log_ns, _ in rows[100::13]:
        for start in re.finditer(re.escape(struct.pack('>q', log_ns)), content):
            for cut in range(start.start() + 1, start.end() + 1):
                path.write_bytes(content[:cut])
                bag = open_bag(path)
                assert_losses_enclose_missing_rows(rows, rows_of(bag), bag.losses)


def assert_cuts_give_no_wrong_message(path, rows, cuts):
    content = path.read_bytes()
    for cut in cuts:
        path.write_bytes(content[:cut])
        bag = open_bag(path)
        assert set(rows_of(bag)) <= set(rows)
        assert bag.losses
        assert {bag.start_ns, bag.end_ns} <= {log_ns for _, log_ns, _ in rows}


def test_cut_sqlite_file_with_messages_of_zeros_gives_no_wrong_message(tmp_path):
    """Commands of a robot that stands still have the same bytes as a cut command."""
    rows = [
        ('/a', START + i * SECOND, b'\0\1\0\0' + bytes(40) + (b'\0', b'\1')[i % 3 == 0] * 8)
        for i in range(300)
    ]
    path = write_folder(tmp_path / 'bag', rows) / 'bag.db3'
    size = path.stat().st_size
    cuts = random.Random(1).sample(range(size // 2, size), 150)
    assert_cuts_give_no_wrong_message(path, rows, cuts)


def test_cut_sqlite_file_with_reused_pages_gives_no_wrong_message(tmp_path):
    """The last page may be in the middle of a message whose other pages are before it."""
    rows = messages(60, size=9000)
    path = write_folder(tmp_path / 'bag', rows) / 'bag.db3'
    with sqlite3.connect(path) as connection:
        connection.execute('DELETE FROM messages WHERE id % 3 = 0')
        connection.commit()
        query = 'INSERT INTO messages (topic_id, timestamp, data) VALUES (?, ?, ?)'
        topic, name = connection.execute('SELECT id, name FROM topics').fetchone()
        later = [
            (name, rows[-1][1] + i, data + data[4:])
            for i, (_, _, data) in enumerate(messages(12, size=9000), 1)
        ]
        connection.executemany(query, [(topic, *row[1:]) for row in later])
    connection.close()
    size = path.stat().st_size
    cuts = random.Random(2).sample(range(size // 2, size), 150)
    assert_cuts_give_no_wrong_message(path, [*rows, *later], cuts)


def test_sqlite_file_without_index_is_sorted(tmp_path):
    path = write_folder(tmp_path / 'bag', ROWS[::-1]) / 'bag.db3'
    with sqlite3.connect(path) as connection:
        connection.execute('DROP INDEX timestamp_idx')
    connection.close()
    assert rows_of(open_bag(path)) == ROWS


def test_write_ahead_log_of_a_killed_recorder_is_read(tmp_path):
    path = write_folder(tmp_path / 'bag', ROWS[:30]) / 'bag.db3'
    other = tmp_path / 'other'
    other.mkdir()
    connection = sqlite3.connect(path)
    connection.execute('PRAGMA journal_mode=WAL')
    for topic, log_ns, data in ROWS[30:]:
        row = ({'/a': 1, '/b': 2, '/c': 3}[topic], log_ns, data)
        connection.execute(
            'INSERT INTO messages (topic_id, timestamp, data) VALUES (?, ?, ?)', row
        )
    connection.commit()
    for name in ('bag.db3', 'bag.db3-wal'):
        (other / name).write_bytes((path.parent / name).read_bytes())
    connection.close()
    bag = open_bag(other)
    assert sorted(rows_of(bag)) == sorted(ROWS)


@pytest.mark.parametrize(
    'change',
    [
        'ALTER TABLE messages RENAME TO other; CREATE VIEW messages AS WITH RECURSIVE r(id) AS '
        '(SELECT 1 UNION ALL SELECT id + 1 FROM r) SELECT id, 1 topic_id, id timestamp, '
        'zeroblob(1000000) data FROM r',
        'ALTER TABLE messages RENAME TO other; CREATE TABLE messages (id INTEGER PRIMARY KEY, '
        'topic_id, timestamp, data AS (zeroblob(1000000000)))',
        'DROP TABLE messages',
        'DROP TABLE topics',
    ],
)
def test_hostile_sqlite_tables_are_refused(change, tmp_path):
    path = write_folder(tmp_path / 'bag', ROWS) / 'bag.db3'
    with sqlite3.connect(path) as connection:
        connection.executescript(change)
    connection.close()
    with pytest.raises(ConfigError):
        open_bag(path)


def test_values_of_other_types_in_sqlite_are_skipped(tmp_path):
    path = write_folder(tmp_path / 'bag', ROWS) / 'bag.db3'
    wrong = ["('x', 1, x'00')", "(1, 'x', x'00')", '(1, NULL, 0)', '(1, -5, 0)', "(1, 9, 'text')"]
    with sqlite3.connect(path) as connection:
        connection.execute('CREATE TABLE m (id INTEGER PRIMARY KEY, topic_id, timestamp, data)')
        connection.execute('INSERT INTO m SELECT * FROM messages')
        connection.executescript('DROP TABLE messages; ALTER TABLE m RENAME TO messages')
        for values in wrong:
            connection.execute(f'INSERT INTO messages (topic_id, timestamp, data) VALUES {values}')
    connection.close()
    assert rows_of(open_bag(path)) == ROWS


# --- Limits --------------------------------------------------------------------------------------


def mcap_with_chunks(path, chunks):
    """Write a file without an index. `chunks`: start, end, stated size, compressed records."""
    topic, kind = b'/a', b'std_msgs/msg/String'

    def text(value):
        return len(value).to_bytes(4, 'little') + value

    def record(opcode, content):
        return struct.pack('<BQ', opcode, len(content)) + content

    schema = struct.pack('<H', 1) + text(kind) + text(b'ros2msg') + text(b'string data')
    channel = struct.pack('<HH', 1, 1) + text(topic) + text(b'cdr') + text(b'')
    with open(path, 'wb') as file:
        file.write(b'\x89MCAP0\r\n' + record(1, text(b'ros2') + text(b'')))
        file.write(record(3, schema) + record(4, channel))
        for start, end, size, packed in chunks:
            head = struct.pack('<QQQI', start, end, size, 0) + text(b'zstd')
            file.write(record(6, head + struct.pack('<Q', len(packed)) + packed))
            # An index of messages, so that the chunk is not read for its definitions.
            file.write(record(7, struct.pack('<HI', 1, 0)))
        file.write(record(15, bytes(4)))
    return path


def message_records(times, size):
    records = b''
    for time in times:
        records += struct.pack('<BQHIQQ', 5, 22 + size, 1, 0, time, time) + bytes(size)
    return records


def test_chunks_that_overlap_are_merged_in_bounded_memory(tmp_path):
    """200 chunks of 4 MB overlap completely, so that all of them are open at the same time."""
    count, size = 200, 2**20
    chunks = []
    for number in range(count):
        records = message_records([number, count + number, 2 * count + number, 10**6], size)
        chunks.append((0, 10**6, len(records), zstandard.compress(records)))
    path = mcap_with_chunks(tmp_path / 'a.mcap', chunks)
    assert path.stat().st_size < 2**20
    assert run(READ, path) == [count * 4 * size, 0]


@pytest.mark.parametrize('stated', [1000, 2**28, 2**40, 2**64 - 1])
def test_decompression_stops_at_the_stated_size(stated, tmp_path):
    """400 KB that decompress to 4 GB."""
    bomb = zstandard.compress(bytes(2**26)) * 64
    good = message_records([5], 10)
    chunks = [(0, 1, stated, bomb), (5, 5, len(good), zstandard.compress(good))]
    path = mcap_with_chunks(tmp_path / 'a.mcap', chunks)
    assert run(READ, path) == [10, 1]


def test_stated_sizes_are_not_allocated(tmp_path):
    rows = messages(6, size=10)
    path = write_mcap(tmp_path / 'a.mcap', rows, compression=CompressionType.NONE, chunk_size=1)
    content = bytearray(path.read_bytes())
    place = content.index(rows[1][2]) - 22 - 8
    content[place : place + 8] = (2**62).to_bytes(8, 'little')
    path.write_bytes(content)
    total, losses = run(READ, path)
    assert losses == 1
    assert total == sum(len(data) for _, _, data in rows) - len(rows[1][2])


def test_large_message_of_sqlite_is_a_loss(tmp_path):
    path = write_folder(tmp_path / 'bag', ROWS) / 'bag.db3'
    with sqlite3.connect(path) as connection:
        size = MAX_RECORD_BYTES + 2**22
        connection.execute(f'UPDATE messages SET data = zeroblob({size}) WHERE id = 3')
    connection.close()
    total, losses = run(READ, path)
    assert losses == 1
    assert total == sum(len(data) for _, _, data in ROWS) - len(ROWS[2][2])


def test_order_is_kept_if_a_chunk_states_a_wrong_time(tmp_path):
    """The second chunk states 50 as its start, but has a message of time 20."""
    first, second = message_records([10, 30, 60], 4), message_records([20, 55, 70], 4)
    chunks = [
        (10, 60, len(first), zstandard.compress(first)),
        (50, 70, len(second), zstandard.compress(second)),
    ]
    bag = open_bag(mcap_with_chunks(tmp_path / 'a.mcap', chunks))
    assert [m.log_ns for m in bag.messages(['/a'])] == [10, 30, 55, 60, 70]
    assert len(bag.losses) == 1


def test_many_overlapping_chunks_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(file_bag, '_MAX_OPEN_PARTS', 5)
    data = message_records([5, 9], 4)
    chunks = [(0, 9, len(data), zstandard.compress(data))] * 8
    bag = open_bag(mcap_with_chunks(tmp_path / 'a.mcap', chunks))
    assert len(list(bag.messages(['/a']))) == 10
    assert len(bag.losses) == 3


def test_many_losses_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(file_bag, '_MAX_LOSSES', 4)
    good = zstandard.compress(message_records([5], 4))
    bad = zstandard.compress(b'\5' + bytes(30))
    chunks = [(n, n, 35 if n % 2 else 31, good if n % 2 else bad) for n in range(5, 25)]
    bag = open_bag(mcap_with_chunks(tmp_path / 'a.mcap', chunks))
    list(bag.messages(['/a']))
    assert len(bag.losses) == 4


def test_cache_reads_a_chunk_again_after_it_was_dropped():
    content = parts.Content(bytes(100), np.zeros(0, np.uint64), np.zeros(0, np.uint64), '')
    loads = []
    cache = parts.ContentCache(150)
    for key in (1, 2, 1, 3, 1, 2):
        cache.get(key, lambda key=key: loads.append(key) or content)
    assert loads == [1, 2, 3, 2]


def test_loss_names_file_reason_and_time():
    loss = BagLoss('a.mcap', 3 * SECOND // 2, None, 'reason')
    assert str(loss) == 'a.mcap: reason; messages between 1.500 s and the end are lost'
