# SPDX-License-Identifier: Apache-2.0
"""Tests of faults at run time: the node becomes unconfigured, reports the cause, and recovers."""

import pytest
from diagnostic_msgs.msg import DiagnosticStatus

from support.nodes import scripted_node
from support.nodes.graph import HANDSHAKE, command_image
from support.programs import script

pytest_plugins = ['support.nodes.graph_fixtures']


def assert_unconfigured_with_cause(detector, cause):
    detector.client.spin_until(lambda: detector.state() == 'unconfigured', 'state unconfigured')
    detector.wait_for_status(
        lambda status, values: (
            status.level == DiagnosticStatus.ERROR
            and cause in status.message
            and values['state'] == 'unconfigured'
        ),
        f'an ERROR status with {cause!r}',
    )
    # The log must have the traceback, because a fault is not a mistake of the user.
    detector.program.wait_for_output('Traceback')
    detector.program.wait_for_output(cause)  # at the end of the traceback
    graph = detector.client.node
    detector.client.spin_until(
        lambda: (
            graph.count_subscribers(detector.topic('image'))
            + graph.count_publishers(detector.topic('detections'))
            + graph.count_publishers(detector.topic('label_info'))
            == 0
        ),
        'the end of publishers and subscription',
    )


def assert_works_again(detector):
    detector.transition('configure', 'activate')
    detector.connect(command_image(0, frame_id=HANDSHAKE))
    assert len(detector.ask(command_image(0)).detections) == 1
    detector.wait_for_status(
        lambda status, values: (
            status.level != DiagnosticStatus.ERROR and values['state'] == 'active'
        ),
        'a status without the old error',
    )


@pytest.mark.parametrize(
    ('number', 'cause'),
    [
        (scripted_node.RAISE_IN_COLLECT, 'collect broke'),
        (scripted_node.RAISE_IN_ENQUEUE, 'enqueue broke'),
        (scripted_node.RAISE_IN_PUBLISH, 'IndexError'),
    ],
)
def test_node_recovers_from_a_fault_while_a_frame_is_processed(scripted_detector, number, cause):
    for _ in range(2):
        scripted_detector.camera.publish(command_image(number))
        assert_unconfigured_with_cause(scripted_detector, cause)
        assert_works_again(scripted_detector)
    scripted_detector.program.wait_for_output('detector]: unconfigured', 2)
    assert scripted_detector.program.count('detector]: unconfigured') == 2
    scripted_detector.program.wait_for_output('pipeline closed', 2)
    assert scripted_detector.program.count('pipeline closed') == 2


def test_node_recovers_from_a_fault_with_other_frames_in_flight(scripted_detector):
    scripted_detector.enqueue(
        scripted_node.HELD_THEN_RAISE, scripted_node.SLOW, scripted_node.SLOW
    )
    assert_unconfigured_with_cause(scripted_detector, 'collect broke')
    assert_works_again(scripted_detector)


def test_node_recovers_from_a_fault_during_deactivate(scripted_detector):
    scripted_detector.enqueue(scripted_node.HELD_THEN_RAISE)
    assert scripted_detector.change_state('deactivate') is False
    assert_unconfigured_with_cause(scripted_detector, 'collect broke')
    assert_works_again(scripted_detector)


def test_refused_transition_does_not_change_how_a_fault_ends(scripted_detector):
    scripted_detector.enqueue(scripted_node.HELD_THEN_RAISE)
    assert not scripted_detector.change_state('cleanup'), 'an active node accepted cleanup'
    scripted_detector.enqueue(scripted_node.SLOW, scripted_node.SLOW)
    assert_unconfigured_with_cause(scripted_detector, 'collect broke')
    scripted_detector.program.wait_for_output('pipeline closed')
    assert scripted_detector.program.count('pipeline closed') == 1


@pytest.mark.parametrize(
    ('path', 'cause'),
    [('raise while loading', 'loading broke'), ('raise in warm-up', 'warm-up broke')],
)
def test_node_recovers_from_a_fault_in_configure(scripted_detector, path, cause):
    scripted_detector.bring_to('unconfigured')
    scripted_detector.set_or_fail(engine_path=path)
    for _ in range(2):
        assert scripted_detector.change_state('configure') is False
        assert_unconfigured_with_cause(scripted_detector, cause)
    scripted_detector.set_or_fail(engine_path='fine')
    assert_works_again(scripted_detector)


def test_node_is_finalized_after_a_fault_during_shutdown(start_detector):
    detector = start_detector(command=script('nodes/scripted_node.py'))
    detector.bring_to('active')
    detector.connect(command_image(0, frame_id=HANDSHAKE))
    detector.enqueue(scripted_node.HELD_THEN_RAISE)
    assert detector.change_state('shutdown from active')
    assert detector.state() == 'finalized'
    detector.program.wait_for_output('pipeline closed')
