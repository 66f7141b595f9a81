# SPDX-License-Identifier: Apache-2.0
"""Read Python literals that exporters write into metadata: lists, mappings, texts and numbers.

Python's own parser is not safe here. A malicious text makes it use hundreds of times the size of
the text in memory, and crashes Python 3.10.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any, Final

#: Enough for the names of 65,536 classes.
MAX_LITERAL_LENGTH: Final = 1024 * 1024
_MAX_DEPTH: Final = 16
_TOKEN_PATTERN: Final = re.compile(
    r"""\s*(?:
    (?P<text>'(?:[^'\\\n\r\0]|\\[^\n\r\0])*'|"(?:[^"\\\n\r\0]|\\[^\n\r\0])*")
    |(?P<float>[-+]?(?:[0-9]{1,19}\.[0-9]{0,40}|\.[0-9]{1,40}|[0-9]{1,19}(?=[eE]))
        (?:[eE][-+]?[0-9]{1,3})?)
    |(?P<int>[-+]?(?:0{1,19}|[1-9][0-9]{0,18})(?![0-9]))
    |(?P<word>[A-Za-z]+)
    |(?P<sign>[\[\](){},:])
    )\s*""",
    re.VERBOSE,
)
_CONSTANTS: Final = {'True': True, 'False': False, 'None': None}
_CLOSING_BRACKETS: Final = {'[': ']', '(': ')', '{': '}'}


def read_literal(text: str) -> Any:
    """Return the value of a Python literal.

    Args:
        text: a list, tuple, mapping, text, number, True, False or None, as ``repr`` writes it.

    Raises:
        ValueError: the text is not such a literal, is longer than MAX_LITERAL_LENGTH, or
            nests more than 16 levels.
    """
    if len(text) > MAX_LITERAL_LENGTH:
        raise ValueError(f'longer than {MAX_LITERAL_LENGTH} characters')
    reader = _LiteralReader(text)
    value = reader.value(_MAX_DEPTH)
    reader.take('')
    return value


def parse_literal(text: str) -> Any:
    """Return the value of a Python literal, or None if the text is invalid or too long."""
    try:
        return read_literal(text)
    except ValueError:
        return None


class _LiteralReader:
    """Reads a text token by token. ``kind`` and ``token`` describe the next token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._advance()

    def _advance(self) -> None:
        found = _TOKEN_PATTERN.match(self._text, self._at)
        if found is None and self._at < len(self._text):
            raise ValueError(f'no literal at character {self._at + 1}')
        self.kind = str(found.lastgroup) if found else ''
        self.token = found[self.kind] if found else ''
        self._at = found.end() if found else self._at

    def take(self, token: str) -> None:
        """Consume a punctuation mark, or the end of the text if ``token`` is empty."""
        if self.token != token or self.kind not in ('sign', ''):
            raise ValueError(f'expected {token or "the end"} before character {self._at + 1}')
        if token:
            self._advance()

    def value(self, levels: int) -> Any:
        """Consume a value with at most ``levels`` nested collections."""
        kind, token = self.kind, self.token
        if kind == 'sign' and token in _CLOSING_BRACKETS and levels:
            return self._collection(token, levels - 1)
        self._advance()
        if kind == 'text':
            return _unescape(token)
        if kind == 'int':
            return int(token)
        if kind == 'float':
            return float(token)
        if token in _CONSTANTS:
            return _CONSTANTS[token]
        raise ValueError(f'no value before character {self._at + 1}')

    def _collection(self, opening: str, levels: int) -> Any:
        self.take(opening)
        items: list[Any] = []
        commas = 0
        while self.token != _CLOSING_BRACKETS[opening] or self.kind != 'sign':
            if len(items) > commas:
                self.take(',')
                commas += 1
                continue
            item = self.value(levels)
            if opening == '{':
                self.take(':')
                item = item, self.value(levels)
            items.append(item)
        self.take(_CLOSING_BRACKETS[opening])
        if opening == '(':
            return items[0] if len(items) == 1 and not commas else tuple(items)
        if opening == '[':
            return items
        try:
            return dict(items)
        except TypeError as error:  # a list or mapping cannot be a key
            raise ValueError('a key is a list or a mapping') from error


def _unescape(token: str) -> str:
    if '\\' not in token:
        return token[1:-1]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # Python warns about invalid escape sequences
            return str(ast.literal_eval(token))
    except SyntaxError as error:
        raise ValueError(f'a quoted string is invalid: {error.msg}') from error
