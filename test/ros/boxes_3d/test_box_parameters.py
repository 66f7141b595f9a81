# SPDX-License-Identifier: Apache-2.0
"""Test the parameters and the lifecycle of the node detections_3d in this process."""

import itertools

import pytest
from rclpy.parameter import Parameter

from support.programs import Program, executable
from trt_perception.errors import ValuesError
from trt_perception.parameters.boxes_3d import BOX_PARAMETERS, BoxParameters
from trt_perception.ros.boxes_3d.node import Boxes3DNode

pytest_plugins = ['support.nodes.graph_fixtures']
NUMBERS = itertools.count()


@pytest.fixture
def make_node(client):
    """Return a function that makes nodes with start values. They end with the test."""
    nodes = []

    def make(**values):
        overrides = [Parameter(name.replace('__', '.'), value=v) for name, v in values.items()]
        nodes.append(
            Boxes3DNode(
                context=client.context,
                namespace=f'/test_1_{next(NUMBERS)}',
                parameter_overrides=overrides,
            )
        )
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


def set_values(node, **values):
    """Set parameters as the service does. Return whether it succeeded, and the reason."""
    parameters = [Parameter(name.replace('__', '.'), value=v) for name, v in values.items()]
    result = node.set_parameters_atomically(parameters)
    return result.successful, result.reason


def test_parameters_have_the_defaults_of_the_table(make_node):
    node = make_node()
    assert node.values == BoxParameters()
    for row in BOX_PARAMETERS:
        assert node.get_parameter(row.name).value == row.default
        assert node.describe_parameter(row.name).description.startswith(row.description)


def test_start_values_are_used(make_node):
    node = make_node(depth_unit_m=1, min_points=5, qos__reliability='best_effort')
    expected = BoxParameters(depth_unit_m=1.0, min_points=5, qos_reliability='best_effort')
    assert node.values == expected


def test_wrong_start_values_are_refused_together(make_node, golden_messages):
    with golden_messages.raises(ValuesError) as caught:
        make_node(sync_tolerance=5.0, min_points=0, depth_transport='rvl', max_wait_ms='long')
    assert len(caught.value.mistakes) == 4


def test_live_parameters_change_at_any_time(make_node):
    node = make_node()
    for transition in ('configure', 'activate'):
        assert set_values(node, sync_tolerance_ms=5) == (True, '')
        getattr(node, f'trigger_{transition}')()
    assert set_values(node, max_wait_ms=7.5, min_points=3) == (True, '')
    assert (node.values.sync_tolerance_ms, node.values.max_wait_ms) == (5.0, 7.5)
    assert node.get_parameter('min_points').value == 3


@pytest.mark.parametrize('name', ['max_wait', '/etc/passwd', 'x' * 10000])
def test_unknown_parameter_is_refused_by_its_name(name, make_node):
    succeeded, reason = set_values(make_node(), **{name: 5.0})
    assert not succeeded
    assert name[:40] in reason
    assert len(reason) < 200


def test_parameter_cannot_be_deleted(make_node):
    node = make_node()
    assert not set_values(node, max_wait_ms=None)[0]
    assert node.get_parameter('max_wait_ms').value == node.values.max_wait_ms == 100.0


def test_other_changes_are_refused(make_node, golden_messages):
    node = make_node()
    assert set_values(node, depth_transport='compressedDepth') == (True, '')
    node.trigger_configure()
    for values in (
        {'depth_transport': 'raw'},
        {'qos__reliability': 'reliable'},
        {'autostart': True},
        {'min_points': 0},
        {'min_points': 'many'},
        {'depth_transport': 'rvl'},
    ):
        before = node.values
        is_set, reason = set_values(node, **values)
        assert not is_set
        assert node.values == before
        golden_messages.add(reason)


def test_lifecycle_can_be_repeated(make_node):
    node = make_node()
    for _ in range(2):
        for transition, state in (
            ('configure', 'inactive'),
            ('activate', 'active'),
            ('deactivate', 'inactive'),
            ('activate', 'active'),
            ('deactivate', 'inactive'),
            ('cleanup', 'unconfigured'),
        ):
            getattr(node, f'trigger_{transition}')()
            assert node._state_machine.current_state[1] == state
    node.trigger_configure()
    node.trigger_activate()
    node.trigger_shutdown()
    assert node._state_machine.current_state[1] == 'finalized'


def test_wrong_parameter_ends_the_program_with_code_2(golden_messages):
    settings = ['-p', 'sync_tolerence_ms:=5.0', '-p', 'autostart:=true']
    program = Program([executable('detections_3d'), '--ros-args', *settings])
    assert program.wait() == 2
    # Kilted's middleware warns about a variable that the tests set.
    errors = [line for line in program.output.splitlines() if line.startswith('error:')]
    golden_messages.add('\n'.join(errors))
    program.close()
