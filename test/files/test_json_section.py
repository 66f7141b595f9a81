"""What each wrong value is told, word for word."""

import re

import pytest

from trt_perception.errors import ManifestError
from trt_perception.files.json_section import JsonSection, found, read_json


def one(value):
    return JsonSection({'key': value}, 'x.json')


@pytest.mark.parametrize(
    ('ask', 'value', 'message'),
    [
        (lambda s: s.integer('key'), '3', '\'key\': expected a whole number (got "3")'),
        (lambda s: s.integer('key'), True, "'key': expected a whole number (got true)"),
        (lambda s: s.integer('key', 1), 0, f"'key': expected a number from 1 to {2**53} (got 0)"),
        (lambda s: s.integer('key', 1, 5), 6, "'key': expected a number from 1 to 5 (got 6)"),
        (lambda s: s.number('key'), 'a', '\'key\': expected a number (got "a")'),
        (lambda s: s.number('key'), 10**400, f"'key': expected finite numbers (got 1{56 * '0'}…)"),
        (lambda s: s.number('key'), float('inf'), "'key': expected finite numbers (got Infinity)"),
        (lambda s: s.finite([], 'key'), 1, "'key': expected finite numbers (got [])"),
        (lambda s: s.boolean('key'), 1, "'key': expected true or false (got 1)"),
        (lambda s: s.text('key'), None, "'key': expected a string (got null)"),
        (lambda s: s.text('key', ('a', 'b')), 'c', '\'key\': expected one of a, b (got "c")'),
        (lambda s: s.items('key'), {}, "'key': expected a list (got {})"),
        (lambda s: s.section('key'), 3, "'key': expected a JSON object (got 3)"),
        (lambda s: s.section('key'), None, "'key': expected a JSON object (got null)"),
        (lambda s: s.sections('key'), [{}, 4], 'key[1]: expected a JSON object (got 4)'),
        (lambda s: s.text('other'), 1, "'other' is missing; add a string"),
        (lambda s: s.integer('other'), 1, "'other' is missing; add a whole number"),
        (lambda s: s.finish(), 1, 'unknown key "key"; see docs/manifest.md'),
    ],
)
def test_what_is_told(ask, value, message):
    with pytest.raises(ManifestError) as caught:
        ask(one(value))
    assert str(caught.value) == f'x.json: {message}'


def test_five_unknown_keys_are_named():
    with pytest.raises(
        ManifestError, match=r'unknown key "0", "1", "2", "3", "4" and 2 more; see'
    ):
        JsonSection(dict.fromkeys('0123456'), 'x.json').finish()


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        (b'3', 'x.json: expected a JSON object (got 3)'),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', 'key "c" stands twice in one object'),
        (b'{', 'x.json: not readable as JSON: '),
    ],
)
def test_what_is_no_object(text, message):
    with pytest.raises(ManifestError, match=re.escape(message)):
        read_json(text, 'x.json')


def test_what_is_there_is_returned():
    section = JsonSection(
        {'a': 5, 'b': 0.5, 'c': 7, 'd': False, 'e': 'x', 'f': [1], 'g': {'h': 1}, 'i': None}, 'x'
    )
    assert section.integer('a', 5, 5) == 5
    assert (section.number('b'), section.number('c')) == (0.5, 7.0)
    assert section.boolean('d') is False
    assert section.text('e', ('x',)) == 'x'
    assert section.items('f') == [1]
    inner = section.section('g')
    assert inner.where == 'x: g'
    assert inner.integer('h') == 1
    assert not section.has('i')
    assert not section.has('never there')
    assert section.names() == []
    section.finish()


def test_values_are_shown_as_json_and_short():
    assert found(None) == 'null'
    assert found('x' * 58) == f'"{58 * "x"}"'
    assert found('x' * 59) == f'"{56 * "x"}…'
    nested = []
    for _ in range(100_000):
        nested = [nested]
    assert found(nested) == 'a list, nested too deep'
