# SPDX-License-Identifier: Apache-2.0
"""Progress of a tool: lines without a terminal, and a bar that vanishes on a terminal."""

import fcntl
import os
import pty
import struct
import sys
import termios

from trt_perception.offline.tools.parts import command_line
from trt_perception.offline.tools.parts.command_line import print_message, progress_bar


def advance():
    with progress_bar(desc='detecting', unit='img', total=40, initial=10) as progress:
        for done in (10, 20, 15, 40):  # a part that is tried again counts again
            progress(done, 40)
            if done == 20:
                print_message('tool', 'a problem')


def test_nothing_but_messages_is_printed_in_the_first_ten_seconds(capsys):
    advance()
    assert capsys.readouterr().err == 'tool: a problem\n'


def test_progress_without_a_terminal_is_lines(capsys, monkeypatch):
    monkeypatch.setattr(command_line, '_LINE_INTERVAL_S', 0)
    advance()
    lines = capsys.readouterr().err.splitlines()
    assert lines.pop(2) == 'tool: a problem'
    assert [line.split()[2] for line in lines] == ['10/40', '20/40', '15/40', '40/40']


def test_bar_on_a_terminal_leaves_only_messages(monkeypatch):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 80, 0, 0))
    with os.fdopen(slave, 'w') as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, 'stderr', terminal)
        advance()
        print('end', file=terminal, flush=True)
        # The kernel passes the output on in pieces: one read may return the first of them only.
        written = b''
        while not written.endswith(b'end\r\n'):
            written += os.read(master, 65536)
    os.close(master)
    assert b'10/40' in written
    screen = ['']
    for character in written.decode().replace('\r\n', '\n'):
        if character == '\n':
            screen.append('')
            column = 0
        elif character == '\r':
            column = 0
        else:
            screen[-1] = screen[-1][:column] + character + screen[-1][column + 1 :]
            column += 1
    assert [line.strip() for line in screen] == ['tool: a problem', 'end', '']
