# SPDX-License-Identifier: Apache-2.0
"""The lifecycle node that turns the images of one or several cameras into results.

configure loads the model, and activate subscribes. deactivate lets frames in flight finish, and
cleanup frees everything. NodeCamera holds the parts of one camera.
"""

from __future__ import annotations

import functools
import math
import traceback
from collections.abc import Callable
from typing import Any, Final

from rcl_interfaces.msg import SetParametersResult
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter

from trt_perception.errors import ConfigError, CudaError, InterruptionError, TrtPerceptionError
from trt_perception.files.plain_text import escape_controls, join_first_items
from trt_perception.parameters.camera import NodeParameters
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.open_pipeline import open_pipeline
from trt_perception.pipelines.pipeline import Pipeline
from trt_perception.pipelines.warm_up import OpenPipeline
from trt_perception.process.tool_command import ros2_command
from trt_perception.ros.autostart import Autostart, OpenModel, open_model
from trt_perception.ros.camera.camera import NodeCamera, subscriptions_text
from trt_perception.ros.camera.tracks import CameraTracks
from trt_perception.ros.camera.transport_choice import choose_transports, simplejpeg_advice
from trt_perception.ros.intake.buffers import MessageBuffers
from trt_perception.ros.intake.participants import ImageParticipants
from trt_perception.ros.intake.shared_intake import SharedIntake
from trt_perception.ros.keypoint_parameters import KeypointParameters
from trt_perception.ros.node_monitor import NodeMonitor
from trt_perception.ros.parameters import DeclaredParameters
from trt_perception.ros.runtime.bond import Bond, check_bond
from trt_perception.ros.runtime.log import NodeLog, log_text
from trt_perception.ros.topics import check_topics
from trt_perception.scheduling.worker_pool import WorkerPool

#: Exit code of a process whose GPU context is lost.
EXIT_GPU_LOST: Final = 1

_Transition = Callable[['DetectorNode', LifecycleState], TransitionCallbackReturn]


def _guarded(
    on_failure: TransitionCallbackReturn, undo: Callable[[DetectorNode], object] | None = None
) -> Callable[[_Transition], _Transition]:
    """Decorate a transition to handle its exceptions, which rclpy does not report.

    After an exception, the decorated transition reports the exception, calls `undo` and returns
    `on_failure`.
    """

    def decorate(transition: _Transition) -> _Transition:
        @functools.wraps(transition)
        def run(self: DetectorNode, state: LifecycleState) -> TransitionCallbackReturn:
            try:
                self._autostart.on_transition()
                return transition(self, state)
            except Exception as error:
                is_news = self._autostart.is_news(str(error))
                self._report_failure(transition.__name__, error, is_logged=is_news)
            if undo is not None:
                undo(self)
            self._monitor.publish_soon()
            return on_failure

        return run

    return decorate


class DetectorNode(LifecycleNode):
    """A detector for one or several cameras. Implements FaultHandler and AutostartOwner.

    Attributes:
        needs_parameter: whether the last transition failed because of the value of a parameter.

    Raises:
        ConfigError: a start parameter is unknown or has an invalid value, or two topics resolve
            to the same name.
    """

    def __init__(
        self,
        *,
        open_pipeline: OpenPipeline = open_pipeline,
        **options: Any,
    ) -> None:
        super().__init__('detector', **options)
        self._log = NodeLog(self.get_logger())
        self._open_pipeline = open_pipeline
        # on_configure creates these objects; _release frees them.
        self._pipelines: list[Pipeline] = []
        self._frame_time_s = 0.0  # seconds of a frame in the warm-up
        self._cameras: list[NodeCamera] = []
        # By name of the camera. They are never removed, so that no id is given twice.
        self._tracks: dict[str, CameraTracks] = {}
        self._participants = ImageParticipants(self)
        # on_activate creates the pool and the bond; _stop frees them.
        self._pool: WorkerPool[Any] | None = None
        self._bond: Bond | None = None
        self._monitor = NodeMonitor(self, self._log, self)
        self._fault: BaseException | None = None
        self.needs_parameter = False
        self._declared_parameters = DeclaredParameters(
            self,
            is_configured=lambda: bool(self._pipelines),
            check=self._check_parameters,
            apply=lambda *_: self._apply_parameters(),
        )
        self._keypoint_parameters = KeypointParameters(self)
        check_topics(self, self._camera_names)
        # A worker only triggers this condition, so that the transition runs in the executor.
        self._fault_signal = self.create_guard_condition(self._on_fault_signal)
        self._autostart = Autostart(self, self)
        if self.parameters.autostart:
            self._autostart.start()
        else:
            command = ros2_command(
                'lifecycle', 'set', self.get_fully_qualified_name(), 'configure'
            )
            self.get_logger().info(
                f'unconfigured, as autostart is false: {command}, then activate'
            )

    @property
    def parameters(self) -> ParameterValues:
        """The current values of the parameters."""
        return self._declared_parameters.parameters

    @property
    def node_parameters(self) -> NodeParameters:
        """The current values of the parameters of the node and of each camera."""
        return self._declared_parameters.node_parameters

    @property
    def _camera_names(self) -> tuple[str, ...]:
        """Names of the cameras; one empty name if the node has only one camera."""
        return self.parameters.cameras or ('',)

    @property
    def state_label(self) -> str:
        """Label of the lifecycle state."""
        return str(self._state_machine.current_state[1])

    # Transitions, in the order of the lifecycle.

    @_guarded(on_failure=TransitionCallbackReturn.FAILURE, undo=lambda node: node._release())
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load the model and create the publishers. FAILURE leaves the node unconfigured."""
        self._clear_fault()
        names = self._camera_names
        check_topics(self, names)
        self._monitor.start_publishing(self.parameters.diagnostics_period_s)
        check_bond(self.parameters, autostart=self.parameters.autostart)
        model = self._autostart.pop_opened_model() or self.open_model(self.node_parameters)
        self._pipelines, self._frame_time_s = model.pipelines, model.frame_time_s
        self._participants.start(self.node_parameters)
        self.node_parameters.check(self._check_parameters)
        for number, name in enumerate(names):
            index = number % len(self._pipelines)
            parameters = self._declared_parameters.camera_parameters(name)
            tracks = self._tracks.setdefault(name, CameraTracks(self, name))
            self._cameras.append(
                NodeCamera(self, name, parameters, self._pipelines[index], index, tracks)
            )
        self._monitor.set_cameras([camera.monitor for camera in self._cameras])
        if advice := simplejpeg_advice([camera.parameters for camera in self._cameras]):
            self.get_logger().warning(advice)
        spec = self._pipelines[0].spec
        self._monitor.set_model(model.file, self._pipelines[0])
        self._keypoint_parameters.declare(spec.task)
        source = 'manifest' if spec.has_manifest else 'model itself'
        overridden = self.parameters.model_overrides().has_values
        self.get_logger().info(
            f'configured: {log_text(model.file.path)}, {spec.task.summary(spec.class_names)}, '
            f'{spec.decoder}; {spec.preprocessing.summary()} '
            f'(as the {source} {"and the parameters say" if overridden else "says"})'
        )
        return super().on_configure(state)

    @_guarded(on_failure=TransitionCallbackReturn.FAILURE, undo=lambda node: node._stop())
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start the worker and subscribe. FAILURE leaves the node inactive."""
        self._clear_fault()
        decodes_jpeg = self._pipelines[0].decodes_jpeg
        choices = choose_transports(self, self.node_parameters.plans(), decodes_jpeg=decodes_jpeg)
        self._pool = WorkerPool(
            self._pipelines,
            [
                camera.create_pool_camera(choice)
                for camera, choice in zip(self._cameras, choices, strict=True)
            ],
            fault_handler=self,
            batch_max_delay_s=self.parameters.batch_max_delay_ms * 1e-3,
        )
        self._pool.start()
        self._subscribe(self._pool)
        if self.parameters.bond_enabled:
            self._bond = Bond(self, self.parameters.bond_heartbeat_period_s)
        return super().on_activate(state)

    def _subscribe(self, pool: WorkerPool[Any]) -> None:
        """Subscribe to the images of all cameras, and start watching the cameras."""
        intake = SharedIntake(
            self,
            functools.partial(MessageBuffers, self._pipelines[0].allocate),
            self._participants.ready(),
            uses_rclpy=self.parameters.image_intake == 'rclpy',
            fault_handler=self,
        )
        # A frame may wait for the turns of all other cameras of its pipeline.
        at_once = sum(pipeline.batch for pipeline in self._pipelines)
        batches_per_turn = math.ceil(len(self._cameras) / at_once)
        topics = [
            camera.subscribe(intake, pool, index, self._frame_time_s, batches_per_turn)
            for index, camera in enumerate(self._cameras)
        ]
        gpus = self.parameters.device_ids[: len(self._pipelines)]
        self._monitor.start_watching(pool, [camera.monitor for camera in self._cameras], gpus)
        self.get_logger().info(subscriptions_text(self._cameras, topics, intake.description))

    @_guarded(on_failure=TransitionCallbackReturn.ERROR)
    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Unsubscribe and let the frames in flight finish.

        After a fault the result is ERROR, and on_error cleans up.
        """
        result = super().on_deactivate(state)
        well = self._stop()
        return result if well and self._fault is None else TransitionCallbackReturn.ERROR

    @_guarded(on_failure=TransitionCallbackReturn.ERROR)
    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything that configure created.

        The result is ERROR if a part could not be freed. The node is then unconfigured, too.
        """
        self._clear_fault()
        if not self._release():
            return TransitionCallbackReturn.ERROR
        gone = join_first_items(self._declared_parameters.reset_camera_values())
        forgotten = f'; per-camera parameters were reset: {gone}' if gone else ''
        self.get_logger().info(f'cleaned up{forgotten}')
        return super().on_cleanup(state)

    @_guarded(on_failure=TransitionCallbackReturn.FAILURE, undo=lambda node: node._release())
    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything. The node becomes finalized, even after a FAILURE."""
        well = self._release()
        return super().on_shutdown(state) if well else TransitionCallbackReturn.FAILURE

    @_guarded(on_failure=TransitionCallbackReturn.FAILURE)
    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything. SUCCESS leads to unconfigured, so that configure can try again."""
        self._release()
        self._monitor.publish_soon()
        super().on_error(state)
        if not self.parameters.autostart:
            self.get_logger().error(
                'unconfigured after a fault; configure and activate again to go on'
            )
        return TransitionCallbackReturn.SUCCESS

    @property
    def is_gpu_lost(self) -> bool:
        """Whether the GPU context is lost. Only a new process gets a working context."""
        return isinstance(self._fault, CudaError) and self._fault.sticky

    def close(self) -> int:
        """Free everything at the end of the process, in any state. Return the exit code."""
        if self.is_gpu_lost:
            self.get_logger().fatal(
                'the GPU context is lost and cannot be repaired inside a process: exiting, '
                'so that launch starts a new process'
            )
            self._call_each(self._monitor.publish_and_wait)
            return EXIT_GPU_LOST
        self._call_each(self._autostart.stop)
        self._release()
        self._call_each(self._log.close, self.destroy_node)
        return EXIT_GPU_LOST if self.is_gpu_lost else 0

    def on_fault(self, error: BaseException) -> None:
        """Report the exception that ended a thread, and let the executor deactivate the node."""
        self._fault = self._fault or error
        self._report_with_traceback('stopped by a fault', error)
        self._fault_signal.trigger()

    def _on_fault_signal(self) -> None:
        if self._fault is not None and not self.is_gpu_lost and self.state_label == 'active':
            with self._autostart.own_transition():
                self.trigger_deactivate()
            self._autostart.on_fault()

    # Steps of the transitions.

    def open_model(self, node_parameters: NodeParameters) -> OpenModel:
        """Open the model with these parameters. Any thread may call this method."""
        if not self._autostart.repeats_an_error:
            self._log.clear_shown_warnings()
        return open_model(node_parameters, self._open_pipeline)

    def close_model(self, model: OpenModel) -> None:
        """Close all pipelines of a model that *configure* did not take. Reports errors."""
        self._call_each(*(pipeline.close for pipeline in model.pipelines))

    def show_attempt(self, text: str) -> None:
        """Show on /diagnostics how the node reacts to its error; '' shows nothing."""
        if text != self._monitor.attempt:
            self._monitor.attempt = text
            self._monitor.publish_soon()

    def report(self, error: str, trace: str = '') -> None:
        """Log an error with its traceback. The diagnostics show the first error."""
        said = escape_controls(error.strip())
        self._monitor.error = self._monitor.error or said
        self.get_logger().error(log_text(f'{said}\n{trace}'.strip()))

    def _clear_fault(self) -> None:
        """Forget the error and the fault of earlier transitions."""
        self._monitor.error = ''
        self._fault = None
        self.needs_parameter = False

    def _report_failure(self, what: str, error: Exception, *, is_logged: bool = True) -> None:
        """Report the exception of a transition, or of one of its steps.

        Args:
            is_logged: whether to log an error; the diagnostics show the error in any case.
        """
        self.needs_parameter = isinstance(error, ConfigError)
        if isinstance(error, InterruptionError):
            self.get_logger().info(f'{what} {error}')
            return
        if isinstance(error, CudaError) and error.sticky:
            self._fault = error
        if not is_logged:
            self._monitor.error = self._monitor.error or escape_controls(str(error).strip())
        elif isinstance(error, TrtPerceptionError):
            self.report(str(error))
        else:
            self._report_with_traceback(f'{what} failed', error)

    def _report_with_traceback(self, what: str, error: BaseException) -> None:
        trace = ''.join(traceback.format_exception(error))
        self.report(f'{what}: {type(error).__name__}: {error}', trace)

    def _call_each(self, *parts: Callable[[], object]) -> bool:
        """Call all functions and report each exception. Return whether all succeeded."""
        well = True
        for part in parts:
            try:
                part()
            except Exception as error:  # noqa: PERF203
                self._report_failure(part.__name__.strip('_'), error)
                well = False
        return well

    # A part that cannot be closed is dropped. Only the pool is kept until it has stopped.

    def _stop(self) -> bool:
        """Undo activate. Return whether all steps succeeded. May be called again."""
        return self._call_each(
            *(camera.close_input for camera in self._cameras), self._stop_workers, self._end_bond
        )

    def _release(self) -> bool:
        """Undo activate and configure. Return whether all steps succeeded. May be called again."""
        stopped = self._stop()
        self._monitor.forget_model()
        self._keypoint_parameters.undeclare()
        cameras, self._cameras = self._cameras, []
        pipelines, self._pipelines = self._pipelines, []
        freed = self._call_each(
            self._participants.close,
            *(camera.close_publishers for camera in cameras),
            *(pipeline.close for pipeline in pipelines),
        )
        return stopped and freed

    def _stop_workers(self) -> None:
        if self._pool is not None:
            self._pool.stop()
            self._monitor.stop_watching()
            self._pool = None

    def _end_bond(self) -> None:
        bond, self._bond = self._bond, None
        if bond is not None:
            bond.close()

    # Changes of parameters.

    def set_parameters(self, parameter_list: list[Parameter]) -> list[SetParametersResult]:
        """Set each parameter alone, like the service of this name."""
        return [self.set_parameters_atomically([parameter]) for parameter in parameter_list]

    def set_parameters_atomically(self, parameter_list: list[Parameter]) -> SetParametersResult:
        """Set parameters. Services call this method. A refusal names parameter, rule and value.

        The reason of a success names the camera parameters that override a changed value.
        """
        # rclpy's messages for a wrong type or an unknown name do not name the parameter.
        try:
            changes = self._declared_parameters.read_changes(parameter_list)
        except ConfigError as error:
            return SetParametersResult(successful=False, reason=str(error))
        result: SetParametersResult = super().set_parameters_atomically(changes)
        if result.successful:
            result.reason = self._declared_parameters.overriding_cameras(parameter_list)
        return result

    def _check_parameters(self, parameters: ParameterValues) -> None:
        for pipeline in self._pipelines[:1]:
            parameters.thresholds(pipeline.spec.class_names, pipeline.spec.task)

    def _apply_parameters(self) -> None:
        for camera in self._cameras:
            camera.apply_parameters(self._declared_parameters.camera_parameters(camera.name))
        self._autostart.on_parameters_changed()
