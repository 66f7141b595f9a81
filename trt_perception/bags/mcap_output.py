# SPDX-License-Identifier: Apache-2.0
"""Write an MCAP file as rosbag2 does: profile ``ros2``, schemas ``ros2msg``, messages in CDR.

The header names this package instead of the library and its release. With the same release of
zstandard or lz4, equal messages give equal bytes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from trt_perception.bags.bag import BagMessage, BagTopic
from trt_perception.bags.libraries import bag_library
from trt_perception.bags.storage_file import create_file

#: Compressions of MCAP's chunks.
COMPRESSIONS: Final = ('zstd', 'lz4', 'none')


class McapOutput:
    """An MCAP file with chunks of about 1 MiB, all indexes, statistics and all checksums.

    Memory is bounded by one chunk, one message, and 16 bytes for each message in a chunk.

    Args:
        path: the new file.
        topics: all topics, also those without messages.
        compression: of `COMPRESSIONS`.

    Raises:
        OSError: the file exists or cannot be made.
        ConfigError: the package mcap, zstandard or lz4 is missing.
    """

    def __init__(self, path: Path, topics: Sequence[BagTopic], compression: str) -> None:
        check_libraries(compression)
        library = bag_library('mcap.writer')
        self._stream = os.fdopen(create_file(path), 'wb')
        try:
            self._writer = library.Writer(
                self._stream,
                compression=library.CompressionType[compression.upper()],
                enable_data_crcs=True,
            )
            self._writer.start(profile='ros2', library='trt_perception')
            self._channels = _register_topics(self._writer, topics)
        except BaseException:
            self.abandon()
            raise

    def write(self, topic_index: int, message: BagMessage) -> None:
        """Append a message of the topic with this index."""
        self._writer.add_message(
            self._channels[topic_index], message.log_ns, message.data, message.publish_ns
        )

    def finish(self) -> None:
        """Write the last chunk and all indexes, wait for the disk, and close the file."""
        self._writer.finish()
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()

    def abandon(self) -> None:
        """Close the unfinished file. Calling it after `finish` does no harm."""
        with contextlib.suppress(OSError):  # of buffered bytes, which nobody needs
            self._stream.close()


def check_libraries(compression: str) -> None:
    """Check that the packages are installed that a compression needs.

    Raises:
        ConfigError: a package is missing.
    """
    bag_library('mcap.writer')
    modules = {'zstd': 'zstandard', 'lz4': 'lz4.frame'}
    if compression in modules:
        bag_library(modules[compression])


def _register_topics(writer: Any, topics: Sequence[BagTopic]) -> list[int]:
    """Write schemas and channels. Return the ids of the channels."""
    schemas: dict[tuple[str, str], int] = {}
    channels = []
    for topic in topics:
        key = (topic.type, topic.definition)
        if key not in schemas:
            # rosbag2 needs a schema even if it is empty, because its name is the type.
            encoding = 'ros2msg' if topic.definition else ''
            schemas[key] = writer.register_schema(topic.type, encoding, topic.definition.encode())
        metadata = {'offered_qos_profiles': topic.qos, 'topic_type_hash': topic.type_hash}
        channels.append(writer.register_channel(topic.name, 'cdr', schemas[key], metadata))
    return channels
