"""Subscriptions to images, served by the intake's thread or by rclpy: one behind the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rclpy.event_handler import QoSSubscriptionEventType, SubscriptionEventCallbacks
from rclpy.impl.implementation_singleton import rclpy_implementation as _rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.type_support import check_for_type_support

from trt_perception.ros.intake.intake import Intake, Source

__all__ = ['EVENTS', 'ImageSubscription', 'Images', 'IntakeSubscription', 'TypedSubscription']

#: The QoS events that are asked for, by the names of SubscriptionEventCallbacks.
EVENTS: Final = {
    'incompatible_qos': QoSSubscriptionEventType.RCL_SUBSCRIPTION_REQUESTED_INCOMPATIBLE_QOS,
    'message_lost': QoSSubscriptionEventType.RCL_SUBSCRIPTION_MESSAGE_LOST,
    'matched': QoSSubscriptionEventType.RCL_SUBSCRIPTION_MATCHED,
}


@dataclass(frozen=True)
class Images:
    """What is subscribed to.

    Attributes:
        node: subscribes.
        kind: class of the messages.
        topic: name.
        qos: asked for.
        receive: called with each message and its publisher's number for it.
        failed: called with what a callback has raised, where no message will come for that.
        events: callbacks by the names of EVENTS.
    """

    node: Node
    kind: Any
    topic: str
    qos: QoSProfile
    receive: Callable[[Any, int | None], None]
    failed: Callable[[BaseException], None]
    events: Mapping[str, Callable[[Any], None]]


class ImageSubscription(Protocol):
    """A subscription to one topic."""

    @property
    def lost(self) -> bool:
        """Whether no message will come any more, because something went wrong."""

    def close(self) -> None:
        """Destroy it; no message arrives afterwards. May be called again."""


class TypedSubscription:
    """rclpy's own: the executor takes a message object of every image.

    Args:
        images: what is subscribed to; its callbacks are called by the executor.
    """

    def __init__(self, images: Images) -> None:
        def heard(message: Any, info: Any) -> None:
            images.receive(message, info['publication_sequence_number'])

        callback: Any = heard  # Jazzy's types know of no callback with info
        self._node = images.node
        self._subscription = images.node.create_subscription(
            images.kind,
            images.topic,
            callback,
            images.qos,
            event_callbacks=SubscriptionEventCallbacks(**dict[str, Any](images.events)),
        )

    @property
    def lost(self) -> bool:
        """Whether rclpy has dropped it."""
        return self._subscription not in self._node.subscriptions

    def close(self) -> None:
        """Destroy it. May be called again."""
        self._node.destroy_subscription(self._subscription)


class IntakeSubscription:
    """Of the intake: a thread of ours takes serialised messages into memory of ours.

    Args:
        images: what is subscribed to; its callbacks are called by the intake's thread, with an
            Arrived for each message, and must not wait.
        running: returns the intake.

    Raises:
        RclError: rcl's interface is not the one expected.
    """

    def __init__(self, images: Images, running: Callable[[], Intake]) -> None:
        with ExitStack() as made:
            self._source = source_of(images, made)
            self._intake = running()
            made.callback(self._intake.remove, self._source)
            self._intake.add(self._source)
            self._made = made.pop_all()

    @property
    def lost(self) -> bool:
        """Whether the thread has ended, or has given this one up."""
        return not self._intake.serves(self._source)

    def close(self) -> None:
        """Take no more and destroy the subscription. May be called again."""
        self._made.close()


def source_of(images: Images, made: ExitStack) -> Source:
    """Subscribe for an intake; ``made`` destroys the subscription, once the intake is closed."""
    check_for_type_support(images.kind)
    node: Any = images.node.handle
    with node:
        subscription = _rclpy.Subscription(
            node, images.kind, images.topic, images.qos.get_c_qos_profile()
        )
    made.callback(subscription.destroy_when_not_in_use)
    handles: list[tuple[Any, Callable[[Any], None]]] = []
    for name, callback in images.events.items():
        with subscription:
            event: Any = _rclpy.EventHandle(subscription, EVENTS[name])
        made.callback(event.destroy_when_not_in_use)
        handles.append((event, callback))
    return Source(subscription, images.receive, images.failed, tuple(handles))
