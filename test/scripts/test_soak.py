# SPDX-License-Identifier: Apache-2.0
"""Test a short lifecycle soak, and the verdict of scripts/soak on broken promises.

The other soaks run only in scripts/soak. They measure rates and times, which depend on the load of
the machine.
"""

import sys
from pathlib import Path

import pytest

from support.soak.soaks import Figure, lifecycle

sys.path.append(str(Path(__file__).resolve().parents[2] / 'scripts'))
from soak import show

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = [pytest.mark.ros, pytest.mark.unmeasured]


@pytest.mark.timeout(900)  # 300 cycles
def test_lifecycle_soak_of_200_cycles_keeps_its_promises(model):
    # Python allocates small objects in arenas of 1 MiB. One more arena is 5 KB a cycle here.
    figures = lifecycle(model, warm_up=100, cycles=200)
    assert figures
    assert show({'lifecycle': figures})


@pytest.mark.parametrize('broken', [Figure('time', 1.0, 1.1, 's'), Figure('count', 0, 1)])
def test_broken_promise_is_reported_as_failure(broken):
    assert not show({'one': [Figure('all', 0, 0), broken], 'other': [Figure('all', 0, 0)]})
