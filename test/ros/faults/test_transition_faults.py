"""A fault at every step of every transition: the node ends where docs/architecture.md says.

Each call of a function of the package, or of rclpy's node, that a transition makes is made to
raise, one after the other. Afterwards nothing may be left over, and the next life is a good one.
"""

import re
import subprocess

import pytest

from support.programs import script

pytest_plugins = ['support.nodes.graph_fixtures']

TRANSITIONS = ('configure', 'activate', 'deactivate', 'cleanup', 'shutdown')


@pytest.mark.unmeasured
@pytest.mark.parametrize(
    ('error', 'cameras'),
    [
        ('RuntimeError', 'one'),
        ('MemoryError', 'one'),
        ('ConfigError', 'one'),
        ('RuntimeError', 'several'),
    ],
)
def test_a_fault_at_every_step(error, cameras):
    command = [*script('nodes/transition_faults.py'), error, cameras]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert ended.returncode == 0, ended.stderr[-5000:]
    for transition in TRANSITIONS:
        [count] = re.findall(f'^{transition}: ([0-9]+) faults$', ended.stdout, re.MULTILINE)
        assert int(count) > 5
