# SPDX-License-Identifier: Apache-2.0
"""Draws charts as SVG. The style of the page sets colours, so that charts fit dark and light."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trt_perception.files.plain_text import escape_controls
from trt_perception.offline.report_page.markup import Markup, element, name

# Units of the SVG, close to pixels of a chart on a phone.
_WIDTH, _HEIGHT = 400, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 12, 10, 40
_ROW_HEIGHT, _BAR_HEIGHT = 24, 16
_LABEL_WIDTH, _TEXT_ROOM = 150, 84
#: Number of different line styles.
_STYLES = 8

Points = Sequence[tuple[float, float]]


def line_chart(
    title: str,
    series: Mapping[str, Points],
    x_label: str,
    y_label: str,
    x_range: tuple[float, float] = (0, 1),
    y_range: tuple[float, float] = (0, 1),
    *,
    thin: Sequence[Points] = (),
    marker: bool = False,
) -> Markup:
    """Return a figure with lines, and a legend if there are several.

    Args:
        series: points of each line by its name.
        thin: points of further lines without names, drawn thin.
        marker: whether to add a vertical line that the script moves to the threshold.
    """
    x0, y0, x1, y1 = _LEFT, _HEIGHT - _BOTTOM, _WIDTH - _RIGHT, _TOP

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            x0 + (x - x_range[0]) / ((x_range[1] - x_range[0]) or 1) * (x1 - x0),
            y0 + (y - y_range[0]) / ((y_range[1] - y_range[0]) or 1) * (y1 - y0),
        )

    def line(points: Points, style: str) -> Markup:
        text = ' '.join(f'{x:.1f},{y:.1f}' for x, y in (place(*point) for point in points))
        return element('polyline', points=text, class_=style)

    parts = []
    for x in _ticks(*x_range):
        left = place(x, y_range[0])[0]
        parts.append(element('line', x1=f'{left:.1f}', x2=f'{left:.1f}', y1=y0, y2=y1))
        parts.append(_text(left, y0 + 15, f'{x:g}', 'middle'))
    for y in _ticks(*y_range):
        top = place(x_range[0], y)[1]
        parts.append(element('line', x1=x0, x2=x1, y1=f'{top:.1f}', y2=f'{top:.1f}'))
        parts.append(_text(x0 - 6, top + 4, f'{y:g}', 'end'))
    parts.append(_text((x0 + x1) / 2, _HEIGHT - 6, x_label, 'middle'))
    up = f'rotate(-90 12 {(y0 + y1) / 2:.0f})'
    parts.append(_text(12, (y0 + y1) / 2, y_label, 'middle', transform=up))
    parts += [line(points, 'thin') for points in thin]
    parts += [line(points, _style(index)) for index, points in enumerate(series.values())]
    if marker:
        ends = {'data_x0': x0, 'data_x1': x1}
        parts.append(element('line', x1=x0, x2=x0, y1=y0, y2=y1, class_='marker', **ends))
    label = f'{title}: {y_label} over {x_label}'
    size = {'viewBox': f'0 0 {_WIDTH} {_HEIGHT}'}
    drawing = element('svg', *parts, class_='chart', role='img', aria_label=label, **size)
    return _figure(title, drawing, list(series))


@dataclass(frozen=True)
class Bar:
    """One row of a bar chart.

    Attributes:
        segments: start, length and style of each part. Starts other than 0 make a time line.
        text: text behind the last part.
    """

    label: str
    segments: Sequence[tuple[float, float, int]]
    text: str = ''


def bar_chart(title: str, bars: Sequence[Bar], unit: str, legend: Sequence[str] = ()) -> Markup:
    """Return a figure of horizontal bars, one below the other.

    Args:
        unit: unit of starts and lengths, for the axis.
        legend: meaning of each style; empty if there is one style.
    """
    most = max((start + length for bar in bars for start, length, _ in bar.segments), default=0.0)
    most = most or 1.0
    # The text behind the longest bar also needs room.
    room = _WIDTH - _LABEL_WIDTH - (_TEXT_ROOM if any(bar.text for bar in bars) else _RIGHT)
    bottom = len(bars) * _ROW_HEIGHT
    parts = []
    for value in _ticks(0, most):
        x = _LABEL_WIDTH + value / most * room
        parts.append(element('line', x1=f'{x:.1f}', x2=f'{x:.1f}', y1=0, y2=bottom))
        parts.append(_text(x, bottom + 15, f'{value:g}', 'middle'))
    parts.append(_text(_LABEL_WIDTH + room / 2, bottom + _BOTTOM - 6, unit, 'middle'))
    for index, bar in enumerate(bars):
        y = index * _ROW_HEIGHT + (_ROW_HEIGHT - _BAR_HEIGHT) / 2
        end = float(_LABEL_WIDTH)
        for start, length, style in bar.segments:
            x, width = _LABEL_WIDTH + start / most * room, max(1.0, length / most * room)
            place = {'x': f'{x:.1f}', 'y': y, 'width': f'{width:.1f}', 'height': _BAR_HEIGHT}
            parts.append(element('rect', class_=f'bar {_style(style)}', **place))
            end = max(end, x + width)
        parts.append(_text(end + 4, y + 12, bar.text, 'start'))
        label = escape_controls(bar.label, None)
        short = label if len(label) <= 24 else f'{label[:11]}…{label[-12:]}'
        parts.append(_text(_LABEL_WIDTH - 6, y + 12, short, 'end'))
    size = {'viewBox': f'0 0 {_WIDTH} {bottom + _BOTTOM}'}
    drawing = element('svg', *parts, class_='chart', role='img', aria_label=title, **size)
    return _figure(title, drawing, legend)


def _figure(title: str, drawing: Markup, names: Sequence[str]) -> Markup:
    legend = [
        element('li', element('span', class_=f'key {_style(index)}'), ' ', name(label))
        for index, label in enumerate(names)
    ]
    return element(
        'figure',
        element('figcaption', title),
        drawing,
        element('ul', *legend, class_='legend') if len(legend) > 1 else '',
    )


def _style(index: int) -> str:
    return f'style{index % _STYLES}'


def _text(x: float, y: float, text: str, anchor: str, **attributes: object) -> Markup:
    return element('text', text, x=f'{x:.1f}', y=f'{y:.1f}', text_anchor=anchor, **attributes)


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round values from ``low`` to ``high``."""
    span = high - low
    if not span > 0:
        return [low]
    step = 10.0 ** _floor_log10(span / 5)
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 6)
    first = -(-low // step)
    ticks: list[float] = []
    while (value := (first + len(ticks)) * step) <= high * (1 + 1e-9):
        ticks.append(float(f'{value:.6g}'))
    return ticks


def _floor_log10(value: float) -> int:
    return int(f'{value:e}'.partition('e')[2])
