# SPDX-License-Identifier: Apache-2.0
"""Send damaged serialised images through the intake's reader and the worker pool.

Each message must be refused as bad_message, or read with the same result as by rclpy, and counted
once. A child process does the work, so that the script sees a crash.

Exit codes: 0 no error, 1 errors, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
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
  scripts/fuzz_messages                          100,000 messages, a minute or two
  scripts/fuzz_messages --count 1000 --seed 7
"""
CHUNK = 5000


def parse():
    parser = OptionParser(
        'scripts/fuzz_messages',
        'Damaged serialised images: refused, or read as rclpy reads them; each is counted once.',
        EXAMPLES,
    )
    parser.add_argument(
        '--count', type=integer_at_least(1), default=100_000, help='messages (default 100000)'
    )
    parser.add_argument('--seed', type=int, default=0, help='seed of the changes (default 0)')
    return parser.parse_args()


def work(count, seed, results):
    from support.fuzz.message_fuzz import Fuzz, cases

    found = Fuzz().run(cases(count, seed))
    counted = [
        {**counts.dropped, 'published': counts.published} for counts in found.counts.values()
    ]
    # Only few errors, because the parent reads the pipe after this process has ended.
    results.put((found.read, found.refused, found.agreed, counted, found.wrong[:20]))


def main():
    options = parse()
    begun = time.monotonic()
    read, refused, ends = Counter(), Counter(), Counter()
    agreed = crashes = sent = 0
    wrong = []
    context = multiprocessing.get_context('spawn')
    for seed, start in enumerate(range(0, options.count, CHUNK), CHUNK * options.seed):
        count = min(CHUNK, options.count - start)
        results = context.SimpleQueue()
        child = context.Process(target=work, args=(count, seed, results))
        child.start()
        child.join()
        if child.exitcode:
            crashes += 1
            wrong.append(f'seed {seed}: a process of {count} messages ended with {child.exitcode}')
            continue
        was_read, was_refused, alike, counted, mistakes = results.get()
        sent += count
        agreed += alike
        wrong += mistakes
        for sums, counts in (
            (read, was_read),
            (refused, was_refused),
            *((ends, c) for c in counted),
        ):
            sums.update(counts)
        print(f'{sent} of {options.count}, {time.monotonic() - begun:.0f} s', file=sys.stderr)
    print(f'{sent} messages: {crashes} crashes, {len(wrong)} errors')
    print(f'read: {read.total()}, of which rclpy read {agreed} with equal results; {dict(read)}')
    print(f'refused as bad_message: {refused.total()} {dict(refused)}')
    print(f'counted by the worker pool: {ends.total()} {dict(ends)}')
    print(*wrong[:20], sep='\n')
    return 1 if wrong or ends.total() != sent else 0


if __name__ == '__main__':
    with guarded_streams():
        try:
            sys.exit(main())
        except KeyboardInterrupt:
            sys.exit(130)
