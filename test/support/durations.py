# SPDX-License-Identifier: Apache-2.0
"""Store the durations of test files, to start the slowest first and to make equal shares.

`scripts/test --store-durations` writes test/durations.json. The file has two durations in seconds
for each test file: with and without the engine builds of the test file.
"""

import functools
import json
from pathlib import Path

TEST_FOLDER = Path(__file__).resolve().parents[1]
DURATIONS_FILE = TEST_FOLDER / 'durations.json'
#: Duration of an unmeasured file, and the shortest time to collect a file, in seconds.
LEAST_S = 0.3


@functools.cache
def stored():
    return json.loads(DURATIONS_FILE.read_text(encoding='utf-8'))


def duration_of(path, *, builds=True):
    """Return the duration of a test file in seconds, with or without its engine builds."""
    name = path.relative_to(TEST_FOLDER).as_posix() if path.is_relative_to(TEST_FOLDER) else ''
    all_s, quick_s = stored().get(name, (LEAST_S, LEAST_S))
    return max(LEAST_S, all_s if builds else quick_s)


def share_of(number, count, paths):
    """Return the test files of one share, such as share 1 of 2.

    The shares have equal durations without engine builds. Each file, longest first, goes to
    the share with the shortest total.
    """
    shares = [(0.0, index, []) for index in range(count)]
    for path in sorted(paths, key=lambda path: (-duration_of(path, builds=False), path)):
        seconds, index, files = min(shares)
        files.append(path)
        shares[index] = (seconds + duration_of(path, builds=False), index, files)
    return frozenset(shares[number - 1][2])


class Recorder:
    """A pytest plugin that stores the durations of this run's files."""

    def __init__(self):
        self._seconds = {}

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.partition('::')[0].removeprefix('test/')
        seconds = self._seconds.setdefault(name, [0.0, 0.0])
        seconds[0] += report.duration
        seconds[1] += 0 if 'engine_build' in report.keywords else report.duration

    def pytest_sessionfinish(self):
        measured = {name: [round(one, 1) for one in two] for name, two in self._seconds.items()}
        kept = {name: two for name, two in stored().items() if (TEST_FOLDER / name).is_file()}
        entries = sorted({**kept, **measured}.items())
        lines = [f'{json.dumps(name)}: {json.dumps(two)}' for name, two in entries]
        DURATIONS_FILE.write_text('{\n' + ',\n'.join(lines) + '\n}\n', encoding='utf-8')
