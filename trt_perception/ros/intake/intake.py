# SPDX-License-Identifier: Apache-2.0
"""A thread that takes images from the middleware. It waits and takes without the GIL.

The thread also waits for QoS events, because they share a condition with the images of their
subscription. If another thread waited for the events, each image would wake that thread. An event
that the other thread has not taken yet would end each wait of this thread at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
from rclpy.context import Context
from rclpy.impl.implementation_singleton import rclpy_implementation as _rclpy

from trt_perception.ros.intake.buffers import Lease, MessageBuffers
from trt_perception.ros.wire.rcl import (
    BAD_ALLOC,
    TAKE_FAILED,
    MessageTaker,
    RclError,
    WaitSet,
    expected_handles,
    load_rcl,
)


class EndedError(RclError):
    """The intake ended before the call: its last source was removed, or its context ended."""


@dataclass(slots=True)
class SerializedMessage:
    """A message that an intake took, not deserialised.

    Attributes:
        data: uint8 (size,), the serialised message in the memory of `lease`; empty if the message
            was too large.
        size: size of the message in bytes.
        lease: reserves the memory, which starts with `data`; None if the message was too large.
        header: the parsed header; the reader of the message sets it.
    """

    data: npt.NDArray[np.uint8]
    size: int
    lease: Lease | None
    header: Any = None


class ImageReceiver(Protocol):
    """Receives the images and QoS events of one subscription. ImageInput implements it.

    The thread that takes the images calls these methods: an intake's thread, or the executor's if
    rclpy takes the images. The methods must not wait.
    """

    def on_image(
        self, message: Any, sequence_number: int | None, transport_ns: int, intake_ns: int
    ) -> None:
        """Receive an image.

        Args:
            message: a SerializedMessage; a message object if rclpy takes the images.
            sequence_number: the publisher's number of the message; None if unknown.
            transport_ns: time from publication to reception by the middleware. Meaningless if the
                publisher has another clock, or the middleware provides no time stamps.
            intake_ns: time from reception to the take; meaningless without time stamps.
        """

    def on_message_lost(self, event: Any) -> None:
        """Handle the report that the middleware lost messages."""

    def on_publishers_matched(self, event: Any) -> None:
        """Handle the report that a publisher came or went."""

    def on_incompatible_qos(self, event: Any) -> None:
        """Handle the report that a publisher offers a QoS that this subscription cannot use."""

    def on_receiver_failed(self, error: BaseException) -> None:
        """Handle the exception of another method. The intake has removed this subscription."""


class IntakeOwner(Protocol):
    """Reacts to the failure of an intake. SharedIntake implements it."""

    def on_intake_failed(self, error: BaseException) -> None:
        """Handle the exception that ended an intake's thread. Called in that thread."""


@dataclass(frozen=True, eq=False)
class Source:
    """A subscription whose messages and events an intake takes.

    Attributes:
        subscription: handle of _rclpy. Only the intake may take messages from this handle.
        receiver: gets the images and events.
        buffers: provide the memory for the images.
        events: handles of QoS events of _rclpy, each with the receiver's method for the event. The
            receiver gets events before the messages that arrived with them.
    """

    subscription: Any
    receiver: ImageReceiver
    buffers: MessageBuffers
    events: tuple[tuple[Any, Callable[[Any], None]], ...] = ()


class Intake:
    """Takes messages of several sources into their buffers until the last source is removed.

    An image passes through `_take` to `ImageReceiver.on_image`.

    Sources may be added and removed while other sources send. If a receiver raises, the intake
    removes its source, and other sources are not affected. The thread ends with its last source,
    with the context, or by an exception of rcl or of the memory, which affects all sources.

    Args:
        owner: notified when an exception ends the thread, unless `add` raises the exception.

    Raises:
        RclError: rcl's interface differs from the expected one.
    """

    def __init__(self, context: Context, owner: IntakeOwner) -> None:
        rcl = load_rcl()
        # The type differs between distributions of ROS 2.
        self._context = cast(Any, context.handle)
        self._owner = owner
        self._rcl = rcl
        # Only the thread uses these during a take: buffers of the source; memory for the message;
        # the size of a message that did not fit; the error of the allocation for this message.
        self._buffers: MessageBuffers | None = None
        self._lease: Lease | None = None
        self._requested_bytes = 0
        self._allocation_error: Exception | None = None
        with expected_handles():
            self._wake_up = _rclpy.GuardCondition(self._context)
        # Protects the following attributes. Notified after each change.
        self._changed = threading.Condition()
        self._sources: tuple[Source, ...] = ()
        self._served_sources: tuple[Source, ...] | None = None
        self._error: BaseException | None = None
        self._is_running = True
        self._thread = threading.Thread(target=self._run, name='intake', daemon=True)
        self._thread.start()
        context.on_shutdown(self._request_end)

    @property
    def is_alive(self) -> bool:
        """Whether the thread is running and has not been asked to end."""
        return self._is_running and self._thread.is_alive()

    def __len__(self) -> int:
        """Return the number of sources."""
        return len(self._sources)

    def serves(self, source: Source) -> bool:
        """Return whether the intake takes messages of this source."""
        return self.is_alive and source in self._sources

    def add(self, source: Source) -> None:
        """Add a source, and return when the intake takes messages from this source.

        Raises:
            Exception: the exception that ended the thread before it took from the source.
            EndedError: the intake ended without an exception.
            RclError: rcl's interface differs from the expected one.
        """
        with self._changed:
            self._sources = (*self._sources, source)
            self._wait_until_served()
            # If the source is missing, its receiver has failed: `on_receiver_failed` was called.
            if self._served_sources is not self._sources and source in self._sources:
                raise self._error or EndedError('the intake of images', 'has ended')

    def remove(self, source: Source) -> None:
        """Remove a source. Its receiver gets no message after this method has returned.

        The thread ends with its last source. May be called again.
        """
        with self._changed:
            self._sources = tuple(each for each in self._sources if each is not source)
            if self._sources:
                self._wait_until_served()
        if not (self._sources and self._is_running):
            self.close()

    def _wait_until_served(self) -> None:
        """Wait until the thread serves the current sources or has ended. Requires the lock."""
        self._wake_up.trigger_guard_condition()
        self._changed.wait_for(
            lambda: self._served_sources is self._sources or not self._is_running
        )

    def close(self) -> None:
        """End the thread. No message arrives afterwards. May be called again."""
        self._request_end()
        self._thread.join()

    def _request_end(self) -> None:
        # Takes no lock: a shutdown calls this method with the context's lock held.
        self._is_running = False
        self._wake_up.trigger_guard_condition()

    def _run(self) -> None:
        try:
            while self._is_running:
                self._take_until_changed()
        except BaseException as error:
            with self._changed:
                self._error = error
                is_raised_by_add = self._served_sources is not self._sources
            if not is_raised_by_add:
                self._owner.on_intake_failed(error)
        finally:
            self._buffers = self._lease = None
            with self._changed:
                self._is_running = False
                self._changed.notify_all()

    def _take_until_changed(self) -> None:
        """Take messages and events of the current sources until the sources change."""
        with self._changed:
            sources = self._sources
        events = [(*event, source) for source in sources for event in source.events]
        with ExitStack() as resources:
            # rclpy destroys no handle while its context manager is open.
            for each in (self._context, self._wake_up):
                resources.enter_context(each)
            for each in (*(source.subscription for source in sources), *(e for e, *_ in events)):
                resources.enter_context(each)
            with expected_handles():
                addresses = (
                    self._context.pointer,
                    [source.subscription.pointer for source in sources],
                    [self._wake_up.pointer],
                    [event.pointer for event, *_ in events],
                )
            wait_set = WaitSet(self._rcl, *addresses)
            resources.callback(wait_set.close)
            taker = MessageTaker(self._rcl, self._allocate_for_take)
            with self._changed:
                self._served_sources = sources
                self._changed.notify_all()
            addressed = [(source.subscription.pointer, source) for source in sources]
            while self._is_running and self._sources is sources:
                wait_set.wait()
                for each, ready in zip(events, wait_set.event_ready_flags(), strict=True):
                    if ready:
                        self._pass_on_event(*each)
                for address, ready in zip(
                    addressed, wait_set.subscription_ready_flags(), strict=True
                ):
                    if ready:
                        self._take(taker, *address)

    def _pass_on_event(
        self, event: Any, handle_event: Callable[[Any], None], source: Source
    ) -> None:
        """Take a QoS event and call the receiver's method for it."""
        with expected_handles():
            take_event = event.take_event
        try:
            if (status := take_event()) is not None:
                handle_event(status)
        except Exception as error:
            self._remove_failed_source(source, error)

    def _remove_failed_source(self, source: Source, error: Exception) -> None:
        """Remove a source whose receiver raised."""
        with self._changed:
            was_served = source in self._sources
            self._sources = tuple(each for each in self._sources if each is not source)
            if not self._sources:
                self._is_running = False
        if was_served:
            source.receiver.on_receiver_failed(error)

    def _take(self, taker: MessageTaker, subscription: int, source: Source) -> None:
        """Take one message, and give it to the receiver of its source.

        Taking only one message per wait keeps a fast source from delaying the others.

        Args:
            subscription: address of the source's subscription.
        """
        self._buffers = source.buffers
        lease = self._lease = source.buffers.lend()
        memory = lease.memory
        status = taker.take(subscription, memory.pointer, memory.size)
        # The allocation for a message that did not fit has replaced the lease.
        lease, self._lease = self._lease, None
        if status == TAKE_FAILED:
            return
        if status == BAD_ALLOC:
            if not isinstance(self._allocation_error, MemoryError):
                raise self._allocation_error or RclError(
                    'a take', 'found no memory, but did not request any'
                )
            message = SerializedMessage(np.empty(0, np.uint8), self._requested_bytes, None)
        else:
            address, size = taker.array.buffer, taker.array.length
            if address != lease.memory.pointer or size > lease.memory.size:
                raise RclError('a taken message', 'is outside the requested memory')
            lease.message_bytes = size
            message = SerializedMessage(lease.array()[:size], size, lease)
        info = taker.info
        received_ns = info.received_timestamp
        transport_ns, intake_ns = received_ns - info.source_timestamp, time.time_ns() - received_ns
        number = info.publication_sequence_number or None
        try:
            source.receiver.on_image(message, number, transport_ns, intake_ns)
        except Exception as error:
            self._remove_failed_source(source, error)

    def _allocate_for_take(self, size: int) -> int:
        """Return the address of memory for a message that does not fit; 0 if none is left."""
        self._requested_bytes, self._allocation_error = size, None
        assert self._buffers is not None
        try:
            self._lease = self._buffers.lend(size)
        except Exception as error:  # the calling C library cannot pass it on
            self._allocation_error = error
            return 0
        return self._lease.memory.pointer


def check_intake(context: Context) -> None:
    """Check that rcl's interface fits the intake, as far as possible without images.

    Raises:
        RclError: rcl's interface differs from the expected one.
    """
    handle: Any = context.handle
    with handle:
        with expected_handles():
            address = handle.pointer
        WaitSet(load_rcl(), address, [0], [0], [0]).close()
