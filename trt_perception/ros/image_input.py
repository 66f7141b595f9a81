"""The camera topic: its QoS follows the camera, and what never arrived is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSHistoryPolicy
from rclpy.qos import QoSPolicyKind
from rclpy.qos import QoSProfile
from rclpy.qos import QoSReliabilityPolicy
from rclpy.subscription import Subscription
from sensor_msgs.msg import CompressedImage
from sensor_msgs.msg import Image

from trt_perception.config import DetectorConfig
from trt_perception.delivery import DeliveryCounter

__all__ = ['ImageInput']


class ImageInput:
    """Subscribes to ``image`` or ``image/compressed`` and hands every message on.

    Reliability ``auto`` starts reliable, because best effort loses almost every large image on a
    default transport; the middleware's word that a camera offers less turns it into best effort,
    which any camera can serve.

    Args:
        node: subscribes on it.
        config: transport and QoS.
        receive: called with each message, in the executor's thread.
    """

    def __init__(
        self, node: LifecycleNode, config: DetectorConfig, receive: Callable[[Any], None]
    ) -> None:
        self._node = node
        self._config = config
        self._receive = receive
        self._delivery = DeliveryCounter()
        self._reliable = config.image_qos_reliability != 'best_effort'
        self._subscription: Subscription | None = self._subscribe()

    @property
    def topic(self) -> str:
        """The resolved name of the topic."""
        return self._subscription.topic_name if self._subscription else ''

    @property
    def not_delivered(self) -> int | None:
        """Images that were sent and never reached us.

        None while several cameras publish, whose counts mix.
        """
        return self._delivery.not_delivered

    @property
    def reliability(self) -> str:
        """What is asked of the camera now."""
        return 'reliable' if self._reliable else 'best_effort'

    def close(self) -> None:
        """Destroy the subscription; no message arrives afterwards. May be called again."""
        if self._subscription is not None:
            self._node.destroy_subscription(self._subscription)
            self._subscription = None

    def _subscribe(self) -> Subscription:
        compressed = self._config.image_transport == 'compressed'
        # The remapping of `image` must hold for its compressed sibling, too.
        topic = self._node.resolve_topic_name('image') + ('/compressed' if compressed else '')
        return self._node.create_subscription(
            CompressedImage if compressed else Image,
            topic,
            self._on_message,
            QoSProfile(
                history=QoSHistoryPolicy.KEEP_LAST,
                depth=self._config.image_qos_depth,
                reliability=QoSReliabilityPolicy.RELIABLE
                if self._reliable
                else QoSReliabilityPolicy.BEST_EFFORT,
            ),
            event_callbacks=SubscriptionEventCallbacks(
                incompatible_qos=self._on_incompatible_qos,
                message_lost=self._on_message_lost,
                matched=self._on_matched,
            ),
        )

    def _on_message(self, message: Any, info: dict[str, int]) -> None:
        self._delivery.received(info['publication_sequence_number'])
        self._receive(message)

    def _on_message_lost(self, event: Any) -> None:
        self._delivery.lost(event.total_count_change)

    def _on_matched(self, event: Any) -> None:
        self._delivery.publishers(event.current_count, changed=bool(event.current_count_change))

    def _on_incompatible_qos(self, event: Any) -> None:
        if event.last_policy_kind != QoSPolicyKind.RELIABILITY:
            self._node.get_logger().error(
                f'a camera on {self.topic} offers an incompatible '
                f'{QoSPolicyKind(event.last_policy_kind).name}; '
                f'its images do not arrive'
            )
        elif self._config.image_qos_reliability == 'auto' and self._reliable:
            self._node.get_logger().info(
                f'the camera on {self.topic} is best effort; subscribing best effort'
            )
            self.close()
            self._reliable = False
            self._subscription = self._subscribe()
        else:
            self._node.get_logger().error(
                f'a camera on {self.topic} is best effort and image_qos.reliability is reliable: '
                f'its images do not arrive; set image_qos.reliability to auto or best_effort'
            )
