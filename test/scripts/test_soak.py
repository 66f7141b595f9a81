"""The soak of the lifecycle, for seconds, and that scripts/soak notices a broken promise.

scripts/soak has the others: they measure rates and times, which a busy machine does not keep.
"""

import sys
from pathlib import Path

import pytest

from support.soak.soaks import Figure, lifecycle

sys.path.append(str(Path(__file__).resolve().parents[2] / 'scripts'))
from soak import show

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = [pytest.mark.ros, pytest.mark.unmeasured]


def test_lifecycle(model):
    figures = lifecycle(model, warm_up=100, cycles=100)
    assert figures
    assert show({'lifecycle': figures})


@pytest.mark.parametrize('broken', [Figure('time', 1.0, 1.1, 's'), Figure('count', 0, 1)])
def test_a_broken_promise_is_noticed(broken):
    assert not show({'one': [Figure('all', 0, 0), broken], 'other': [Figure('all', 0, 0)]})
