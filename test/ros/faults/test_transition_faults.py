# SPDX-License-Identifier: Apache-2.0
"""Tests of a fault at every step of every transition: the node ends in the documented state.

The states are in docs/architecture.md. In each run, one call of a package function, or of a method
of rclpy's node, raises during a transition. Afterwards no resource may be left, and the node must
configure and activate again.
"""

import re
import subprocess

import pytest

from support.programs import script

pytest_plugins = ['support.nodes.graph_fixtures']

TRANSITIONS = ('configure', 'activate', 'deactivate', 'cleanup', 'shutdown')


@pytest.mark.unmeasured
@pytest.mark.timeout(600)
def test_fault_at_any_step_of_a_transition_leads_to_the_documented_state():
    command = script('nodes/transition_faults.py')
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr[-5000:]
    for transition in TRANSITIONS:
        [count] = re.findall(f'^several {transition}: ([0-9]+) f', ended.stdout, re.MULTILINE)
        assert int(count) > 5
