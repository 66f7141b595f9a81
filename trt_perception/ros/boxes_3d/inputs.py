# SPDX-License-Identifier: Apache-2.0
"""The subscriptions of the node detections_3d."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSPolicyKind, QoSProfile, ReliabilityPolicy
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, PointCloud2
from vision_msgs.msg import Detection2DArray

from trt_perception.errors import DepthError, ImageError
from trt_perception.monitoring.delivery import DeliveryCounter
from trt_perception.ros.boxes_3d.locator import KEYPOINTS, MASKS
from trt_perception.ros.boxes_3d.messages import read_calibration, read_keypoints
from trt_perception.ros.boxes_3d.worker import BoxWorker
from trt_perception.ros.intake.buffers import MAX_MESSAGE_BYTES, MessageBuffers
from trt_perception.ros.intake.intake import SerializedMessage
from trt_perception.ros.intake.shared_intake import SharedIntake
from trt_perception.ros.intake.subscriptions import ImageSubscription, ImageTopicOptions
from trt_perception.ros.runtime.log import log_text
from trt_perception.wire.cdr import read_compressed, read_image
from trt_perception.wire.detections import read_detections
from trt_perception.wire.frames import check_frame_id

_Bytes = npt.NDArray[np.uint8]
# 4096 detections with long names.
_MAX_SMALL_BYTES: Final = 4 * 2**20
# The bytes of a message that differ between two equal calibrations: the stamp.
_STAMP: Final = slice(4, 12)


class InputTopic(NamedTuple):
    """A topic that the node subscribes to.

    Attributes:
        name: before remapping.
        max_bytes: size of the largest accepted message.
        depth: messages that the middleware keeps.
    """

    name: str
    message_type: Any
    max_bytes: int
    depth: int


DETECTIONS: Final = 'detections'
DEPTH: Final = 'depth'
CAMERA_INFO: Final = 'camera_info'


def input_topics(node: LifecycleNode, depth_transport: str) -> tuple[InputTopic, ...]:
    """Return the topics, with the name of the depth images for a transport."""
    depth, kind = DEPTH, Image
    if depth_transport == 'compressedDepth':  # follows the remapping of `depth`
        depth, kind = f'{node.resolve_topic_name(DEPTH)}/compressedDepth', CompressedImage
    return (
        InputTopic(DETECTIONS, Detection2DArray, _MAX_SMALL_BYTES, 10),
        InputTopic(MASKS, Image, MAX_MESSAGE_BYTES, 5),
        InputTopic(KEYPOINTS, PointCloud2, _MAX_SMALL_BYTES, 10),
        InputTopic(depth, kind, MAX_MESSAGE_BYTES, 5),
        InputTopic(CAMERA_INFO, CameraInfo, _MAX_SMALL_BYTES, 1),
    )


class TopicInput:
    """Subscribes to one topic, reads its messages and gives them to the worker.

    Implements ImageReceiver: an intake's thread, or the executor if rclpy takes the messages,
    calls its methods `on_…`. Reliability `auto` starts reliable and becomes best effort if a
    publisher is.

    Args:
        reliability: value of the parameter.
        handle: called with the bytes of each message; raises ImageError if they are invalid.
        report: called with each of these errors.

    Attributes:
        publishers: number of publishers whose messages may arrive.
    """

    def __init__(
        self,
        node: LifecycleNode,
        topic: InputTopic,
        reliability: str,
        handle: Callable[[_Bytes], None],
        report: Callable[[ImageError], None],
    ) -> None:
        self._node = node
        self._topic = topic
        self.topic = node.resolve_topic_name(topic.name)
        self._is_auto = reliability == 'auto'
        self.reliability = 'best_effort' if reliability == 'best_effort' else 'reliable'
        self._handle = handle
        self._report = report
        self._delivery = DeliveryCounter()
        self.publishers = 0
        self._qos_signal = node.create_guard_condition(self._use_best_effort)
        self._has_mismatch = False
        self._intake: SharedIntake | None = None
        self._subscription: ImageSubscription | None = None

    @property
    def not_delivered(self) -> int | None:
        """Number of messages that were sent but did not arrive; None with several publishers."""
        return self._delivery.not_delivered

    def subscribe(self, intake: SharedIntake) -> None:
        """Subscribe by an intake. No message was handled before."""
        self._intake = intake
        qos = QoSProfile(
            depth=self._topic.depth, reliability=ReliabilityPolicy[self.reliability.upper()]
        )
        options = ImageTopicOptions(self._node, self._topic.message_type, self._topic.name, qos)
        self._subscription = intake.subscribe(options, self)

    def resubscribe_if_lost(self) -> None:
        """Subscribe again if an error has ended the subscription."""
        if self._subscription is not None and self._subscription.is_lost:
            self._subscribe_again()

    def _subscribe_again(self) -> None:
        if self._subscription is not None and self._intake is not None:
            self._subscription.close()
            self.subscribe(self._intake)

    def close(self) -> None:
        """Destroy the subscription. Calling this twice does no harm."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()
            self._node.destroy_guard_condition(self._qos_signal)

    # ImageReceiver.

    def on_image(
        self,
        message: Any,
        sequence_number: int | None,
        transport_ns: int,  # noqa: ARG002
        intake_ns: int,  # noqa: ARG002
    ) -> None:
        """Read a message and give it to the worker. An invalid message is reported."""
        self._delivery.add_received(sequence_number)
        try:
            self._handle(self._bytes(message))
        except ImageError as error:
            self._report(error)

    def _bytes(self, message: Any) -> _Bytes:
        if not isinstance(message, SerializedMessage):  # rclpy takes the messages
            return np.frombuffer(serialize_message(message), np.uint8)
        if message.lease is None or message.size > self._topic.max_bytes:
            if message.lease is not None:
                message.lease.message_bytes = 0  # the buffers do not grow for it
            raise DepthError(
                'too_large',
                f'message on {self.topic}',
                f'{message.size} bytes',
                expected=f'at most {self._topic.max_bytes} bytes, and enough free memory',
            )
        return message.data

    def on_message_lost(self, event: Any) -> None:
        """Count messages that the middleware lost."""
        self._delivery.add_lost(event.total_count_change)

    def on_publishers_matched(self, event: Any) -> None:
        """Count the publishers."""
        self.publishers = event.current_count
        changed = bool(event.current_count_change or event.total_count_change)
        self._delivery.set_publishers(event.current_count, changed=changed)

    def on_incompatible_qos(self, event: Any) -> None:
        """Let the executor change the reliability, because this thread cannot unsubscribe."""
        if event.last_policy_kind == QoSPolicyKind.RELIABILITY and self._is_auto:
            self._has_mismatch = True
            self._qos_signal.trigger()

    def on_receiver_failed(self, error: BaseException) -> None:
        """Log the exception that ended the subscription. `resubscribe_if_lost` replaces it."""
        trace = ''.join(traceback.format_exception(error))
        self._node.get_logger().error(log_text(f'the intake of {self.topic} ended\n{trace}'))

    def _use_best_effort(self) -> None:
        if not self._has_mismatch or self._subscription is None:
            return
        self._has_mismatch = False
        if self.reliability == 'reliable':
            self._node.get_logger().info(
                f'a publisher on {self.topic} is best effort; subscribing best effort'
            )
            self.reliability = 'best_effort'
            self._subscribe_again()


class Inputs:
    """All subscriptions of an active node.

    Attributes:
        topics: by name: ``detections``, ``masks``, ``keypoints``, ``depth``, ``camera_info``.
    """

    def __init__(
        self,
        node: LifecycleNode,
        worker: BoxWorker,
        depth_transport: str,
        reliability: str,
        report: Callable[[ImageError], None],
    ) -> None:
        self._node = node
        self._worker = worker
        self._last_calibration: tuple[bytes, bytes] = b'', b''
        read_depth = read_compressed if depth_transport == 'compressedDepth' else read_image
        handlers: dict[str, Callable[[_Bytes], None]] = {
            DETECTIONS: self._on_detections,
            MASKS: self._on_mask,
            KEYPOINTS: self._on_keypoints,
            DEPTH: lambda data: worker.add_depth(_checked(read_depth(data)), data.size),
            CAMERA_INFO: self._on_camera_info,
        }

        def report_refused(name: str, error: ImageError) -> None:
            if name == DETECTIONS:
                worker.add_bad_detections()
            else:
                worker.count_message(name)
            report(error)

        self.topics = {
            name: TopicInput(
                node, topic, reliability, handler, functools.partial(report_refused, name)
            )
            for (name, handler), topic in zip(
                handlers.items(), input_topics(node, depth_transport), strict=True
            )
        }

    def subscribe(self) -> None:
        """Subscribe to all topics."""
        intake = SharedIntake(
            self._node,
            MessageBuffers,
            uses_rclpy=False,
            fault_handler=self,
            cameras_per_thread=len(self.topics),
        )
        for topic in self.topics.values():
            topic.subscribe(intake)

    def close(self) -> None:
        """Destroy the subscriptions."""
        for topic in self.topics.values():
            topic.close()

    def on_fault(self, error: BaseException) -> None:
        """Log the failure of an intake; the watch subscribes again."""
        self._node.get_logger().error(log_text(f'the intake ended: {error}'))

    def _on_detections(self, data: _Bytes) -> None:
        detections = read_detections(data)
        needs = tuple(name for name in (MASKS, KEYPOINTS) if self.topics[name].publishers)
        self._worker.add_detections(detections, needs)

    def _on_mask(self, data: _Bytes) -> None:
        image = read_image(data)
        self._worker.add_other(MASKS, image, data.size)

    def _on_keypoints(self, data: _Bytes) -> None:
        keypoints = read_keypoints(data)
        self._worker.add_other(KEYPOINTS, keypoints, keypoints.values.nbytes)

    def _on_camera_info(self, data: _Bytes) -> None:
        """Read a calibration, unless only the stamp differs from the last one."""
        now = data[: _STAMP.start].tobytes(), data[_STAMP.stop :].tobytes()
        if now == self._last_calibration:
            self._worker.count_message(CAMERA_INFO)
            return
        calibration = read_calibration(data)
        self._last_calibration = now
        self._worker.set_calibration(calibration)


def _checked(image: Any) -> Any:
    check_frame_id(image.header)
    return image
