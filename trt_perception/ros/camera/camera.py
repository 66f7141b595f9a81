# SPDX-License-Identifier: Apache-2.0
"""One camera of a node: its subscription, the reader of its images, its publishers, its monitor.

A frame passes through these methods, in this order:

* `ImageInput.on_image`: the thread that takes the images submits the message to the pool.
* `WorkerPool.submit`: the message waits in its camera's mailbox.
* `FrameReader`, or another reader: the worker reads the message.
* `NodeCamera.publish_result`: the worker publishes the result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rclpy.lifecycle import LifecycleNode
from rclpy.subscription import Subscription

from trt_perception.errors import OutputError
from trt_perception.images.detections import Detections
from trt_perception.images.frame import DeferredFrame, Frame
from trt_perception.images.jpeg import JpegFrameReader
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.images.results.kernel_maps import KernelMaps
from trt_perception.model.files.triton_address import is_triton_address
from trt_perception.model.tasks.task import TaskResult
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.pipeline import FrameError, Pipeline
from trt_perception.ros.camera.camera_info import subscribe_camera_info
from trt_perception.ros.camera.camera_monitor import OFF_REASON, CameraMonitor
from trt_perception.ros.camera.image_input import ImageInput
from trt_perception.ros.camera.messages import CompressedReader, FrameReader, frame_from_compressed
from trt_perception.ros.camera.publishers import CameraPublishers
from trt_perception.ros.camera.tracks import CameraTracks
from trt_perception.ros.camera.transport_choice import TransportChoice
from trt_perception.ros.intake.intake import SerializedMessage
from trt_perception.ros.intake.shared_intake import SharedIntake
from trt_perception.ros.runtime.log import camera_logger
from trt_perception.scheduling.camera import Camera
from trt_perception.scheduling.marked_camera import mark_camera
from trt_perception.scheduling.worker_pool import WorkerPool
from trt_perception.wire.camera_info import CameraInfoFields, normalised_focal_lengths


class NodeCamera:
    """One camera of a configured node.

    Args:
        name: name of the camera; empty if the node has only one camera.
        pipeline_index: index of the pipeline in the pool.
        tracks: tracks of the camera, which outlive this object; None for new ones.

    Attributes:
        monitor: watches the camera. It may be used after this object was closed.
    """

    def __init__(
        self,
        node: LifecycleNode,
        name: str,
        parameters: ParameterValues,
        pipeline: Pipeline,
        pipeline_index: int = 0,
        tracks: CameraTracks | None = None,
    ) -> None:
        self.name = name
        self.parameters = parameters
        self.monitor = CameraMonitor(node, name)
        self._node = node
        self._pipeline = pipeline
        self._pipeline_index = pipeline_index
        self._log = camera_logger(node, name)
        self._warn_of_unused_parameters()
        spec = pipeline.spec
        # Created here, destroyed by `close_publishers`.
        publishers = CameraPublishers(node, spec.class_names, parameters, spec.task, name)
        self._publishers: CameraPublishers | None = publishers
        self.monitor.wanted_topics = publishers.wanted_topics
        self._tracks = tracks or CameraTracks(node, name)
        self.monitor.track_counts = self._tracks.counts
        # Normalised fx and fy, for models that need them.
        self._focal_lengths: tuple[float, float] | None = None
        self._needs_focal_length = spec.decoder.needs_focal_length
        self._info_subscription: Subscription | None = None
        try:
            self._tracks.apply(parameters)
            if self._needs_focal_length or publishers.needs_camera_info:
                self._info_subscription = subscribe_camera_info(node, name, self._on_camera_info)
        except BaseException:
            self.close_publishers()
            raise
        # Set by `create_pool_camera`.
        self._camera: Camera[Any] | None = None
        self._choice: TransportChoice | None = None
        # Size of the last message of an earlier activation.
        self._message_bytes = 0
        # Created by `subscribe`, destroyed by `close_input`.
        self._input: ImageInput | None = None

    def create_pool_camera(self, choice: TransportChoice) -> Camera[Any]:
        """Return this camera for a pool, at the start of an activation."""
        if choice.reason:
            self._log.info(f'image_transport auto: {choice.transport}, because {choice.reason}')
        self._choice = choice
        assert self._publishers is not None
        self._camera = Camera(
            self.name,
            self._make_reader(choice),
            self.publish_result,
            self.on_image_error,
            self._thresholds(),
            self._publishers.wanted_topics,
            pipeline_index=self._pipeline_index,
        )
        if self.parameters.nvtx:
            mark_camera(self._camera)
        self._apply_live_parameters()
        return self._camera

    def subscribe(
        self,
        intake: SharedIntake,
        pool: WorkerPool[Any],
        camera_index: int,
        frame_time_s: float,
        batches_per_turn: int,
    ) -> str:
        """Subscribe to the images and start watching them. Return the name of the topic.

        Args:
            camera_index: index of this camera in `pool.cameras`.
            frame_time_s: seconds that the model takes for a frame.
            batches_per_turn: batches in a round over all cameras, if all have waiting images.
        """
        assert self._choice is not None
        self.close_input()  # closes what an earlier, failed call left open
        self._input = ImageInput(
            self._node,
            self.parameters,
            self._choice,
            intake,
            pool,
            camera_index,
            self._message_bytes,
        )
        on_server = is_triton_address(self.parameters.engine_path)
        answer_limit_s = self.parameters.triton_timeout_ms * 1e-3 if on_server else 0.0
        self.monitor.watch(self._input, frame_time_s, batches_per_turn, answer_limit_s)
        return self._input.topic

    def apply_parameters(self, parameters: ParameterValues) -> None:
        """Apply changed parameters of the camera."""
        before, self.parameters = self.parameters, parameters
        self._warn_of_unused_parameters(before)
        self._apply_live_parameters()
        self._tracks.apply(parameters)
        if parameters.enabled != before.enabled:
            self._log.info(f'switched {"on" if parameters.enabled else f"off: {OFF_REASON}"}')
        if parameters.max_rate_hz != before.max_rate_hz:
            limit = f'{parameters.max_rate_hz:g} Hz' if parameters.max_rate_hz else 'no limit'
            self._log.info(f'max_rate_hz is now {limit}')
        changed = parameters.confidence_threshold != before.confidence_threshold
        if changed and self._publishers is not None:
            self._publishers.publish_label_info(parameters.confidence_threshold)

    def _warn_of_unused_parameters(self, before: ParameterValues | None = None) -> None:
        spec = self._pipeline.spec
        for sentence in self.parameters.unused_parameter_warnings(spec.task, spec.decoder, before):
            self._log.warning(sentence)

    def _thresholds(self) -> Thresholds:
        spec = self._pipeline.spec
        return self.parameters.thresholds(spec.class_names, spec.task)

    def _apply_live_parameters(self) -> None:
        parameters, camera = self.parameters, self._camera
        self.monitor.enabled = parameters.enabled
        if self._input is not None:
            self._input.enabled = parameters.enabled
        if camera is not None:
            camera.thresholds = replace(
                self._thresholds(), normalised_focal_lengths=self._focal_lengths
            )
            camera.enabled = parameters.enabled
            camera.max_rate_hz = parameters.max_rate_hz

    def _on_camera_info(self, info: CameraInfoFields) -> None:
        if self._publishers is not None:
            self._publishers.use_camera_info(info)
        focal_lengths = normalised_focal_lengths(info)
        if self._needs_focal_length and focal_lengths != self._focal_lengths:
            self._focal_lengths = focal_lengths
            self._apply_live_parameters()

    def close_input(self) -> None:
        """Unsubscribe. No image arrives afterwards. May be called again."""
        image_input, self._input = self._input, None
        if image_input is not None:
            self._message_bytes = image_input.message_bytes
            image_input.close()

    def close_publishers(self) -> None:
        """Destroy the publishers, and end all tracks. May be called again."""
        subscription, self._info_subscription = self._info_subscription, None
        if subscription is not None:
            self._node.destroy_subscription(subscription)
        publishers, self._publishers = self._publishers, None
        if publishers is not None:
            publishers.close()
        self._tracks.close()

    def _make_reader(self, choice: TransportChoice) -> Callable[[Any], Frame | DeferredFrame]:
        """Return the function that converts messages to frames. The worker calls it."""
        if choice.transport == 'raw':
            return FrameReader()
        if self._pipeline.decodes_jpeg:
            jpeg_reader = JpegFrameReader()
            read = CompressedReader(jpeg_reader)
            return lambda message: DeferredFrame(
                functools.partial(read, message), is_fast_to_decode=jpeg_reader.is_fast_to_decode
            )
        return frame_from_compressed

    # The worker calls these methods.

    def on_image_error(self, message: Any, error: FrameError) -> None:
        """Log an image that was dropped. The worker has already counted it."""
        readable = ('not_published', 'changed_size')
        was_read = isinstance(error, OutputError) or error.reason in readable
        if isinstance(message, SerializedMessage) and message.lease is not None and not was_read:
            message.lease.message_bytes = (
                0  # a refused image does not count for the sizes of buffers
            )
        self.monitor.log_dropped_image(error)

    def publish_result(self, message: Any, frame: Frame, found: TaskResult) -> None:
        """Publish what was found in the image of a message."""
        assert self._publishers is not None
        if self._needs_focal_length and not (
            isinstance(found, DepthMap | KernelMaps) and found.is_metric
        ):
            self._log.warning(
                'relative_depth is published instead of depth, because camera_info has no '
                'focal length: publish it, or set model.focal_length',
                throttle_duration_sec=30.0,
            )
        found = self._tracks.update(message.header.stamp, frame, found)
        if not self._publishers.publish(message.header, frame, found):
            self.monitor.result_images_skipped += 1
        if frame.warning:
            self.monitor.count_decoder_warning(frame.warning)
        if isinstance(found, Detections) and found.left_out:
            self.monitor.count_limited_candidates(found.left_out)
        self.monitor.on_published(message.header.stamp)


def subscriptions_text(cameras: Sequence[NodeCamera], topics: Sequence[str], how: str) -> str:
    """Return a text for the log about the subscriptions of all cameras.

    Args:
        topics: the topic of each camera.
    """
    pairs = list(zip(cameras, topics, strict=True))
    on = ', '.join(topic for camera, topic in pairs if camera.parameters.enabled)
    off = ', '.join(topic for camera, topic in pairs if not camera.parameters.enabled)
    parts = [f'waiting for images on {on}, taken {how}'] * bool(on)
    parts += [f'switched off, as {OFF_REASON}: {off}'] * bool(off)
    return f'active: {"; ".join(parts)}'
