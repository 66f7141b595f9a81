# SPDX-License-Identifier: Apache-2.0
"""Tests of names, and of printing untrusted text."""

import array
import unicodedata

import pytest

from support.properties import given, settings, st
from trt_perception.files.plain_text import (
    MAX_CLASSES,
    closest_words,
    escape_controls,
    format_table,
    name_mistake,
    names_mistake,
    short_repr,
    size_text,
    to_one_line,
)

#: Unicode controls, surrogates, line and paragraph separators, and bidirectional controls.
ACTING = [
    *(chr(code) for code in range(0x10000) if unicodedata.category(chr(code)) in ('Cc', 'Cs')),
    *'\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069',
]


@pytest.mark.parametrize(
    'name',
    [
        *('cat', 'größer als', '自転車', 'no parking', 'a' * 256, 'x\u00a0y', '全角\u3000空白'),
        *('👩\u200d🚒', 'क्\u200dष', 'a\u00ad', '\ue000', '😀', '\U0010ffff'),
    ],
)
def test_names_in_any_language_are_valid(name):
    assert name_mistake(name) is None


@pytest.mark.parametrize(
    'name',
    ['', 'x' * 257, None, 3, b'cat', ['cat'], 10**5000],
    ids=lambda name: type(name).__name__,
)
def test_empty_long_or_other_values_are_not_names(name):
    mistake = name_mistake(name)
    assert mistake['found'] == short_repr(name)
    assert ' 256 ' in mistake['expected']


def test_control_characters_in_names_are_refused(golden_messages):
    assert len(ACTING) == 65 + 2048 + 14
    for character in ACTING:
        mistake = name_mistake(f'cat{character}dog')
        assert mistake['found'].startswith(f'U+{ord(character):04X} in ')
        assert character not in mistake['found']
        golden_messages.add(mistake['expected'])


def test_list_of_repeated_invalid_or_too_many_names_is_refused(golden_messages):
    assert names_mistake(()) is None
    assert names_mistake(['a', 'b']) is None
    assert names_mistake(['a', 'a'], distinct=False) is None
    names = [str(number) for number in range(MAX_CLASSES + 1)]
    assert names_mistake(names[:-1]) is None
    for refused in (['a', 'b', 'a'], ['a', ['b']], ['a', 'b\n'], names):
        golden_messages.add(
            'found: {found}; expected: {expected}'.format(**names_mistake(refused))
        )


@settings(deadline=None)
@given(st.text(st.one_of(st.characters(), st.sampled_from(ACTING)), max_size=300))
def test_printed_text_has_no_control_characters(text):
    for safe in (escape_controls(text), short_repr(text), short_repr([text] * 100)):
        assert not set(safe) - {'\n', '\t'} & set(ACTING)
    assert escape_controls(text).count('\n') == text.count('\n')
    assert '\n' not in short_repr(text)
    assert len(short_repr(text)) <= 60


def test_escape_controls_keeps_safe_text_and_says_the_full_length(golden_messages):
    assert escape_controls('größer\n\tals 自転車') == 'größer\n\tals 自転車'
    assert escape_controls('\x1b[2Jx\r\x9b\ud800') == '\\x1b[2Jx\\r\\x9b\\ud800'
    assert escape_controls(ValueError('a\0')) == 'a\\x00'
    assert escape_controls('x' * 8000) == 'x' * 8000
    golden_messages.add(escape_controls('x' * 9000).replace('x' * 8000, 'X'))
    assert escape_controls('x\x1b' * 9000, None) == 'x\\x1b' * 9000


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        ('a\x1b', "'a\\x1b'"),
        ('x' * 5_000_000, "'" + 'x' * 58 + '…'),
        (float('nan'), 'nan'),
        ([1, 2], '[1, 2]'),
        (array.array('d', [0.5]), "array('d', [0.5])"),
        (10**5000, 'a int too long to show'),
        ([10**5000], 'a list too long to show'),
    ],
    ids=range(7),
)
def test_short_repr_cuts_long_values(value, text):
    assert short_repr(value) == text


def test_closest_words_returns_only_similar_words():
    assert closest_words('confidence_treshold', ['iou_threshold', 'confidence_threshold']) == [
        'confidence_threshold'
    ]
    assert closest_words('cat', []) == []
    assert closest_words('x' * 101, ['x' * 101]) == []
    assert closest_words('b', ['a'] * 2000 + ['b']) == []
    assert closest_words('node_1', ['node_2', 'node_3', 'other'], count=2) == ['node_3', 'node_2']


def test_line_ends_of_python_are_control_characters():
    ends = {chr(code) for code in range(0x110000) if len(f'a{chr(code)}b'.splitlines()) > 1}
    assert ends <= set(ACTING)


def test_rows_of_a_table_are_lines_of_printable_text():
    names = 'a\nb', 'c\td', 'e\x1b[2J', 'g\u2028h', '\udcff', 'plain'
    lines = format_table([('name', 'number'), *((name, '7') for name in names)]).split('\n')
    assert len(lines) == len(names) + 1
    assert all(line.isprintable() for line in lines)
    assert len({line.index('7') for line in lines[1:]}) == 1
    assert 'plain' in lines[-1]


def test_columns_of_text_are_aligned_left_and_others_right():
    rows = [('bag', 'images', 'result'), ('a', '7', 'x'), ('long', '1234567', 'a/long/path')]
    lines = format_table(rows, ['result']).split('\n')
    assert [line.index(row[0]) for line, row in zip(lines, rows, strict=True)] == [0, 0, 0]
    ends = [line.index(row[1]) + len(row[1]) for line, row in zip(lines, rows, strict=True)]
    assert len(set(ends)) == 1
    assert {line.rindex(row[2]) for line, row in zip(lines, rows, strict=True)} == {ends[0] + 2}


def test_to_one_line_joins_lines():
    assert to_one_line(ValueError('a\n  b\t c')) == 'a b c'
    assert to_one_line(ValueError('x' * 900), 200) == 'x' * 200
    assert to_one_line(MemoryError()) == 'MemoryError'


def test_long_words_are_compared_with_fewer_words():
    looked_at = []

    def known(length):
        for number in range(5000):
            looked_at.append(number)
            yield f'{number:x}' * length

    closest_words('classname', known(1))
    assert len(looked_at) == 2000
    looked_at.clear()
    closest_words('x' * 100, known(20))
    assert len(looked_at) == 100


def test_size_has_the_largest_unit_that_it_reaches():
    assert size_text(1023) == '1023 bytes'
    assert size_text(1536) == '1.5 KiB'
    assert size_text(2**20 - 1) == '1024.0 KiB'
    assert size_text(2**20) == '1.0 MiB'
    assert size_text(3 * 2**19) == '1.5 MiB'
    assert size_text(5 * 2**29) == '2.5 GiB'
