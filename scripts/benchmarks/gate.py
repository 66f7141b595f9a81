"""Compares the ratios of a run with those stored before: a loss above a tenth fails.

A ratio has both of its sides measured in one run, so that it means the same on another machine;
smaller is better. Sides measured at the same time are compared round by round, and the median
counts; of sides measured in turn each one's least counts, because whatever else the machine does
makes a round dearer, never cheaper.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

BASELINE = Path(__file__).with_name('baseline.json')
LIMIT = 1.10


def losses(ratios, baseline):
    """Return the names of the ratios that lost more than a tenth against the baseline."""
    return [name for name in ratios if name in baseline and ratios[name] > LIMIT * baseline[name]]


def add_option(parser):
    """Give a benchmark the option that makes its result the baseline."""
    parser.add_argument(
        '--store-baseline',
        action='store_true',
        help='keep the ratios as the baseline that later runs are compared with',
    )


def gate(benchmark, ratios, *, store=False, path=BASELINE):
    """Print the ratios beside the baseline's; return the exit code, 1 for a loss.

    Args:
        benchmark: its name.
        ratios: by name, smaller is better.
        store: make them the baseline instead.
        path: of the baseline.
    """
    stored = json.loads(path.read_text(encoding='utf-8')) if path.is_file() else {}
    if store:
        stored[benchmark] = {name: round(ratio, 4) for name, ratio in ratios.items()}
        path.write_text(json.dumps(stored, indent=2, sort_keys=True) + '\n', encoding='utf-8')
        print(f'stored as the baseline: {path}')
        return 0
    baseline = stored.get(benchmark, {})
    lost = losses(ratios, baseline)
    print(f'\n{"ratio":44} {"baseline":>9} {"now":>9}')
    for name, ratio in ratios.items():
        before = f'{baseline[name]:9.3f}' if name in baseline else f'{"none":>9}'
        word = '  lost more than 10 %' if name in lost else ''
        print(f'{name:44} {before} {ratio:9.3f}{word}')
    if lost:
        print(
            f'load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores: a machine that '
            'does something else meanwhile loses, too; measure again when it is calm'
        )
    return 1 if lost else 0
