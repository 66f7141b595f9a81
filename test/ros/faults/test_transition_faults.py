"""A fault at every step of every transition: the node ends where docs/architecture.md says.

Each place that calls a function of the package, or of rclpy's node, in a transition is made to
raise, one after the other. Afterwards nothing may be left over, and the next life is a good one.
"""

import re
import subprocess

import pytest

from support.programs import script

pytest_plugins = ['support.nodes.graph_fixtures']

TRANSITIONS = ('configure', 'activate', 'deactivate', 'cleanup', 'shutdown')


@pytest.mark.unmeasured
@pytest.mark.timeout(600)
def test_a_fault_at_every_step():
    command = script('nodes/transition_faults.py')
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr[-5000:]
    for transition in TRANSITIONS:
        [count] = re.findall(f'^several {transition}: ([0-9]+) f', ended.stdout, re.MULTILINE)
        assert int(count) > 5
