"""Programs that end with the process that started them, however that one ends.

A guardian watches, a process of its own that no signal to its group reaches: where its starter is
gone, it asks what was tied to end, and kills what has not ended after a grace. The kernel's own
signal for this (PR_SET_PDEATHSIG) can do only one of both, and is sent when a thread ends, too.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time

#: Longer than launch gives the nodes that it ends.
GRACE_S = 15
_lock = threading.Lock()
_guardians = []


def tie(pid):
    """End a child with this process; to be called before anybody has waited for the child."""
    if not hasattr(os, 'pidfd_open'):  # not Linux
        return
    child = os.pidfd_open(pid)
    tie_open(child)
    os.close(child)


def tie_open(child):
    """End a process, open as a file descriptor, with this process."""
    with _lock:
        if not _guardians:
            _guardians.append(_start_guardian())
        socket.send_fds(_guardians[0][0], [b'.'], [child])


def _start_guardian():
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, '-I', '-S', __file__, str(its.fileno()), str(GRACE_S)],
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return ours, process


def guard(socket_number, grace_s):
    """Take children until the starter is gone, then end those that are left."""
    tied = set()
    with socket.socket(fileno=socket_number) as starter:
        while True:
            word, children, *_ = socket.recv_fds(starter, 1, 1)
            if not word:
                break
            for ended in _wait_for(tied, 0):
                tied.remove(ended)
                os.close(ended)
            tied.update(children)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in tied:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(child, number)
        end = time.monotonic() + grace_s
        while tied and time.monotonic() < end:
            tied -= _wait_for(tied, end - time.monotonic())


def _wait_for(children, seconds):
    """Return those that have ended, as soon as one has."""
    poll = select.poll()
    for child in children:
        poll.register(child, select.POLLIN)
    return {child for child, _ in poll.poll(1e3 * max(0.0, seconds))}


if __name__ == '__main__':
    guard(int(sys.argv[1]), float(sys.argv[2]))
