# SPDX-License-Identifier: Apache-2.0
"""metadata.yaml of a bag: version 9 of rosbag2's format, as Jazzy and Kilted write it.

The text is made here instead of by PyYAML, so that it does not depend on the release of PyYAML.
Strings are JSON strings with further escapes, which are YAML strings, too.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from trt_perception.bags.bag import BagTopic
from trt_perception.errors import ConfigError
from trt_perception.files.regular_files import read_regular

METADATA_NAME: Final = 'metadata.yaml'
#: rosbag2's start of a bag or file without messages.
NO_START: Final = 2**63 - 1
_NEW_FOLDER: Final = 'name a new folder for the bag'
# Enough for 40 000 files.
_MAX_METADATA_BYTES: Final = 16 * 2**20
# Characters that JSON strings may have, but YAML refuses or takes as line ends or marks.
_NOT_IN_YAML: Final = re.compile('[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]')
# The format has no message counts by file and topic, but allows private text.
_COUNTS_KEY: Final = 'trt_perception.message_counts'


@dataclass(frozen=True)
class WrittenFile:
    """A closed file of a bag.

    Attributes:
        name: such as ``drive_0.mcap``.
        start_ns: smallest log time, in ns since the epoch; NO_START without messages.
        duration_ns: largest log time minus smallest.
        message_counts: number of messages of each topic, in the order of the bag's topics.
    """

    name: str
    start_ns: int
    duration_ns: int
    message_counts: tuple[int, ...]

    @property
    def end_ns(self) -> int:
        """Largest log time; 0 without messages."""
        return self.start_ns + self.duration_ns if any(self.message_counts) else 0


def metadata_text(storage: str, topics: Sequence[BagTopic], files: Sequence[WrittenFile]) -> str:
    """Return the content of metadata.yaml.

    Args:
        storage: rosbag2's name of the storage: ``mcap`` or ``sqlite3``.
        topics: the topics. Their QoS is as `jazzy_qos` returns it.
        files: the closed files.
    """
    start = min((file.start_ns for file in files), default=NO_START)
    duration = max(0, max((file.end_ns for file in files), default=0) - start)
    totals = [sum(file.message_counts[index] for file in files) for index in range(len(topics))]
    counts = json.dumps([file.message_counts for file in files], separators=(',', ':'))
    lines = [
        'rosbag2_bagfile_information:',
        '  version: 9',
        f'  storage_identifier: {storage}',
        '  duration:',
        f'    nanoseconds: {duration}',
        '  starting_time:',
        f'    nanoseconds_since_epoch: {start}',
        f'  message_count: {sum(totals)}',
        '  topics_with_message_count:' + ' []' * (not topics),
    ]
    for topic, total in zip(topics, totals, strict=True):
        lines += _topic_lines(topic, total)
    lines += ['  compression_format: ""', '  compression_mode: ""']
    lines.append('  relative_file_paths:' + ' []' * (not files))
    lines += [f'    - {_quote(file.name)}' for file in files]
    lines.append('  files:' + ' []' * (not files))
    for file in files:
        lines += [
            f'    - path: {_quote(file.name)}',
            '      starting_time:',
            f'        nanoseconds_since_epoch: {file.start_ns}',
            '      duration:',
            f'        nanoseconds: {file.duration_ns}',
            f'      message_count: {sum(file.message_counts)}',
        ]
    lines += ['  custom_data:', f'    {_COUNTS_KEY}: {_quote(counts)}', '  ros_distro: ""']
    return ''.join(f'{line}\n' for line in lines)


def _topic_lines(topic: BagTopic, total: int) -> list[str]:
    profiles = (topic.qos or '[]').splitlines()
    return [
        '    - topic_metadata:',
        f'        name: {_quote(topic.name)}',
        f'        type: {_quote(topic.type)}',
        '        serialization_format: cdr',
        '        offered_qos_profiles:',
        *(f'          {line}' for line in profiles),
        f'        type_description_hash: {_quote(topic.type_hash)}',
        f'      message_count: {total}',
    ]


def _quote(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return _NOT_IN_YAML.sub(lambda match: f'\\u{ord(match[0]):04x}', quoted)


def read_closed_files(
    folder: Path, storage: str, topics: Sequence[BagTopic]
) -> tuple[WrittenFile, ...]:
    """Return the files that metadata.yaml of an unfinished bag lists.

    Args:
        folder: the bag.
        storage: rosbag2's name of the storage, which the bag must have.
        topics: the topics that the bag must have. Their QoS is as `jazzy_qos` returns it.

    Raises:
        ConfigError: metadata.yaml is missing or not by this writer, the bag has another storage or
            other topics, or a listed file is missing.
    """
    path = folder / METADATA_NAME
    try:
        content = read_regular(path, _MAX_METADATA_BYTES)
        found = yaml.safe_load(content)['rosbag2_bagfile_information']
        counts = json.loads(found['custom_data'][_COUNTS_KEY])
        files = tuple(itertools.starmap(_bag_file, zip(found['files'], counts, strict=True)))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(
            str(path),
            'missing or not the metadata of a bag that this program can continue',
            fix=_NEW_FOLDER,
        ) from error
    is_same = all(len(file.message_counts) == len(topics) for file in files)
    if not is_same or content != metadata_text(storage, topics, files).encode():
        raise ConfigError(
            str(path),
            'has another storage, other topics or other counts of messages than this run',
            fix=f'use the input and the options of the unfinished run, or {_NEW_FOLDER}',
        )
    for file in files:
        if not (folder / file.name).is_file():
            raise ConfigError(
                str(folder / file.name), 'missing', fix=f'restore it, or {_NEW_FOLDER}'
            )
    return files


def _bag_file(entry: Any, counts: Any) -> WrittenFile:
    """Return a checked entry of metadata.yaml.

    Raises:
        ValueError, KeyError or TypeError: it is invalid.
    """
    name = entry['path']
    start = entry['starting_time']['nanoseconds_since_epoch']
    duration = entry['duration']['nanoseconds']
    for number in (start, duration, *counts):
        if type(number) is not int or not 0 <= number < 2**63:
            raise ValueError(f'{number!r} is not a number from 0 to 2^63 - 1')
    if not isinstance(name, str) or name != Path(name).name:
        raise ValueError(f'{name!r} is not the name of a file')
    name.encode()  # half of a surrogate pair raises a ValueError
    return WrittenFile(name, start, duration, tuple(counts))
