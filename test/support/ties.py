# SPDX-License-Identifier: Apache-2.0
"""End programs when the process that started them ends, even if that process was killed.

A guardian process outside the process group receives the started programs. When the starter is
gone, the guardian sends SIGTERM, and SIGKILL after a grace period. The kernel's own mechanism
(PR_SET_PDEATHSIG) can send only one of these signals, and also sends it when only the starting
thread ends.

If a program leads a process group, SIGKILL goes to the whole group: to the processes that the
program started, too.
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
    tie_open(child, pid if os.getpgid(pid) == pid else 0)
    os.close(child)


def tie_open(child, group=0):
    """Tie a process, given as an open process file descriptor, to this process.

    Args:
        child: the process file descriptor.
        group: number of the process group that the process leads; 0 if it leads none.
    """
    with _lock:
        if not _guardians:
            _guardians.append(_start_guardian())
        socket.send_fds(_guardians[0][0], [str(group).encode()], [child])


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
    tied = {}  # maps a child to the process group that it leads, or to 0
    with socket.socket(fileno=socket_number) as starter:
        while True:
            group, children, *_ = socket.recv_fds(starter, 20, 1)
            for ended in _wait_for(tied, 0):
                # Another process may get the number of its group.
                del tied[ended]
                os.close(ended)
            if not group:
                break
            tied[children[0]] = int(group)
    for child in tied:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(child, signal.SIGTERM)
    running, end = set(tied), time.monotonic() + grace_s
    while running and time.monotonic() < end:
        running -= _wait_for(running, end - time.monotonic())
    for child, group in tied.items():
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(group, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(child, signal.SIGKILL)


def _wait_for(children, seconds):
    """Return the children that have ended, as soon as at least one has ended."""
    poll = select.poll()
    for child in children:
        poll.register(child, select.POLLIN)
    return {child for child, _ in poll.poll(1e3 * max(0.0, seconds))}


if __name__ == '__main__':
    guard(int(sys.argv[1]), float(sys.argv[2]))
