# SPDX-License-Identifier: Apache-2.0
"""Run the worker pool through random schedules of many cameras, on a simulated clock.

Each schedule must meet the rules of test/support/scheduling/simulated_cameras.py. Exit codes: 0 no
error, 1 errors, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import random
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The checkout's sources must not hide the installed package.
sys.path[:] = [entry for entry in sys.path if Path(entry or '.').resolve() != ROOT]
sys.path.insert(0, str(ROOT / 'test'))

from trt_perception.offline.tools.parts.arguments import integer_at_least  # noqa: E402
from trt_perception.process.option_parser import OptionParser  # noqa: E402
from trt_perception.process.standard_streams import guarded_streams  # noqa: E402

EXAMPLES = """\
examples:
  scripts/schedules                          1,000 schedules, a minute or two
  scripts/schedules --count 1 --seed 417     repeat one schedule
"""


def parse():
    parser = OptionParser(
        'scripts/schedules',
        'Run random schedules of 1 to 64 cameras in batches of 1 to 16. Check fairness, order, '
        'counts, idle time and the release of messages.',
        EXAMPLES,
    )
    parser.add_argument(
        '--count', type=integer_at_least(1), default=1000, help='schedules (default 1000)'
    )
    parser.add_argument(
        '--seed', type=int, default=0, help='seed of the first schedule (default 0)'
    )
    parser.add_argument(
        '--messages',
        type=integer_at_least(1),
        default=2000,
        help='approximate messages of a schedule (default 2000)',
    )
    return parser.parse_args()


def main():
    from support.scheduling.camera_schedules import random_schedule
    from support.scheduling.simulated_cameras import World

    options = parse()
    begun = said = time.monotonic()
    ends: Counter[str] = Counter()
    wrong = []
    for seed in range(options.seed, options.seed + options.count):
        try:
            world = World(random_schedule(random.Random(seed), options.messages)).run()
        except Exception:
            wrong.append(f'seed {seed}:\n{traceback.format_exc()}')
            continue
        for counts in world.counts:
            ends.update(counts.dropped, published=counts.published, failed=counts.failed)
        ends['batches'] += len(world.times_s)
        if time.monotonic() - said > 5:
            said = time.monotonic()
            done = seed - options.seed + 1
            print(f'{done} of {options.count}, {said - begun:.0f} s', file=sys.stderr)
    print(f'{options.count} schedules, {len(wrong)} with errors')
    print(', '.join(f'{count} {end}' for end, count in ends.most_common()))
    print(*wrong[:5], sep='\n')
    return 1 if wrong else 0


if __name__ == '__main__':
    with guarded_streams():
        try:
            sys.exit(main())
        except KeyboardInterrupt:
            sys.exit(130)
