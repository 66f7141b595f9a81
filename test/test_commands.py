"""Ctrl-C ends tools with 130 and nodes with 0, without a traceback, from their first import on."""

import importlib
import subprocess
import sys

import pytest

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
def test_exit_codes(tmp_path, source, code):
    (tmp_path / 'tool.py').write_text(source)
    command = [sys.executable, '-c', RUN]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert done.stderr == ''


@pytest.mark.parametrize('number', ['SIGINT', 'SIGTERM'])
@pytest.mark.parametrize('source', ['import signal\n{}\n', 'import signal\ndef main():\n    {}\n'])
def test_a_node_is_ended_by_signals(tmp_path, source, number):
    (tmp_path / 'tool.py').write_text(source.format(STOP.replace('SIGINT', number)))
    command = [sys.executable, '-c', RUN.replace('"tool"', '"tool", interrupted=0')]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, '')


AGAIN = """
import signal, sys

from trt_perception.process import interruption

interruption.REPEATED_SIGNAL_S = 600

def main():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
        print('ended in order', flush=True)
        interruption.REPEATED_SIGNAL_S = {same_s}
        signal.raise_signal(signal.{last})
        print('went on', flush=True)
        raise
"""


@pytest.mark.parametrize('last', ['SIGINT', 'SIGTERM'])
@pytest.mark.parametrize(
    ('same_s', 'said'), [(600, 'ended in order\nwent on\n'), (-1, 'ended in order\n')]
)
def test_a_signal_ends_a_process_at_once_unless_it_follows_another(tmp_path, same_s, said, last):
    (tmp_path / 'tool.py').write_text(AGAIN.format(same_s=same_s, last=last))
    command = [sys.executable, '-c', RUN]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, said, '')


LATE = """
import os, signal

class Late:
    def __del__(self, kill=os.kill, number=os.getpid(), signals=(signal.SIGINT, signal.SIGTERM)):
        for each in signals:
            kill(number, each)

late = Late()

def main():
    {what}
"""


@pytest.mark.parametrize(
    ('what', 'code'), [('return 1', 1), (STOP, 130), ('raise SystemExit(2)', 2)]
)
def test_signals_in_the_end_of_the_interpreter_change_nothing(tmp_path, what, code):
    (tmp_path / 'tool.py').write_text(LATE.format(what=what))
    command = [sys.executable, '-c', RUN]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (code, '')


def test_a_signal_that_is_ignored_stays_so(tmp_path):
    (tmp_path / 'tool.py').write_text(f'import signal\n{STOP}\ndef main():\n    return 3\n')
    command = ['env', '--ignore-signal=INT', sys.executable, '-c', RUN]
    assert subprocess.run(command, cwd=tmp_path, timeout=60).returncode == 3


@pytest.mark.parametrize('name', commands.__all__)
def test_each_starts_its_own_tool(name):
    command = getattr(commands, name)
    assert command.func is commands._run_main
    (module,) = command.args
    tool = {'detector_node': 'detector_program'}.get(name, name)
    assert module.split('.')[-1] == tool
    assert callable(importlib.import_module(module).main)
