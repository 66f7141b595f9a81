# SPDX-License-Identifier: Apache-2.0
"""Start launch files with the real `ros2 launch`, and inspect the started processes.

The package `launch` is not on PyPI. Tests that need it run if ROS 2 was installed with apt.
"""

import importlib.util
import re
import shutil
import signal
from pathlib import Path

import pytest
from ament_index_python.packages import get_package_share_directory

from support.programs import Program
from trt_perception.transport.advice import PROFILE_VARIABLES

SHARE = Path(get_package_share_directory('trt_perception'))
NEEDED = ('launch', 'launch_ros', 'ros2launch', 'ros2param', 'ros2lifecycle')
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
needs_launch = pytest.mark.skipif(
    bool(MISSING) or shutil.which('ros2') is None,
    reason=f'{", ".join(MISSING) or "ros2"} is not installed (not on PyPI; apt has it: ros-base)',
)
ALLOCATOR = ('MALLOC_MMAP_THRESHOLD_', 'MALLOC_TRIM_THRESHOLD_', 'MALLOC_TOP_PAD_')


def launch(name, *arguments, environment=None):
    command = ['ros2', 'launch', 'trt_perception', name, *arguments]
    # Without a terminal, launch forwards SIGINT. The fixtures have set the tests' profiles.
    return Program(command, {**dict.fromkeys(PROFILE_VARIABLES), **(environment or {})})


def process_ids(program):
    return [
        int(number) for number in re.findall(r'process started with pid \[(\d+)\]', program.output)
    ]


def assert_clean_end(program, processes=1):
    program.send(signal.SIGINT)
    program.wait()
    assert program.count('process has finished cleanly') == processes
    assert 'process has died' not in program.output
    assert 'Traceback' not in program.output
    for number in process_ids(program):
        assert not Path(f'/proc/{number}').exists()


def environment_of(number):
    """Return the environment variables of a process."""
    content = Path(f'/proc/{number}/environ').read_bytes().decode()
    return dict(entry.split('=', 1) for entry in content.split('\0') if '=' in entry)
