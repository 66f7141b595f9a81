# SPDX-License-Identifier: Apache-2.0
"""Subscriptions to images, served by an intake's thread or by rclpy."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rclpy.event_handler import QoSSubscriptionEventType, SubscriptionEventCallbacks
from rclpy.impl.implementation_singleton import rclpy_implementation as _rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.type_support import check_for_type_support

from trt_perception.ros.intake.buffers import MessageBuffers
from trt_perception.ros.intake.intake import ImageReceiver, Intake, Source
from trt_perception.ros.wire.rcl import expected_handles

#: Maps names in SubscriptionEventCallbacks to the QoS events that each subscription handles.
EVENTS: Final = {
    'incompatible_qos': QoSSubscriptionEventType.RCL_SUBSCRIPTION_REQUESTED_INCOMPATIBLE_QOS,
    'message_lost': QoSSubscriptionEventType.RCL_SUBSCRIPTION_MESSAGE_LOST,
    'matched': QoSSubscriptionEventType.RCL_SUBSCRIPTION_MATCHED,
}


@dataclass(frozen=True)
class ImageTopicOptions:
    """The node, topic, message type and QoS of a subscription.

    Attributes:
        topic: name, before remapping.
        may_be_large: whether the messages may be so large that other cameras must not wait while
            the middleware copies them.
    """

    node: Node
    message_type: Any
    topic: str
    qos: QoSProfile
    may_be_large: bool = False


class ImageSubscription(Protocol):
    """A subscription to one topic."""

    @property
    def is_lost(self) -> bool:
        """Whether an error ended the subscription, so that no message will arrive."""

    def close(self) -> None:
        """Destroy the subscription. No message arrives afterwards. May be called again."""


class TypedSubscription:
    """A subscription of rclpy. The executor delivers a message object for every image.

    Args:
        receiver: its methods are called in the executor's thread.
    """

    def __init__(self, options: ImageTopicOptions, receiver: ImageReceiver) -> None:
        def on_message(message: Any, info: Any) -> None:
            received_ns = info['received_timestamp']
            receiver.on_image(
                message,
                info['publication_sequence_number'],
                received_ns - info['source_timestamp'],
                time.time_ns() - received_ns,
            )

        callback: Any = on_message  # Jazzy's type hints lack callbacks with message info
        self._node = options.node
        self._subscription = options.node.create_subscription(
            options.message_type,
            options.topic,
            callback,
            options.qos,
            event_callbacks=SubscriptionEventCallbacks(**_event_methods(receiver)),
        )

    @property
    def is_lost(self) -> bool:
        """Whether rclpy has dropped the subscription."""
        return self._subscription not in self._node.subscriptions

    def close(self) -> None:
        """Destroy the subscription. May be called again."""
        self._node.destroy_subscription(self._subscription)


class IntakeSubscription:
    """A subscription whose messages an intake's thread takes without deserialising them.

    The thread writes each message into memory of the source's `MessageBuffers`.

    Args:
        source: the subscription and its buffers, from `make_source`.
        running_intake: returns an intake whose thread runs.
        resources: destroys `source`. This object closes it, after the intake has removed `source`.

    Raises:
        RclError: rcl's interface differs from the expected one.
    """

    def __init__(
        self, source: Source, running_intake: Callable[[], Intake], resources: ExitStack
    ) -> None:
        self._source = source
        self._intake = running_intake()
        resources.callback(self._intake.remove, source)
        self._intake.add(source)
        self._resources = resources.pop_all()

    @property
    def is_lost(self) -> bool:
        """Whether the thread has ended, or has removed this subscription."""
        return not self._intake.serves(self._source)

    def close(self) -> None:
        """Take no more messages and destroy the subscription. May be called again."""
        self._resources.close()


def make_source(
    options: ImageTopicOptions,
    receiver: ImageReceiver,
    buffers: MessageBuffers,
    resources: ExitStack,
) -> Source:
    """Create a subscription for an intake. `resources` destroys it and closes the buffers.

    Args:
        receiver: its methods are called in the intake's thread.
        buffers: provide the memory for the messages.
        resources: the caller must close it after the intake has removed the source.

    Raises:
        RclError: rclpy's handles differ from the expected ones.
    """
    resources.callback(buffers.close)
    check_for_type_support(options.message_type)
    node: Any = options.node.handle
    qos = options.qos.get_c_qos_profile()
    with node, expected_handles():
        subscription = _rclpy.Subscription(node, options.message_type, options.topic, qos)
    resources.callback(subscription.destroy_when_not_in_use)
    handles: list[tuple[Any, Callable[[Any], None]]] = []
    for name, method in _event_methods(receiver).items():
        with subscription, expected_handles():
            event: Any = _rclpy.EventHandle(subscription, EVENTS[name])
        resources.callback(event.destroy_when_not_in_use)
        handles.append((event, method))
    return Source(subscription, receiver, buffers, tuple(handles))


def _event_methods(receiver: ImageReceiver) -> dict[str, Any]:
    """Return the receiver's method for each event of EVENTS."""
    return {
        'incompatible_qos': receiver.on_incompatible_qos,
        'message_lost': receiver.on_message_lost,
        'matched': receiver.on_publishers_matched,
    }
