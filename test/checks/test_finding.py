"""Tests of findings: errors of checks, and the formats of reports."""

import json

import pytest

from trt_perception.checks.finding import (
    LEVELS,
    Finding,
    findings_as_json,
    format_findings,
    run_check,
)


def test_exception_of_a_check_is_a_red_finding():
    def check():
        yield Finding('a', 'one', 'green', 'good')
        raise RuntimeError('this broke')

    one, two = run_check('a', 'all', check)
    assert one.level == 'green'
    assert two.level == 'red'
    assert 'RuntimeError: this broke' in two.found


def test_finding_needs_a_fix_exactly_if_it_is_not_green():
    for level in LEVELS:
        with pytest.raises(AssertionError):
            Finding('a', 'b', level, 'c', 'fix' if level == 'green' else '')


def test_report_is_formatted_as_text_with_colours_and_as_json():
    findings = [
        Finding('one', 'a', 'green', 'good'),
        Finding('one', 'b', 'yellow', 'so so', 'do this'),
        Finding('two', 'c', 'red', 'bad\nworse', 'do that'),
    ]
    given = []
    parts = format_findings(
        (given.append(finding) or finding for finding in findings), color=False
    )
    text = next(parts)
    assert given == findings[:1]  # a finding is formatted before the next check
    text = '\n'.join([text, *parts])
    assert text.splitlines() == [
        'one',
        '  green  a: good',
        '  yellow b: so so',
        '         fix: do this',
        '',
        'two',
        '  red    c: bad',
        '           worse',
        '         fix: do that',
        '',
        '1 green, 1 yellow, 1 red',
    ]
    assert '\033' not in text
    assert '\033[31mred   \033[0m' in '\n'.join(format_findings(findings, color=True))
    read = json.loads(findings_as_json(findings))
    assert {level: read[level] for level in LEVELS} == {'green': 1, 'yellow': 1, 'red': 1}
    assert read['findings'][1] == {
        'area': 'one',
        'name': 'b',
        'level': 'yellow',
        'found': 'so so',
        'fix': 'do this',
    }
