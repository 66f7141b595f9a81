# SPDX-License-Identifier: Apache-2.0
"""The figures of `scripts/bench cameras`: from stamps to rows of the table."""

from __future__ import annotations

import math
import statistics

import numpy as np

#: Maps a figure to its title and form.
COLUMNS = {
    'sent': ('sent', '{:.0f}'),
    'lost': ('lost', '{:.0f}'),
    'least_share': ('worst %', '{:.1f}'),
    'p50_ms': ('p50 ms', '{:.2f}'),
    'p95_ms': ('p95 ms', '{:.2f}'),
    'p99_ms': ('p99 ms', '{:.2f}'),
    'max_ms': ('max ms', '{:.1f}'),
    'p99_lowest_ms': ('low p99', '{:.2f}'),
    'p99_highest_ms': ('high p99', '{:.2f}'),
    'cpu_percent': ('CPU %', '{:.0f}'),
    'cpu_ms': ('CPU ms', '{:.2f}'),
    'rss_mib': ('RSS', '{:.0f}'),
    'pss_mib': ('PSS', '{:.0f}'),
    'shared_mib': ('shm', '{:.0f}'),
    'gpu_mib': ('GPU', '{:.0f}'),
}
#: Figures whose ratio between two sides has a meaning.
COMPARED = tuple(name for name in COLUMNS if name not in ('sent', 'lost', 'least_share'))
_LABEL, _WIDTH = 30, 9


def latency_figures(latencies_ns):
    """Return percentiles in milliseconds; None for each without latencies."""
    if not latencies_ns:
        return dict.fromkeys(('p50_ms', 'p95_ms', 'p99_ms', 'max_ms'))
    values = np.percentile(np.array(latencies_ns) * 1e-6, (50, 95, 99, 100)).round(3).tolist()
    return dict(zip(('p50_ms', 'p95_ms', 'p99_ms', 'max_ms'), values, strict=True))


def match(sent_ns, arrivals, first_ns, end_ns):
    """Return the latencies of the images that a camera sent in the window; None if lost.

    The stamp identifies an image. So an image that is in flight at an edge of the window counts
    by its stamp alone.

    Args:
        sent_ns: stamps of all images of the camera.
        arrivals: stamp and time of each arrival.
        first_ns: the window's first nanosecond.
        end_ns: the first nanosecond after the window.

    Raises:
        RuntimeError: a stamp arrived twice, or was not sent.
    """
    arrived = dict(arrivals)
    if len(arrived) != len(arrivals) or not arrived.keys() <= set(sent_ns):
        raise RuntimeError('a stamp arrived twice, or was not sent')
    return [
        arrived[stamp] - stamp if stamp in arrived else None
        for stamp in sent_ns
        if first_ns <= stamp < end_ns
    ]


def side_figures(latencies_ns, cpu_s, seconds):
    """Return the figures of one measurement.

    Args:
        latencies_ns: for each camera the latencies of the images that it sent; None if lost.
        cpu_s: CPU time of the nodes.
        seconds: duration of the window.
    """
    cameras = {}
    for name, latencies in latencies_ns.items():
        received = [latency for latency in latencies if latency is not None]
        counts = {'sent': len(latencies), 'received': len(received)}
        counts['lost'] = counts['sent'] - counts['received']
        cameras[name] = {**counts, **latency_figures(received)}
    every = [each for found in latencies_ns.values() for each in found if each is not None]
    shares = [each['received'] / each['sent'] for each in cameras.values() if each['sent']]
    p99_ms = [each['p99_ms'] for each in cameras.values() if each['p99_ms'] is not None]
    return {
        **{name: sum(each[name] for each in cameras.values()) for name in counts},
        'least_share': 100 * min(shares, default=0.0),
        **latency_figures(every),
        'p99_lowest_ms': min(p99_ms, default=None),
        'p99_highest_ms': max(p99_ms, default=None),
        'cpu_percent': 100 * cpu_s / seconds,
        'cpu_ms': 1e3 * cpu_s / len(every) if every else None,
        'cameras': cameras,
    }


def medians(rounds):
    """Return the median of each figure over the rounds; None if a round lacks the figure."""
    values = {name: [figures[name] for figures in rounds] for name in COLUMNS}
    return {
        name: None if None in found else statistics.median(found) for name, found in values.items()
    }


def ratios(rounds, others):
    """Return the ratio of each compared figure in each round; None if undefined."""
    return {
        name: [
            one[name] / other[name] if one[name] is not None and other[name] else None
            for one, other in zip(rounds, others, strict=True)
        ]
        for name in COMPARED
    }


def ratio_rows(found):
    """Return the median, the lowest and the highest ratio of each figure."""
    known = {name: [each for each in values if each is not None] for name, values in found.items()}
    kinds = {'median': statistics.median, 'lowest': min, 'highest': max}
    return {
        kind: {name: compute(values) for name, values in known.items() if values}
        for kind, compute in kinds.items()
    }


def header():
    """Return the first row of the table."""
    return ' ' * _LABEL + ''.join(f'{title:>{_WIDTH}}' for title, _ in COLUMNS.values())


def row(label, figures, form=''):
    """Return a row of the table; '-' stands for a missing figure.

    Args:
        label: first cell.
        figures: by name of the column.
        form: replaces the form of each column.
    """
    cells = (
        '-'
        if figures.get(name) is None or math.isnan(figures[name])
        else (form or usual).format(figures[name])
        for name, (_, usual) in COLUMNS.items()
    )
    return f'{label:{_LABEL}}' + ''.join(f'{cell:>{_WIDTH}}' for cell in cells)
