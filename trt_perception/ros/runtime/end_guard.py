# SPDX-License-Identifier: Apache-2.0
"""Kills a node whose interpreter hangs after a signal. Runs in a process of its own.

Native code may keep the interpreter's lock: rclpy in some calls, and ONNX Runtime before 1.24
while it loads a model. Then no signal handler and no thread of the node runs. Only the byte that
`signal.set_wakeup_fd` writes arrives. The guard sees this byte in the same pipe, without reading
it. The pipe also shows the end of the node.

Arguments: the pipe, the process ID of the node, the time limit in seconds, and the beginnings of
the paths of files that the guard removes after it has killed the node.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys

_END_WAIT_MS = 1000
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def start_end_guard(pipe: int, limit_s: float, prefixes: tuple[str, ...]) -> None:
    """Start the guard of this process. It ends with this process.

    Args:
        pipe: the end of the pipe of `signal.set_wakeup_fd` from which this process reads.
        limit_s: seconds from the first signal until the guard kills this process.
        prefixes: the guard removes open files of this process whose path begins with one of these.
    """
    # systemd signals all processes of a service. The guard inherits the mask and must outlive the
    # signals, also while its interpreter starts.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS)
    try:
        arguments = [str(pipe), str(os.getpid()), str(limit_s), *prefixes]
        guard = subprocess.Popen(
            [sys.executable, '-I', '-S', __file__, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[pipe],
            start_new_session=True,  # Ctrl-C and a closed terminal do not reach the guard
        )
        guard.returncode = 0  # nobody waits for the guard, so Python must not warn
    except OSError:
        pass  # without a guard, only SIGKILL ends a process whose interpreter hangs
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _guard(pipe: int, node: int, limit_s: float, prefixes: tuple[str, ...]) -> None:
    """Wait for the end of the node. Kill the node if a signal came and the limit has passed."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    poll.poll()
    poll.modify(pipe, 0)  # the end of the node is always reported
    if poll.poll(1000 * limit_s) or os.getppid() != node:
        return
    files = _open_files(node, prefixes)
    with contextlib.suppress(ProcessLookupError):
        os.kill(node, signal.SIGKILL)
    # Only a parent namespace can kill the first process of a container. The end of another process
    # may also take seconds on a busy machine.
    is_killed = node != 1 or bool(poll.poll(_END_WAIT_MS))
    end = 'killed' if is_killed else 'no effect of SIGKILL for 1 s: use docker run --init'
    if select.select([], [2], [], 0)[1]:  # a pipe without a reader must not keep the guard
        with contextlib.suppress(OSError):
            os.write(2, f'error: native code has not returned after a signal; {end}\n'.encode())
    poll.poll()
    for path in files:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _open_files(process: int, prefixes: tuple[str, ...]) -> list[str]:
    """Return the paths of a process's open files that begin with one of the prefixes."""
    paths = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(f'/proc/{process}/fd'):
            with contextlib.suppress(OSError):
                path = os.readlink(entry.path)
                if path.startswith(prefixes):
                    paths.append(path)
    return paths


if __name__ == '__main__':
    _guard(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), tuple(sys.argv[4:]))
