"""A camera's topic: its QoS follows the camera, and what never arrived is counted."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
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
from trt_perception.monitoring.watch import CameraState
from trt_perception.parameters.config import DetectorConfig
from trt_perception.ros.camera.transport_choice import TransportChoice
from trt_perception.ros.intake.intake import Arrived
from trt_perception.ros.intake.shared import SharedIntake
from trt_perception.ros.intake.subscriptions import Images, ImageSubscription
from trt_perception.ros.runtime.log import camera_logger, log_text
from trt_perception.ros.same_name import node_of
from trt_perception.ros.topics import compressed_topic, image_topic, source_name
from trt_perception.transport.advice import how_to_start, images_elsewhere

__all__ = ['ImageInput']

# Each of a thousand cameras that do not fit is an event, and to look at them all takes time.
_QUIET_S: Final = 10.0


class ImageInput:
    """Subscribes to ``image`` or ``image/compressed`` and hands every message on.

    Reliability ``auto`` starts reliable, because best effort loses almost every large image on a
    default transport; the middleware's word that a camera offers less turns it into best effort,
    which any camera can serve.

    Args:
        node: subscribes on it.
        config: QoS.
        choice: of the transport.
        intake: takes the images.
        receive: called with each message: an Arrived, in the intake's thread, or rclpy's object,
            in the executor's, where rclpy takes the images. Must not wait.
        camera: its name, empty where there is only one.

    Attributes:
        topic: its resolved name.
        reliability: what is asked of the camera now, ``reliable`` or ``best_effort``.
        message_bytes: size of the last image as it came, 0 before the first.
        wanted: the camera is switched on; else nothing that is wrong with it is logged.
    """

    def __init__(
        self,
        node: LifecycleNode,
        config: DetectorConfig,
        choice: TransportChoice,
        intake: SharedIntake,
        receive: Callable[[Any], None],
        camera: str = '',
    ) -> None:
        self._node = node
        self._config = config
        self._choice = choice
        self._intake = intake
        self._receive = receive
        self._camera = camera
        self._log = camera_logger(node, camera)
        self._delivery = DeliveryCounter()
        self.message_bytes = 0
        self.wanted = config.enabled
        self._quiet_until_s = 0.0
        self._adapted_s = 0.0
        self._kind: Any = CompressedImage if choice.transport == 'compressed' else Image
        self._name = source_name(node, camera, choice.transport)
        self.topic = node.resolve_topic_name(self._name)
        asked = config.image_qos_reliability
        self.reliability = 'best_effort' if asked == 'best_effort' else 'reliable'
        # The middleware's word may come in the intake's thread, which must not end itself.
        self._unfit: Any = None
        self._unfit_signal = node.create_guard_condition(self._on_unfit_signal)
        self._subscription: ImageSubscription | None = None
        try:
            self._subscription = self._subscribe()
        except BaseException:
            self.close()
            raise

    @property
    def not_delivered(self) -> int | None:
        """Images that were sent and never reached us.

        None while several cameras publish, whose counts mix.
        """
        return self._delivery.not_delivered

    def look(self) -> CameraState:
        """Return what the graph knows of the cameras on the topic; for when nothing arrives."""
        wanted = _type_name(self._kind)
        publishers, mismatch, other = 0, '', ''
        for info in self._node.get_publishers_info_by_topic(self._name):
            if info.topic_type == wanted:
                publishers += 1
                mismatch = self._mismatch(info) or mismatch
            else:
                other = (
                    f'{node_of(info)} publishes {info.topic_type} on {self.topic}, expected '
                    f'{wanted}: {self._other_type(info.topic_type)}'
                )
        elsewhere = '' if publishers else self._elsewhere()
        # Beside images, what else is there does no harm.
        return CameraState(
            publishers, mismatch if publishers else other, elsewhere, self._adapted_s
        )

    def restore(self) -> bool:
        """Subscribe again where the subscription is lost; return whether it was."""
        if self._subscription is None or not self._subscription.lost:
            return False
        self._subscription.close()
        self._subscription = self._subscribe()
        return True

    def close(self) -> None:
        """Destroy the subscription; no message arrives afterwards. May be called again."""
        self._unsubscribe()
        self._node.destroy_guard_condition(self._unfit_signal)

    def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()
        self._unfit = None  # the new one has not met that camera

    def _subscribe(self) -> ImageSubscription:
        images = Images(
            self._node,
            self._kind,
            self._name,
            self._qos(),
            self._on_message,
            self._on_failure,
            {
                'incompatible_qos': self._on_incompatible_qos,
                'message_lost': self._on_message_lost,
                'matched': self._on_matched,
            },
        )
        return self._intake.subscribe(images)

    def _qos(self) -> QoSProfile:
        reliability = ReliabilityPolicy[self.reliability.upper()]
        return QoSProfile(depth=self._config.image_qos_depth, reliability=reliability)

    def _on_message(self, message: Any, sequence_number: int | None) -> None:
        self._delivery.received(sequence_number)
        self.message_bytes = message.size if isinstance(message, Arrived) else len(message.data)
        self._receive(message)

    def _on_failure(self, error: BaseException) -> None:
        """Take what ended this subscription, from the intake; the watch subscribes again."""
        trace = ''.join(traceback.format_exception(error))
        self._log.error(log_text(f'the intake of images on {self.topic} ended\n{trace}'))

    def _on_message_lost(self, event: Any) -> None:
        self._delivery.lost(event.total_count_change)

    def _on_matched(self, event: Any) -> None:
        # One that went and one that came between two looks leave their number as it was.
        changed = bool(event.current_count_change or event.total_count_change)
        self._delivery.publishers(event.current_count, changed=changed)

    def _on_incompatible_qos(self, event: Any) -> None:
        self._unfit = event
        self._unfit_signal.trigger()

    def _on_unfit_signal(self) -> None:
        """Adapt to a camera that does not fit, or log why its images do not arrive."""
        event, self._unfit = self._unfit, None
        if event is None or self._subscription is None:
            return
        if (
            event.last_policy_kind == QoSPolicyKind.RELIABILITY
            and self._config.image_qos_reliability == 'auto'
            and self.reliability == 'reliable'
        ):
            self._log.info(f'the camera on {self.topic} is best effort; subscribing best effort')
            self._unsubscribe()
            self.reliability = 'best_effort'
            self._subscription = self._subscribe()
            self._adapted_s = time.monotonic()
        elif (
            self.wanted
            and self._delivery.any_arrived
            and (now_s := time.monotonic()) >= self._quiet_until_s
        ):
            # Of many cameras that come at once, one. Where nothing has arrived the watch says it.
            self._quiet_until_s = now_s + _QUIET_S
            other = f'a camera on {self.topic} offers an incompatible QoS'
            self._log.error(log_text(self.look().mismatch or other))

    def _mismatch(self, info: Any) -> str:
        """Return why a publisher's images do not arrive and what to set, empty where they do."""
        offered = info.qos_profile
        compatibility, reason = qos_check_compatible(offered, self._qos())
        if compatibility != QoSCompatibility.ERROR:
            return ''
        best_effort = offered.reliability == ReliabilityPolicy.BEST_EFFORT
        if best_effort and self.reliability == 'reliable':
            if self._config.image_qos_reliability == 'auto':
                return ''  # the event that we adapt to is on its way
            own = f'camera.{self._camera}.' if self._camera else ''
            parameter = f'{own}image_qos.reliability'
            return (
                f'a camera on {self.topic} is best effort and {parameter} is reliable: '
                f'its images do not arrive; set {parameter} to auto or best_effort'
            )
        return f'a camera on {self.topic} offers an incompatible QoS: {reason.strip()}'

    def _other_type(self, found: str) -> str:
        """Return what to type where something else than our images is on the topic."""
        base = self.topic.removesuffix('/compressed')
        if found == _type_name(CompressedImage) and base != self.topic:
            return f'start with {how_to_start(base, "compressed", self._camera)}'
        return f'start with another topic: {how_to_start("/its/topic", camera=self._camera)}'

    def _elsewhere(self) -> str:
        """Return where images are published, and how to take them from there."""
        node = self._node
        here = node.get_name(), node.get_namespace()
        own = dict(node.get_subscriber_names_and_types_by_node(*here))
        own |= dict(node.get_publisher_names_and_types_by_node(*here))
        # What may be meant: to ask for the publishers of each topic of a node with 64 cameras
        # takes a millisecond, and all of them may be silent at once.
        others = {
            name: types[0]
            for name, types in node.get_topic_names_and_types()
            if types[0] in _IMAGES and name not in own
        }
        topics = {
            name: kind
            for name, kind in others.items()
            if name != self.topic and node.count_publishers(name)
        }
        image = image_topic(node, self._camera)
        if self._choice.retry:
            other = (
                image
                if self._choice.transport == 'compressed'
                else compressed_topic(node, self._camera)
            )
            kind = Image if other == image else CompressedImage
            if topics.get(other) == _type_name(kind):
                name = self._node.get_fully_qualified_name()
                return (
                    f'images are on {other}, which were not there when image_transport auto was '
                    f'decided: ros2 lifecycle set {name} deactivate, then activate'
                )
        return images_elsewhere(topics, image, self._choice.transport, self._camera)


def _type_name(kind: Any) -> str:
    return f'sensor_msgs/msg/{kind.__name__}'


_IMAGES: Final = tuple(map(_type_name, (Image, CompressedImage)))
