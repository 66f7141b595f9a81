# SPDX-License-Identifier: Apache-2.0
"""Tests of the rules that decide when a problem is logged."""

import pytest

from trt_perception.monitoring.announcer import Announcer
from trt_perception.monitoring.status_summary import Level, StatusSummary

OK = StatusSummary(Level.OK, '', 'active, 30.0 Hz')
STALLED = StatusSummary(Level.ERROR, 'stalled', 'no image')
SLOW = StatusSummary(Level.WARN, 'engine_slower', 'slow')
NOTE = StatusSummary(Level.WARN, 'note', 'assumed preprocessing')
#: By name of the scene: for how many seconds each summary lasts. A check follows every 0.5 s.
SCENES = {
    'no problem is not logged': [(9, OK)],
    'lasting problem is logged every 30 s, and its end once': [(1, OK), (62, STALLED), (3, OK)],
    'recurring problem is logged at most every 10 s': [(0.5, OK), (0.5, SLOW)] * 60,
    'another problem is logged at once': [(0.5, SLOW), (0.5, STALLED), (1, SLOW), (1, OK)],
    'note is not logged, and ends a problem': [(99, NOTE), (2, STALLED), (9, NOTE)],
}


@pytest.mark.parametrize('scene', SCENES)
def test_each_scene_logs_the_recorded_lines(scene, golden_messages):
    announcer, time_s, lines = Announcer(), 0.0, []
    for seconds, summary in SCENES[scene]:
        for _ in range(round(2 * seconds)):
            if line := announcer.due_line(summary, time_s):
                lines.append(f'{time_s:5.1f} s  {line[0].name} {line[1]}')
            time_s += 0.5
    golden_messages.add('\n'.join(lines))
