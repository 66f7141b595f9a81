# SPDX-License-Identifier: Apache-2.0
"""End programs when the process that started them ends, even if that process was killed.

A guardian process outside the process group receives the started programs. When the starter is
gone, the guardian sends SIGTERM, and SIGKILL after a grace period. The kernel's own mechanism
(PR_SET_PDEATHSIG) can send only one of these signals, and also sends it when only the starting
thread ends.
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

#: Seconds between SIGTERM and SIGKILL. Longer than launch's grace period for its nodes.
GRACE_S = 15
_lock = threading.Lock()
_guardians = []


def tie(pid):
    """Tie a child to this process. Call this function before a wait for the child."""
    if not hasattr(os, 'pidfd_open'):  # not Linux
        return
    child = os.pidfd_open(pid)
    tie_open(child)
    os.close(child)


def tie_open(child):
    """Tie a process, given as an open process file descriptor, to this process."""
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
    """Receive started programs until the starter has ended, then end all remaining programs."""
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
    """Return the children that have ended, as soon as at least one has ended."""
    poll = select.poll()
    for child in children:
        poll.register(child, select.POLLIN)
    return {child for child, _ in poll.poll(1e3 * max(0.0, seconds))}


if __name__ == '__main__':
    guard(int(sys.argv[1]), float(sys.argv[2]))
