# SPDX-License-Identifier: Apache-2.0
"""Child processes of the benchmarks. They end with the benchmark."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / 'test'))
from support.ties import tie  # noqa: E402

#: Seconds that a process has to end, before it is killed. A killed process leaves its shared
#: memory behind.
END_S = 15.0
_SHOWN_BYTES = 4000
_ERRORS = re.compile(r'^\[(ERROR|FATAL)\]', re.MULTILINE)  # in the log of a ROS node


class Child:
    """A Python process. It ends with the ``with`` block.

    Args:
        script: path of a script, or an option of Python.
        arguments: further arguments.
        environment: variables to change.
        folder: the process's working folder; None keeps the folder of the benchmark.
        answers: whether the benchmark reads the process's standard output. Otherwise the standard
            output belongs to the log.
        log: file for the log, which stays; None for a temporary file.
    """

    def __init__(self, script, *arguments, environment=None, folder=None, answers=True, log=None):
        self._words = [str(script), *map(str, arguments)]
        # end closes it
        self._log = open(log, 'w+b') if log else tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, *self._words],
            env={**os.environ, 'PYTHONFAULTHANDLER': '1', **(environment or {})},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if answers else self._log,
            stderr=self._log,
            text=True,
        )
        tie(self._process.pid)

    @property
    def pid(self):
        """The process ID."""
        return self._process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.request_end()
        self.end(time.monotonic() + END_S)

    def request_end(self):
        """Ask the process to end: by the end of its input and SIGTERM."""
        self._process.stdin.close()
        self._process.send_signal(signal.SIGTERM)

    def end(self, deadline_s):
        """Wait until the process has ended. Kill the process at this time of time.monotonic()."""
        try:
            self._process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def check(self):
        """Raise SystemExit with the process's last output if the process has ended."""
        if self._process.poll() is not None:
            self.fail(f'ended with exit code {self._process.returncode}')

    def fail(self, problem):
        """Raise SystemExit with a problem of this process and the process's last output."""
        raise SystemExit(f'{" ".join(self._words)}\n{problem}; its last output:\n{self.output()}')

    def output(self):
        """Return the last lines of the process's log: its standard error."""
        start = max(0, self._log_size() - _SHOWN_BYTES)
        return self._log_text(start).strip() or '(none)'

    def log_lines(self):
        """Return all lines of the process's log."""
        return self._log_text(0).splitlines()

    def _log_size(self):
        return os.fstat(self._log.fileno()).st_size

    def _log_text(self, start):
        # A read at a position does not move the file's position, which the process shares.
        data = os.pread(self._log.fileno(), self._log_size() - start, start)
        return data.decode(errors='replace')

    def tell(self, line):
        """Write a line to the process's standard input."""
        self._process.stdin.write(f'{line}\n')
        self._process.stdin.flush()

    def has_line(self, timeout_s):
        """Return whether the process prints to its standard output within a time."""
        return bool(select.select([self._process.stdout], [], [], timeout_s)[0])

    def next_line(self):
        """Return the next line that the process prints; '' at the end of its output."""
        return self._process.stdout.readline().rstrip()

    def wait_for(self, line):
        """Read the process's next line, which must equal ``line``."""
        printed = self.next_line()
        if not printed:
            self._process.wait(END_S)
            self.check()
        if printed != line:
            self.fail(f"printed '{printed}' instead of '{line}'")

    def result(self, timeout_s):
        """Return the JSON object that the process prints at its end."""
        try:
            output, _ = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.fail(f'did not end within {timeout_s:.0f} s')
        code = self._process.returncode
        # SIGALRM: the process printed its result, and did not end in time.
        if code and not (output and code == -signal.SIGALRM):
            self.fail(f'ended with exit code {code}')
        return json.loads(output.splitlines()[-1])


class Children:
    """Processes that start together and end together, with the ``with`` block."""

    def __init__(self):
        self._children = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self._children:
            child.request_end()
        deadline_s = time.monotonic() + END_S
        for child in self._children:
            child.end(deadline_s)

    def start(self, script, *arguments, **settings):
        """Start a process and return its Child."""
        child = Child(script, *arguments, **settings)
        self._children.append(child)
        return child

    def check(self):
        """Raise SystemExit if a process has ended."""
        for child in self._children:
            child.check()

    def wait_for(self, line, children, timeout_s):
        """Wait until each of these processes has printed the line.

        Raises:
            SystemExit: a process ended, logged an error, or did not print the line in time. The
                text contains the last output of each process that printed something.
        """
        end_s = time.monotonic() + timeout_s
        for child in children:
            while not child.has_line(0.2):
                self.check()
                for each in self._children:
                    if _ERRORS.search(each.output()):
                        each.fail('reports an error')
                if time.monotonic() > end_s:
                    outputs = {each.output() for each in self._children} - {'(none)'}
                    print('\n'.join(sorted(outputs)), file=sys.stderr)
                    child.fail(f"did not print '{line}' within {timeout_s:.0f} s")
            child.wait_for(line)

    def sleep_until(self, time_s):
        """Sleep until a time of the system clock. Raise SystemExit if a process ends."""
        while (left_s := time_s - time.time()) > 0:
            self.check()
            time.sleep(min(left_s, 0.5))
