# SPDX-License-Identifier: Apache-2.0
"""Write an SQLite file (.db3) of rosbag2: version 4 of its tables, as Jazzy and Kilted write them.

Python's sqlite3 is used instead of the writer of rosbags, because that one writes bags of one
file, stores metadata with the file's name in it, and does not wait for the disk. With the same
release of SQLite, equal messages give equal bytes. SQLite files have no checksums, and these
tables have no times of publishing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from trt_perception.bags.bag import BagMessage, BagTopic
from trt_perception.bags.storage_file import create_file

_SCHEMA_VERSION: Final = 4
_SQLITE_FULL: Final = 13
# A temporary file is deleted after an error, so SQLite needs no journal for a rollback.
_SETTINGS: Final = (
    *('PRAGMA page_size = 4096', 'PRAGMA encoding = "UTF-8"', 'PRAGMA auto_vacuum = NONE'),
    *('PRAGMA journal_mode = OFF', 'PRAGMA synchronous = OFF', 'PRAGMA temp_store = MEMORY'),
    'PRAGMA locking_mode = EXCLUSIVE',
)
_TABLES: Final = (
    'CREATE TABLE schema(schema_version INTEGER PRIMARY KEY, ros_distro TEXT NOT NULL)',
    'CREATE TABLE metadata(id INTEGER PRIMARY KEY, metadata_version INTEGER NOT NULL,'
    ' metadata TEXT NOT NULL)',
    'CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT NOT NULL, type TEXT NOT NULL,'
    ' serialization_format TEXT NOT NULL, offered_qos_profiles TEXT NOT NULL,'
    ' type_description_hash TEXT NOT NULL)',
    'CREATE TABLE message_definitions(id INTEGER PRIMARY KEY, topic_type TEXT NOT NULL,'
    ' encoding TEXT NOT NULL, encoded_message_definition TEXT NOT NULL,'
    ' type_description_hash TEXT NOT NULL)',
    'CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER NOT NULL,'
    ' timestamp INTEGER NOT NULL, data BLOB NOT NULL)',
    'CREATE INDEX timestamp_idx ON messages (timestamp ASC)',
)


class SqliteOutput:
    """An SQLite file. All messages are in one transaction.

    Memory is bounded by SQLite's cache (2 MB) and one message.

    Args:
        path: the new file.
        topics: all topics, also those without messages.

    Raises:
        OSError: the file exists or cannot be made.
    """

    def __init__(self, path: Path, topics: Sequence[BagTopic]) -> None:
        self._path = path
        os.close(create_file(path))
        with _os_errors():  # SQLite opens no path of more than 511 bytes
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            with _os_errors():
                for statement in (*_SETTINGS, 'BEGIN', *_TABLES):
                    self._connection.execute(statement)
                self._insert_topics(topics)
        except BaseException:
            self.abandon()
            raise

    def _insert_topics(self, topics: Sequence[BagTopic]) -> None:
        self._connection.execute('INSERT INTO schema VALUES (?, ?)', (_SCHEMA_VERSION, ''))
        self._connection.executemany(
            'INSERT INTO topics VALUES (?, ?, ?, ?, ?, ?)',
            (
                (index, topic.name, topic.type, 'cdr', topic.qos, topic.type_hash)
                for index, topic in enumerate(topics, 1)
            ),
        )
        definitions = dict.fromkeys(
            (topic.type, 'ros2msg', topic.definition, topic.type_hash)
            for topic in topics
            if topic.definition
        )
        self._connection.executemany(
            'INSERT INTO message_definitions(topic_type, encoding, encoded_message_definition,'
            ' type_description_hash) VALUES (?, ?, ?, ?)',
            definitions,
        )

    def write(self, topic_index: int, message: BagMessage) -> None:
        """Append a message of the topic with this index."""
        with _os_errors():
            self._connection.execute(
                'INSERT INTO messages(topic_id, timestamp, data) VALUES (?, ?, ?)',
                (topic_index + 1, message.log_ns, message.data),
            )

    def finish(self) -> None:
        """Commit the transaction, wait for the disk, and close the file."""
        with _os_errors():
            self._connection.execute('COMMIT')
            self._connection.close()
        with open(self._path, 'rb+') as stream:
            os.fsync(stream.fileno())

    def abandon(self) -> None:
        """Close the unfinished file. Calling it after `finish` does no harm."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    """Raise an OSError for each error of SQLite: a full disk, or a message of more than 1 GB."""
    try:
        yield
    except sqlite3.Error as error:
        is_full = getattr(error, 'sqlite_errorcode', None) == _SQLITE_FULL  # since Python 3.11
        raise OSError(errno.ENOSPC if is_full else errno.EIO, str(error)) from error
