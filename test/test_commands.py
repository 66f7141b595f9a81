"""Ctrl-C ends tools with 130 and nodes with 0, without a traceback, from their first import on."""

import importlib
import subprocess
import sys

import pytest

from trt_perception import commands

RUN = 'import sys; from trt_perception import commands; sys.exit(commands._run("tool"))'
STOP = 'signal.raise_signal(signal.SIGINT)'


@pytest.mark.parametrize(
    ('source', 'code'),
    [
        (f'import signal\n{STOP}\n', 130),
        (f'import signal\ntry:\n    {STOP}\nexcept BaseException:\n    raise ImportError\n', 130),
        (f'import signal\ndef main():\n    {STOP}\n', 130),
        ('def main():\n    return 2\n', 2),
    ],
)
def test_exit_codes(tmp_path, source, code):
    (tmp_path / 'tool.py').write_text(source)
    command = [sys.executable, '-c', RUN]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert done.stderr == ''


def test_a_node_is_ended_by_signals(tmp_path):
    (tmp_path / 'tool.py').write_text(f'import signal\n{STOP}\n')
    command = [sys.executable, '-c', RUN.replace('"tool"', '"tool", interrupted=0')]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, '')


def test_a_signal_that_is_ignored_stays_so(tmp_path):
    (tmp_path / 'tool.py').write_text(f'import signal\n{STOP}\ndef main():\n    return 3\n')
    command = ['env', '--ignore-signal=INT', sys.executable, '-c', RUN]
    assert subprocess.run(command, cwd=tmp_path, timeout=60).returncode == 3


@pytest.mark.parametrize('name', commands.__all__)
def test_each_starts_its_own_tool(name, monkeypatch):
    started = []
    monkeypatch.setattr(commands, '_run', lambda module, **_: started.append(module))
    getattr(commands, name)()
    assert [module.split('.')[-1] for module in started] == [name]
    assert callable(importlib.import_module(started[0]).main)
