"""A fault at every step of every transition: the node ends where docs/architecture.md says.

Each call of a function of the package, or of rclpy's node, that a transition makes is made to
raise, one after the other. Afterwards nothing may be left over, and the next life is a good one.
"""

import re

import pytest
from programs import Program
from programs import script

pytest_plugins = ['graph_fixtures']

TRANSITIONS = ('configure', 'activate', 'deactivate', 'cleanup', 'shutdown')


@pytest.mark.parametrize(
    ('error', 'cameras'),
    [
        ('RuntimeError', 'one'),
        ('MemoryError', 'one'),
        ('ConfigError', 'one'),
        pytest.param('RuntimeError', 'several', marks=pytest.mark.any_ros),
    ],
)
def test_a_fault_at_every_step(error, cameras):
    program = Program([*script('transition_faults.py'), error, cameras])
    assert program.wait() == 0, program.output
    for transition in TRANSITIONS:
        [count] = re.findall(f'^{transition}: ([0-9]+) faults$', program.output, re.MULTILINE)
        assert int(count) > 5
