# SPDX-License-Identifier: Apache-2.0
"""Check names from untrusted sources, and make untrusted text safe to print.

A file, a message or a library can hold any text. Some characters control a terminal, start a new
line of the log, or reverse the writing direction, so that the reader sees a different text.

Guarantees: a valid name is one short line of printable text. ``short_repr``, ``escape_line`` and
``escape_controls`` return no such characters, except that ``escape_controls`` keeps line ends
and tabs. ``short_repr`` and ``escape_controls`` limit the length.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, TypedDict

#: Class ids in label_info messages have 16 bits.
MAX_CLASSES: Final = 65536
MAX_NAME_LENGTH: Final = 256
#: The longest path that Linux accepts (PATH_MAX).
MAX_PATH_LENGTH: Final = 4096
# Unicode's control characters, line ends, the twelve Bidi_Control characters, which set the
# writing direction, and halves of surrogate pairs, which UTF-8 cannot encode.
_CONTROL_CHARACTERS: Final = re.compile(
    '[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]'
)
_CONTROL_CHARACTERS_EXCEPT_LINE_ENDS_AND_TABS: Final = re.compile(
    rf'(?![\n\t]){_CONTROL_CHARACTERS.pattern}'
)
# The cost of comparing two words is the product of their lengths.
_MAX_COMPARED_WORDS: Final = 2000
_MAX_COMPARISON_COST: Final = 10**6
_MAX_COMPARED_LENGTH: Final = 100
_FRACTION: Final = re.compile(
    r'([-+]?[0-9]{1,19}(?:\.[0-9]{0,19})?) ?/ ?([0-9]{1,19}(?:\.[0-9]{0,19})?)'
)
_MAX_FRACTION_LENGTH: Final = 100
_YES_NO: Final = {'yes': True, 'no': False, 'true': True, 'false': False}
_MAX_YES_NO_LENGTH: Final = 5


class Mistake(TypedDict):
    """Why a value is invalid, as arguments of an error: ``ConfigError(subject, **mistake)``."""

    found: str
    expected: str


def name_mistake(name: object, longest: int = MAX_NAME_LENGTH) -> Mistake | None:
    """Return why a name is invalid, or None if the name is valid."""
    if not isinstance(name, str) or not 1 <= len(name) <= longest:
        return Mistake(found=short_repr(name), expected=f'a text of 1 to {longest} characters')
    # isprintable is fast, and true for nearly all names.
    acting = None if name.isprintable() else _CONTROL_CHARACTERS.search(name)
    if acting is None:
        return None
    found = f'U+{ord(acting[0]):04X} in {short_repr(name)}'
    return Mistake(found=found, expected='a text with no control characters')


def names_mistake(names: Sequence[object], *, distinct: bool = True) -> Mistake | None:
    """Return why the first invalid class name is invalid, or None if all names are valid.

    Args:
        names: in the order of the network's outputs.
        distinct: whether all names must be different.
    """
    if len(names) > MAX_CLASSES:
        return Mistake(found=str(len(names)), expected=f'at most {MAX_CLASSES} names')
    for number, name in () if _are_all_names_valid(names) else enumerate(names):
        if mistake := name_mistake(name):
            where = f'{mistake["found"]}, name {number + 1} of {len(names)}'
            return Mistake(found=where, expected=mistake['expected'])
    if not distinct or len(set(names)) == len(names):
        return None
    twice = next(name for name, count in Counter(names).items() if count > 1)
    return Mistake(found=f'{short_repr(twice)} twice', expected='different names')


def repair_names(names: Sequence[object], noun: str = 'class') -> tuple[tuple[str, ...], str]:
    """Return valid and different names, and a remark about the changes; empty if none.

    An invalid name becomes ``class 17``, where 17 is its class id. Names that occur several times
    get the class id appended. The other names stay.

    Args:
        names: in the order of the network's outputs, at most MAX_CLASSES.
        noun: the first word of a name that replaces an invalid name.
    """
    mistakes = {
        index: mistake
        for index, name in (() if _are_all_names_valid(names) else enumerate(names))
        if (mistake := name_mistake(name))
    }
    found = [noun if index in mistakes else str(name) for index, name in enumerate(names)]
    counts = Counter(name for index, name in enumerate(found) if index not in mistakes)
    taken = {name for name, count in counts.items() if count == 1}
    for index, name in enumerate(found):
        if index not in mistakes and counts[name] == 1:
            continue
        # The loop ends, because the name gets longer than all other names.
        found[index] = f'{name[: MAX_NAME_LENGTH // 2]} {index}'
        while found[index] in taken:
            found[index] += f' {index}'
        taken.add(found[index])
    remarks = []
    if mistakes:
        index, mistake = next(iter(mistakes.items()))
        remarks.append(
            f'{len(mistakes)} invalid, which are named by number (name {index + 1} of '
            f'{len(names)}: expected {mistake["expected"]}, got {mistake["found"]})'
        )
    if any(count > 1 for count in counts.values()):
        remarks.append('duplicate names have their number appended')
    return tuple(found), '; '.join(remarks)


def _are_all_names_valid(names: Sequence[Any]) -> bool:
    """Return True if all names are surely valid, in a tenth of the time of checking each name.

    Valid names with characters that ``str.isprintable`` rejects also give False.
    """
    return (
        set(map(type, names)) == {str}
        and min(map(len, names)) > 0
        and max(map(len, names)) <= MAX_NAME_LENGTH
        and all(map(str.isprintable, names))
    )


def closest_words(
    word: str, known: Iterable[str], count: int = 1, cutoff: float = 0.6
) -> list[str]:
    """Return the known words that are most similar to a mistyped word, best first.

    Args:
        word: the word as typed. Words above 100 characters have no similar words.
        known: the known words. At most the first 2000 are compared, fewer if ``word`` is long.
        cutoff: lowest similarity of a returned word, 0 to 1.
    """
    if len(word) > _MAX_COMPARED_LENGTH:
        return []
    most = min(_MAX_COMPARED_WORDS, _MAX_COMPARISON_COST // max(1, len(word)) ** 2)
    few = list(itertools.islice(known, most))
    short = [other for other in few if len(other) <= _MAX_COMPARED_LENGTH]
    return difflib.get_close_matches(word, short, n=count, cutoff=cutoff)


def short_repr(value: object, longest: int = 60) -> str:
    """Return the ``repr`` of a value, cut to ``longest`` characters."""
    cut = isinstance(value, Sequence) and len(value) > longest
    try:
        text = repr(value[:longest] if cut else value)  # type: ignore[index]
    except (ValueError, RecursionError):  # a number with thousands of digits, or deep nesting
        return f'a {type(value).__name__} too long to show'
    return text if not cut and len(text) <= longest else text[: longest - 1] + '…'


def escape_controls(text: object, longest: int | None = 8000) -> str:
    """Return text that is safe to print in a log or on a terminal.

    Line ends and tabs stay. Other control characters become Python's escape sequences.

    Args:
        text: text that may come from untrusted sources.
        longest: maximum number of characters; None for a long report.
    """
    whole = str(text)
    part = whole[:longest]
    part = _escape(part, _CONTROL_CHARACTERS_EXCEPT_LINE_ENDS_AND_TABS)
    return part if len(part) >= len(whole) else f'{part}… ({len(whole)} characters)'


def escape_line(text: object) -> str:
    """Return text that is safe to print as one line. Line ends and tabs are escaped, too."""
    return _escape(str(text), _CONTROL_CHARACTERS)


def _escape(text: str, characters: re.Pattern[str]) -> str:
    """Return text with Python's escape sequences for some characters."""
    if text.isprintable():
        return text
    return characters.sub(lambda found: repr(found[0])[1:-1], text)


def fraction_as_number(value: Any) -> Any:
    """Return the value of a fraction of two plain numbers as text, such as ``1/255``.

    Other values are returned unchanged. Nothing else is calculated. A number has at most 19 digits
    before and after its point.
    """
    if not isinstance(value, str) or len(value) > _MAX_FRACTION_LENGTH:
        return value
    found = _FRACTION.fullmatch(value)
    if found is None or not float(found[2]):
        return value
    return float(found[1]) / float(found[2])


def read_yes_no(text: str) -> bool | None:
    """Return the value of yes, no, true or false in any case; None for other texts."""
    return _YES_NO.get(text.lower()) if len(text) <= _MAX_YES_NO_LENGTH else None


def counted(number: int, noun: str, plural: str = '') -> str:
    """Return a number with its noun, such as ``1 image`` or ``2 images``."""
    return f'{number} {noun if number == 1 else plural or noun + "s"}'


def split_list(text: str) -> list[str]:
    """Return the items of a list as typed: ``cat,dog`` or ``[cat, dog]``. Quotes are removed."""
    inside = text.strip().removeprefix('[').removesuffix(']')
    return [word.strip(' \'"') for word in inside.split(',')] if inside.strip() else []


def join_alternatives(items: Sequence[str]) -> str:
    """Return at least one item as ``a, b or c``."""
    return ' or '.join(filter(None, (', '.join(items[:-1]), items[-1])))


def join_first_items(items: Collection[str], most: int = 5, separator: str = ', ') -> str:
    """Return the first items as one text, with the number of further items."""
    first = separator.join(itertools.islice(items, most))
    return f'{first} and {len(items) - most} more' if len(items) > most else first


def size_text(size: int) -> str:
    """Return a number of bytes as text, such as ``1.9 MiB``."""
    for unit, name in ((2**30, 'GiB'), (2**20, 'MiB'), (2**10, 'KiB')):
        if size >= unit:
            return f'{size / unit:.1f} {name}'
    return f'{size} bytes'


def to_one_line(said: object, longest: int = 400) -> str:
    """Return a library's message as one line, cut to ``longest`` characters."""
    text = ' '.join(str(said).split())
    return text[:longest] or type(said).__name__


def format_table(rows: Sequence[Sequence[str]], text_columns: Collection[str] = ()) -> str:
    """Return a table as text. The first column is aligned left, other columns right.

    Args:
        rows: the column titles, then the cells. All rows have the same length. Control characters
            are escaped, so each row is one line.
        text_columns: titles of further columns that are aligned left.
    """
    safe_rows = [list(map(escape_line, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*safe_rows, strict=True)]
    sides = ['<', *('<' if title in text_columns else '>' for title in rows[0][1:])]
    lines = []
    for row in safe_rows:
        cells = [
            f'{cell:{side}{width}}' for cell, side, width in zip(row, sides, widths, strict=True)
        ]
        lines.append('  '.join(cells).rstrip())
    return '\n'.join(lines)
