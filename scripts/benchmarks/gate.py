# SPDX-License-Identifier: Apache-2.0
"""Compare the ratios of a run with stored ratios. A ratio that is worse by a tenth fails.

Both sides of a ratio are measured in one run, so a ratio is comparable between machines. Smaller
is better. Sides measured at the same time are compared round by round, by the median. For sides
measured in turn, the smallest figure of each side counts: other load makes a round slower, never
faster.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

BASELINE = Path(__file__).with_name('baseline.json')
LIMIT = 1.10


def losses(ratios, baseline):
    """Return the names of the ratios that exceed the baseline by more than a tenth."""
    return [name for name in ratios if name in baseline and ratios[name] > LIMIT * baseline[name]]


def add_option(parser):
    """Add the option that makes a benchmark's result the baseline."""
    parser.add_argument(
        '--store-baseline',
        action='store_true',
        help='store the ratios as the baseline for later runs',
    )


def gate(benchmark, ratios, *, store=False, path=BASELINE):
    """Print the ratios next to the baseline; return the exit code, 1 for a loss.

    Args:
        benchmark: the benchmark's name.
        ratios: map each ratio's name to its value; smaller is better.
        store: store the ratios as the baseline instead of comparing.
        path: the file of the baseline.
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
            f'load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores: other load also '
            'worsens ratios; measure again on an idle machine'
        )
    return 1 if lost else 0
