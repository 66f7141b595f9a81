# SPDX-License-Identifier: Apache-2.0
"""Configures and activates a node at its start, and tries again after faults.

An attempt has these steps, in this order:

* `Autostart._attempt`: a timer starts the attempt in the executor.
* `Autostart._open`: a thread opens the model, so that the executor is not blocked.
* `Autostart._on_opened`: the executor runs *configure*, which calls `pop_opened_model`.
* `Autostart._activate`: the executor runs *activate*.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from rclpy.lifecycle import LifecycleNode, TransitionCallbackReturn
from rclpy.timer import Timer

from trt_perception.files.plain_text import counted
from trt_perception.monitoring.file_watch import FileWatch
from trt_perception.parameters.camera import NodeParameters
from trt_perception.pipelines.pipeline import Pipeline
from trt_perception.pipelines.warm_up import OpenPipeline, open_warm_pipelines
from trt_perception.process.interruption import is_interrupted
from trt_perception.process.tool_command import ros2_command
from trt_perception.ros.runtime.log import log_text
from trt_perception.ros.runtime.timers import steady_timer

# Seconds before each attempt after a failure. The last value repeats.
_DELAYS_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
# Seconds from the first failure to the first summary of failures with one error. Each following
# interval is twice as long, up to the second value.
_FIRST_SUMMARY_S: Final = 60.0
_LONGEST_SUMMARY_S: Final = 3600.0
# After this time of activity without a fault, the delays start at the first value again.
_STABLE_S: Final = 60.0


@dataclass(frozen=True)
class OpenModel:
    """A model that is open on each GPU, ready for *configure*.

    Attributes:
        file: detects changes of the model file since just before it was read.
        pipelines: one for each GPU, or one on the CPU. The owner closes them.
        frame_time_s: seconds that a frame took in the slowest pipeline, in the warm-up.
    """

    file: FileWatch
    pipelines: list[Pipeline]
    frame_time_s: float


def open_model(node_parameters: NodeParameters, open_pipeline: OpenPipeline) -> OpenModel:
    """Open the model of a node on each GPU, and run it once in each slot.

    Raises:
        TrtPerceptionError: the model cannot be used. All pipelines are closed.
    """
    parameters = node_parameters.node
    # Before the file is read, so that any later write counts as a change.
    file = FileWatch(parameters.engine_path)
    # doctor makes the same calls, so that it finds the same faults.
    pipelines, frame_time_s = open_warm_pipelines(
        parameters.engine_path,
        node_parameters.pipeline_options(),
        open_pipeline,
        device_ids=parameters.device_ids,
        cameras=max(1, len(parameters.cameras)),
    )
    return OpenModel(file, pipelines, frame_time_s)


class AutostartOwner(Protocol):
    """The methods and attributes of the node that Autostart needs. DetectorNode implements them.

    Attributes:
        needs_parameter: whether the last transition failed because of the value of a parameter.
    """

    needs_parameter: bool

    @property
    def node_parameters(self) -> NodeParameters:
        """The current values of the parameters. A change replaces the object."""

    @property
    def state_label(self) -> str:
        """Label of the lifecycle state."""

    @property
    def is_gpu_lost(self) -> bool:
        """Whether only a new process can use the GPU."""

    def open_model(self, node_parameters: NodeParameters) -> OpenModel:
        """Open the model with these parameters. Called in a thread. Raises if this fails."""

    def close_model(self, model: OpenModel) -> None:
        """Close all pipelines of a model that *configure* did not take. Reports errors."""

    def show_attempt(self, text: str) -> None:
        """Show on /diagnostics how the node reacts to its error; '' shows nothing."""


@dataclass
class _Opening:
    """A model that a thread opens, and the result of the thread."""

    node_parameters: NodeParameters
    thread: threading.Thread | None = None
    is_done: bool = False
    model: OpenModel | None = None
    error: BaseException | None = None


class Autostart:
    """Configures and activates a node, and tries again after faults.

    All methods run in the executor. A transition from outside ends the attempts, until the next
    fault of an active node. After a ConfigError, the next attempt waits for a changed parameter.

    Args:
        node: makes the transitions and owns the timers.
        owner: the same node, which opens models and shows attempts.
        clock: returns the time in seconds. The time never decreases.
    """

    def __init__(
        self,
        node: LifecycleNode,
        owner: AutostartOwner,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._owner = owner
        self._clock = clock
        self._timer: Timer | None = None
        self._opening: _Opening | None = None
        self._opened_signal = node.create_guard_condition(self._on_opened)
        self._is_own_transition = False
        self._waits_for_parameter = False
        self._failures = 0  # since the delays last started at the first value
        # The error of the last attempt; empty if the next error must be logged.
        self._error = ''
        self._is_repeated = False  # whether the last two attempts failed with one error
        self._failing_since_s = self._summary_due_s = 0.0
        self._active_since_s: float | None = None

    def start(self) -> None:
        """Make the first attempt as soon as the executor runs."""
        self._start_timer(0.0)

    @property
    def repeats_an_error(self) -> bool:
        """Whether the next attempt follows a failure, and nothing has changed since then."""
        return bool(self._error)

    def is_news(self, error: str) -> bool:
        """Return whether to log the error of a transition, and remember the error.

        Attempts that fail with one error log this error once.
        """
        self._is_repeated = self._is_own_transition and error == self._error
        if not self._is_repeated:
            self._error = error if self._is_own_transition else ''
            self._failing_since_s = self._clock()
            self._summary_due_s = self._failing_since_s + _FIRST_SUMMARY_S
        return not self._is_repeated

    def on_fault(self) -> None:
        """Start the attempts after a fault, if the parameter autostart is true."""
        self._forget_error()
        if self._owner.node_parameters.node.autostart:
            self._schedule()

    def on_parameters_changed(self) -> None:
        """Attempt again if the attempts wait for a changed parameter.

        If autostart was switched off, end the attempts. The next error is logged, even if it is
        the same.
        """
        self._forget_error()
        if not self._owner.node_parameters.node.autostart:
            if self._opening is None:  # otherwise `_on_opened` ends them when the thread is done
                self.stop()
        elif self._waits_for_parameter:
            self._waits_for_parameter = False
            self._start_timer(0.0)

    def on_transition(self) -> None:
        """End the attempts if a transition comes from outside. Wait for the loading thread."""
        if not self._is_own_transition:
            self.stop()

    def stop(self) -> None:
        """End the attempts, and free a model that was opened for them. May be called again."""
        self._waits_for_parameter = False
        self._forget_error()
        self._failures, self._active_since_s = 0, None
        self._stop_timer()
        self._owner.show_attempt('')
        self._discard_model()

    @contextmanager
    def own_transition(self) -> Iterator[None]:
        """Mark the transitions inside the block as the node's own. They do not end attempts."""
        self._is_own_transition = True
        try:
            yield
        finally:
            self._is_own_transition = False

    def pop_opened_model(self) -> OpenModel | None:
        """Return the model that was opened for this *configure*; None if there is none.

        Raises:
            Exception: the error that opening the model raised.
        """
        if self._opening is None:
            return None
        if self._opening.error is not None:
            raise self._opening.error
        model, self._opening.model = self._opening.model, None
        return model

    def _attempt(self) -> None:
        self._stop_timer()
        if not self._owner.node_parameters.node.autostart:
            self.stop()
            return
        if self._owner.state_label == 'inactive':
            self._activate()
        if self._owner.state_label != 'unconfigured':
            return
        self._owner.show_attempt('loading the model')
        opening = self._opening = _Opening(self._owner.node_parameters)
        thread = threading.Thread(
            target=self._open_model, args=(opening,), name='open_model', daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the system cannot start a thread: load in the executor
            self._open_model(opening)
        else:
            opening.thread = thread

    def _open_model(self, opening: _Opening) -> None:
        """Open the model. This method runs in a thread."""
        try:
            opening.model = self._owner.open_model(opening.node_parameters)
        except BaseException as error:
            opening.error = error
        opening.is_done = True
        self._opened_signal.trigger()

    def _on_opened(self) -> None:
        opening = self._opening
        if opening is None or not opening.is_done:
            return  # the signal belongs to a discarded model
        if opening.node_parameters.fixed_values() != self._owner.node_parameters.fixed_values():
            self._discard_model()
            self._attempt()
            return
        with self.own_transition():
            result = self._node.trigger_configure()
        self._discard_model()  # needed if configure failed before it took the model
        if result == TransitionCallbackReturn.SUCCESS:
            self._activate()
        else:
            self._schedule()

    def _activate(self) -> None:
        with self.own_transition():
            result = self._node.trigger_activate()
        if result == TransitionCallbackReturn.SUCCESS:
            self._active_since_s = self._clock()
            self._forget_error()
            self._owner.show_attempt('')
        else:
            self._schedule()

    def _schedule(self) -> None:
        """Log and show when the next attempt is made, and start its timer."""
        name, state = self._node.get_fully_qualified_name(), self._owner.state_label
        if self._owner.is_gpu_lost or is_interrupted() or state == 'finalized':
            return
        if self._owner.needs_parameter:
            self._waits_for_parameter = True
            command = ros2_command('param', 'set', name, 'NAME', 'VALUE')
            text = f'{state} until a parameter changes: {command}'
            self._owner.show_attempt(text)
            self._node.get_logger().warning(text)
            return
        since_s, self._active_since_s = self._active_since_s, None
        if since_s is not None and self._clock() - since_s >= _STABLE_S:
            self._failures = 0
        self._failures += 1
        delay_s = _DELAYS_S[min(self._failures, len(_DELAYS_S)) - 1]
        self._start_timer(delay_s)
        count = counted(self._failures, 'attempt')
        self._owner.show_attempt(f'{state} after {count}; the next follows in {delay_s:g} s')
        if not self._is_repeated:
            self._node.get_logger().warning(
                f'{state}; the next attempt follows in {delay_s:g} s. '
                'Attempts that fail with the same error are not logged'
            )
        elif (now_s := self._clock()) >= self._summary_due_s:
            failing_s = now_s - self._failing_since_s
            self._summary_due_s = now_s + min(failing_s, _LONGEST_SUMMARY_S)
            summary = f'{state} after {count} with the same error, since {failing_s:.0f} s'
            self._node.get_logger().warning(log_text(f'{summary}: {self._error}'))

    def _forget_error(self) -> None:
        self._error, self._is_repeated = '', False

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = steady_timer(self._node, seconds, self._attempt)

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            self._node.destroy_timer(timer)

    def _discard_model(self) -> None:
        """Wait until the thread has ended, and close a model that *configure* did not take."""
        opening, self._opening = self._opening, None
        if opening is None:
            return
        if opening.thread is not None:
            opening.thread.join()
        if opening.model is not None:
            self._owner.close_model(opening.model)
