# SPDX-License-Identifier: Apache-2.0
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


def test_report_is_formatted_as_text_with_colours_and_as_json(golden_messages):
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
    golden_messages.add('\n'.join([text, *parts]))
    golden_messages.add('\n'.join(format_findings(findings, color=True)).replace('\033', 'ESC'))
    report = json.loads(findings_as_json(findings))
    golden_messages.add(json.dumps(report, indent=1, sort_keys=True))
