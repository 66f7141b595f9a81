"""Text that came from elsewhere: what may be a name, and what is shown of the rest.

A file, a message or a library can say anything. Some characters act on a terminal, begin a line of
the log or turn round the order of those behind them, so that what is read is not what was written.

Guarantees: a name that has no fault is one short line that shows what it is; ``shown`` and
``plain`` give no such character on, and no more than a few lines.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, TypedDict

__all__ = [
    *('MAX_CLASSES', 'MAX_NAME_LENGTH', 'MAX_PATH_LENGTH'),
    *(
        'Fault',
        'join_first',
        'name_fault',
        'names_fault',
        'closest_words',
        'to_one_line',
        'escape_controls',
        'short_repr',
    ),
    'format_table',
]

#: A class id of label_info has 16 bits.
MAX_CLASSES: Final = 65536
MAX_NAME_LENGTH: Final = 256
#: As long as Linux takes one.
MAX_PATH_LENGTH: Final = 4096
# Unicode's control characters, its own ends of lines, its twelve Bidi_Control characters, which
# set the direction of writing, and halves of a surrogate pair, which no encoding can write.
_CONTROLS: Final = re.compile(
    '[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]'
)
_CONTROLS_IN_LINES: Final = re.compile(rf'(?![\n\t]){_CONTROLS.pattern}')
# Each comparison costs the product of both lengths.
_MAX_COMPARED_WORDS: Final = 2000
_MAX_COMPARISON_COST: Final = 10**6
_MAX_COMPARED_LENGTH: Final = 100


class Fault(TypedDict):
    """What is wrong with a value, as an error takes it: ``ConfigError(subject, **fault)``."""

    found: str
    expected: str


def name_fault(name: object, longest: int = MAX_NAME_LENGTH) -> Fault | None:
    """Return what keeps a value from being a name; None where nothing does.

    Args:
        name: what shall name a class, a tensor, a frame or a file.
        longest: most characters.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= longest:
        return Fault(found=short_repr(name), expected=f'a text of 1 to {longest} characters')
    # The first question is a quick one, and answers for nearly all.
    acting = None if name.isprintable() else _CONTROLS.search(name)
    if acting is None:
        return None
    found = f'U+{ord(acting[0]):04X} in {short_repr(name)}'
    return Fault(found=found, expected='a text with no control characters')


def names_fault(names: Sequence[object], *, distinct: bool = True) -> Fault | None:
    """Return what is wrong with names of classes; None where nothing is.

    Args:
        names: in the network's order.
        distinct: each must say one class.
    """
    if len(names) > MAX_CLASSES:
        return Fault(found=str(len(names)), expected=f'at most {MAX_CLASSES} names')
    for number, name in () if _are_all_valid(names) else enumerate(names):
        if fault := name_fault(name):
            where = f'{fault["found"]}, name {number + 1} of {len(names)}'
            return Fault(found=where, expected=fault['expected'])
    if not distinct or len(set(names)) == len(names):
        return None
    twice = next(name for name, count in Counter(names).items() if count > 1)
    return Fault(found=f'{short_repr(twice)} twice', expected='different names')


def _are_all_valid(names: Sequence[Any]) -> bool:
    """Answer for most lists of names, in a tenth of the time that looking at each takes."""
    return (
        set(map(type, names)) == {str}
        and min(map(len, names)) > 0
        and max(map(len, names)) <= MAX_NAME_LENGTH
        and all(map(str.isprintable, names))
    )


def closest_words(
    word: str, known: Iterable[str], count: int = 1, cutoff: float = 0.6
) -> list[str]:
    """Return the known words that a mistyped one resembles most, best first.

    Args:
        word: as it was typed; a long one resembles nothing.
        known: of many, the first 2000 are looked at, and fewer where the word is long.
        count: most words returned.
        cutoff: least resemblance, 0…1.
    """
    if len(word) > _MAX_COMPARED_LENGTH:
        return []
    most = min(_MAX_COMPARED_WORDS, _MAX_COMPARISON_COST // max(1, len(word)) ** 2)
    few = list(itertools.islice(known, most))
    short = [other for other in few if len(other) <= _MAX_COMPARED_LENGTH]
    return difflib.get_close_matches(word, short, n=count, cutoff=cutoff)


def short_repr(value: object, longest: int = 60) -> str:
    """Return a value as Python writes it, short enough for a message."""
    cut = isinstance(value, Sequence) and len(value) > longest
    try:
        text = repr(value[:longest] if cut else value)  # type: ignore[index]
    except (ValueError, RecursionError):  # a number of thousands of digits; nested too deep
        return f'a {type(value).__name__} too long to show'
    return text if not cut and len(text) <= longest else text[: longest - 1] + '…'


def escape_controls(text: object, longest: int | None = 8000) -> str:
    """Return a message that may hold other people's text, fit for a log or a terminal.

    Ends of lines and tabs stay; other characters that act are written as Python escapes them.

    Args:
        text: what shall be printed.
        longest: most characters; None for a report that is long on purpose.
    """
    whole = str(text)
    part = whole[:longest]
    if not part.isprintable():
        part = _CONTROLS_IN_LINES.sub(lambda found: repr(found[0])[1:-1], part)
    return part if len(part) >= len(whole) else f'{part}… ({len(whole)} characters)'


def join_first(items: Collection[str], most: int = 5, separator: str = ', ') -> str:
    """Return the first items, and how many more there are."""
    first = separator.join(itertools.islice(items, most))
    return f'{first} and {len(items) - most} more' if len(items) > most else first


def to_one_line(said: object, longest: int = 400) -> str:
    """Return what a library says on several lines as one line, short enough for a message."""
    text = ' '.join(str(said).split())
    return text[:longest] or type(said).__name__


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines: the first column to the left, the others to the right.

    Args:
        rows: the heads first, all of one length.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [f'{cell:>{width}}' for cell, width in zip(others, widths[1:], strict=True)]
        lines.append('  '.join([f'{first:<{widths[0]}}', *cells]).rstrip())
    return '\n'.join(lines)
