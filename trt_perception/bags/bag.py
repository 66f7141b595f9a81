# SPDX-License-Identifier: Apache-2.0
"""The content of a bag: topics, messages and damaged ranges, for the reader and the writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class BagTopic:
    """A topic of a bag.

    Attributes:
        name: such as ``/front/image_raw``.
        type: such as ``sensor_msgs/msg/Image``.
        definition: text of the message definition with all definitions that it uses, as MCAP's
            schema encoding ``ros2msg`` defines it; empty if the bag has none.
        type_hash: such as ``RIHS01_…``; empty if the bag has none.
        qos: YAML text of ``offered_qos_profiles``; empty if the bag has none.
    """

    name: str
    type: str
    definition: str = ''
    type_hash: str = ''
    qos: str = ''


class BagMessage(NamedTuple):
    """A message of a bag.

    Attributes:
        topic: name of the topic.
        log_ns: time at which it was recorded, in ns since the epoch. Messages are sorted by it.
        publish_ns: time at which it was published, in ns since the epoch; `log_ns` if unknown.
        data: the serialised message: CDR with its 4-byte encapsulation header.
    """

    topic: str
    log_ns: int
    publish_ns: int
    data: bytes


@dataclass(frozen=True)
class BagLoss:
    """A part of a bag that could not be read.

    Attributes:
        file: name of the file.
        start_ns: log time of the last message before the loss; None if there is none.
        end_ns: log time of the first message after the loss; None if there is none.
        reason: what is damaged.
    """

    file: str
    start_ns: int | None
    end_ns: int | None
    reason: str

    def __str__(self) -> str:
        if self.start_ns is None and self.end_ns is None:
            return f'{self.file}: {self.reason}; messages of any time may be lost'
        start = 'the start' if self.start_ns is None else f'{self.start_ns / 1e9:.3f} s'
        end = 'the end' if self.end_ns is None else f'{self.end_ns / 1e9:.3f} s'
        return f'{self.file}: {self.reason}; messages between {start} and {end} are lost'
