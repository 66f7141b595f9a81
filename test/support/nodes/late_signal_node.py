# SPDX-License-Identifier: Apache-2.0
"""Run a program of the package that gets signals while the interpreter shuts down.

    python late_signal_node.py detector_node|replay_images|... ARGUMENTS

Each signal arrives after the interpreter has restored the default signal handlers.
"""

import os
import signal
import sys

from trt_perception import commands


class ShutdownSignals:
    """Sends the signals when Python deletes the modules."""

    def __init__(self):
        # Module globals may be gone at that time.
        self._kill, self._process = os.kill, os.getpid()
        self._signals = signal.SIGINT, signal.SIGTERM

    def __del__(self):
        for number in self._signals:
            self._kill(self._process, number)


if __name__ == '__main__':
    shutdown_signals = ShutdownSignals()
    name = sys.argv.pop(1)
    if name == 'detector_node':
        from trt_perception.ros.runtime import process

        process.SIGNAL_LIMIT_S = 60.0  # longer than in production, because the machine may be busy
    sys.exit(getattr(commands, name)())
