# SPDX-License-Identifier: Apache-2.0
"""What the readers of both file formats have in common: files, their parts and topics."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from trt_perception.bags.bag import BagLoss, BagMessage, BagTopic
from trt_perception.bags.damage import DamageError
from trt_perception.files.plain_text import name_mistake, short_repr

#: The only serialisation that is read.
CDR: Final = 'cdr'
#: Longest time that an MCAP file can state, in ns.
MAX_NS: Final = 2**64 - 1
#: Log times of the messages before and after a loss; None if there is none.
LossRange = tuple[int | None, int | None]


class Report(Protocol):
    """Reports damage."""

    def __call__(self, position: int, reason: str, range_ns: LossRange | None = None, /) -> None:
        """Report damage at a position in the file.

        Args:
            range_ns: None if the loss is between the last message and the next one.
        """


class FilePart(NamedTuple):
    """A range of a file whose messages one cursor reads: a chunk, or the whole file.

    Attributes:
        start_ns: no message of the part has an earlier log time, as the file states.
        end_ns: log time of the last message, as the file states.
        offset: position in the file in bytes.
        size: bytes in the file.
    """

    start_ns: int
    end_ns: int
    offset: int
    size: int


class Cursor(Protocol):
    """Reads the messages of a part by log time, then by their order in the file.

    Attributes:
        next_ns: log time of the next message; None at the end.
    """

    next_ns: int | None

    def take(self) -> BagMessage | None:
        """Return the next message, and move on. None if this message is damaged."""

    def close(self) -> None:
        """Free what the cursor holds. Calling it twice does no harm."""


class BagFile(Protocol):
    """A file of a bag.

    Attributes:
        name: name of the file.
        topics: the topics that can be read, by name.
        refused: for each other topic, the reason why it cannot be read.
        counts: number of messages by topic, as the file states them; None if it does not.
        start_ns: log time of the first message; None without a message.
        end_ns: log time of the last message; None without a message.
        losses: what was found missing when the file was opened. Cursors report what they find.
    """

    name: str
    topics: dict[str, BagTopic]
    refused: dict[str, str]
    counts: Mapping[str, int] | None
    start_ns: int | None
    end_ns: int | None
    losses: list[BagLoss]

    def parts(self, topics: Collection[str], start_ns: int, end_ns: int) -> Iterator[FilePart]:
        """Yield the parts that may have messages of some topics in a range of time.

        Args:
            topics: names of topics.
            start_ns: first log time.
            end_ns: log time at which to stop, exclusive.
        """

    def cursor(
        self,
        part: FilePart,
        topics: Collection[str],
        start_ns: int,
        end_ns: int,
        cache: ContentCache,
        report: Report,
    ) -> Cursor:
        """Open a part, and return a cursor at its first message.

        Args:
            report: called for damage that the cursor finds.

        Raises:
            DamageError: no message of the part can be read.
        """


class TopicTable:
    """Collects the topics of a file, and refuses those that cannot be read.

    Attributes:
        topics: the topics that can be read, by name.
        refused: for each other topic, the reason why it cannot be read.
    """

    def __init__(self) -> None:
        self.topics: dict[str, BagTopic] = {}
        self.refused: dict[str, str] = {}

    def add(self, topic: BagTopic, serialization: str) -> str | None:
        """Add a topic, or another channel of it. Return its name; None if it is refused."""
        if name_mistake(topic.name):
            self.refused[short_repr(topic.name)] = (
                'its name has control characters or a bad length'
            )
            return None
        reason = _refusal(topic, serialization)
        known = self.topics.get(topic.name)
        if not reason and known is not None and known.type != topic.type:
            reason = f'it has two types: {known.type} and {topic.type}'
        if reason:
            self.refused[topic.name] = reason
            return None
        self.topics.setdefault(topic.name, topic)
        return topic.name


def _refusal(topic: BagTopic, serialization: str) -> str:
    if serialization != CDR:
        return f'its messages are {short_repr(serialization)}, and only {CDR} is read'
    if name_mistake(topic.type):
        return 'its type is missing or has control characters'
    return ''


class Content:
    """The messages of a chunk in memory.

    Attributes:
        data: records of the chunk, uncompressed.
        times: uint64 (n,): log times of the messages, sorted.
        offsets: uint64 (n,): position of each message in `data`.
        damage: reason why the rest of the chunk cannot be read; empty if there is none.
    """

    def __init__(
        self,
        data: memoryview,
        times: npt.NDArray[np.uint64],
        offsets: npt.NDArray[np.uint64],
        damage: str,
    ) -> None:
        self.data = data
        self.times = times
        self.offsets = offsets
        self.damage = damage

    @property
    def size(self) -> int:
        """Memory in bytes."""
        return len(self.data) + self.times.nbytes + self.offsets.nbytes


class ContentCache:
    """Keeps the chunks that were used last.

    Chunks may overlap in time, and a file may state that all of them do. A chunk that no longer
    fits is read again when its next message is due.

    Args:
        limit: bytes to keep while another chunk is read.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._contents: OrderedDict[Any, Content] = OrderedDict()
        self._size = 0

    def get(self, key: Any, load: Callable[[], Content]) -> Content:
        """Return a chunk, which `load` reads if the cache does not have it.

        Raises:
            DamageError: from `load`.
        """
        if key in self._contents:
            self._contents.move_to_end(key)
            return self._contents[key]
        # Make room first, because a chunk needs the same memory again while it is read.
        while self._size > self._limit:
            self._size -= self._contents.popitem(last=False)[1].size
        content = load()
        self._contents[key] = content
        self._size += content.size
        return content

    def drop(self, key: Any) -> None:
        """Free a chunk that is not needed any more."""
        content = self._contents.pop(key, None)
        if content is not None:
            self._size -= content.size


def check_count(count: int, limit: int, noun: str) -> None:
    """Check a number that a file states or implies.

    Raises:
        DamageError: it exceeds the limit.
    """
    if count > limit:
        raise DamageError(f'more than {limit} {noun}')
