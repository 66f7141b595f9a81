# SPDX-License-Identifier: Apache-2.0
"""Run scripts/demo.py with longer limits, because the machine may be busy."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / 'scripts'))
import demo

NODE = """
import sys
from trt_perception import commands
from trt_perception.ros.runtime import process
process.SIGNAL_LIMIT_S = 60.0
sys.exit(commands.detector_node())
"""
detector_command = demo.detector_command


def patient_detector_command(options):
    """Return the demo's command of the detector with a longer limit after a signal."""
    _, *words = detector_command(options)
    return [sys.executable, '-c', NODE, *words]


demo.detector_command = patient_detector_command
demo.LAST_ANSWER_S[False], demo.WAIT_S = 5.0, 200.0

if __name__ == '__main__':
    sys.exit(demo.main())
