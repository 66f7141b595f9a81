# SPDX-License-Identifier: Apache-2.0
"""Test the attempts of a node to configure itself, on the test's own clock."""

import queue
import threading

import pytest
from rclpy.lifecycle import TransitionCallbackReturn

from trt_perception.errors import ConfigError, CudaError, EngineError
from trt_perception.parameters.camera import NodeParameters
from trt_perception.parameters.values import ParameterValues
from trt_perception.ros.autostart import Autostart, OpenModel

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings('error::pytest.PytestUnhandledThreadExceptionWarning'),
]
AUTOSTART = ParameterValues(autostart=True)


class Pipeline:
    is_closed = False

    def close(self):
        self.is_closed = True


class Signal:
    """Replaces a guard condition, which a thread triggers."""

    def __init__(self, calls, callback):
        self.trigger = lambda: calls.put(callback)


class FakeNode:
    """Replaces the lifecycle node and the AutostartOwner. Steps fail with the prepared errors."""

    def __init__(self):
        self.node_parameters = NodeParameters(AUTOSTART)
        self.state_label = 'unconfigured'
        self.needs_parameter = self.is_gpu_lost = False
        self.errors = {}  # Errors to raise, by step: 'open', 'configure' or 'activate'.
        self.opened = []  # Opened models: (engine_path, pipeline).
        self.attempts = []  # Texts of `show_attempt`.
        self.logged = []
        self.reported = []  # Errors of transitions that were news.
        self.time_s = 0.0
        self.timers = []
        self.may_open = threading.Event()
        self.may_open.set()
        self._calls = queue.Queue()
        self.autostart = Autostart(self, self, clock=lambda: self.time_s)

    # Methods of the node.

    def create_timer(self, period_s, callback, clock):
        self.timers.append((period_s, callback))
        return self.timers[-1]

    def destroy_timer(self, timer):
        self.timers.remove(timer)

    def create_guard_condition(self, callback):
        return Signal(self._calls, callback)

    def get_fully_qualified_name(self):
        return '/detector'

    def get_logger(self):
        return self

    def warning(self, text):
        self.logged.append(text)

    def trigger_configure(self):
        self.autostart.on_transition()
        self.needs_parameter = False
        try:
            if 'configure' in self.errors:
                raise self.errors['configure']
            model = self.autostart.pop_opened_model()
        except (ConfigError, CudaError, EngineError) as error:
            if self.autostart.is_news(str(error)):
                self.reported.append(str(error))
            self.needs_parameter = isinstance(error, ConfigError)
            self.is_gpu_lost = isinstance(error, CudaError)
            return TransitionCallbackReturn.FAILURE
        assert not model.pipelines[0].is_closed
        self.state_label = 'inactive'
        return TransitionCallbackReturn.SUCCESS

    def trigger_activate(self):
        self.autostart.on_transition()
        if 'activate' in self.errors:
            return TransitionCallbackReturn.FAILURE
        self.state_label = 'active'
        return TransitionCallbackReturn.SUCCESS

    # Methods of the AutostartOwner.

    def open_model(self, node_parameters):
        assert self.may_open.wait(20)
        if 'open' in self.errors:
            raise self.errors['open']
        pipeline = Pipeline()
        self.opened.append((node_parameters.node.engine_path, pipeline))
        return OpenModel(None, [pipeline], 0.1)

    def close_model(self, model):
        for pipeline in model.pipelines:
            pipeline.close()

    def show_attempt(self, text):
        self.attempts.append(text)

    # Methods that the test calls.

    def fire(self):
        """Let the only timer fire, and return its period."""
        [(period_s, callback)] = self.timers
        callback()
        return period_s

    def run_executor(self):
        """Run the callback that the model-loading thread requested."""
        self._calls.get(timeout=20)()

    def attempt(self):
        """Make the next attempt, and return the seconds that the node waited before it."""
        period_s = self.fire()
        self.run_executor()
        return period_s

    def break_down(self):
        """Let a fault end the activation."""
        self.state_label = 'unconfigured'
        self.autostart.on_fault()


@pytest.fixture
def node():
    node = FakeNode()
    yield node
    node.may_open.set()
    node.autostart.stop()


@pytest.fixture
def active(node):
    node.autostart.start()
    assert node.attempt() == 0
    assert node.state_label == 'active'
    return node


@pytest.mark.parametrize('step', ['open', 'configure'])
def test_delays_grow_after_each_failure(node, step):
    node.errors[step] = EngineError('model.onnx', 'cannot be opened')
    node.autostart.start()

    assert [node.attempt() for _ in range(8)] == [0, 1, 2, 5, 10, 30, 30, 30]

    assert node.attempts[-1] == 'unconfigured after 8 attempts; the next follows in 30 s'
    assert [text for text in node.attempts if '1 attempt;' in text]
    assert all(pipeline.is_closed for _, pipeline in node.opened)
    node.errors.clear()
    node.attempt()
    assert node.state_label == 'active'
    assert not node.timers
    assert node.attempts[-1] == ''


def fail_for(node, seconds):
    """Let attempts fail for some time. Each takes 1 s of it."""
    end_s = node.time_s + seconds
    while node.time_s < end_s:
        node.time_s += 1 + node.attempt()


def test_one_error_is_logged_once_and_summarised_at_growing_intervals(node):
    node.errors['open'] = EngineError('wrong.onnx', 'cannot be opened')
    node.autostart.start()

    fail_for(node, 50)
    assert (len(node.reported), len(node.logged)) == (1, 1)
    attempts = len(node.attempts)
    fail_for(node, 4 * 3600)

    assert len(node.reported) == 1
    # After 1, 2, 4, … 64 minutes, then each hour: ten summaries in four hours.
    assert 8 <= len(node.logged) - 1 <= 11
    assert all('wrong.onnx' in text for text in node.logged[1:])
    assert len(node.attempts) - attempts > 4 * 3600 / 31


@pytest.mark.parametrize('change', ['error', 'parameter', 'fault', 'transition'])
def test_error_is_logged_again_after_a_change(node, change):
    node.errors['open'] = EngineError('wrong.onnx', 'cannot be opened')
    node.autostart.start()
    fail_for(node, 100)
    assert len(node.reported) == 1

    if change == 'error':
        node.errors['open'] = EngineError('wrong.onnx', 'is not an ONNX model')
    elif change == 'parameter':
        node.autostart.on_parameters_changed()
    elif change == 'transition':
        node.autostart.on_transition()
        node.autostart.start()
    else:
        node.errors.clear()
        node.attempt()
        node.errors['open'] = EngineError('wrong.onnx', 'cannot be opened')
        node.break_down()
    fail_for(node, 10)

    assert len(node.reported) == 2


@pytest.mark.parametrize(('active_s', 'expected'), [(59, [1, 2, 5]), (60, [1, 1, 1])])
def test_delays_start_again_after_a_minute_of_activity(active, active_s, expected):
    delays = []
    for _ in expected:
        active.time_s += active_s
        active.break_down()
        delays.append(active.attempt())
        assert active.state_label == 'active'

    assert delays == expected


def test_executor_is_free_while_the_model_is_loaded(node):
    node.may_open.clear()
    node.autostart.start()

    node.fire()

    assert not node.opened
    assert node.state_label == 'unconfigured'
    node.may_open.set()
    node.run_executor()
    assert node.state_label == 'active'


def test_transition_from_outside_ends_the_attempts(active):
    active.break_down()

    active.autostart.on_transition()

    assert not active.timers
    assert active.attempts[-1] == ''
    active.autostart.on_parameters_changed()
    assert not active.timers


def test_transition_from_outside_frees_a_model_that_is_loaded(active):
    active.break_down()
    active.fire()

    active.autostart.on_transition()

    assert [pipeline.is_closed for _, pipeline in active.opened] == [False, True]
    active.run_executor()  # handle the signal of the loading thread
    assert active.state_label == 'unconfigured'
    assert active.autostart.pop_opened_model() is None


@pytest.mark.parametrize('step', ['open', 'configure'])
def test_attempt_after_a_config_error_waits_for_a_parameter(node, step):
    node.errors[step] = ConfigError('class_filter', "'dog'")
    node.autostart.start()
    node.attempt()
    assert not node.timers
    assert 'ros2 param set /detector' in node.attempts[-1]

    node.errors.clear()
    node.autostart.on_parameters_changed()

    assert node.attempt() == 0
    assert node.state_label == 'active'


def test_parameters_that_change_during_the_load_are_used(node):
    node.may_open.clear()
    node.autostart.start()
    node.fire()
    node.node_parameters = NodeParameters(
        ParameterValues(autostart=True, engine_path='other.onnx')
    )
    node.may_open.set()

    node.run_executor()
    node.run_executor()

    assert [(path, p.is_closed) for path, p in node.opened] == [('', True), ('other.onnx', False)]
    assert node.state_label == 'active'


def test_live_parameters_do_not_load_the_model_again(node):
    # Otherwise a program that sets such a parameter often would keep the node from starting.
    node.may_open.clear()
    node.autostart.start()
    node.fire()
    node.node_parameters = NodeParameters(
        ParameterValues(autostart=True, confidence_threshold=0.7)
    )
    node.may_open.set()

    node.run_executor()

    assert node.state_label == 'active'
    assert len(node.opened) == 1


def test_autostart_that_is_switched_off_ends_the_attempts(active):
    active.break_down()
    active.node_parameters = NodeParameters(ParameterValues())

    active.autostart.on_parameters_changed()

    assert not active.timers
    assert active.attempts[-1] == ''


def test_autostart_that_is_switched_off_during_the_load_ends_the_attempts(active):
    active.break_down()
    active.may_open.clear()
    active.fire()
    active.node_parameters = NodeParameters(ParameterValues())
    active.autostart.on_parameters_changed()
    active.may_open.set()

    active.run_executor()

    assert [pipeline.is_closed for _, pipeline in active.opened] == [False, True]
    assert active.state_label == 'unconfigured'
    assert not active.timers
    assert active.attempts[-1] == ''


def test_attempt_after_a_changed_parameter_is_shown(node):
    node.errors['open'] = ConfigError('class_filter', "'dog'")
    node.autostart.start()
    node.attempt()
    node.autostart.on_parameters_changed()

    node.fire()

    assert node.attempts[-1] == 'loading the model'


def test_lost_gpu_ends_the_attempts(node):
    node.errors['open'] = CudaError('cudaMalloc', 'lost', sticky=True)
    node.autostart.start()

    node.attempt()

    assert not node.timers


def test_finalized_node_announces_no_attempt(active):
    active.state_label = 'finalized'  # on_error failed

    active.autostart.on_fault()

    assert not active.timers
    assert active.attempts[-1] == ''


def test_failed_activation_is_tried_again_with_the_loaded_model(node):
    node.errors['activate'] = EngineError('node', 'no thread left')
    node.autostart.start()
    assert node.attempt() == 0
    assert node.state_label == 'inactive'
    assert [node.fire(), node.fire()] == [1, 2]

    node.errors.clear()

    assert node.fire() == 5
    assert node.state_label == 'active'
    assert len(node.opened) == 1


def test_node_without_autostart_stays_unconfigured_after_a_fault(node):
    node.node_parameters = NodeParameters(ParameterValues())

    node.break_down()

    assert not node.timers
