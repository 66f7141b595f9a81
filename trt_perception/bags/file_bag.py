# SPDX-License-Identifier: Apache-2.0
"""A bag of one or several files: merges their messages by log time, and records losses.

Guarantees: messages come sorted by log time, then in the order of the files, then in the order
within a file. Memory is bounded by constants. A message that would break the order, because its
file states wrong times, is a loss.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.bags.bag import BagLoss, BagMessage, BagTopic
from trt_perception.bags.damage import DamageError
from trt_perception.bags.decompress import decompress_message
from trt_perception.bags.mcap_file import MAX_CHUNKS
from trt_perception.bags.parts import (
    MAX_NS,
    BagFile,
    ContentCache,
    Cursor,
    FilePart,
    LossRange,
    check_count,
)
from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import closest_words, join_first_items, short_repr

# Chunks that stay in memory while another chunk is read.
_CACHE_BYTES: Final = 256 * 2**20
# Chunks that are open at the same time, because their times overlap. A file that was written topic
# by topic has one for each topic.
_MAX_OPEN_PARTS: Final = 2**14
# Later losses extend the last one.
_MAX_LOSSES: Final = 10_000


class FileBag:
    """A bag that is open for reading.

    Args:
        name: the path as the user gave it, for errors.
        files: in order.
        losses: what could not be opened.
        counts: number of messages by topic, from metadata.yaml, for files that do not state them.
        on_close: called by `close`.

    Attributes:
        topics: by name.
        refused: for each topic that cannot be read, the reason.
        message_counts: by name of the topic, as the bag states them; empty if it does not.
        start_ns: log time of the first message; 0 without a message.
        end_ns: log time of the last message; 0 without a message.
        losses: what could not be read so far. Iterating over messages may add to it.
    """

    def __init__(
        self,
        name: str,
        files: Sequence[BagFile],
        losses: Sequence[BagLoss],
        counts: Mapping[str, int],
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._files = list(files)
        self._on_close = on_close
        self.losses = list(losses)
        self._known_losses: set[tuple[str, int]] = set()
        self.topics: dict[str, BagTopic] = {}
        self.refused: dict[str, str] = {}
        for file in files:
            for topic in file.topics.values():
                self.topics.setdefault(topic.name, topic)
        for file in files:
            self._compare_topics(file)
        stated = [file.counts for file in files if file.counts is not None]
        self.message_counts = dict(counts)
        if len(stated) == len(files):
            self.message_counts = {
                topic: sum(each.get(topic, 0) for each in stated) for topic in self.topics
            }
        self.start_ns = min((f.start_ns for f in files if f.start_ns is not None), default=0)
        self.end_ns = max((f.end_ns for f in files if f.end_ns is not None), default=0)
        for file in files:
            self.losses += file.losses

    def _compare_topics(self, file: BagFile) -> None:
        """Leave out topics of a file that differ from the topic in the files before."""
        refused = dict(file.refused)
        for name, topic in list(file.topics.items()):
            known = self.topics[name]
            if topic.type != known.type:
                refused[name] = f'its type is {topic.type}, and {known.type} in a file before'
                del file.topics[name]
            else:
                file.topics[name] = known  # one copy of the definition for all files
        for name, reason in refused.items():
            if name in self.topics:
                self.losses.append(
                    BagLoss(file.name, file.start_ns, file.end_ns, f'topic {name}: {reason}')
                )
            else:
                self.refused.setdefault(name, reason)

    def messages(
        self, topics: Collection[str], start_ns: int | None = None, end_ns: int | None = None
    ) -> Iterator[BagMessage]:
        """Yield messages of some topics by log time, then in the order of the files.

        Args:
            topics: names of topics.
            start_ns: first log time; None for the start of the bag.
            end_ns: log time at which to stop, exclusive; None for the end of the bag.

        Raises:
            ConfigError: a topic does not exist, or cannot be read.
        """
        for name in topics:
            self._check_topic(name)
        first = 0 if start_ns is None else max(0, start_ns)
        last = MAX_NS + 1 if end_ns is None else max(0, min(end_ns, MAX_NS + 1))
        return _Merge(self._files, frozenset(topics), (first, last), self).messages()

    def _check_topic(self, name: str) -> None:
        if name in self.topics:
            return
        if name in self.refused:
            raise ConfigError(
                f'{self._name}, topic {short_repr(name)}',
                f'cannot be read: {self.refused[name]}',
                fix='choose another topic, or record it with ROS 2',
            )
        known = join_first_items(sorted(self.topics)) or 'none'
        close = closest_words(name, self.topics)
        raise ConfigError(
            f'{self._name}, topic',
            short_repr(name),
            expected=f'one of {known}',
            fix=f'did you mean {close[0]}' if close else '',
        )

    def add_loss(self, file: str, position: int, range_ns: LossRange, reason: str) -> int | None:
        """Record a loss. Return its index in `losses`; None if it is known already."""
        if (file, position) in self._known_losses:
            return None
        if len(self._known_losses) >= _MAX_LOSSES:
            return len(self.losses) - 1
        self._known_losses.add((file, position))
        self.losses.append(BagLoss(file, *range_ns, reason))
        return len(self.losses) - 1

    def close(self) -> None:
        """Delete temporary files. Calling it twice does no harm."""
        self._on_close()


class _Merge:
    """Reads messages of some topics once.

    Parts wait in the order of their stated start. A part is opened when its start is due.
    """

    def __init__(
        self,
        files: Sequence[BagFile],
        topics: frozenset[str],
        range_ns: tuple[int, int],
        bag: FileBag,
    ) -> None:
        self._files, self._range_ns, self._bag = files, range_ns, bag
        self._topics = [topics & file.topics.keys() for file in files]
        self._cache = ContentCache(_CACHE_BYTES)
        # Entries: log time of the next message, place of the part, cursor. Parts have the order of
        # the files and of the positions in each file.
        self._heap: list[tuple[int, int, Cursor]] = []
        # By file: log time of the last message, and the losses after it.
        self._last_ns: list[int | None] = [None] * len(files)
        self._open_losses: list[list[int]] = [[] for _ in files]
        # What a cursor reports while it reads ahead: losses after the message that it returns.
        self._reports: list[tuple[int, str, LossRange | None]] = []

    def messages(self) -> Iterator[BagMessage]:
        parts, owners = self._find_parts()
        opening_order = np.argsort(parts[:, 0], kind='stable') if len(parts) else np.empty(0, int)
        waiting, now_ns = 0, 0
        try:
            while self._heap or waiting < len(parts):
                place = int(opening_order[waiting]) if waiting < len(parts) else -1
                # Among equal times, a waiting part may be the first in the order of the file.
                if place >= 0 and (not self._heap or int(parts[place, 0]) <= self._heap[0][0]):
                    waiting += 1
                    part = FilePart(*map(int, parts[place]))
                    self._open(place, int(owners[place]), part, now_ns)
                    continue
                now_ns, place, cursor = self._heap[0]
                owner = int(owners[place])
                message = self._take(owner, cursor)
                if message is not None:
                    self._close_losses(owner, message.log_ns)
                self._add_losses(owner)
                if cursor.next_ns is None:
                    heapq.heappop(self._heap)
                else:
                    heapq.heapreplace(self._heap, (cursor.next_ns, place, cursor))
                if message is not None:
                    yield message
        finally:
            for *_, cursor in self._heap:
                cursor.close()

    def _find_parts(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
        """Return the parts as rows of `FilePart`, uint64 (n, 4), and the file of each part."""
        tables: list[npt.NDArray[np.uint64]] = [np.empty((0, 4), np.uint64)]
        owners, count = [np.empty(0, np.uint32)], 0
        for number, file in enumerate(self._files):
            if not self._topics[number]:
                continue
            found = np.fromiter(
                (value for part in self._limited(file, number, count) for value in part), np.uint64
            )
            table = found.reshape(-1, 4)
            tables.append(table[np.argsort(table[:, 2], kind='stable')])
            owners.append(np.full(len(table), number, np.uint32))
            count += len(table)
        return np.concatenate(tables), np.concatenate(owners)

    def _limited(self, file: BagFile, number: int, count: int) -> Iterator[FilePart]:
        """Yield the parts of a file. After damage of the index, the parts before it."""
        try:
            for part in file.parts(self._topics[number], *self._range_ns):
                check_count(count + 1, MAX_CHUNKS, 'chunks')
                count += 1
                yield part
        except (DamageError, OSError) as error:
            self._lose(number, -1, str(error))

    def _open(self, place: int, owner: int, part: FilePart, now_ns: int) -> None:
        """Open a part, and add it to the heap."""
        try:
            check_count(len(self._heap) + 1, _MAX_OPEN_PARTS, 'chunks overlap in time')
            cursor = self._files[owner].cursor(
                part,
                self._topics[owner],
                *self._range_ns,
                self._cache,
                self._report,
            )
        except DamageError as error:
            self._lose(owner, part.offset, str(error))
            return
        finally:
            self._add_losses(owner)
        skipped = 0
        while cursor.next_ns is not None and cursor.next_ns < now_ns:
            cursor.take()
            skipped += 1
        if skipped:
            reason = f'{skipped} messages before the stated time of their chunk'
            self._lose(owner, part.offset, reason)
        if cursor.next_ns is not None:
            heapq.heappush(self._heap, (cursor.next_ns, place, cursor))

    def _take(self, owner: int, cursor: Cursor) -> BagMessage | None:
        message = cursor.take()
        if message is None:
            return None
        try:
            return message._replace(data=decompress_message(message.data))
        except DamageError as error:
            self._lose(owner, message.log_ns, str(error))
            return None

    def _report(self, position: int, reason: str, range_ns: LossRange | None = None, /) -> None:
        self._reports.append((position, reason, range_ns))

    def _add_losses(self, owner: int) -> None:
        """Record what a cursor reported."""
        for position, reason, range_ns in self._reports:
            self._lose(owner, position, reason, range_ns)
        self._reports.clear()

    def _lose(
        self, owner: int, position: int, reason: str, range_ns: LossRange | None = None
    ) -> None:
        """Record a loss. Without a range, it ends before the next message of the file."""
        name = self._files[owner].name
        found = range_ns or (self._last_ns[owner], None)
        index = self._bag.add_loss(name, position, found, reason)
        if index is not None and range_ns is None:
            self._open_losses[owner].append(index)

    def _close_losses(self, owner: int, log_ns: int) -> None:
        """Set the end of the losses before a message."""
        for index in self._open_losses[owner]:
            loss = self._bag.losses[index]
            self._bag.losses[index] = replace(loss, end_ns=log_ns)
        self._open_losses[owner].clear()
        self._last_ns[owner] = log_ns
