# SPDX-License-Identifier: Apache-2.0
"""Run scripts/demo.py, also with cameras that send twenty scenes."""

import os
import subprocess
from pathlib import Path

from support.programs import script
from trt_perception.transport.advice import PROFILE_VARIABLES

ROOT = Path(__file__).resolve().parents[2]
#: Longest run of the demo in seconds.
LONGEST_S = 280


def demo_command(*arguments, folder, in_step=False):
    """Return the command line of the demo, with the arguments of `run_demo`."""
    command = script('nodes/demo_in_step.py' if in_step else 'nodes/patient_demo.py')
    return [*command, '--output', folder, *map(str, arguments)]


def run_demo(*arguments, folder, in_step=False):
    """Run the demo to its end, with its own transport profile instead of the fixtures' profile.

    With ``in_step``, a camera sends twenty scenes, each after the answer to the previous one.
    """
    return subprocess.run(
        demo_command(*arguments, folder=folder, in_step=in_step),
        env={k: v for k, v in os.environ.items() if k not in PROFILE_VARIABLES},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )
