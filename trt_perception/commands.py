"""Entry points of the command lines: signals and a full disk end them cleanly from the start on.

Importing what a tool needs takes up to a second. Python alone would print a traceback when Ctrl-C
comes in that time, and some modules make another error of it, or none.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys

from trt_perception.process.interruption import ENDING_SIGNALS, Interruption, ignore_signals
from trt_perception.process.standard_streams import guarded_streams, lost_output_reason

__all__ = [
    *('benchmark_engine', 'build_engine', 'detect_images', 'detector_node', 'doctor'),
    *('evaluate_engine', 'inspect_engine', 'replay_images'),
]

# That of trt_perception.images.compressed, which imports OpenCV.
_MAX_PIXELS = 2**27


def _run_main(module: str, interrupted: int = 130) -> int:
    """Run a module's ``main``; return its exit code, ``interrupted`` after Ctrl-C or SIGTERM."""
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
        why = lost_output_reason(output)
        if why:
            name = module.rpartition('.')[2]
            print(f'{name}: standard output is not complete: {why}', file=sys.stderr)
        return code or int(bool(why))
    except KeyboardInterrupt:  # while the last of the output is written
        return interrupted
    finally:
        ignore_signals()


# What setup.py's console_scripts name.
benchmark_engine = functools.partial(_run_main, 'trt_perception.tools.benchmark_engine')
build_engine = functools.partial(_run_main, 'trt_perception.tools.build_engine')
detect_images = functools.partial(_run_main, 'trt_perception.tools.detect_images')
detector_node = functools.partial(_run_main, 'trt_perception.ros.detector_program', interrupted=0)
doctor = functools.partial(_run_main, 'trt_perception.ros.doctor.doctor')
evaluate_engine = functools.partial(_run_main, 'trt_perception.tools.evaluate_engine')
inspect_engine = functools.partial(_run_main, 'trt_perception.tools.inspect_engine')
replay_images = functools.partial(_run_main, 'trt_perception.ros.replay_images', interrupted=0)
