# SPDX-License-Identifier: Apache-2.0
"""Check that programs end with the test, soak, benchmark or demo that started them."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import programs
from support.waiting import WaitTimeoutError

# A process that starts two programs: one ends on SIGTERM, the other ignores SIGTERM.
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

# A process that starts the leader of a process group. The child of the leader ignores SIGTERM.
STARTER_OF_A_GROUP = """
import subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from support import ties
child = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
child += "print(os.getpid(), flush=True); time.sleep(600)"
leader = 'import subprocess, sys; subprocess.run([sys.executable, "-c", sys.argv[1]])'
command = [sys.executable, '-c', leader, child]
ties.tie(subprocess.Popen(command, start_new_session=True).pid)
time.sleep(600)
"""


def run_starter(folder, grace_s):
    """Run STARTER. Return its process, and a file descriptor of each program."""
    helpers = Path(programs.__file__).parents[1]
    command = [sys.executable, '-c', STARTER, helpers, folder / 'ended', str(grace_s)]
    starter = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    numbers = [int(word) for word in starter.stdout.readline().split()]
    assert len(numbers) == 2
    return starter, [os.pidfd_open(number) for number in numbers]


def has_ended(process, seconds=programs.DEADLINE_S):
    return bool(select.select([process], [], [], seconds)[0])


@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGTERM])
def test_programs_end_when_their_starter_is_killed(tmp_path, number):
    starter, processes = run_starter(tmp_path, grace_s=0.5)
    try:
        starter.send_signal(number)
        assert starter.wait(programs.DEADLINE_S) == -number
        assert [has_ended(process) for process in processes] == [True, True]
    finally:
        end_all(starter, processes)


def test_slow_program_may_use_its_grace_period(tmp_path):
    starter, (orderly, stubborn) = run_starter(tmp_path, grace_s=600)
    try:
        starter.kill()
        assert has_ended(orderly)
        assert (tmp_path / 'ended').exists()
        assert not has_ended(stubborn, 0)
    finally:
        end_all(starter, (orderly, stubborn))


def test_group_of_a_program_ends_when_the_starter_is_killed():
    helpers = Path(programs.__file__).parents[1]
    command = [sys.executable, '-c', STARTER_OF_A_GROUP, helpers]
    starter = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    child = os.pidfd_open(int(starter.stdout.readline()))
    try:
        starter.kill()
        assert has_ended(child)
    finally:
        end_all(starter, [child])


def end_all(starter, processes):
    starter.kill()
    starter.wait()
    starter.stdout.close()
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
        os.close(process)


def test_run_above_its_time_limit_is_ended():
    command = [sys.executable, '-c', 'import time; time.sleep(600)']
    with pytest.raises(subprocess.TimeoutExpired):
        programs.run_tied(command, timeout_s=0.2)


def test_failed_run_returns_its_output_and_exit_code():
    process = programs.run_tied(
        [sys.executable, '-c', 'print(5); raise SystemExit(3)'], timeout_s=60
    )
    assert (process.stdout, process.stderr, process.returncode) == ('5\n', '', 3)


@pytest.mark.parametrize('is_stopped', [False, True])
def test_program_that_ignores_signals_or_is_stopped_can_be_closed(is_stopped, monkeypatch):
    numbers = '' if is_stopped else 'SIGTERM SIGABRT'
    code = f"""
import signal, time
for name in {numbers.split()}:
    signal.signal(getattr(signal, name), signal.SIG_IGN)
print('ready', flush=True)
time.sleep(600)
"""
    program = programs.Program([sys.executable, '-c', code])
    program.wait_for_output('ready')
    if is_stopped:
        program.stop()
    else:
        monkeypatch.setattr(programs, 'DEADLINE_S', 0.5)  # it never ends by itself
    with contextlib.nullcontext() if is_stopped else pytest.raises(WaitTimeoutError):
        program.close()
    assert program.code == -(signal.SIGTERM if is_stopped else signal.SIGKILL)
