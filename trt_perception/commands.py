"""Entry points of the command lines: signals and a full disk end them cleanly from the start on.

Importing what a tool needs takes up to a second. Python alone would print a traceback when Ctrl-C
comes in that time, and some modules make another error of it, or none.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys

from trt_perception.interruption import ENDING_SIGNALS
from trt_perception.interruption import Interruption
from trt_perception.interruption import ignore_signals
from trt_perception.tools.standard_streams import guarded_streams
from trt_perception.tools.standard_streams import lost

__all__ = [
    *('benchmark_engine', 'build_engine', 'detect_images', 'detector_node', 'doctor'),
    *('evaluate_engine', 'inspect_engine', 'replay_images'),
]

# That of trt_perception.images.compressed, which imports OpenCV.
_MAX_PIXELS = 2**27


def benchmark_engine() -> int:
    """Run benchmark_engine; return its exit code."""
    return _run('trt_perception.tools.benchmark_engine')


def build_engine() -> int:
    """Run build_engine; return its exit code."""
    return _run('trt_perception.tools.build_engine')


def detect_images() -> int:
    """Run detect_images; return its exit code."""
    return _run('trt_perception.tools.detect_images')


def detector_node() -> int:
    """Run detector_node; return its exit code."""
    return _run('trt_perception.ros.detector_program', interrupted=0)


def doctor() -> int:
    """Run doctor; return its exit code."""
    return _run('trt_perception.ros.doctor')


def evaluate_engine() -> int:
    """Run evaluate_engine; return its exit code."""
    return _run('trt_perception.tools.evaluate_engine')


def inspect_engine() -> int:
    """Run inspect_engine; return its exit code."""
    return _run('trt_perception.tools.inspect_engine')


def replay_images() -> int:
    """Run replay_images; return its exit code."""
    return _run('trt_perception.ros.replay_images', interrupted=0)


def _run(module: str, interrupted: int = 130) -> int:
    defaults = (signal.default_int_handler, signal.SIG_DFL)
    # Not where a shell in the background, or nohup, ignores it.
    caught = [each for each in ENDING_SIGNALS if signal.getsignal(each) in defaults]
    for number in caught:
        # Nothing has begun that must be ended in order.
        signal.signal(number, lambda *_: os._exit(interrupted))
    # OpenCV looks at it when it is first imported: a second wall behind our own checks.
    os.environ.setdefault('OPENCV_IO_MAX_IMAGE_PIXELS', str(_MAX_PIXELS))
    main = importlib.import_module(module).main
    try:
        with guarded_streams() as output:
            try:
                interruption = Interruption(interrupted)
                for number in caught:
                    signal.signal(number, interruption)
                code = int(main())
            except KeyboardInterrupt:
                code = interrupted
        why = lost(output)
        if why:
            name = module.rpartition('.')[2]
            print(f'{name}: standard output is not complete: {why}', file=sys.stderr)
        return code or int(bool(why))
    except KeyboardInterrupt:  # while the last of the output is written
        return interrupted
    finally:
        ignore_signals()
