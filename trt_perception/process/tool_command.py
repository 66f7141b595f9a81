"""Composes shell commands that run the package's tools, for messages."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

__all__ = ['RUN_VARIABLE', 'tool_command']

#: Environment variable with the words before a tool's name. Scripts of a checkout set it.
RUN_VARIABLE: Final = 'TRT_PERCEPTION_RUN'


def tool_command(tool: str, *words: str) -> str:
    """Return a shell command that runs a tool in the environment of this process.

    Args:
        tool: name of the tool, such as ``build_engine``. Its module must be in ``tools``.
        words: arguments of the tool, one word each.
    """
    if before := os.environ.get(RUN_VARIABLE):
        start = f'{before} {tool}'
    elif shutil.which('ros2') and _ros2_finds(tool):
        start = f'ros2 run trt_perception {tool}'
    elif shutil.which(tool):
        start = tool
    else:
        start = shlex.join([sys.executable, '-m', f'trt_perception.tools.{tool}'])
    return ' '.join([start, *map(shlex.quote, words)])


def _ros2_finds(tool: str) -> bool:
    """Return whether the package is in a sourced workspace, and not only installed by pip."""
    prefixes = filter(None, os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep))
    return any(Path(prefix, 'lib', 'trt_perception', tool).is_file() for prefix in prefixes)
