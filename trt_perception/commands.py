# SPDX-License-Identifier: Apache-2.0
"""Entry points of the commands. Signals and a full disk end a command cleanly at any time.

Importing the modules of a tool takes up to a second. Without this module, Ctrl-C during imports
would print a traceback. Some modules even turn KeyboardInterrupt into another error or drop it.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
from typing import Final

from trt_perception.errors import TrtPerceptionError
from trt_perception.files.plain_text import escape_controls
from trt_perception.process.interruption import ENDING_SIGNALS, Interruption, ignore_signals
from trt_perception.process.standard_streams import (
    guarded_streams,
    lost_output_reason,
    open_closed_streams,
)

# The same limit as in trt_perception.images.compressed. Importing that module here would import
# OpenCV before the environment variable below is set.
_MAX_PIXELS = 2**27
# The packages of ROS 2 that commands import first.
_ROS_PACKAGES = frozenset({'ament_index_python', 'rclpy'})


def _run_main(module: str, interrupted: int = 130) -> int:
    """Run a module's ``main`` and return its exit code.

    Args:
        interrupted: exit code after Ctrl-C or SIGTERM.
    """
    open_closed_streams()
    defaults = (signal.default_int_handler, signal.SIG_DFL)
    # If nohup or a background job of the shell ignores a signal, do not handle this signal.
    handled = [each for each in ENDING_SIGNALS if signal.getsignal(each) in defaults]
    for number in handled:
        # Exit at once: during the imports there is nothing to clean up.
        signal.signal(number, lambda *_: os._exit(interrupted))
    # OpenCV reads this variable at its first import. Its limit backs up our own checks.
    os.environ.setdefault('OPENCV_IO_MAX_IMAGE_PIXELS', str(_MAX_PIXELS))
    try:
        main = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        if error.name not in _ROS_PACKAGES:
            raise
        name = os.path.basename(sys.argv[0])
        print(f'{name}: needs ROS 2, which is not in this environment: {error}', file=sys.stderr)
        return 2
    except TrtPerceptionError as error:  # names of decoders that two packages add
        print(f'{os.path.basename(sys.argv[0])}: {escape_controls(str(error))}', file=sys.stderr)
        return 2
    try:
        with guarded_streams() as output:
            try:
                interruption = Interruption(interrupted)
                for number in handled:
                    signal.signal(number, interruption)
                code = int(main())
            except KeyboardInterrupt:
                code = interrupted
        problem = lost_output_reason(output)
        if problem:
            name = module.rpartition('.')[2]
            print(f'{name}: standard output is not complete: {problem}', file=sys.stderr)
        return code or int(bool(problem))
    except KeyboardInterrupt:  # raised while the last output is written
        return interrupted
    finally:
        ignore_signals()


# setup.py's console_scripts refer to these names.
benchmark_engine = functools.partial(_run_main, 'trt_perception.offline.tools.benchmark_engine')
build_engine = functools.partial(_run_main, 'trt_perception.offline.tools.build_engine')
detect_bag = functools.partial(_run_main, 'trt_perception.offline.tools.detect_bag')
detect_images = functools.partial(_run_main, 'trt_perception.offline.tools.detect_images')
detections_3d = functools.partial(
    _run_main, 'trt_perception.ros.boxes_3d.detections_3d', interrupted=0
)
detector_node = functools.partial(_run_main, 'trt_perception.ros.detector_program', interrupted=0)
doctor = functools.partial(_run_main, 'trt_perception.ros.doctor.doctor')
evaluate_engine = functools.partial(_run_main, 'trt_perception.offline.tools.evaluate_engine')
export_triton = functools.partial(_run_main, 'trt_perception.offline.tools.export_triton')
inspect_engine = functools.partial(_run_main, 'trt_perception.offline.tools.inspect_engine')
replay_images = functools.partial(_run_main, 'trt_perception.ros.replay_images', interrupted=0)
write_manifest = functools.partial(_run_main, 'trt_perception.offline.tools.write_manifest')

#: All commands by their names.
COMMANDS: Final = {
    'benchmark_engine': benchmark_engine,
    'build_engine': build_engine,
    'detect_bag': detect_bag,
    'detect_images': detect_images,
    'detections_3d': detections_3d,
    'detector_node': detector_node,
    'doctor': doctor,
    'evaluate_engine': evaluate_engine,
    'export_triton': export_triton,
    'inspect_engine': inspect_engine,
    'replay_images': replay_images,
    'write_manifest': write_manifest,
}
