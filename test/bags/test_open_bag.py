# SPDX-License-Identifier: Apache-2.0
"""Compare what the package reads from intact bags with the libraries mcap and rosbags."""

import shutil
import sqlite3
from pathlib import Path

import pytest
from mcap.reader import make_reader
from mcap.writer import CompressionType, IndexType
from mcap_ros2.decoder import DecoderFactory

from support.bags import (
    DEFINITION,
    METADATA,
    SECOND,
    START,
    STRING,
    messages,
    read_with_mcap,
    read_with_rosbags,
    rows_of,
    string_message,
    write_folder,
    write_mcap,
)
from support.written_bags import TOPICS, some_messages
from trt_perception.bags.bag import BagTopic
from trt_perception.bags.decompress import ZSTD_START
from trt_perception.bags.open_bag import is_bag, open_bag
from trt_perception.bags.writer import BagWriter
from trt_perception.errors import ConfigError

ROWS = messages()


@pytest.mark.parametrize('compression', list(CompressionType))
@pytest.mark.parametrize('has_chunks', [True, False])
def test_mcap_file_is_read_as_by_the_library(compression, has_chunks, tmp_path):
    path = write_mcap(tmp_path / 'a.mcap', ROWS, compression=compression, use_chunking=has_chunks)
    bag = open_bag(path)
    assert rows_of(bag) == read_with_mcap(path) == ROWS
    assert (bag.start_ns, bag.end_ns, bag.losses) == (ROWS[0][1], ROWS[-1][1], [])
    assert {m.log_ns - m.publish_ns for m in bag.messages(bag.topics)} == {5}
    with open(path, 'rb') as file:
        reader = make_reader(file, decoder_factories=[DecoderFactory()])
        texts = [found.decoded_message.data for found in reader.iter_decoded_messages()]
    assert [string_message(text) for text in texts] == [data for _, _, data in rows_of(bag)]


def test_topics_have_definition_hash_and_qos(tmp_path):
    bag = open_bag(write_mcap(tmp_path / 'a.mcap', ROWS))
    qos, type_hash = METADATA['offered_qos_profiles'], METADATA['topic_type_hash']
    assert bag.topics['/a'] == BagTopic('/a', STRING, DEFINITION, type_hash, qos)
    assert bag.message_counts == {'/a': 20, '/b': 20, '/c': 20}


@pytest.mark.parametrize(
    'options',
    [
        {'repeat_channels': False},
        {'repeat_schemas': False},
        {'use_statistics': False},
        {'index_types': IndexType.NONE},
        {'index_types': IndexType.CHUNK},
        {'index_types': IndexType.MESSAGE},
        {'use_summary_offsets': False},
        {'enable_crcs': False},
    ],
    ids=repr,
)
def test_mcap_file_without_parts_of_its_index_is_read(options, tmp_path):
    """The library itself fails without repeated channels or schemas."""
    bag = open_bag(write_mcap(tmp_path / 'a.mcap', ROWS, **options))
    assert rows_of(bag) == ROWS
    assert (bag.start_ns, bag.end_ns, bag.losses) == (ROWS[0][1], ROWS[-1][1], [])


@pytest.mark.parametrize('mode', ['NONE', 'MESSAGE', 'FILE'])
@pytest.mark.parametrize('storage', ['SQLITE3', 'MCAP'])
@pytest.mark.parametrize('has_metadata', [True, False])
def test_folder_is_read_as_by_rosbags(storage, mode, has_metadata, tmp_path):
    folder = write_folder(tmp_path / 'bag', ROWS, storage, mode)
    assert read_with_rosbags(folder) == ROWS
    if not has_metadata:
        (folder / 'metadata.yaml').unlink()
    bag = open_bag(folder)
    assert rows_of(bag) == ROWS
    assert (bag.start_ns, bag.end_ns, bag.losses) == (ROWS[0][1], ROWS[-1][1], [])
    assert bag.topics['/a'].definition.strip() == DEFINITION.strip()
    if has_metadata:
        assert bag.message_counts == {'/a': 20, '/b': 20, '/c': 20}
    bag.close()


@pytest.mark.parametrize('storage', ['SQLITE3', 'MCAP'])
def test_single_file_of_a_folder_is_read(storage, tmp_path):
    folder = write_folder(tmp_path / 'bag', ROWS, storage)
    (file,) = [path for path in folder.iterdir() if path.suffix != '.yaml']
    assert rows_of(open_bag(file)) == ROWS


def test_temporary_files_are_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path / 'tmp'))
    (tmp_path / 'tmp').mkdir()
    bag = open_bag(write_folder(tmp_path / 'bag', ROWS, 'SQLITE3', 'FILE'))
    assert len(list((tmp_path / 'tmp').iterdir())) == 1
    bag.close()
    bag.close()
    assert not list((tmp_path / 'tmp').iterdir())


def test_full_disk_refuses_a_compressed_file(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / 'bag', ROWS, 'SQLITE3', 'FILE')
    usage = shutil.disk_usage(tmp_path)._replace(free=50)
    monkeypatch.setattr(shutil, 'disk_usage', lambda _: usage)
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        open_bag(folder)
    assert 'TMPDIR' in caught.value.fix


@pytest.mark.parametrize('storage', ['SQLITE3', 'MCAP'])
@pytest.mark.parametrize(
    ('first', 'last'), [(None, None), (20, 40), (0, 1), (59, 60), (30, 30), (60, 70), (-5, 3)]
)
def test_range_of_time_and_topics(first, last, storage, tmp_path):
    folder = write_folder(tmp_path / 'bag', ROWS, storage)
    bounds = [n if n is None else START + n * SECOND // 10 for n in (first, last)]
    low, high = (ROWS[0][1] if n is None else n for n in bounds)
    high = ROWS[-1][1] + 1 if bounds[1] is None else high
    expected = [row for row in ROWS if low <= row[1] < high and row[0] != '/b']
    assert rows_of(open_bag(folder), *bounds, topics=['/a', '/c']) == expected


def test_range_reads_only_the_chunks_of_its_time_and_topics(tmp_path):
    """A damaged chunk outside of the range does not matter, because it is not read."""
    path = write_mcap(tmp_path / 'a.mcap', ROWS, compression=CompressionType.NONE)
    content = bytearray(path.read_bytes())
    content[content.index(ROWS[0][2][:30]) + 8] ^= 1
    path.write_bytes(content)
    bag = open_bag(path)
    assert rows_of(bag, START + 3 * SECOND) == ROWS[30:]
    assert not bag.losses
    assert len(rows_of(bag)) < len(ROWS)
    assert bag.losses


def write_split(folder, rows, count):
    """Write a bag of several files, numbered without leading zeros."""
    folder.mkdir()
    size = len(rows) // count
    for number in range(count):
        part = rows[number * size : (number + 1) * size]
        write_mcap(folder / f'bag_{number}.mcap', part)
    return folder


def test_files_of_a_split_bag_are_joined_in_order(tmp_path):
    folder = write_split(tmp_path / 'bag', ROWS, 12)
    bag = open_bag(folder)
    assert rows_of(bag) == ROWS
    assert bag.message_counts == {'/a': 20, '/b': 20, '/c': 20}
    assert rows_of(bag, START + SECOND, START + 2 * SECOND) == ROWS[10:20]


def test_messages_of_one_time_keep_the_order_of_files_and_of_each_file(tmp_path):
    (tmp_path / 'bag').mkdir()
    rows = [('/a', START, string_message(str(number))) for number in range(40)]
    for number in range(4):
        name = tmp_path / 'bag' / f'bag_{number}.mcap'
        write_mcap(name, rows[number * 10 : number * 10 + 10], chunk_size=20)
    assert rows_of(open_bag(tmp_path / 'bag')) == rows


@pytest.mark.parametrize('storage', ['SQLITE3', 'MCAP'])
def test_messages_are_sorted_by_log_time(storage, tmp_path):
    """Here each topic is written from start to end before the next one, so all chunks overlap."""
    by_topic = sorted(ROWS, key=lambda row: row[0])
    folder = write_folder(tmp_path / 'bag', by_topic, storage)
    assert rows_of(open_bag(folder)) == ROWS
    path = write_mcap(tmp_path / 'a.mcap', by_topic[::-1])
    assert rows_of(open_bag(path)) == ROWS


def test_listed_file_that_is_missing_is_a_loss(tmp_path):
    folder = write_split(tmp_path / 'bag', ROWS, 3)
    listed = ''.join(f'\n  - bag_{number}.mcap' for number in range(3))
    text = f'rosbag2_bagfile_information:\n  relative_file_paths:{listed}\n'
    (folder / 'metadata.yaml').write_text(text)
    assert not open_bag(folder).losses
    (folder / 'bag_1.mcap').unlink()
    bag = open_bag(folder)
    (loss,) = bag.losses
    assert (loss.file, loss.start_ns, loss.end_ns) == ('bag_1.mcap', ROWS[19][1], ROWS[40][1])
    assert rows_of(bag) == ROWS[:20] + ROWS[40:]


@pytest.mark.parametrize('text', ['', '{', 'a: *x', '[' * 10**5, 'x' * 10**6, '\0', 'a: !!b c'])
def test_wrong_metadata_is_ignored(text, tmp_path):
    folder = write_split(tmp_path / 'bag', ROWS, 2)
    (folder / 'metadata.yaml').write_text(text)
    assert rows_of(open_bag(folder)) == ROWS


def test_other_serialization_is_refused_by_topic(tmp_path):
    folder = write_folder(tmp_path / 'bag', ROWS)
    with sqlite3.connect(folder / 'bag.db3') as connection:
        connection.execute("UPDATE topics SET serialization_format = 'json' WHERE name = '/b'")
    connection.close()
    bag = open_bag(folder)
    assert set(bag.topics) == {'/a', '/c'}
    assert rows_of(bag) == [row for row in ROWS if row[0] != '/b']
    with pytest.raises(ConfigError) as caught:
        bag.messages(['/b'])
    assert 'json' in caught.value.found
    with pytest.raises(ConfigError) as caught:
        bag.messages(['/unknown'])
    assert '/a' in caught.value.expected


def test_compressed_messages_of_a_single_file_are_decompressed(tmp_path):
    """A single file has no metadata.yaml that names the compression."""
    folder = write_folder(tmp_path / 'bag', ROWS, 'MCAP', 'MESSAGE')
    assert read_with_mcap(folder / 'bag.mcap')[0][2].startswith(ZSTD_START)
    assert rows_of(open_bag(folder / 'bag.mcap')) == ROWS


def test_empty_bag_has_no_messages(tmp_path):
    for storage in ('SQLITE3', 'MCAP'):
        bag = open_bag(write_folder(tmp_path / storage, [], storage))
        assert (bag.topics, bag.start_ns, bag.end_ns, bag.losses) == ({}, 0, 0, [])
        assert not list(bag.messages([]))


@pytest.mark.parametrize(
    'name', ['missing', 'drive.bag', 'a.txt', 'metadata.yaml', 'empty', 'two', 'bags']
)
def test_other_paths_are_refused(name, tmp_path, golden_messages):
    files = ('drive.bag', 'a.txt', 'metadata.yaml', 'two/a.mcap', 'two/a.db3', 'empty/x')
    for file in (*files, 'bags/drive_10/a.db3', 'bags/drive_9/a.db3', 'bags/notes/b.txt'):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    with golden_messages.raises(ConfigError):
        open_bag(tmp_path / name)


def test_links_and_names_of_bags(tmp_path):
    path = write_mcap(tmp_path / "a b#%?'.mcap", ROWS)
    link = tmp_path / 'link.mcap'
    link.symlink_to(path)
    assert rows_of(open_bag(path)) == rows_of(open_bag(link)) == ROWS
    # rosbags itself writes no file into a folder of such a name.
    folder = write_folder(tmp_path / 'bag', ROWS).rename(tmp_path / "c d#%?'")
    assert rows_of(open_bag(folder)) == ROWS
    assert is_bag(path)
    assert is_bag(folder)
    assert not is_bag(Path('/'))
    assert not is_bag(Path('/dev/null'))


def test_missing_package_is_named(tmp_path, monkeypatch):
    path = write_mcap(tmp_path / 'a.mcap', ROWS)
    monkeypatch.setitem(__import__('sys').modules, 'mcap.records', None)
    with pytest.raises(ConfigError) as caught:
        open_bag(path)
    assert 'pip install mcap' in caught.value.fix


@pytest.mark.parametrize('storage', ['mcap', 'sqlite3'])
def test_own_bags_are_read(storage, tmp_path):
    """All fields of topics and messages return, also of types that ROS does not know."""
    with BagWriter(tmp_path / 'bag', TOPICS, storage=storage) as writer:
        for number in range(3):
            writer.begin_file()
            for message in some_messages(number):
                writer.write(message)
            writer.end_file()
    bag = open_bag(tmp_path / 'bag')
    expected = [message for number in range(3) for message in some_messages(number)]
    found = list(bag.messages(bag.topics))
    kept = slice(None) if storage == 'mcap' else slice(0, 2)
    assert [m[kept] + m[3:] for m in found] == [m[kept] + m[3:] for m in expected]
    assert bag.topics == {topic.name: topic for topic in TOPICS}
    assert sum(bag.message_counts.values()) == len(expected)
    assert not bag.losses
