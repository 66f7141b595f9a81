# SPDX-License-Identifier: Apache-2.0
"""Test exit codes after signals: tools exit with 130 and nodes with 0, even during imports."""

import importlib
import subprocess
import sys

import pytest

from support.docs_pages import executables
from trt_perception import commands

RUN = 'import sys; from trt_perception import commands; sys.exit(commands._run_main("tool"))'
STOP = 'signal.raise_signal(signal.SIGINT)'


@pytest.mark.parametrize(
    ('source', 'code'),
    [
        (f'import signal\n{STOP}\n', 130),
        (f'import signal\ntry:\n    {STOP}\nexcept BaseException:\n    raise ImportError\n', 130),
        (f'import signal\ndef main():\n    {STOP}\n', 130),
        (f'import signal\n{STOP.replace("INT", "TERM")}\n', 130),
        (f'import signal\ndef main():\n    {STOP.replace("INT", "TERM")}\n', 130),
        ('def main():\n    return 2\n', 2),
    ],
)
def test_signal_in_a_tool_gives_the_expected_exit_code(tmp_path, source, code):
    (tmp_path / 'tool.py').write_text(source)
    command = [sys.executable, '-c', RUN]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert process.returncode == code
    assert process.stderr == ''


CLOSED_STREAMS = """
import os
import subprocess

def main():
    with open('opened', 'wb', 0):
        for number in (0, 1, 2):
            try:
                os.write(number, b'text of a native library')
            except OSError:
                pass  # standard input cannot be written
        subprocess.run(['true'], stdin=subprocess.DEVNULL, check=True)
    return 0
"""


@pytest.mark.parametrize('closed', ['<&-', '>&-', '2>&-', '<&- 2>&-', '>&- 2>&-', '<&- >&- 2>&-'])
def test_streams_that_are_closed_at_the_start_do_not_write_into_opened_files(tmp_path, closed):
    (tmp_path / 'tool.py').write_text(CLOSED_STREAMS)
    shell = f'exec "$@" {closed}'
    command = ['bash', '-c', shell, 'bash', sys.executable, '-c', RUN]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60)
    assert process.returncode == 0
    assert (tmp_path / 'opened').read_bytes() == b''


@pytest.mark.parametrize(('package', 'code'), [('rclpy', 2), ('other', 1)])
def test_only_a_command_without_ros_ends_with_one_line(tmp_path, package, code):
    (tmp_path / 'tool.py').write_text(f'raise ModuleNotFoundError("gone", name="{package}")\n')
    process = subprocess.run(
        [sys.executable, '-c', RUN], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert process.returncode == code
    assert (len(process.stderr.splitlines()) == 1) is (package == 'rclpy')


@pytest.mark.parametrize('number', ['SIGINT', 'SIGTERM'])
@pytest.mark.parametrize('source', ['import signal\n{}\n', 'import signal\ndef main():\n    {}\n'])
def test_signal_ends_a_node_with_exit_code_0(tmp_path, source, number):
    (tmp_path / 'tool.py').write_text(source.format(STOP.replace('SIGINT', number)))
    command = [sys.executable, '-c', RUN.replace('"tool"', '"tool", interrupted=0')]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stderr) == (0, '')


SEVERAL_SIGNALS = """
import signal, sys

from trt_perception.process import interruption

interruption.REPEATED_SIGNAL_S = 600

def main():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
        print('cleaned up', flush=True)
        interruption.REPEATED_SIGNAL_S = {repeated_signal_s}
        signal.raise_signal(signal.{last})
        print('went on', flush=True)
        raise
"""


@pytest.mark.parametrize('last', ['SIGINT', 'SIGTERM'])
@pytest.mark.parametrize(
    ('repeated_signal_s', 'printed'), [(600, 'cleaned up\nwent on\n'), (-1, 'cleaned up\n')]
)
def test_repeated_signal_ends_the_process_at_once_only_after_a_pause(
    tmp_path, repeated_signal_s, printed, last
):
    (tmp_path / 'tool.py').write_text(
        SEVERAL_SIGNALS.format(repeated_signal_s=repeated_signal_s, last=last)
    )
    command = [sys.executable, '-c', RUN]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stdout, process.stderr) == (130, printed, '')


SIGNALS_AT_EXIT = """
import os, signal

class SignalSender:
    def __del__(self, kill=os.kill, pid=os.getpid(), signals=(signal.SIGINT, signal.SIGTERM)):
        for signal_number in signals:
            kill(pid, signal_number)

sender = SignalSender()

def main():
    {statement}
"""


@pytest.mark.parametrize(
    ('statement', 'code'), [('return 1', 1), (STOP, 130), ('raise SystemExit(2)', 2)]
)
def test_signals_while_the_interpreter_exits_do_not_change_the_exit_code(
    tmp_path, statement, code
):
    (tmp_path / 'tool.py').write_text(SIGNALS_AT_EXIT.format(statement=statement))
    command = [sys.executable, '-c', RUN]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stderr) == (code, '')


def test_ignored_signal_stays_ignored(tmp_path):
    (tmp_path / 'tool.py').write_text(f'import signal\n{STOP}\ndef main():\n    return 3\n')
    command = ['env', '--ignore-signal=INT', sys.executable, '-c', RUN]
    assert subprocess.run(command, cwd=tmp_path, timeout=60).returncode == 3


def test_table_of_commands_has_the_entry_points_of_setup():
    assert commands.COMMANDS.keys() == executables()
    assert all(getattr(commands, name) is run for name, run in commands.COMMANDS.items())


@pytest.mark.parametrize('name', commands.COMMANDS)
def test_each_command_starts_its_own_tool(name):
    command = commands.COMMANDS[name]
    assert command.func is commands._run_main
    (module,) = command.args
    tool = {'detector_node': 'detector_program'}.get(name, name)
    assert module.split('.')[-1] == tool
    assert callable(importlib.import_module(module).main)
