# SPDX-License-Identifier: Apache-2.0
"""Detects how this process was started, and returns commands of tools for advice in messages."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

#: Environment variable with the words before a tool's name. Scripts of a checkout set it.
RUN_VARIABLE: Final = 'TRT_PERCEPTION_RUN'

#: Environment variable with the words that replace ``ros2`` in ``ros2 lifecycle`` and
#: ``ros2 param``. Scripts of a checkout set it, because a checkout may lack the program ``ros2``.
ROS2_VARIABLE: Final = 'TRT_PERCEPTION_ROS2'

#: Environment variable that detect.launch.py sets for the node.
LAUNCH_VARIABLE: Final = 'TRT_PERCEPTION_LAUNCHED'


def is_launched() -> bool:
    """Return whether detect.launch.py started this process, so that its arguments set values."""
    return bool(os.environ.get(LAUNCH_VARIABLE))


def is_typed(parameter: str) -> bool:
    """Return whether the command line of this process sets a ROS parameter."""
    # The name of a node may precede the parameter: -p detector:iou_threshold:=0.5
    names = (word.partition('=')[0].removesuffix(':').rpartition(':')[2] for word in sys.argv)
    return parameter in names


def tool_command(tool: str, *words: str) -> str:
    """Return a shell command that runs a tool in the environment of this process.

    Args:
        tool: name of the tool, such as ``build_engine``. Its module must be in
            ``offline/tools``.
        words: arguments of the tool, one word each.
    """
    if before := os.environ.get(RUN_VARIABLE):
        start = f'{before} {tool}'
    elif shutil.which('ros2') and _ros2_finds(tool):
        start = f'ros2 run trt_perception {tool}'
    elif shutil.which(tool):
        start = tool
    else:
        start = shlex.join([sys.executable, '-m', f'trt_perception.offline.tools.{tool}'])
    return ' '.join([start, *map(shlex.quote, words)])


def ros2_command(*words: str) -> str:
    """Return a shell command of ``ros2 lifecycle`` or ``ros2 param`` for messages.

    Args:
        words: words after ``ros2``, such as ``('lifecycle', 'get', '/detector')``.
    """
    return ' '.join([os.environ.get(ROS2_VARIABLE) or 'ros2', *map(shlex.quote, words)])


def _ros2_finds(tool: str) -> bool:
    """Return whether the package is in a sourced workspace, and not only installed by pip."""
    prefixes = filter(None, os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep))
    return any(Path(prefix, 'lib', 'trt_perception', tool).is_file() for prefix in prefixes)
