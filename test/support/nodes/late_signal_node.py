"""A program of the package to which signals come in the interpreter's end.

    python late_signal_node.py detector_node|replay_images|... ARGUMENTS

Each comes once the interpreter has given signals their defaults back.
"""

import os
import signal
import sys

from trt_perception import commands


class Late:
    """Sends the signals when the modules are thrown away."""

    def __init__(self):
        # Names of modules may be gone by then.
        self._kill, self._process = os.kill, os.getpid()
        self._signals = signal.SIGINT, signal.SIGTERM

    def __del__(self):
        for number in self._signals:
            self._kill(self._process, number)


if __name__ == '__main__':
    late = Late()
    name = sys.argv.pop(1)
    sys.exit(getattr(commands, name)())
