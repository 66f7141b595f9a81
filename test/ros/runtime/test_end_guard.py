# SPDX-License-Identifier: Apache-2.0
"""Tests of the guard process, and of signals while a node sets up their handling."""

import os
import signal
import subprocess
import sys

import pytest

from support.programs import DEADLINE_S

#: Starts a guard, and hangs with Python's lock after a signal of a node.
NODE = """
import ctypes, os, signal, sys
from trt_perception.ros.runtime.end_guard import start_end_guard

opened = open(sys.argv[1], 'w')
read, write = os.pipe()
start_end_guard(read, 0.2, (sys.argv[1],))
children = open(f'/proc/self/task/{os.getpid()}/children').read()
guard = int(children)
for name in sys.argv[2:]:
    os.kill(guard, getattr(signal, name))  # while the interpreter of the guard starts
print(guard, flush=True)
os.write(write, b'x')
ctypes.PyDLL(None).sleep(1000)
"""
IN_CONTAINER = ['unshare', '--pid', '--fork', '--mount-proc', '--kill-child']


def can_unshare():
    return subprocess.run([*IN_CONTAINER, 'true'], capture_output=True).returncode == 0


@pytest.mark.parametrize('names', [(), ('SIGTERM',), ('SIGINT', 'SIGHUP'), ('SIGHUP', 'SIGTERM')])
def test_guard_survives_signals_from_its_start_on(tmp_path, names):
    """systemd may signal all processes of a service right after the start."""
    path = tmp_path / 'region'
    ended = subprocess.run(
        [sys.executable, '-c', NODE, path, *names], capture_output=True, timeout=DEADLINE_S
    )
    assert ended.returncode == -signal.SIGKILL
    assert not path.exists()


@pytest.mark.skipif(not can_unshare(), reason='needs the right to create a PID namespace')
def test_guard_keeps_the_files_of_a_process_that_it_cannot_kill(tmp_path):
    """In its PID namespace, SIGKILL has no effect on the first process."""
    path = tmp_path / 'region'
    with subprocess.Popen(
        [*IN_CONTAINER, sys.executable, '-c', NODE, path], stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stderr.readline()  # the guard has given up
            assert process.poll() is None
            assert path.exists()
        finally:
            process.kill()


#: The signal arrives just after its handler was installed.
EARLY = """
import os, signal, sys
from trt_perception.ros.runtime import process

install, number = signal.signal, getattr(signal, sys.argv[1])

def install_and_signal(installed, handler):
    install(installed, handler)
    if installed == number:
        os.kill(os.getpid(), number)

signal.signal = install_and_signal
signals = process._Signals()
signal.signal = install
signals.end_requested.wait()
print('end requested')
"""


@pytest.mark.parametrize('name', ['SIGINT', 'SIGTERM', 'SIGHUP'])
def test_signal_while_handlers_are_installed_is_not_lost(name):
    ended = subprocess.run(
        [sys.executable, '-c', EARLY, name],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        env={**os.environ, 'PYTHONUNBUFFERED': '1'},
    )
    assert ended.stdout == 'end requested\n', ended.stderr
