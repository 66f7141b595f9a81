# SPDX-License-Identifier: Apache-2.0
"""Tests of literals: text from ``repr`` is read, with the values that Python reads."""

import ast
import itertools
import json
import random
import subprocess
import sys
import warnings

import pytest

from support.properties import given, settings, st
from trt_perception.files.literals import MAX_LITERAL_LENGTH, read_literal

PLAIN = st.one_of(
    st.text(max_size=8),
    st.integers(-(10**18), 10**18),
    st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: len(repr(x)) < 20),
    st.booleans(),
    st.none(),
)
NESTED = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(PLAIN, inner, max_size=4),
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(NESTED)
def test_text_from_repr_is_read(value):
    assert read_literal(repr(value)) == value


TOKENS = ['[', ']', '(', ')', '{', '}', ',', ':', ' ', '\n', '1', '-1', '+', '-', '1.5', '1e-3']
TOKENS += ['.5', '2.', "'a'", '"b"', "'\\n'", "'\\x41'", "'\\d'", 'True', 'None', 'x', '0', '01']
TOKENS += ['1_0', '0x1', '1j', "b'c'", '...', '*', '#', '\\', "'", 'é', '\0', "'''a'''", '1 1']


def python_value(text):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            return True, ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError):
        return False, None


def random_text(rng):
    """Return a literal with some parts added or removed."""
    value = [{0: 'a', 1: "b'", -2: ('c', 1.5e-3)}, [640, 640], {'nms': True, 'x': None}, ('', [1])]
    text = repr(rng.choice(value))
    for _ in range(rng.randrange(4)):
        start = rng.randrange(len(text) + 1)
        text = text[:start] + rng.choice(['', *TOKENS]) + text[start + rng.randrange(3) :]
    return text


def test_accepted_literals_have_the_values_that_python_reads():
    """Python also reads sets, bytes and numbers in other bases, which this reader refuses."""
    read = 0
    rng = random.Random(1)
    short = (''.join(parts) for parts in itertools.product(TOKENS, repeat=2))
    for text in itertools.chain(TOKENS, short, (random_text(rng) for _ in range(6000))):
        try:
            value = read_literal(text)
        except ValueError:
            continue
        fine, expected = python_value(text.strip())
        assert fine, text
        assert value == expected, text
        assert type(value) is type(expected), text
        read += 1
    assert read > 1500


@pytest.mark.parametrize(
    'text',
    [
        *('', ' ', '1 2', '[1', '1]', '{1}', '{1: 2', '{1, 2}', '[1:2]', '[,]', '(,)', "'a' 'b'"),
        *('1+1', 'a', 'a.b', 'f(1)', '[1][0]', '-(1)', '--1', '1' * 20, '1.' + '1' * 50, '0x1'),
        *("'a", '"a\'', "'\n'", "'\\", "'\\N{no such}'", "'\\ud8'", '{[]: 1}', '{{}: 1}', "b''"),
        *('[' * 17 + ']' * 17, '...', '1_000', '1e9999', 'true', 'nan', '1 if 1 else 2', '*[1]'),
    ],
)
def test_invalid_literals_are_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011
        read_literal(text)


# Texts that break Python's own parser. Some texts crash the process.
HOSTILE = {
    'sum': '1+' * 500_000 + '1',
    'attributes': 'a.' * 500_000 + 'a',
    'subscripts': '1' + '[0]' * 300_000,
    'calls': 'a' + '()' * 500_000,
    'signs': '-' * 1_000_000 + '1',
    'brackets': '[' * 1_000_000,
    'mappings': '{0:' * 300_000,
    'comparison': '1<' * 500_000 + '1',
    'texts': "'a'" * 300_000,
    'list': '[' + '0,' * 500_000 + ']',
    'escapes': "['" + "\\x41','" * 140_000 + "']",
    'a long text': "'" + '\\n' * 500_000 + "'",
    'digits': '9' * 1_000_000,
    'digits in base 16': '0x' + 'f' * 1_000_000,
    'too long': ' ' * (MAX_LITERAL_LENGTH + 1),
}
PROGRAM = """
import json, sys
from trt_perception.files.literals import read_literal
texts = json.load(sys.stdin)
# The peak in getrusage() would begin with the peak of the process that started this one.
def peak_kib():
    with open('/proc/self/status') as status:
        return next(int(line.split()[1]) for line in status if line.startswith('VmHWM:'))

before = peak_kib()
for kind, text in texts.items():
    print(kind, end=': ', flush=True)
    try:
        read_literal(text)
    except ValueError:
        pass
    print(peak_kib() - before, flush=True)
"""


def test_malicious_texts_are_refused_with_little_memory():
    """Another process reads the texts. If a text crashes it, the text's name is printed last."""
    ended = subprocess.run(
        [sys.executable, '-c', PROGRAM], input=json.dumps(HOSTILE), capture_output=True,
        text=True, timeout=240, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, f'{ended.stdout}\n{ended.stderr[-500:]}'
    lines = ended.stdout.splitlines()
    assert len(lines) == len(HOSTILE)
    assert all(int(line.split()[-1]) < 100 * 1024 for line in lines), ended.stdout
