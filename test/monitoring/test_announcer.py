"""Tests of the rules that decide when a problem is logged."""

from trt_perception.monitoring.announcer import Announcer
from trt_perception.monitoring.status_summary import Level, StatusSummary

OK = StatusSummary(Level.OK, '', 'active, 30.0 Hz')
STALLED = StatusSummary(Level.ERROR, 'stalled', 'no image')
SLOW = StatusSummary(Level.WARN, 'engine_slower', 'slow')
NOTE = StatusSummary(Level.WARN, 'note', 'assumed preprocessing')


def test_new_lasting_and_ended_problems_are_logged(golden_messages):
    announcer = Announcer()
    assert announcer.due_line(OK, 0.0) is None
    assert announcer.due_line(STALLED, 1.0) == (Level.ERROR, 'no image')
    assert [announcer.due_line(STALLED, 1.5 + i) for i in range(29)] == [None] * 29
    assert announcer.due_line(STALLED, 31.0) == (Level.ERROR, 'no image')
    level, line = announcer.due_line(OK, 33.0)
    assert level == Level.OK
    golden_messages.add(line)
    assert announcer.due_line(OK, 33.5) is None


def test_recurring_problem_is_logged_at_most_every_10_s():
    announcer = Announcer()
    lines = [announcer.due_line(SLOW if i % 2 else OK, 0.5 * i) for i in range(120)]
    logged = [line for line in lines if line is not None]
    # Within 60 s, the log gets a problem every 10 s, and a line about its end after each.
    assert len([line for line in logged if line[0] == Level.WARN]) == 6
    assert len(logged) == 12


def test_another_problem_is_logged_at_once():
    announcer = Announcer()
    assert announcer.due_line(SLOW, 0.0) is not None
    assert announcer.due_line(STALLED, 0.5) == (Level.ERROR, 'no image')
    assert announcer.due_line(SLOW, 1.0) is None
    assert '(stalled)' in announcer.due_line(OK, 2.0)[1]


def test_note_has_no_line_and_ends_a_problem():
    announcer = Announcer()
    assert [announcer.due_line(NOTE, float(second)) for second in range(100)] == [None] * 100
    assert announcer.due_line(STALLED, 100.0) == (Level.ERROR, 'no image')
    assert announcer.due_line(NOTE, 102.0) == (Level.OK, 'recovered after 2.0 s (stalled)')
