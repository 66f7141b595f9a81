"""scripts/demo.py, run as users run it."""

import os
import subprocess
import sys
from pathlib import Path

from trt_perception.transport.advice import PROFILE_VARIABLES

ROOT = Path(__file__).resolve().parents[2]


def run_demo(*arguments, folder=None):
    """Run the demo to its end, with its own transport profile instead of that of the fixtures."""
    output = [] if folder is None else ['--output', folder]
    return subprocess.run(
        [sys.executable, ROOT / 'scripts' / 'demo.py', *output, *map(str, arguments)],
        env={k: v for k, v in os.environ.items() if k not in PROFILE_VARIABLES},
        capture_output=True,
        text=True,
        timeout=150,
    )
