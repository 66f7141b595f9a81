"""Tests of spans of time."""

import pytest

from trt_perception.errors import ConfigError
from trt_perception.offline.bags.plan import time_span

START, END = 1_700_000_000 * 10**9, 1_700_000_100 * 10**9


@pytest.mark.parametrize(
    ('start_s', 'end_s', 'expected'),
    [
        (None, None, (START, END + 1)),
        (10.0, 20.0, (START + 10**10, START + 2 * 10**10)),
        (1_700_000_010.0, 1_700_000_020.0, (START + 10**10, START + 2 * 10**10)),
        (0.0, 1000.0, (START, END + 1)),
        (100.0, None, (END, END + 1)),
        (1.0, 1_800_000_000.0, (START + 10**9, END + 1)),
    ],
)
def test_span_is_relative_or_absolute(start_s, end_s, expected):
    assert time_span(START, END, start_s, end_s) == expected


@pytest.mark.parametrize(('start_s', 'end_s'), [(101.0, None), (20.0, 20.0), (30.0, 20.0)])
def test_span_without_messages_is_refused(start_s, end_s):
    with pytest.raises(ConfigError):
        time_span(START, END, start_s, end_s)
