# SPDX-License-Identifier: Apache-2.0
"""The lifecycle node that joins the detections of a camera with its depth images.

configure creates the publishers, activate subscribes, deactivate lets the messages that wait
finish, and cleanup frees everything. One node serves one camera; several cameras have a node each,
in namespaces of their own.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any, Final

from rcl_interfaces.msg import SetParametersResult
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.publisher import Publisher
from rclpy.subscription import Subscription
from sensor_msgs.msg import PointCloud2
from vision_msgs.msg import Detection3DArray, LabelInfo
from visualization_msgs.msg import MarkerArray

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import escape_controls
from trt_perception.model.tasks.task import LABEL_INFO, Topic
from trt_perception.parameters.boxes_3d import BoxParameters
from trt_perception.process.tool_command import ros2_command
from trt_perception.ros.boxes_3d.inputs import Inputs
from trt_perception.ros.boxes_3d.locator import LocatedImage
from trt_perception.ros.boxes_3d.markers import label_info_topic, markers_message
from trt_perception.ros.boxes_3d.messages import detections_3d_message, keypoints_3d_message
from trt_perception.ros.boxes_3d.monitor import BoxMonitor
from trt_perception.ros.boxes_3d.parameters import NodeBoxParameters
from trt_perception.ros.boxes_3d.worker import BoxWorker
from trt_perception.ros.runtime.bond import Bond, check_bond
from trt_perception.ros.runtime.log import log_text
from trt_perception.ros.runtime.timers import steady_timer
from trt_perception.ros.topics import topic_qos

#: Boxes in the optical frame of the camera.
DETECTIONS_3D: Final = Topic('detections_3d', 'vision_msgs/Detection3DArray')
#: Keypoints in the optical frame of the camera, for models of the task pose.
KEYPOINTS_3D: Final = Topic('keypoints_3d', 'sensor_msgs/PointCloud2')
#: The boxes as drawings for RViz and Foxglove.
MARKERS: Final = Topic('markers', 'visualization_msgs/MarkerArray', depth=1, on_demand=True)
_MESSAGE_TYPES: Final = {
    DETECTIONS_3D: Detection3DArray,
    KEYPOINTS_3D: PointCloud2,
    MARKERS: MarkerArray,
}

_Transition = Callable[['Boxes3DNode', LifecycleState], TransitionCallbackReturn]


def _guarded(transition: _Transition) -> _Transition:
    """Decorate a transition to report an exception and undo everything. It then fails."""

    @functools.wraps(transition)
    def run(self: Boxes3DNode, state: LifecycleState) -> TransitionCallbackReturn:
        try:
            self._monitor.error = ''
            return transition(self, state)
        except Exception as error:
            self._monitor.error = escape_controls(f'{transition.__name__} failed: {error}')
            is_expected = isinstance(error, ConfigError)
            self.get_logger().error(
                log_text(str(error) if is_expected else traceback.format_exc())
            )
            self._release()
            return TransitionCallbackReturn.ERROR

    return run


class Boxes3DNode(LifecycleNode):
    """A node for one camera.

    Raises:
        ConfigError: a start parameter is unknown or has an invalid value.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__('detections_3d', **options)
        # on_configure creates the publishers and the subscription of the class names; on_activate
        # the worker, the inputs and the bond.
        self._outputs: dict[Topic, Publisher] = {}
        self._label_info: Subscription | None = None
        # Replaced by the executor, and read by the worker's thread.
        self._class_ids: dict[str, int] = {}
        self._worker: BoxWorker | None = None
        self._inputs: Inputs | None = None
        self._bond: Bond | None = None
        self._monitor = BoxMonitor(self)
        self._node_parameters = NodeBoxParameters(
            self, is_configured=lambda: bool(self._outputs), apply=self._apply_parameters
        )
        if self.values.autostart:
            self._start_timer = steady_timer(self, 0.01, self._autostart)
        else:
            name = self.get_fully_qualified_name()
            command = ros2_command('lifecycle', 'set', name, 'configure')
            self.get_logger().info(
                f'unconfigured, as autostart is false: {command}, then activate'
            )

    @property
    def values(self) -> BoxParameters:
        """The current values of the parameters."""
        return self._node_parameters.values

    def _autostart(self) -> None:
        self.destroy_timer(self._start_timer)
        if self.trigger_configure() == TransitionCallbackReturn.SUCCESS:
            self.trigger_activate()

    @_guarded
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Create the publishers, and subscribe to the names of the classes."""
        self._monitor.start_publishing(self.values.diagnostics_period_s)
        check_bond(self.values, autostart=self.values.autostart)
        for topic, kind in _MESSAGE_TYPES.items():
            self._outputs[topic] = self.create_lifecycle_publisher(
                kind, topic.name, topic_qos(topic)
            )
        self._label_info = self.create_subscription(
            LabelInfo, label_info_topic(self), self._set_classes, topic_qos(LABEL_INFO)
        )
        return super().on_configure(state)

    @_guarded
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start the worker and subscribe."""
        result: TransitionCallbackReturn = super().on_activate(state)
        values = self.values
        problems = self._monitor.forget_problems()
        self._worker = BoxWorker(values, self._publish, problems.report, self._log_trace)
        self._worker.start()
        self._inputs = Inputs(
            self, self._worker, values.depth_transport, values.qos_reliability, problems.report
        )
        self._inputs.subscribe()
        self._monitor.start_watching(self._worker, self._inputs.topics, values)
        topics = ', '.join(topic.topic for topic in self._inputs.topics.values())
        self.get_logger().info(f'active, subscribed to {topics}')
        if values.bond_enabled:
            self._bond = Bond(self, values.bond_heartbeat_period_s)
        return result

    @_guarded
    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Unsubscribe, and let the detections that wait finish."""
        self._stop()
        return super().on_deactivate(state)

    @_guarded
    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything that configure created."""
        self._release()
        return super().on_cleanup(state)

    @_guarded
    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything."""
        self._release()
        return super().on_shutdown(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Become unconfigured, so that configure can try again. Everything is free already."""
        super().on_error(state)
        return TransitionCallbackReturn.SUCCESS

    def close(self) -> int:
        """Free everything at the end of the process. Return the exit code."""
        self._release()
        self.destroy_node()
        return 0

    def _stop(self) -> None:
        inputs, self._inputs = self._inputs, None
        if inputs is not None:
            inputs.close()
        if self._worker is not None:
            self._worker.stop()
            self._monitor.stop_watching()
            self._worker = None
        bond, self._bond = self._bond, None
        if bond is not None:
            bond.close()

    def _release(self) -> None:
        self._stop()
        outputs, self._outputs = self._outputs, {}
        for publisher in outputs.values():
            self.destroy_publisher(publisher)
        subscription, self._label_info = self._label_info, None
        if subscription is not None:
            self.destroy_subscription(subscription)
        self._class_ids = {}

    def _set_classes(self, message: LabelInfo) -> None:
        self._class_ids = {each.class_name: each.class_id for each in message.class_map}

    def _publish(self, located: LocatedImage) -> None:
        """Publish the objects of an image. Called in the worker's thread."""
        header = located.header
        message: Any = detections_3d_message(header, located.objects)
        self._outputs[DETECTIONS_3D].publish(message)
        if located.keypoints is not None:
            points = keypoints_3d_message(header, located.keypoints)
            self._outputs[KEYPOINTS_3D].publish(points)
        markers = self._outputs[MARKERS]
        if markers.get_subscription_count():
            markers.publish(markers_message(header, located.objects, self._class_ids))

    def _log_trace(self, trace: str) -> None:
        self.get_logger().error(log_text(trace), throttle_duration_sec=5.0)

    def _apply_parameters(self) -> None:
        self._monitor.set_parameters(self.values)
        if self._worker is not None:
            self._worker.set_parameters(self.values)

    def set_parameters(self, parameter_list: list[Parameter]) -> list[SetParametersResult]:
        """Set each parameter alone, like the service of this name."""
        return [self.set_parameters_atomically([parameter]) for parameter in parameter_list]

    def set_parameters_atomically(self, parameter_list: list[Parameter]) -> SetParametersResult:
        """Set parameters. Services call this method. A refusal names parameter, rule and value."""
        # rclpy's messages for a wrong type or an unknown name do not name the parameter.
        try:
            changes = self._node_parameters.read_changes(parameter_list)
        except ConfigError as error:
            return SetParametersResult(successful=False, reason=str(error))
        result: SetParametersResult = super().set_parameters_atomically(changes)
        return result
