# SPDX-License-Identifier: Apache-2.0
"""Write a bag of rosbag2 without ROS: a folder with data files and metadata.yaml.

The format is that of Jazzy and Kilted, for `ros2 bag info`, `ros2 bag play` and Foxglove. The
tests read it with rosbags and mcap-ros2-support; `ros2 bag` was not run.

Guarantees: a file appears under its name when it is complete and on the disk. Then metadata.yaml,
which lists all complete files, is replaced. So after SIGKILL or a loss of power, each listed file
is readable, and a later run continues after the last one. Equal messages in equal files give equal
bytes, whatever the time and folder, with the same release of the compression or of SQLite.
Files do not contain their name, a date or the release of a library.

Non-guarantees: messages of an unfinished file are lost. SIGKILL may leave a temporary file, whose
name begins with a dot, and a complete file that is not listed yet. The run that continues replaces
both.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from trt_perception.bags.bag import BagMessage, BagTopic
from trt_perception.bags.mcap_output import COMPRESSIONS, McapOutput, check_libraries
from trt_perception.bags.metadata import (
    METADATA_NAME,
    NO_START,
    WrittenFile,
    metadata_text,
    read_closed_files,
)
from trt_perception.bags.qos import jazzy_qos
from trt_perception.bags.sqlite_output import SqliteOutput
from trt_perception.bags.storage_file import StorageFile
from trt_perception.errors import ConfigError
from trt_perception.files.atomic_files import (
    error_of_failed_write,
    make_folder,
    sync_folder,
    write_atomically,
)
from trt_perception.files.plain_text import counted

#: Suffix of the files by rosbag2's name of the storage.
STORAGES: Final = {'mcap': '.mcap', 'sqlite3': '.db3'}
#: Limit of Linux for the name of a file.
_MAX_NAME_BYTES: Final = 255
#: More files than a bag has.
_MOST_FILES: Final = 99_999


def is_written_name(name: str, folder: Path, storage: str) -> bool:
    """Return whether a `BagWriter` may have made a file of this name, except metadata.yaml.

    True for data files, and for the temporary files of data files and of metadata.yaml.

    Args:
        folder: the bag.
        storage: rosbag2's name of the storage.
    """
    data = rf'{re.escape(_bag_name(folder))}_(?:0|[1-9][0-9]*){re.escape(STORAGES[storage])}'
    pattern = rf'(?s:{data}|\.{data}\.part|\.{re.escape(METADATA_NAME)}\..+)'
    return re.fullmatch(pattern, name) is not None


def data_file_name(folder: Path, storage: str, number: int) -> str:
    """Return the name of a data file of a bag, by its number from 0."""
    return f'{_bag_name(folder)}_{number}{STORAGES[storage]}'


def _bag_name(folder: Path) -> str:
    return Path(os.path.abspath(folder)).name


def check_bag_name(folder: Path, storage: str) -> None:
    """Check that the files of a bag can have the name of its folder.

    Args:
        folder: the bag.
        storage: rosbag2's name of the storage.

    Raises:
        ConfigError: the name is not UTF-8, or too long.
    """
    fix = 'name another folder for the bag; with several bags, rename the bag that is read'
    if any('\ud800' <= letter <= '\udfff' for letter in _bag_name(folder)):
        found = 'its name is not UTF-8, and metadata.yaml has the names of files'
        raise ConfigError(str(folder), found, fix=fix)
    temporary = f'.{data_file_name(folder, storage, _MOST_FILES)}.part'
    excess = len(os.fsencode(temporary)) - _MAX_NAME_BYTES
    if excess > 0:
        raise ConfigError(
            str(folder), f'its name is {counted(excess, "byte")} too long for its files', fix=fix
        )


class BagWriter:
    """A bag that is open for writing. As a context manager, it finishes the open file at the end.

    After an exception in the ``with`` block, the open file is deleted, and complete files stay.

    Args:
        folder: the bag. The names of its files begin with the name of the folder.
        topics: all topics, also those that may have no messages. Numbers in their QoS are replaced
            by names; definition, type hash and QoS are otherwise written as they are.
        storage: ``mcap`` or ``sqlite3``.
        compression: of MCAP files: ``zstd``, ``lz4`` or ``none``.
        first_file: None for a new bag: the folder must be empty, or is made. A number to continue
            an unfinished bag: so many of its complete files are kept, and later ones are deleted.

    Raises:
        ConfigError: the bag cannot begin or continue in this folder, another program writes to the
            folder, the folder's name is not UTF-8, a QoS is invalid, or a package is missing.
        WriteError: the folder cannot be written.

    >>> topics = [bag_topic('/detections', 'vision_msgs/Detection2DArray')]
    >>> with BagWriter(Path('out'), topics) as bag:
    ...     bag.begin_file()
    ...     bag.write(BagMessage('/detections', log_ns, publish_ns, data))
    """

    def __init__(
        self,
        folder: Path,
        topics: Sequence[BagTopic],
        *,
        storage: str = 'mcap',
        compression: str = 'zstd',
        first_file: int | None = None,
    ) -> None:
        if storage not in STORAGES or compression not in COMPRESSIONS:
            raise ValueError(f'unknown storage or compression: {storage}, {compression}')
        self._indexes = {topic.name: index for index, topic in enumerate(topics)}
        if len(self._indexes) < len(topics):
            raise ValueError('two topics have the same name')
        check_bag_name(folder, storage)
        self._topics = tuple(replace(topic, qos=jazzy_qos(topic)) for topic in topics)
        if storage == 'mcap':
            check_libraries(compression)
        self._folder = folder
        self._storage = storage
        self._compression = compression
        self._output: StorageFile | None = None
        self._counts = [0] * len(topics)  # of the open file, like the next three
        self._start_ns = NO_START
        self._end_ns = 0
        self._min_ns = 0
        make_folder(folder)
        self._lock = _lock_folder(folder)
        try:
            self._files = self._kept_files(first_file)
        except BaseException:
            self.close()
            raise

    @property
    def files(self) -> tuple[WrittenFile, ...]:
        """The complete files."""
        return self._files

    def begin_file(self) -> None:
        """Begin the next file.

        Raises:
            WriteError: the file cannot be made.
            ConfigError: a package was removed.
        """
        if self._output is not None:
            raise ValueError('a file is open already')
        self._counts = [0] * len(self._topics)
        self._start_ns = NO_START
        self._end_ns = 0
        self._min_ns = max((file.end_ns for file in self._files), default=0)
        with self._guarded_output():
            self._temporary_path.unlink(missing_ok=True)  # of a file that failed
            if self._storage == 'mcap':
                self._output = McapOutput(self._temporary_path, self._topics, self._compression)
            else:
                self._output = SqliteOutput(self._temporary_path, self._topics)

    def write(self, message: BagMessage) -> None:
        """Append a message to the open file.

        The order within a file is free, because readers sort by log time. Files must not overlap,
        because `ros2 bag play` reads one after the other.

        Raises:
            WriteError: the file cannot be written. It is deleted; `begin_file` may begin it anew.
            KeyError: the bag has no such topic.
            ValueError: no file is open, or the log time is negative or before the end of the
                previous file.
        """
        if self._output is None:
            raise ValueError('no file is open')
        index = self._indexes[message.topic]
        if not self._min_ns <= message.log_ns < NO_START:
            raise ValueError(f'log time {message.log_ns} is not from {self._min_ns} to 2^63 - 2')
        with self._guarded_output():
            self._output.write(index, message)
        self._counts[index] += 1
        self._start_ns = min(self._start_ns, message.log_ns)
        self._end_ns = max(self._end_ns, message.log_ns)

    def end_file(self) -> WrittenFile:
        """Finish the open file, list it in metadata.yaml, and return its entry.

        Raises:
            WriteError: the file or metadata.yaml cannot be written. The file is not listed.
        """
        if self._output is None:
            raise ValueError('no file is open')
        path = self._path
        with self._guarded_output():
            self._output.finish()
            self._temporary_path.replace(path)
            sync_folder(self._folder)
        self._output = None
        duration = max(0, self._end_ns - self._start_ns)
        file = WrittenFile(path.name, self._start_ns, duration, tuple(self._counts))
        self._write_metadata((*self._files, file))
        self._files = (*self._files, file)
        return file

    def close(self) -> None:
        """Delete the open file, and unlock the folder. Calling it twice does no harm."""
        self._delete_output()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> BagWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        try:
            if kind is None and self._output is not None:
                self.end_file()
        finally:
            self.close()

    @property
    def _path(self) -> Path:
        """The final name of the next file."""
        return self._folder / data_file_name(self._folder, self._storage, len(self._files))

    @property
    def _temporary_path(self) -> Path:
        return self._path.with_name(f'.{self._path.name}.part')

    @contextlib.contextmanager
    def _guarded_output(self) -> Iterator[None]:
        """Delete the open file after any error. Raise a WriteError for an OSError."""
        try:
            yield
        except BaseException as error:
            self._delete_output()
            if isinstance(error, OSError):
                raise error_of_failed_write(self._path, error) from error
            raise

    def _delete_output(self) -> None:
        if self._output is not None:
            self._output.abandon()
            self._output = None
            with contextlib.suppress(OSError):
                self._temporary_path.unlink()

    def _kept_files(self, first_file: int | None) -> tuple[WrittenFile, ...]:
        """Return the complete files to keep, and delete later files. See the class."""
        # A run that was killed while it wrote metadata.yaml leaves a temporary file.
        temporary = f'.{METADATA_NAME}.'
        names = [name for name in os.listdir(self._folder) if not name.startswith(temporary)]
        files: tuple[WrittenFile, ...] = ()
        if names and first_file is None:
            raise ConfigError(
                str(self._folder), 'exists and is not empty', fix='name a new folder for the bag'
            )
        if names:
            files = read_closed_files(self._folder, self._storage, self._topics)
        if len(files) < (first_file or 0):
            raise ConfigError(
                str(self._folder),
                str(len(files)),
                expected=f'at least {first_file} complete files',
                fix='name a new folder for the bag',
            )
        kept = files[:first_file]
        if kept != files or not names:
            # Before other files, so that a bag of another program is never taken for an unfinished
            # bag, and each listed file exists.
            self._write_metadata(kept)
        self._delete_files_except({file.name for file in kept})
        return kept

    def _delete_files_except(self, kept: set[str]) -> None:
        """Delete temporary files and data files that are not listed."""
        for name in os.listdir(self._folder):
            if is_written_name(name, self._folder, self._storage) and name not in kept:
                path = self._folder / name
                try:
                    path.unlink()
                except OSError as error:
                    raise error_of_failed_write(path, error) from error

    def _write_metadata(self, files: Sequence[WrittenFile]) -> None:
        content = metadata_text(self._storage, self._topics, files)
        write_atomically({self._folder / METADATA_NAME: content.encode()})


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Keep writers out of a folder in the ``with`` block.

    Raises:
        ConfigError: another program writes to the folder.
        WriteError: the folder cannot be opened.
    """
    descriptor = _lock_folder(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock_folder(folder: Path) -> int:
    """Return the descriptor of a folder that no other writer can lock until it is closed.

    Raises:
        ConfigError: another program writes to the folder.
        WriteError: the folder cannot be opened.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise error_of_failed_write(folder, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ConfigError(
            str(folder),
            'another program writes this bag',
            fix='wait until it has ended, or name another folder',
        ) from error
    except OSError:
        pass  # network file systems that cannot lock folders: two writers are not noticed
    return descriptor
