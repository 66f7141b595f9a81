# SPDX-License-Identifier: Apache-2.0
"""Start programs for tests, read their output continuously, and end them with the test."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import trt_perception
from support.forked import ForkedProcess, can_fork
from support.ties import tie
from support.waiting import DEADLINE_S, WaitTimeoutError

#: Changes to the environment that disable coverage, for programs that Ctrl-C interrupts. Ctrl-C
#: inside coverage's lock would leave the lock held.
UNMEASURED = {'TRT_PERCEPTION_COVERAGE': None, 'COVERAGE_PROCESS_START': None}
#: All started programs that have not ended; graph_fixtures prints their output.
programs = []


def executable(name):
    """Return the path of an installed executable of the package."""
    folders = (parent / 'lib/trt_perception' for parent in Path(trt_perception.__file__).parents)
    return str(next(folder for folder in folders if folder.is_dir()) / name)


def unmeasured():
    """Return an environment without coverage, for a program whose code other tests measure.

    Starting coverage would double the time of a program that runs for a second.
    """
    return {name: value for name, value in os.environ.items() if name not in UNMEASURED}


def small_disk(largest):
    """Return arguments of subprocess.run that limit file sizes to ``largest`` bytes.

    Writes beyond this size fail as on a full disk. Python must not write compiled modules then,
    because later processes would read truncated files.
    """

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # SIGXFSZ would kill the process
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))

    return {'preexec_fn': limit, 'env': {**os.environ, 'PYTHONDONTWRITEBYTECODE': '1'}}


def run_tied(command, *, timeout_s):
    """Run a program that ends with this process. Return its output and its exit code."""
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        tie(process.pid)
        try:
            output, said = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, said)


def run_without_reader(command, **options):
    """Run a program whose output nobody reads. Return it as subprocess.run does, with stderr."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            list(map(str, command)), stdout=writer, stderr=subprocess.PIPE, text=True, **options
        )
    finally:
        os.close(writer)


class Program:
    """Runs a process, and reads its output (stdout and stderr together) continuously.

    Args:
        command: the command line.
        environment: changes to this process's environment; None removes a variable.
    """

    def __init__(self, command, environment=None):
        changed = {**os.environ, 'PYTHONUNBUFFERED': '1', **(environment or {})}
        changed = {name: value for name, value in changed.items() if value is not None}
        command = [str(part) for part in command]
        # A hanging test ends this process immediately. The started programs must then also end.
        if can_fork(command, changed):
            self._process = ForkedProcess(command, changed)
        else:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors='replace',
                env={'PYTHONFAULTHANDLER': '1', **changed},  # SIGABRT prints the stacks
            )
            tie(self._process.pid)
        self._lines = []
        self._shown = self._forgotten = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        programs.append(self)

    def _read(self):
        for line in self._process.stdout:
            self._lines.append(line)

    @property
    def output(self):
        return ''.join(self._lines[self._forgotten :])

    def forget(self):
        """Ignore the output up to now in later waits."""
        self._forgotten = len(self._lines)

    @property
    def pid(self):
        return self._process.pid

    @property
    def alive(self):
        return self._process.poll() is None

    @property
    def code(self):
        """Return the exit code; None while the program runs."""
        return self._process.poll()

    def count(self, text):
        return self.output.count(text)

    def wait_for_output(self, text, count=1):
        self._wait(lambda: self.count(text) >= count, f'{count} x {text!r}')

    def wait_for_line(self, pattern):
        """Wait for a line of the output; return the match."""
        find = re.compile(pattern, re.MULTILINE).search
        self._wait(lambda: find(self.output), f'a line like {pattern!r}')
        return find(self.output)

    def _wait(self, found, what):
        end = time.monotonic() + DEADLINE_S
        while not found():
            # Check the end before the output, so that the last output is not missed.
            gone = not self._reader.is_alive()
            late = time.monotonic() > end
            if not found() and (gone or late):
                message = f'expected {what} in the output of {self._process.args}'
                raise WaitTimeoutError(message) if late else AssertionError(message)
            time.sleep(0.01)

    def send(self, number):
        self._process.send_signal(number)

    def stop(self):
        """Pause the process until SIGCONT, and wait until all its threads have stopped."""
        self.send(signal.SIGSTOP)  # the kernel stops the threads one after the other
        end = time.monotonic() + DEADLINE_S
        while set(self._states()) != {'T'}:
            if time.monotonic() > end:
                raise WaitTimeoutError(f'expected {self._process.args} to stop')
            time.sleep(0.001)

    def _states(self):
        for stat in Path(f'/proc/{self.pid}/task').glob('*/stat'):
            with contextlib.suppress(OSError):  # the thread has just ended
                yield stat.read_text().rpartition(') ')[2][0]

    def wait(self, seconds=DEADLINE_S):
        """Wait until the program has ended, and return its exit code."""
        code = self._process.wait(seconds)
        self._reader.join(DEADLINE_S)
        return code

    def close(self):
        """End the process with a signal that allows it to clean up; kill it only if that fails.

        Other participants would still list a killed process as discovered.

        Raises:
            WaitTimeoutError: the process had to be killed.
        """
        is_killed = False
        self._process.send_signal(signal.SIGCONT)  # a failed test may have left it stopped
        self._process.terminate()
        try:
            self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            self._process.kill()
            self._process.wait()
            is_killed = True
        # A process that inherited the pipe may keep it open.
        self._reader.join(5)
        if not self._reader.is_alive():
            self._process.stdout.close()
        if is_killed:
            print(self._process.args, 'did not end:', *self._lines[-100:], file=sys.__stderr__)
            raise WaitTimeoutError(f'expected the end of {self._process.args}')

    def show(self):
        """Print the new output for pytest's report."""
        end = len(self._lines)
        if end > self._shown:
            print(f'--- {self._process.args}')
            print(''.join(self._lines[self._shown : end]), end='')
        self._shown = end


def script(name):
    """Return the command of a script in this folder."""
    return [sys.executable, str(Path(__file__).parent / name)]
