# SPDX-License-Identifier: Apache-2.0
"""The image subscription of a camera. It adapts its QoS and counts images that were lost."""

from __future__ import annotations

import functools
import time
import traceback
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final

from rclpy.lifecycle import LifecycleNode
from rclpy.qos import (
    QoSCompatibility,
    QoSPolicyKind,
    QoSProfile,
    ReliabilityPolicy,
    qos_check_compatible,
)
from sensor_msgs.msg import CompressedImage, Image

from trt_perception.monitoring.delivery import DeliveryCounter
from trt_perception.monitoring.silence import TopicState
from trt_perception.parameters.values import ParameterValues
from trt_perception.process.tool_command import ros2_command
from trt_perception.ros.camera.transport_choice import TransportChoice
from trt_perception.ros.intake.intake import SerializedMessage
from trt_perception.ros.intake.shared_intake import SharedIntake
from trt_perception.ros.intake.subscriptions import ImageSubscription, ImageTopicOptions
from trt_perception.ros.runtime.log import camera_logger, log_text
from trt_perception.ros.same_name import endpoint_node_name, is_on_this_machine
from trt_perception.ros.topics import (
    compressed_topic,
    detector_image_topics,
    image_topic,
    requested_image_topic,
)
from trt_perception.scheduling.worker_pool import WorkerPool
from trt_perception.transport.advice import SOME_TOPIC, start_arguments, suggest_image_topic

# Log incompatible publishers at most once in this time: each raises an event, and querying the
# ROS graph is slow.
_LOG_INTERVAL_S: Final = 10.0
# Copying a smaller image takes less than 0.4 ms, so other cameras may wait for it.
_LARGE_IMAGE_BYTES: Final = 1_000_000


class ImageInput:
    """Subscribes to ``image`` or ``image/compressed``, and submits each message to the pool.

    Implements ImageReceiver: an intake calls `on_image`, which calls `WorkerPool.submit`.
    Implements WatchedCamera: the watchdog reads `topic_state` and `not_delivered`.

    Reliability `auto` starts reliable, because best effort loses almost every large image on a
    default transport. If the middleware reports a best-effort camera, the subscription becomes
    best effort, which is compatible with every camera.

    Args:
        pool: receives a SerializedMessage in the intake's thread, or rclpy's message object in
            the executor's thread if rclpy takes the images.
        camera_index: index of the camera in `pool.cameras`.
        message_bytes: size of the last message of an earlier activation; 0 if there was none.

    Attributes:
        camera_name: empty if the node has only one camera.
        topic: resolved name of the topic.
        reliability: the requested reliability, ``reliable`` or ``best_effort``.
        message_bytes: size of the last message in bytes; 0 before the first.
        transport_ns: sum of the times from publication to reception by the middleware.
        intake_ns: sum of the times from reception to the take.
        enabled: whether the camera is switched on; otherwise its QoS problems are not logged.
    """

    def __init__(
        self,
        node: LifecycleNode,
        parameters: ParameterValues,
        choice: TransportChoice,
        intake: SharedIntake,
        pool: WorkerPool[Any],
        camera_index: int,
        message_bytes: int = 0,
    ) -> None:
        self._node = node
        self._parameters = parameters
        self._choice = choice
        self._intake = intake
        self._pool = pool
        self._camera_index = camera_index
        self.camera_name = camera = pool.cameras[camera_index].name
        self._log = camera_logger(node, camera)
        self._delivery = DeliveryCounter()
        self.message_bytes = message_bytes
        self.transport_ns = self.intake_ns = 0
        self.enabled = parameters.enabled
        self._next_log_s = 0.0
        self._adapted_s = 0.0
        self._message_type: Any = CompressedImage if choice.transport == 'compressed' else Image
        self._topic_name = requested_image_topic(node, camera, choice.transport)
        self.topic = node.resolve_topic_name(self._topic_name)
        asked = parameters.image_qos_reliability
        self.reliability = 'best_effort' if asked == 'best_effort' else 'reliable'
        # The event may arrive in the intake's thread, which cannot replace its own subscription.
        # So it wakes the executor by this guard condition.
        self._incompatible_qos: Any = None
        self._qos_signal = node.create_guard_condition(self._handle_incompatible_qos)
        self._subscription: ImageSubscription | None = None
        try:
            self._subscription = self._subscribe()
        except BaseException:
            self.close()
            raise

    @property
    def not_delivered(self) -> int | None:
        """Number of images that were sent but did not arrive.

        None while several cameras publish on the topic, because their sequence numbers mix.
        """
        return self._delivery.not_delivered

    def topic_state(self) -> TopicState:
        """Return the state of the topic's publishers from the ROS graph."""
        expected_type = _type_name(self._message_type)
        publishers, mismatch, wrong_type, publisher = 0, '', '', None
        for info in self._node.get_publishers_info_by_topic(self._topic_name):
            if info.topic_type == expected_type:
                publishers += 1
                publisher = info
                mismatch = self._mismatch(info) or mismatch
            else:
                wrong_type = (
                    f'{endpoint_node_name(info)} publishes {info.topic_type} on '
                    f'{self.topic}, expected {expected_type}: '
                    f'{self._wrong_type_fix(info.topic_type)}'
                )
        other_topics = '' if publishers else self._other_topics_advice()
        # Publishers of other types on this topic are ignored once a publisher of images exists.
        state = TopicState(
            publishers, mismatch if publishers else wrong_type, other_topics, self._adapted_s
        )
        if publisher is None:
            return state
        is_here = is_on_this_machine(self._node, publisher)
        machine = {True: ' on this machine', False: ' on another machine or container', None: ''}
        parts = [
            f'{endpoint_node_name(publisher)}{machine[is_here]}',
            publisher.qos_profile.reliability.name.lower().replace('_', ' '),
        ]
        if self.message_bytes:
            parts.append(f'last image of {self.message_bytes / 1e6:.1f} MB')
        return replace(state, publisher=', '.join(parts), on_this_machine=is_here)

    def resubscribe_if_lost(self) -> bool:
        """Subscribe again if the subscription was lost. Return whether it was lost."""
        if self._subscription is None or not self._subscription.is_lost:
            return False
        self._subscription.close()
        self._subscription = self._subscribe()
        return True

    def close(self) -> None:
        """Destroy the subscription. No message arrives afterwards. May be called again."""
        with ExitStack() as resources:  # freeing page-locked memory fails after the GPU is lost
            resources.callback(self._node.destroy_guard_condition, self._qos_signal)
            self._unsubscribe()

    def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()
        self._incompatible_qos = None  # the event does not apply to a later subscription

    def _subscribe(self) -> ImageSubscription:
        options = ImageTopicOptions(
            self._node,
            self._message_type,
            self._topic_name,
            self._qos(),
            # Before the first image, a raw image may have any size.
            may_be_large=self._message_type is Image
            and not 0 < self.message_bytes < _LARGE_IMAGE_BYTES,
        )
        return self._intake.subscribe(options, self)

    def _qos(self) -> QoSProfile:
        reliability = ReliabilityPolicy[self.reliability.upper()]
        return QoSProfile(depth=self._parameters.image_qos_depth, reliability=reliability)

    # ImageReceiver: the thread that takes the images calls these methods.

    def on_image(
        self, message: Any, sequence_number: int | None, transport_ns: int, intake_ns: int
    ) -> None:
        """Count an image and submit it to the pool."""
        self._delivery.add_received(sequence_number)
        self.transport_ns += transport_ns
        self.intake_ns += intake_ns
        is_serialized = isinstance(message, SerializedMessage)
        self.message_bytes = message.size if is_serialized else len(message.data)
        self._pool.submit(self._camera_index, message)

    def on_message_lost(self, event: Any) -> None:
        """Count images that the middleware lost."""
        self._delivery.add_lost(event.total_count_change)

    def on_publishers_matched(self, event: Any) -> None:
        """Count the publishers of the topic."""
        # If a publisher left and another came, the number is the same, but the total has changed.
        changed = bool(event.current_count_change or event.total_count_change)
        self._delivery.set_publishers(event.current_count, changed=changed)

    def on_incompatible_qos(self, event: Any) -> None:
        """Let the executor handle a publisher with an incompatible QoS."""
        self._incompatible_qos = event
        self._qos_signal.trigger()

    def on_receiver_failed(self, error: BaseException) -> None:
        """Log the exception that ended the subscription. `resubscribe_if_lost` replaces it."""
        trace = ''.join(traceback.format_exception(error))
        self._log.error(log_text(f'the intake of images on {self.topic} ended\n{trace}'))

    def _handle_incompatible_qos(self) -> None:
        """Change the subscription to best effort, or log why the camera's images do not arrive."""
        event, self._incompatible_qos = self._incompatible_qos, None
        if event is None or self._subscription is None:
            return
        if (
            event.last_policy_kind == QoSPolicyKind.RELIABILITY
            and self._parameters.image_qos_reliability == 'auto'
            and self.reliability == 'reliable'
        ):
            self._log.info(f'the camera on {self.topic} is best effort; subscribing best effort')
            self._unsubscribe()
            self.reliability = 'best_effort'
            self._subscription = self._subscribe()
            self._adapted_s = time.monotonic()
        elif (
            self.enabled
            and self._delivery.has_received
            and (now_s := time.monotonic()) >= self._next_log_s
        ):
            # If several cameras appear together, log only one. Before the first image, the
            # watchdog reports the problem.
            self._next_log_s = now_s + _LOG_INTERVAL_S
            general_reason = f'a camera on {self.topic} offers an incompatible QoS'
            self._log.error(log_text(self.topic_state().mismatch or general_reason))

    def _mismatch(self, info: Any) -> str:
        """Return why a publisher's images do not arrive and how to correct this.

        The result is empty if the publisher's QoS is compatible.
        """
        offered = info.qos_profile
        compatibility, reason = qos_check_compatible(offered, self._qos())
        if compatibility != QoSCompatibility.ERROR:
            return ''
        best_effort = offered.reliability == ReliabilityPolicy.BEST_EFFORT
        if best_effort and self.reliability == 'reliable':
            if self._parameters.image_qos_reliability == 'auto':
                return ''  # `_handle_incompatible_qos` will change the subscription
            own = f'camera.{self.camera_name}.' if self.camera_name else ''
            parameter = f'{own}image_qos.reliability'
            return (
                f'a camera on {self.topic} is best effort and {parameter} is reliable: '
                f'its images do not arrive; set {parameter} to auto or best_effort'
            )
        return f'a camera on {self.topic} offers an incompatible QoS: {reason.strip()}'

    def _wrong_type_fix(self, found: str) -> str:
        """Return the correction for a topic with messages of the type `found`."""
        base = self.topic.removesuffix('/compressed')
        if found == _type_name(CompressedImage) and base != self.topic:
            return f'start with {start_arguments(base, "compressed", self.camera_name)}'
        return f'start with another topic: {start_arguments(SOME_TOPIC, camera=self.camera_name)}'

    @functools.cached_property
    def _topics_of_other_cameras(self) -> set[str]:
        """The image topics of the node's other cameras, with both transports."""
        names = [each.name for each in self._pool.cameras if each.name != self.camera_name]
        return {
            topic(self._node, name) for name in names for topic in (image_topic, compressed_topic)
        }

    def _other_topics_advice(self) -> str:
        """Return the topics on which images are published, and how to subscribe to them."""
        node = self._node
        here = node.get_name(), node.get_namespace()
        own = {self.topic, *self._topics_of_other_cameras}
        own |= dict(node.get_publisher_names_and_types_by_node(*here)).keys()
        # Filter by type first. Counting the publishers of all topics takes 1 ms on a node with 64
        # cameras, and all cameras may be silent at once.
        others = {
            name: types[0]
            for name, types in node.get_topic_names_and_types()
            if types[0] in _IMAGE_TYPES and name not in own
        }
        topics = {
            name: kind
            for name, kind in others.items()
            if name != self.topic and node.count_publishers(name)
        }
        for name in detector_image_topics(node, topics):
            del topics[name]
        image = image_topic(node, self.camera_name)
        if self._choice.may_change:
            other_topic = (
                image
                if self._choice.transport == 'compressed'
                else compressed_topic(node, self.camera_name)
            )
            kind = Image if other_topic == image else CompressedImage
            if topics.get(other_topic) == _type_name(kind):
                name = self._node.get_fully_qualified_name()
                command = ros2_command('lifecycle', 'set', name, 'deactivate')
                return (
                    f'images are on {other_topic}, which had no images when activate chose the '
                    f'transport: {command}, then activate'
                )
        return suggest_image_topic(topics, image, self._choice.transport, self.camera_name)


def _type_name(kind: Any) -> str:
    return f'sensor_msgs/msg/{kind.__name__}'


_IMAGE_TYPES: Final = tuple(map(_type_name, (Image, CompressedImage)))
