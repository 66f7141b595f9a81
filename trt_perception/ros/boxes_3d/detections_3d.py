# SPDX-License-Identifier: Apache-2.0
"""The program detections_3d: the command line, and the process that runs the node."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ament_index_python.packages import get_package_share_directory

from trt_perception.parameters.sections import unused_parameters
from trt_perception.process.option_parser import OptionParser
from trt_perception.ros.boxes_3d.node import Boxes3DNode
from trt_perception.ros.boxes_3d.parameters import suggest_box_parameter
from trt_perception.ros.runtime.command_line import parse_own_arguments
from trt_perception.ros.runtime.log import log_text
from trt_perception.ros.runtime.process import run_node
from trt_perception.transport.advice import node_profile_environment

_HELP_END: Final = """\
All settings are parameters (docs/boxes_3d.md), which follow --ros-args:
  detections_3d --ros-args -p autostart:=true -r depth:=/camera/aligned_depth_to_color/image_raw \\
    -r camera_info:=/camera/color/camera_info
  detections_3d --ros-args -r __ns:=/front --params-file my.yaml

exit codes: 0 ended by a signal, 2 wrong parameters or usage,
            128 + N ended by signal N, but a step did not return
"""


def main(args: list[str] | None = None) -> int:
    """Run the node until a signal ends it. Return the exit code."""
    command_line = sys.argv if args is None else args
    parse_own_arguments(_parser(), command_line)  # prints --help and refuses other options
    share = Path(get_package_share_directory('trt_perception'))
    os.environ.update(node_profile_environment(share, os.environ))

    def make_node() -> Boxes3DNode:
        node = Boxes3DNode()
        for sentence in unused_parameters(command_line, node.get_fully_qualified_name()):
            node.get_logger().warning(log_text(sentence))
        return node

    return run_node(make_node, Boxes3DNode.close, command_line)


def _assignment(word: str, values: Sequence[str]) -> str:
    name = suggest_box_parameter(word)
    return f'{name}:={" ".join(values) or "VALUE"}' if name else ''


def _parser() -> OptionParser:
    what = 'Runs the lifecycle node: detections and depth images in, boxes in space out.'
    usage = 'detections_3d --ros-args [-p NAME:=VALUE] [-r FROM:=TO] [--params-file FILE]'
    return OptionParser('detections_3d', what, _HELP_END, usage, _assignment)
