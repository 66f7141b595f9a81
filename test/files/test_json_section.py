# SPDX-License-Identifier: Apache-2.0
"""Tests of the strict JSON reader and its messages."""

import itertools

import pytest

from trt_perception.errors import ConfigError, ManifestError
from trt_perception.files.json_section import JsonSection, read_json, short_json


def section_with(value):
    return JsonSection({'key': value}, 'x.json')


@pytest.mark.parametrize(
    ('ask', 'value'),
    [
        (lambda s: s.integer('key'), '3'),
        (lambda s: s.integer('key'), True),
        (lambda s: s.integer('key', 1), 0),
        (lambda s: s.integer('key', 1, 5), 6),
        (lambda s: s.number('key'), 'a'),
        (lambda s: s.number('key'), 10**400),
        (lambda s: s.number('key'), float('inf')),
        (lambda s: s.finite([], 'key'), 1),
        (lambda s: s.boolean('key'), 1),
        (lambda s: s.text('key'), None),
        (lambda s: s.text('key', ('a', 'b')), 'c'),
        (lambda s: s.items('key'), {}),
        (lambda s: s.section('key'), 3),
        (lambda s: s.section('key'), None),
        (lambda s: s.sections('key'), [{}, 4]),
        (lambda s: s.text('other'), 1),
        (lambda s: s.integer('other'), 1),
        (lambda s: s.finish(), 1),
    ],
    ids=map(str, itertools.count(1)),
)
def test_invalid_values_raise_errors(ask, value, golden_messages):
    with golden_messages.raises(ManifestError):
        ask(section_with(value))


def test_error_mentions_five_unknown_keys(golden_messages):
    with golden_messages.raises(ManifestError):
        JsonSection(dict.fromkeys('0123456'), 'x.json').finish()


@pytest.mark.parametrize(
    'text',
    [
        b'3',
        b'{"a": 1, "b": {"c": 1, "c": 2}}',
        b'{',
    ],
)
def test_text_that_is_not_an_object_is_refused(text, golden_messages):
    with golden_messages.raises(ManifestError):
        read_json(text, 'x.json')


def test_valid_values_are_returned():
    section = JsonSection(
        {'a': 5, 'b': 0.5, 'c': 7, 'd': False, 'e': 'x', 'f': [1], 'g': {'h': 1}, 'i': None}, 'x'
    )
    assert section.integer('a', 5, 5) == 5
    assert (section.number('b'), section.number('c')) == (0.5, 7.0)
    assert section.boolean('d') is False
    assert section.text('e', ('x',)) == 'x'
    assert section.items('f') == [1]
    inner = section.section('g')
    assert inner.location == 'x: g'
    assert inner.integer('h') == 1
    assert not section.has('i')
    assert not section.has('never there')
    assert section.unread_keys() == []
    section.finish()


def test_subclass_error_applies_to_nested_sections(golden_messages):
    class Section(JsonSection):
        error = ConfigError

    for section in (
        Section({'key': {'inner': 'x'}}, 'x.json').section('key'),
        Section({'key': [{'inner': 'x'}]}, 'x.json').sections('key')[0],
    ):
        with golden_messages.raises(ConfigError):
            section.integer('inner')


def test_short_json_cuts_long_values():
    assert short_json(None) == 'null'
    assert short_json('x' * 58) == f'"{58 * "x"}"'
    assert short_json('x' * 59) == f'"{56 * "x"}…'
    nested = []
    for _ in range(100_000):
        nested = [nested]
    assert short_json(nested) == 'a list, nested too deep'
