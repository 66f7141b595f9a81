# SPDX-License-Identifier: Apache-2.0
"""Tests of writing bags. The libraries mcap and rosbags, and SQLite, read them."""

import contextlib
import errno
import io
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from mcap.reader import make_reader
from mcap.records import DataEnd
from mcap.stream_reader import StreamReader
from rosbags.rosbag2 import Reader, StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from support.golden import without_folder
from support.programs import DEADLINE_S, small_disk
from support.ties import tie
from support.written_bags import (
    SECOND,
    START,
    TOPICS,
    command,
    some_messages,
    write_bag,
    write_files,
)
from trt_perception.bags.bag import BagMessage, BagTopic
from trt_perception.bags.metadata import NO_START, WrittenFile, metadata_text
from trt_perception.bags.writer import STORAGES, BagWriter, check_bag_name, data_file_name
from trt_perception.errors import ConfigError, WriteError

every_storage = pytest.mark.parametrize('storage', STORAGES)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def rows(messages):
    return [(message.topic, message.log_ns, message.data) for message in messages]


def read_with_rosbags(folder):
    with Reader(folder) as reader:
        return [(c.topic, ns, bytes(data)) for c, ns, data in reader.messages()]


def read_mcap(path):
    with open(path, 'rb') as file:
        return [
            (channel.topic, message.log_time, message.publish_time, message.data)
            for _, channel, message in make_reader(file, validate_crcs=True).iter_messages()
        ]


# --- content ---------------------------------------------------------------------------------


@every_storage
def test_all_messages_of_all_files_are_read_back(tmp_path, storage):
    write_bag(tmp_path / 'drive', storage=storage)
    names = [f'drive_{index}{STORAGES[storage]}' for index in range(3)]
    assert sorted(contents(tmp_path / 'drive')) == [*names, 'metadata.yaml']
    expected = [message for index in range(3) for message in some_messages(index)]
    assert read_with_rosbags(tmp_path / 'drive') == rows(expected)


def test_mcap_file_has_profile_times_statistics_and_indexes(tmp_path):
    write_bag(tmp_path / 'drive')
    path = tmp_path / 'drive' / 'drive_1.mcap'
    expected = some_messages(1)
    assert read_mcap(path) == [tuple(message) for message in expected]
    with open(path, 'rb') as file:
        reader = make_reader(file)
        assert reader.get_header().profile == 'ros2'
        assert reader.get_header().library == 'trt_perception'
        summary = reader.get_summary()
    channels = {channel.topic: channel for channel in summary.channels.values()}
    assert list(channels) == [topic.name for topic in TOPICS]
    for topic in TOPICS:
        channel, schema = channels[topic.name], summary.schemas[channels[topic.name].schema_id]
        assert channel.message_encoding == 'cdr'
        assert channel.metadata == {
            'offered_qos_profiles': topic.qos,
            'topic_type_hash': topic.type_hash,
        }
        assert (schema.name, schema.data) == (topic.type, topic.definition.encode())
        assert schema.encoding == ('ros2msg' if topic.definition else '')
    assert summary.statistics.message_count == len(expected)
    assert summary.statistics.message_start_time == expected[0].log_ns
    assert summary.statistics.message_end_time == expected[-1].log_ns
    counts = summary.statistics.channel_message_counts
    assert [counts.get(channels[topic.name].id, 0) for topic in TOPICS] == [14, 13, 13, 0]
    assert sum(len(chunk.message_index_offsets) for chunk in summary.chunk_indexes) == 3


def test_sqlite_file_has_the_tables_of_version_4(tmp_path):
    """The tables of a bag that rosbags writes are the reference."""
    write_bag(tmp_path / 'drive', storage='sqlite3')
    write_with_rosbags(tmp_path / 'other', StoragePlugin.SQLITE3)

    def columns(path):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            tables = [
                name
                for (name,) in connection.execute('SELECT name FROM sqlite_master ORDER BY name')
                # rosbags optimizes its files. Newer releases of SQLite then add statistics.
                if not name.startswith('sqlite_stat')
            ]
            assert connection.execute('PRAGMA integrity_check').fetchall() == [('ok',)]
            return {
                name: connection.execute(f'PRAGMA table_info({name})').fetchall()
                for name in tables
            }

    path = tmp_path / 'drive' / 'drive_0.db3'
    assert columns(path) == columns(tmp_path / 'other' / 'other.db3')
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute('SELECT * FROM schema').fetchall() == [(4, '')]
        assert connection.execute('SELECT * FROM topics').fetchall() == [
            (number, topic.name, topic.type, 'cdr', topic.qos, topic.type_hash)
            for number, topic in enumerate(TOPICS, 1)
        ]
        found = connection.execute('SELECT * FROM message_definitions').fetchall()
    assert found == [
        (number, topic.type, 'ros2msg', topic.definition, topic.type_hash)
        for number, topic in enumerate(TOPICS[:3], 1)
    ]


def write_with_rosbags(folder, storage):
    """Write a bag of a type that no ROS package has. Return its connection."""
    store = get_typestore(Stores.EMPTY)
    store.register(get_types_from_msg('uint8 value 3\n', 'their_msgs/msg/Value'))
    with Writer(folder, version=9, storage_plugin=storage) as writer:
        connection = writer.add_connection('/value', 'their_msgs/msg/Value', typestore=store)
        writer.write(connection, START, b'\0\1\0\0\7')
    return connection


@every_storage
def test_topic_of_another_bag_keeps_definition_hash_and_qos(tmp_path, storage):
    source = write_with_rosbags(tmp_path / 'other', StoragePlugin.MCAP)
    older = TOPICS[2].qos.replace('keep_last', '1').replace('transient_local', '1')
    topic = BagTopic('/value', source.msgtype, source.msgdef.data, source.digest, older)
    with BagWriter(tmp_path / 'copy', [topic], storage=storage) as bag:
        bag.begin_file()
        bag.write(BagMessage('/value', START, START, b'\0\1\0\0\7'))
    with Reader(tmp_path / 'copy') as reader:
        (copied,) = reader.connections
        assert (copied.msgdef, copied.digest) == (source.msgdef, source.digest)
        (profile,) = copied.ext.offered_qos_profiles
    assert (profile.history.name, profile.durability.name) == ('KEEP_LAST', 'TRANSIENT_LOCAL')


# --- metadata.yaml ---------------------------------------------------------------------------


def keys(value):
    """Return the keys of nested mappings, with one entry of each list."""
    if isinstance(value, list):
        return keys(value[0]) if value else None
    return {key: keys(entry) for key, entry in value.items()} if isinstance(value, dict) else None


def test_metadata_has_the_structure_of_version_9(tmp_path):
    """metadata.yaml of rosbags is the reference."""
    write_bag(tmp_path / 'drive')
    write_with_rosbags(tmp_path / 'other', StoragePlugin.MCAP)
    found, reference = (
        yaml.safe_load((tmp_path / name / 'metadata.yaml').read_text())[
            'rosbag2_bagfile_information'
        ]
        for name in ('drive', 'other')
    )
    assert found['version'] == reference['version'] == 9
    for content in (found, reference):  # free text; and rosbags has no QoS here
        content.pop('custom_data')
        content['topics_with_message_count'][0]['topic_metadata'].pop('offered_qos_profiles')
    assert keys(found) == keys(reference)


@every_storage
def test_metadata_lists_times_and_counts_of_files_and_topics(tmp_path, storage):
    with BagWriter(tmp_path / 'drive', TOPICS, storage=storage) as bag:
        write_files(bag, range(2))
        files = bag.files
    last_ns = some_messages(1)[-1].log_ns
    assert [file.start_ns for file in files] == [START, START + SECOND]
    assert [file.end_ns for file in files] == [some_messages(0)[-1].log_ns, last_ns]
    content = yaml.safe_load((tmp_path / 'drive' / 'metadata.yaml').read_text())
    content = content['rosbag2_bagfile_information']
    assert content['storage_identifier'] == storage
    assert content['starting_time'] == {'nanoseconds_since_epoch': START}
    assert content['duration'] == {'nanoseconds': last_ns - START}
    assert content['message_count'] == 80
    counts = [entry['message_count'] for entry in content['topics_with_message_count']]
    assert counts == [28, 26, 26, 0]
    assert content['relative_file_paths'] == [file.name for file in files]
    assert content['files'] == [
        {
            'path': file.name,
            'starting_time': {'nanoseconds_since_epoch': file.start_ns},
            'duration': {'nanoseconds': file.duration_ns},
            'message_count': 40,
        }
        for file in files
    ]


@every_storage
def test_file_and_bag_without_messages_have_the_start_of_rosbag2(tmp_path, storage):
    with BagWriter(tmp_path / 'drive', TOPICS, storage=storage) as bag:
        bag.begin_file()
        assert bag.end_file() == WrittenFile(
            f'drive_0{STORAGES[storage]}', NO_START, 0, (0, 0, 0, 0)
        )
        metadata = (tmp_path / 'drive' / 'metadata.yaml').read_text()
        assert f'nanoseconds_since_epoch: {NO_START}' in metadata
        write_files(bag, [5])
    assert read_with_rosbags(tmp_path / 'drive') == rows(some_messages(5))
    content = yaml.safe_load((tmp_path / 'drive' / 'metadata.yaml').read_text())
    start = content['rosbag2_bagfile_information']['starting_time']
    assert start == {'nanoseconds_since_epoch': START + 5 * SECOND}


@pytest.mark.parametrize(
    'special', ['\x7f', '\x85', '\x9f', '\u2028', '\ufeff', '\uffff', '\n', '"']
)
def test_characters_that_yaml_refuses_are_escaped(special):
    topic = BagTopic(f'/a{special}b', 'std_msgs/msg/String', '', f'x{special}y')
    content = yaml.safe_load(metadata_text('mcap', [topic], []))
    (found,) = content['rosbag2_bagfile_information']['topics_with_message_count']
    assert found['topic_metadata']['name'] == topic.name
    assert found['topic_metadata']['type_description_hash'] == topic.type_hash


def test_folder_whose_name_is_not_utf8_is_refused(tmp_path):
    folder = tmp_path / os.fsdecode(b'drive\xff')
    with pytest.raises(ConfigError):
        BagWriter(folder, TOPICS)
    assert not folder.exists()


def test_longest_name_of_a_bag_can_be_written(tmp_path):
    def refuses(length):
        try:
            check_bag_name(tmp_path / ('ü' * (length // 2) + 'x' * (length % 2)), 'mcap')
        except ConfigError:
            return True
        return False

    longest = max(length for length in range(256) if not refuses(length))
    assert longest > 200
    assert refuses(longest + 1)
    folder = write_bag(tmp_path / ('x' * longest), files=2)
    # The name of the last file of a bag with as many parts as allowed still fits.
    (folder / f'.{data_file_name(folder, "mcap", 10_079)}.part').touch()


def test_path_that_is_too_long_for_sqlite_is_refused(tmp_path):
    folder = tmp_path / '/'.join(['x' * 100] * 6)
    with pytest.raises(WriteError):
        write_bag(folder, storage='sqlite3')


def test_names_need_no_escape_in_yaml():
    topics = [BagTopic('/a: "b" #\\', 'x')]
    files = [WrittenFile('Fahrt ü 😀 "1"_0.mcap', 1, 2, (3,))]
    content = yaml.safe_load(metadata_text('mcap', topics, files))['rosbag2_bagfile_information']
    assert content['relative_file_paths'] == [files[0].name]
    assert content['topics_with_message_count'][0]['topic_metadata']['name'] == topics[0].name


# --- equal bytes and damage ------------------------------------------------------------------


@pytest.mark.parametrize(
    ('storage', 'compression'),
    [('mcap', 'zstd'), ('mcap', 'lz4'), ('mcap', 'none'), ('sqlite3', 'none')],
)
def test_equal_messages_give_equal_bytes_in_another_process_and_folder(
    tmp_path, storage, compression
):
    options = {'storage': storage, 'compression': compression}
    write_bag(tmp_path / 'drive', **options)
    (tmp_path / 'far').mkdir()
    subprocess.run(command(tmp_path / 'far' / 'drive', **options), check=True, timeout=DEADLINE_S)
    assert contents(tmp_path / 'drive') == contents(tmp_path / 'far' / 'drive')
    write_bag(tmp_path / 'other_name', **options)
    files, same_files = (data_files(tmp_path / name) for name in ('drive', 'other_name'))
    assert len(files) == 3
    assert files == same_files
    assert not any(b'other_name' in content for content in same_files)


def data_files(folder):
    """Return the contents of the data files in the order of their names."""
    found = sorted(contents(folder).items())
    return [content for name, content in found if name != 'metadata.yaml']


@pytest.mark.parametrize('compression', ['zstd', 'lz4', 'none'])
def test_each_flipped_bit_of_messages_is_noticed(tmp_path, compression):
    write_bag(tmp_path / 'drive', files=1, size=20, compression=compression)
    content = (tmp_path / 'drive' / 'drive_0.mcap').read_bytes()
    summary_at, offsets_at, summary_crc = struct.unpack('<QQI', content[-28:-8])
    # The specification of MCAP: the checksum of the summary ends before its own field.
    assert summary_crc == zlib.crc32(content[summary_at:-12])
    assert summary_at < offsets_at < len(content)
    read_all_records(content)
    for position in range(0, summary_at, 7):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(Exception):  # noqa: B017, PT011 - of the libraries, or a checksum's
            read_all_records(bytes(damaged))


def read_all_records(content):
    """Read a whole MCAP file and check its checksums of chunks and of the data section."""
    records = list(StreamReader(io.BytesIO(content), validate_crcs=True).records)
    (end,) = [record for record in records if isinstance(record, DataEnd)]
    assert end.data_section_crc != 0


# --- interruptions and continuing ------------------------------------------------------------


@every_storage
def test_killed_writer_leaves_readable_files_and_is_continued(tmp_path, storage):
    folder = tmp_path / 'killed' / 'drive'
    folder.parent.mkdir()
    endless = command(folder, files=1_000_000, storage=storage)
    with subprocess.Popen(endless, stdout=subprocess.PIPE, text=True) as process:
        tie(process.pid)
        for _ in range(3):
            assert process.stdout.readline()
        process.kill()
    listed = yaml.safe_load((folder / 'metadata.yaml').read_text())['rosbag2_bagfile_information']
    count = len(listed['files'])
    assert count >= 3
    for index in range(count):
        alone = tmp_path / f'alone_{index}'
        write_folder_of(folder / listed['relative_file_paths'][index], alone)
        assert read_alone(alone) == rows(some_messages(index))
    expected = [message for index in range(count) for message in some_messages(index)]
    assert read_with_rosbags(folder) == rows(expected)

    write_bag(folder, files=count + 2, storage=storage, first_file=2)
    write_bag(tmp_path / 'drive', files=count + 2, storage=storage)
    assert contents(folder) == contents(tmp_path / 'drive')


def write_folder_of(path, folder):
    folder.mkdir()
    shutil.copy(path, folder)


def read_alone(folder):
    """Read the only file of a folder, without metadata.yaml."""
    (path,) = folder.iterdir()
    if path.suffix == '.mcap':
        return [(topic, log_ns, data) for topic, log_ns, _, data in read_mcap(path)]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(
            'SELECT name, timestamp, data FROM messages JOIN topics ON topics.id = topic_id'
            ' ORDER BY timestamp'
        ).fetchall()


@every_storage
def test_leftovers_of_a_killed_run_are_replaced(tmp_path, storage):
    suffix = STORAGES[storage]
    folder = write_bag(tmp_path / 'drive', storage=storage)
    expected = contents(folder)
    leftovers = [f'drive_3{suffix}', f'.drive_2{suffix}.part', '.metadata.yaml.x1']
    for name in leftovers:
        (folder / name).write_bytes(b'part')
    others = ['notes.txt', f'drive_x{suffix}', f'other_3{suffix}', 'drive_3.txt']
    for name in others:
        (folder / name).write_bytes(b'theirs')
    assert write_bag(folder, storage=storage, first_file=2)
    assert contents(folder) == expected | dict.fromkeys(others, b'theirs')


@every_storage
def test_continuing_after_no_file_and_in_an_empty_folder(tmp_path, storage):
    write_bag(tmp_path / 'drive', storage=storage)
    expected = contents(tmp_path / 'drive')
    write_bag(tmp_path / 'drive', storage=storage, first_file=0)
    assert contents(tmp_path / 'drive') == expected
    (tmp_path / 'new' / 'drive').mkdir(parents=True)
    (tmp_path / 'new' / 'drive' / '.metadata.yaml.x1').write_bytes(b'part')
    write_bag(tmp_path / 'new' / 'drive', storage=storage, first_file=0)
    assert contents(tmp_path / 'new' / 'drive') == expected


def test_only_an_unfinished_bag_with_the_same_topics_is_continued(tmp_path, golden_messages):
    folder = write_bag(tmp_path / 'drive')
    before = contents(folder)

    def refused(topics=TOPICS, first_file=1, **options):
        with pytest.raises(ConfigError) as caught:
            BagWriter(folder, topics, first_file=first_file, **options)
        golden_messages.add(without_folder(str(caught.value), tmp_path))

    refused(first_file=None)
    refused(first_file=4)
    refused(TOPICS[:3])
    refused((*TOPICS, BagTopic('/more', 'their_msgs/msg/Their')))
    refused((replace(TOPICS[0], type_hash='RIHS01_0'), *TOPICS[1:]))
    refused((replace(TOPICS[0], qos=TOPICS[2].qos), *TOPICS[1:]))
    refused(storage='sqlite3')
    assert contents(folder) == before
    metadata = (folder / 'metadata.yaml').read_text()
    for wrong in (
        metadata.replace('trt_perception.message_counts', 'theirs'),
        metadata.replace('message_count: 120', 'message_count: 119'),
        metadata.replace('path: "drive_1', 'path: "../drive_1'),
        metadata.replace('path: "drive_1', 'path: "drive\\ud800_1'),
        metadata.replace('[[14,', '[[1e999,'),
        metadata.replace('[[14,', '[[14,0,'),
        metadata.replace('[[14,', '[[-14,'),
        'a: [',
        '',
    ):
        (folder / 'metadata.yaml').write_text(wrong)
        refused()
    (folder / 'metadata.yaml').write_text(metadata)
    (folder / 'drive_2.mcap').unlink()
    refused()
    (folder / 'metadata.yaml').unlink()
    refused(first_file=0)
    assert contents(folder).keys() == {'drive_0.mcap', 'drive_1.mcap'}


@every_storage
def test_exception_deletes_the_open_file_and_keeps_complete_files(tmp_path, storage):

    def fail():
        with BagWriter(tmp_path / 'drive', TOPICS, storage=storage) as bag:
            write_files(bag, range(2))
            bag.begin_file()
            bag.write(some_messages(2)[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    names = [f'drive_{index}{STORAGES[storage]}' for index in range(2)]
    assert sorted(contents(tmp_path / 'drive')) == [*names, 'metadata.yaml']
    assert len(read_with_rosbags(tmp_path / 'drive')) == 80


def test_second_writer_of_a_folder_is_refused(tmp_path, golden_messages):
    with BagWriter(tmp_path / 'drive', TOPICS):
        with pytest.raises(ConfigError) as caught:
            BagWriter(tmp_path / 'drive', TOPICS, first_file=0)
        golden_messages.add(without_folder(str(caught.value), tmp_path))
    BagWriter(tmp_path / 'drive', TOPICS, first_file=0).close()


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize('options', [{'compression': 'none'}, {'storage': 'sqlite3'}])
def test_full_disk_leaves_complete_files_only(tmp_path, options):
    """Files of more than 1 MB cannot be written: the second one is larger."""
    folder = tmp_path / 'drive'
    write_bag(folder, files=1, **options)
    before = contents(folder)
    more = command(folder, files=2, size=100_000, first_file=1, **options)
    process = subprocess.run(
        more, capture_output=True, text=True, timeout=DEADLINE_S, **small_disk(1_000_000)
    )
    assert process.returncode == 1, process.stderr
    assert process.stderr.startswith(f'{folder / "drive_1"}')
    assert 'Traceback' not in process.stderr
    assert contents(folder) == before


@every_storage
def test_error_of_the_disk_has_a_fix_and_the_file_can_be_begun_again(
    tmp_path, monkeypatch, storage, golden_messages
):
    def fail(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with BagWriter(tmp_path / 'drive', TOPICS, storage=storage) as bag:
        write_files(bag, range(1))
        bag.begin_file()
        bag.write(some_messages(1)[0])
        with monkeypatch.context() as patch:
            patch.setattr(os, 'fsync', fail)
            with pytest.raises(WriteError) as caught:
                bag.end_file()
        golden_messages.add(without_folder(str(caught.value), tmp_path))
        assert len(contents(tmp_path / 'drive')) == 2
        with pytest.raises(ValueError, match='no file'):
            bag.write(some_messages(1)[0])
        write_files(bag, range(1, 3))
    write_bag(tmp_path / 'expected' / 'drive', storage=storage)
    assert contents(tmp_path / 'drive') == contents(tmp_path / 'expected' / 'drive')


def test_folder_that_cannot_be_made_or_written_is_an_error(tmp_path, golden_messages):
    (tmp_path / 'file').write_bytes(b'')
    folders = [tmp_path / 'file', tmp_path / 'file' / 'drive', Path('/proc/drive')]
    for folder in folders:
        with pytest.raises((ConfigError, WriteError)) as caught:
            BagWriter(folder, TOPICS)
        golden_messages.add(without_folder(str(caught.value), tmp_path))
    with BagWriter(tmp_path / 'drive', TOPICS) as bag:
        (tmp_path / 'drive' / 'metadata.yaml').unlink()
        (tmp_path / 'drive').rmdir()
        with pytest.raises(WriteError) as caught:
            bag.begin_file()
        golden_messages.add(without_folder(str(caught.value), tmp_path))


def test_mistakes_of_the_caller_are_refused(tmp_path, golden_messages):
    with golden_messages.raises(ValueError):
        BagWriter(tmp_path / 'drive', TOPICS, storage='ros1')
    with golden_messages.raises(ValueError):
        BagWriter(tmp_path / 'drive', TOPICS, compression='zip')
    with golden_messages.raises(ValueError):
        BagWriter(tmp_path / 'drive', [TOPICS[0], TOPICS[0]])
    assert not (tmp_path / 'drive').exists()
    message = some_messages(1)[0]
    with BagWriter(tmp_path / 'drive', TOPICS) as bag:
        with golden_messages.raises(ValueError):
            bag.write(message)
        with golden_messages.raises(ValueError):
            bag.end_file()
        write_files(bag, [1])
        bag.begin_file()
        with golden_messages.raises(ValueError):
            bag.begin_file()
        with golden_messages.raises(KeyError):
            bag.write(message._replace(topic='/other'))
        for log_ns in (-1, message.log_ns, 2**63 - 1):
            with golden_messages.raises(ValueError):
                bag.write(message._replace(log_ns=log_ns))
        bag.write(some_messages(2)[1])
        bag.write(some_messages(2)[0])  # the order within a file is free
    assert read_with_rosbags(tmp_path / 'drive')[-2:] == rows(some_messages(2)[:2])


@pytest.mark.parametrize('package', ['mcap', 'zstandard', 'lz4'])
def test_missing_package_is_an_error_before_anything_is_written(tmp_path, monkeypatch, package):
    compression = {'mcap': 'none', 'zstandard': 'zstd', 'lz4': 'lz4'}[package]
    for name in [name for name in sys.modules if name.partition('.')[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError):
        BagWriter(tmp_path / 'drive', TOPICS, compression=compression)
    assert not (tmp_path / 'drive').exists()
