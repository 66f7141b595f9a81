# SPDX-License-Identifier: Apache-2.0
"""Let every step of every lifecycle transition fail once, with several kinds of errors.

The program runs as a separate process, because threads and publishers remain if their destruction
fails. The process has the Fast DDS profile of detector_node. The program tests a node with several
cameras first. A node with one camera then fails at the call sites that have not failed yet.
"""

import faulthandler
import functools
import os
import sys
import threading
from pathlib import Path

import rclpy
import rclpy.node
from ament_index_python.packages import get_package_share_directory
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.parameter import Parameter

import trt_perception

# Python starts this file by its path, so the folder of the tests' support is not in sys.path.
sys.path.append(str(Path(__file__).resolve().parents[2]))
from support.nodes import scripted_node
from support.nodes.graph import command_image
from support.programs import DEADLINE_S
from support.waiting import wait_until
from trt_perception.errors import ConfigError
from trt_perception.ros.detector_node import DetectorNode
from trt_perception.transport.advice import node_profile_environment

PACKAGE = str(Path(trt_perception.__file__).parent)
SUCCESS = TransitionCallbackReturn.SUCCESS
ERRORS = (RuntimeError, MemoryError, ConfigError)
#: By transition: the transitions that lead to its start, the state after success, and the state
#: after a fault.
TRANSITIONS = {
    'configure': ((), 'inactive', 'unconfigured'),
    'activate': (('configure',), 'active', 'inactive'),
    'deactivate': (('configure', 'activate'), 'inactive', 'unconfigured'),
    'cleanup': (('configure',), 'unconfigured', 'unconfigured'),
    'shutdown': (('configure', 'activate'), 'finalized', 'finalized'),
}


class Pipeline(scripted_node.ScriptedPipeline):
    """Counts the pipelines that are open."""

    open = 0

    def __init__(self, path, options):
        super().__init__(path, options)
        Pipeline.open += 1

    def close(self):
        Pipeline.open -= 1


class Fault:
    """Raises an error in a with block, at the first call whose call site has not failed yet.

    Args:
        failed: the call sites that have failed: caller, line, and callee. The call site of this
            fault is added.
        error: the class of the raised error.

    Attributes:
        place: name of the called function; empty if nothing was raised.
    """

    def __init__(self, failed, error):
        self._failed = failed
        self._error = error
        self.place = ''

    def __enter__(self):
        self._before = sys.gettrace()  # coverage may have set a trace function
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(self._before)

    def _trace(self, frame, event, _):
        code = frame.f_code
        ours = code.co_filename.startswith(PACKAGE) and not self._exempt(code)
        of_node = code.co_filename == rclpy.node.__file__ and code.co_name.startswith(
            ('create_', 'destroy_')
        )
        of_thread = code is threading.Thread.start.__code__
        if event == 'call' and (ours or of_node or of_thread):
            caller = frame.f_back
            place = (caller.f_code, caller.f_lineno, code)
            if place not in self._failed:
                self._failed.add(place)
                self.place = code.co_qualname if hasattr(code, 'co_qualname') else code.co_name
                sys.settrace(None)
                raise self._error('injected')

    @staticmethod
    def _exempt(code):
        """Return whether faults are disabled in this code, because it handles or reports them."""
        return code.co_name in (
            'expected_handles',  # after an error in it, rclpy takes the images
            *('run', 'report', '_report_failure', '_call_each', 'log_text', 'plain'),
            '<genexpr>',  # Python calls a generator again when it deletes it
        )


ONE = {'engine_path': 'none'}
#: Prefixes of the names of functions that destroy resources.
CLOSING = (
    'destroy_',
    '_close',
    'close',
    '_unsubscribe',
    'remove',
    '_wait_until_served',
    '_request_end',
)
#: Two cameras on two GPUs.
SEVERAL = {**ONE, 'cameras': ['front', 'rear'], 'device_ids': [0, 1]}


def new_node(context, settings):
    return DetectorNode(
        open_pipeline=Pipeline,
        context=context,
        parameter_overrides=[Parameter(name, value=value) for name, value in settings.items()],
    )


def trigger(node, transition):
    return getattr(node, f'trigger_{transition}')()


def threads():
    ours = ('detector', 'debug_image', 'intake')
    return [thread for thread in threading.enumerate() if thread.name.startswith(ours)]


def held(node, others=()):
    """Return the counts and names of the node's resources, without the threads in ``others``."""
    return {
        'publishers': sorted(publisher.topic_name for publisher in node.publishers),
        'subscriptions': sorted(entry.topic_name for entry in node.subscriptions),
        'timers': len(list(node.timers)),
        'threads': sorted(thread.name for thread in threads() if thread not in others),
        'pipelines': Pipeline.open,
    }


def of_good_lives(context, settings):
    """Return the resources of a node without faults, by state, after one configure and cleanup."""
    node = new_node(context, settings)
    for transition in ('configure', 'cleanup'):
        trigger(node, transition)
    there = {'unconfigured': held(node)}
    for transition in ('configure', 'activate'):
        assert trigger(node, transition) == SUCCESS
        there[node.state_label] = held(node)
    trigger(node, 'shutdown')
    assert node.state_label == 'finalized'
    assert node.close() == 0
    return {**there, 'closed': held(node)}


def assert_good_life(node):
    """Check that the node can become active, publish a frame of each camera, and clean up."""
    if node.state_label == 'unconfigured':
        assert trigger(node, 'configure') == SUCCESS
    assert trigger(node, 'activate') == SUCCESS
    assert node._monitor.error == ''
    # With the profile, the participants for images stay unknown in this process. Other processes
    # of the tests may have nodes in other namespaces.
    nodes = node.get_node_names_and_namespaces()
    known = {name for name, namespace in nodes if namespace == node.get_namespace()}
    assert not any(name.startswith(f'_{node.get_name()}_images_') for name in known), known
    cameras = range(len(node._cameras))
    for camera in cameras:
        node._pool.submit(camera, command_image(0))
        wait_until(lambda c=camera: node._pool.statistics()[c].published == 1)
    node._monitor._check()  # the diagnostics timer runs
    for monitor, counts in zip(node._monitor._cameras, node._pool.statistics(), strict=True):
        assert monitor.diagnostics(counts).summary is not None
    assert trigger(node, 'deactivate') == SUCCESS
    assert trigger(node, 'cleanup') == SUCCESS
    assert node._monitor.error == ''


def end_if_step_hangs():
    """End the process with the stacks of all threads, unless called again within DEADLINE_S."""
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True)


def fail_each_step(make_node, transition, good, failed):
    """Let each step of a transition fail once, and check the state and resources afterwards.

    Args:
        make_node: function that makes a node.
        transition: a key of TRANSITIONS.
        good: the result of of_good_lives.
        failed: the call sites that have failed, as for Fault; new call sites are added.

    Returns:
        The names of the functions that failed, in order.
    """
    way, well, after = TRANSITIONS[transition]
    places = []
    node, others = None, threads()
    try:
        for number in range(1000):
            end_if_step_hangs()
            if node is None:
                node = make_node()
                assert trigger(node, 'configure') == trigger(node, 'cleanup') == SUCCESS
            for step in way:
                assert trigger(node, step) == SUCCESS
            with Fault(failed, ERRORS[number % len(ERRORS)]) as fault:
                answer = trigger(node, transition)
            if not fault.place:
                assert (answer, node.state_label) == (SUCCESS, well)
                break
            places.append(fault.place)
            print(number, fault.place, node.state_label)
            if answer == SUCCESS:  # the transition succeeds without the failed step
                assert node.state_label == well
            else:
                assert node.state_label == after
                assert node._monitor.error
            over = node.state_label == 'finalized'
            if over:  # the end of the process frees the remaining resources
                assert node.close() == 0
            left = held(node, others) != good['closed' if over else node.state_label]
            # After a failed destruction, resources remain, so a new node is needed.
            kept = fault.place.split('.')[-1].startswith(CLOSING)
            assert not left or kept, (fault.place, held(node, others))
            if not over:
                if node.state_label == 'active':
                    assert trigger(node, 'deactivate') == SUCCESS
                assert_good_life(node)
            if left and not over:
                assert node.close() == 0
            if left or over:
                Pipeline.open = 0
                node, others = None, threads()
    finally:
        if node is not None:
            node.close()
            Pipeline.open = 0
    return places


def main():
    end_if_step_hangs()
    share = Path(get_package_share_directory('trt_perception'))
    os.environ.update(node_profile_environment(share, {}))
    context = rclpy.Context()
    rclpy.init(args=['--ros-args', '--log-level', 'fatal'], context=context)
    failed = {transition: set() for transition in TRANSITIONS}
    for cameras, settings in (('several', SEVERAL), ('one', ONE)):
        good = of_good_lives(context, settings)
        make = functools.partial(new_node, context, settings)
        for transition in TRANSITIONS:
            places = fail_each_step(make, transition, good, failed[transition])
            print(f'{cameras} {transition}: {len(places)} faults')
    rclpy.shutdown(context=context)


if __name__ == '__main__':
    main()
