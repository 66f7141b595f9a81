# SPDX-License-Identifier: Apache-2.0
"""The commands ``ros2 lifecycle`` and ``ros2 param`` for a checkout without the program ``ros2``.

``scripts/run lifecycle`` and ``scripts/run param`` start this file.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time

import rclpy
import yaml
from lifecycle_msgs.srv import ChangeState, GetAvailableTransitions, GetState
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import GetParameters, ListParameters, SetParameters
from rclpy.parameter import get_parameter_value, parameter_value_to_python
from rclpy.signals import SignalHandlerOptions

from trt_perception.files.plain_text import closest_words, escape_controls
from trt_perception.process.option_parser import OptionParser
from trt_perception.process.standard_streams import guarded_streams

DISCOVERY_S = 5.0
TRANSITIONS = ('configure', 'activate', 'deactivate', 'cleanup', 'shutdown')
EXIT_CODES = """
exit codes: 0 done, 1 no such node, or the node refused or failed, 2 wrong usage, 130 interrupted
"""
LIFECYCLE_EXAMPLES = f"""\
examples:
  scripts/run lifecycle get /detector              print the state
  scripts/run lifecycle list /detector             print the transitions from this state
  scripts/run lifecycle set /detector configure    also activate, deactivate, cleanup, shutdown
{EXIT_CODES}"""
PARAM_EXAMPLES = f"""\
examples:
  scripts/run param list /detector                               all parameters with their values
  scripts/run param get /detector confidence_threshold
  scripts/run param set /detector confidence_threshold 0.4
  scripts/run param set /detector class_filter '["3", "7"]'      values are YAML
{EXIT_CODES}"""


class RefusedError(Exception):
    """There is no such node, or the node did not do what the command asks for."""


class Server:
    """The services of one node.

    Args:
        name: name of the node, with or without the first '/'.
        kinds: types of the services by name. The last service must only read, because it is called
            until it answers: a service that has not discovered its client sends no response.
        what: a word for nodes with these services.

    Raises:
        RefusedError: no node of this name has the services.
    """

    def __init__(self, name, kinds, what):
        self.name = f'/{name.removeprefix("/")}'
        self._kinds = kinds
        self._node = rclpy.create_node(
            f'_run_{os.getpid()}', enable_rosout=False, start_parameter_services=False
        )
        self._clients = {
            service: self._node.create_client(kind, f'{self.name}/{service}')
            for service, kind in kinds.items()
        }
        if not self._spin(self._is_ready, DISCOVERY_S):
            raise RefusedError(f'there is no {what} {self.name}; {self._others(what)}')
        *_, probe = kinds
        while not self._spin(self._send(probe).done, 1.0):
            self._check_presence()

    def call(self, service, **fields):
        """Call a service and return its response. A transition may take minutes."""
        future = self._send(service, **fields)
        while not self._spin(future.done, 1.0):
            self._check_presence()
        return future.result()

    def _send(self, service, **fields):
        return self._clients[service].call_async(self._kinds[service].Request(**fields))

    def _is_ready(self):
        return all(client.service_is_ready() for client in self._clients.values())

    def _check_presence(self):
        if not self._is_ready():
            raise RefusedError(f'{self.name} ended before it answered')

    def _spin(self, condition, seconds):
        """Spin until the condition is true. Return whether it is."""
        end = time.monotonic() + seconds
        while not (is_true := condition()) and time.monotonic() < end:
            rclpy.spin_once(self._node, timeout_sec=0.05)
        return is_true

    def _others(self, what):
        """Return a sentence with the nodes that have the services."""
        service = next(iter(self._kinds))
        names = []
        for name, namespace in self._node.get_node_names_and_namespaces():
            full = f'{namespace.rstrip("/")}/{name}'
            served = dict(self._node.get_service_names_and_types_by_node(name, namespace))
            if f'{full}/{service}' in served:
                names.append(full)
        if names:
            return f'there are: {", ".join(sorted(names))}'
        domain = os.environ.get('ROS_DOMAIN_ID', '0')
        return f'no {what} runs in ROS_DOMAIN_ID {domain}; start detector_node in another shell'


def run_lifecycle(arguments):
    """Read or change the state of a lifecycle node."""
    parser = OptionParser('scripts/run lifecycle', run_lifecycle.__doc__, LIFECYCLE_EXAMPLES)
    parser.add_argument('verb', choices=('get', 'list', 'set'))
    parser.add_argument('node', help='such as /detector')
    parser.add_argument('transition', nargs='?', choices=TRANSITIONS, help='only with set')
    options = parser.parse_args(arguments)
    if (options.verb == 'set') != (options.transition is not None):
        parser.error('set needs a transition, and only set takes one')
    kinds = {
        'change_state': ChangeState,
        'get_available_transitions': GetAvailableTransitions,
        'get_state': GetState,
    }
    server = Server(options.node, kinds, 'lifecycle node')
    state = server.call('get_state').current_state.label
    if options.verb == 'get':
        print(state)
        return
    described = server.call('get_available_transitions').available_transitions
    possible = {each.transition.label: each.transition for each in described}
    if options.verb == 'list':
        for each in described:
            print(f'{each.transition.label}: from {state} to {each.goal_state.label}')
        return
    if options.transition not in possible:
        raise RefusedError(
            f'cannot {options.transition} {server.name}, because it is {state}; possible from '
            f'{state}: {", ".join(possible) or "nothing"}'
        )
    result = server.call('change_state', transition=possible[options.transition])
    state = server.call('get_state').current_state.label
    if not result.success:
        raise RefusedError(
            f'{options.transition} of {server.name} failed, it is now {state}; the reason is in '
            'the log of the node'
        )
    print(state)


def run_param(arguments):
    """Read or change the parameters of a node."""
    parser = OptionParser('scripts/run param', run_param.__doc__, PARAM_EXAMPLES)
    parser.add_argument('verb', choices=('get', 'list', 'set'))
    parser.add_argument('node', help='such as /detector')
    parser.add_argument('name', nargs='?', help='name of a parameter, with get and set')
    parser.add_argument('value', nargs='?', help='the new value as YAML, with set')
    options = parser.parse_args(arguments)
    given = [options.name, options.value].index(None) if options.value is None else 2
    if given != ('list', 'get', 'set').index(options.verb):
        parser.error('list takes only a node; get also needs a name; set needs a name and a value')
    kinds = {
        'set_parameters': SetParameters,
        'get_parameters': GetParameters,
        'list_parameters': ListParameters,
    }
    server = Server(options.node, kinds, 'node')
    if options.verb == 'set':
        change = Parameter(name=options.name, value=typed_value(options.value))
        [result] = server.call('set_parameters', parameters=[change]).results
        if not result.successful:
            raise RefusedError(f'{server.name}: {result.reason}')
    names = sorted(server.call('list_parameters').result.names)
    if options.verb != 'list':
        if options.name not in names:
            close = closest_words(options.name, names, 3)
            meant = f'did you mean {" or ".join(close)}?' if close else 'param list prints all'
            raise RefusedError(f"{server.name} has no parameter '{options.name}'; {meant}")
        names = [options.name]
    for name, value in zip(names, server.call('get_parameters', names=names).values, strict=True):
        before = f'{name}: ' if options.verb == 'list' else ''
        print(f'{before}{value_text(value)}')


def typed_value(text):
    """Return a value with the type that ``ros2 param set`` would send."""
    as_text = ParameterValue(type=ParameterType.PARAMETER_STRING, string_value=text)
    try:
        value = get_parameter_value(text)
    except (yaml.YAMLError, AssertionError):
        return as_text
    # rclpy leaves other objects in the message, such as a date or {a: 1}.
    return value if isinstance(value.string_value, str) else as_text


def value_text(value):
    """Return a value as YAML on one line."""
    value = parameter_value_to_python(value)
    text = yaml.safe_dump(
        value if value is None or isinstance(value, bool | int | float | str) else list(value),
        default_flow_style=True,
        allow_unicode=True,
        width=float('inf'),
    )
    return text.removesuffix('...\n').rstrip('\n')


COMMANDS = {'lifecycle': run_lifecycle, 'param': run_param}


def main(command, *arguments):
    # With the handlers of rclpy, Ctrl-C would print a traceback.
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        COMMANDS[command](arguments)
    except RefusedError as error:
        print(escape_controls(f'scripts/run {command}: {error}'), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f'interrupted: scripts/run {command} {shlex.join(arguments)}', file=sys.stderr)
        return 130
    finally:
        rclpy.try_shutdown()
    return 0


if __name__ == '__main__':
    with guarded_streams():
        sys.exit(main(*sys.argv[1:]))
