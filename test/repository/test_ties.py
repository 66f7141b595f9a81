"""Programs that tests, soaks, benchmarks and the demo start end with them, even if killed."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import programs

# A starter of two programs: one ends when it is asked to, the other does not.
STARTER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from support import programs, ties
ties.GRACE_S = float(sys.argv[3])
ready = "print('ready', flush=True); time.sleep(600)"
orderly = f'''
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: (Path(sys.argv[1]).touch(), sys.exit(0)))
{ready}'''
stubborn = f'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {ready}'
started = [
    programs.Program([sys.executable, '-c', orderly, sys.argv[2]]),
    programs.Program([sys.executable, '-c', stubborn]),
]
for program in started:
    program.wait_for_output('ready')
print(*(program.pid for program in started), flush=True)
time.sleep(600)
"""


def started(folder, grace_s):
    """Start them; return the starter and a descriptor for each of both."""
    helpers = Path(programs.__file__).parents[1]
    command = [sys.executable, '-c', STARTER, helpers, folder / 'ended', str(grace_s)]
    starter = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    numbers = [int(word) for word in starter.stdout.readline().split()]
    assert len(numbers) == 2
    return starter, [os.pidfd_open(number) for number in numbers]


def ended(process, seconds):
    return bool(select.select([process], [], [], seconds)[0])


@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGTERM])
def test_what_was_started_ends_with_its_starter(tmp_path, number):
    starter, both = started(tmp_path, grace_s=0.5)
    try:
        starter.send_signal(number)
        assert starter.wait(30) == -number
        assert [ended(process, 30) for process in both] == [True, True]
        assert (tmp_path / 'ended').exists()
    finally:
        end(starter, both)


def test_what_ends_slowly_has_its_time(tmp_path):
    starter, (orderly, stubborn) = started(tmp_path, grace_s=600)
    try:
        starter.kill()
        assert ended(orderly, 30)
        assert not ended(stubborn, 0)
    finally:
        end(starter, (orderly, stubborn))


def end(starter, processes):
    starter.kill()
    starter.wait()
    starter.stdout.close()
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
        os.close(process)


def test_a_run_that_takes_too_long_ends():
    command = [sys.executable, '-c', 'import time; time.sleep(600)']
    with pytest.raises(subprocess.TimeoutExpired):
        programs.run_tied(command, timeout_s=0.2)


def test_a_run_that_fails():
    ran = programs.run_tied([sys.executable, '-c', 'print(5); raise SystemExit(3)'], timeout_s=60)
    assert (ran.stdout, ran.stderr, ran.returncode) == ('5\n', '', 3)
