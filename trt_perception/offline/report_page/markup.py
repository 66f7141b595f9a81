# SPDX-License-Identifier: Apache-2.0
"""Builds HTML from parts. All text is escaped, so that names from files never become HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Final

from trt_perception.files.plain_text import escape_controls

_LONGEST_NAME: Final = 60
_KEPT_START: Final = 40
_EMPTY_TAGS: Final = frozenset(('img', 'input', 'meta'))


class Markup(str):
    """Text that is HTML already. Only ``element`` and ``join`` make it."""

    __slots__ = ()


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """Return an HTML or SVG element.

    Args:
        tag: name of the element; a constant, never text from a file.
        *children: contents. Everything except ``Markup`` is escaped.
        **attributes: values by name; ``_`` in a name stands for ``-``, and a trailing ``_`` is
            dropped. None and False leave the attribute out; True gives an attribute without value.
    """
    words = [tag]
    for key, value in attributes.items():
        name = key.rstrip('_').replace('_', '-')
        if value is True:
            words.append(name)
        elif value is not None and value is not False:
            words.append(f'{name}="{_escaped(value)}"')
    start = f'<{" ".join(words)}>'
    if tag in _EMPTY_TAGS:
        return Markup(start)
    return Markup(f'{start}{join(children)}</{tag}>')


def join(children: Iterable[object]) -> Markup:
    """Return elements and texts one after the other. Everything except ``Markup`` is escaped."""
    return Markup(
        ''.join(child if isinstance(child, Markup) else _escaped(child) for child in children)
    )


def name(text: object) -> Markup:
    """Return a name from a file: isolated from the writing direction around it, and shortened.

    The whole name is shown when the pointer rests on the element. The script of the pages has the
    same function.
    """
    whole = escape_controls(text, None)
    if len(whole) <= _LONGEST_NAME:
        return element('bdi', whole)
    end = whole[_KEPT_START + 1 - _LONGEST_NAME :]
    return element('bdi', f'{whole[:_KEPT_START]}…{end}', title=whole)


def table(
    caption: object,
    heads: Sequence[object],
    rows: Iterable[Sequence[object]],
    **attributes: object,
) -> Markup:
    """Return a table that scrolls on its own if it is too wide. The first column has row headers.

    Args:
        caption: describes the table; empty for none.
        heads: titles of the columns.
        rows: cells of each row, as many as ``heads``.
        **attributes: attributes of the table.
    """
    body = [
        element('tr', element('th', first, scope='row'), *(element('td', cell) for cell in others))
        for first, *others in rows
    ]
    content = element(
        'table',
        element('caption', caption) if caption else '',
        element('thead', element('tr', *(element('th', head, scope='col') for head in heads))),
        element('tbody', *body),
        **attributes,
    )
    # A region that scrolls must be reachable with the keyboard.
    return element('div', content, class_='scroll', tabindex='0')


def figure_text(value: float | None, digits: int = 3) -> str:
    """Return a figure as text; a dash if it is unknown."""
    return '–' if value is None else f'{value:.{digits}f}'


def _escaped(value: object) -> str:
    return html.escape(escape_controls(value, None), quote=True)
