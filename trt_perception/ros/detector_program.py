# SPDX-License-Identifier: Apache-2.0
"""The program detector_node: the command line, and the process that runs the node."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from ament_index_python.packages import get_package_share_directory

from trt_perception.parameters.camera import foreign_parameter, suggest_assignment
from trt_perception.parameters.sections import unused_parameters
from trt_perception.pipelines.open_pipeline import open_pipeline
from trt_perception.pipelines.warm_up import OpenPipeline
from trt_perception.process.file_limit import raise_file_limit
from trt_perception.process.option_parser import OptionParser
from trt_perception.ros.detector_node import EXIT_GPU_LOST, DetectorNode
from trt_perception.ros.runtime.command_line import parse_own_arguments
from trt_perception.ros.runtime.log import log_text
from trt_perception.ros.runtime.process import run_node
from trt_perception.ros.topics import unused_remappings
from trt_perception.transport.advice import node_profile_environment

_HELP_END: Final = """\
All settings are parameters (docs/parameters.md), which follow --ros-args:
  detector_node --ros-args -p engine_path:=model.onnx -p autostart:=true
  detector_node --ros-args --params-file my.yaml -r image:=/front/image_raw -p autostart:=true

exit codes: 0 ended by a signal, 1 the GPU was lost, 2 wrong parameters or usage,
            128 + N ended by signal N, but a step did not return
"""


def main(
    args: list[str] | None = None,
    *,
    open_pipeline: OpenPipeline = open_pipeline,
) -> int:
    """Run the node until a signal ends it. Return the exit code."""
    command_line = sys.argv if args is None else args
    parse_own_arguments(_parser(), command_line)  # prints --help and refuses other options
    share = Path(get_package_share_directory('trt_perception'))
    os.environ.update(node_profile_environment(share, os.environ))
    raise_file_limit()  # a DDS participant opens 16 files, and a node may have 65 participants

    def make_node() -> DetectorNode:
        node = DetectorNode(open_pipeline=open_pipeline)
        name, parameters = node.get_fully_qualified_name(), node.parameters
        cameras = (*(parameters.cameras or ('',)), *parameters.cameras_of_other_nodes)
        unused = unused_parameters(command_line, name)
        for sentence in (*unused, *unused_remappings(command_line, node, cameras)):
            node.get_logger().warning(log_text(sentence))
        return node

    code = run_node(
        make_node, DetectorNode.close, command_line, finished=lambda node: node.is_gpu_lost
    )
    if code == EXIT_GPU_LOST:
        # Skip the interpreter's shutdown: TensorRT's destructors would use the lost context.
        os._exit(code)
    return code


def _parser() -> OptionParser:
    what = 'Runs the lifecycle node: camera images in, results of the model out.'
    usage = 'detector_node --ros-args [-p NAME:=VALUE] [-r FROM:=TO] [--params-file FILE]'
    return OptionParser(
        'detector_node', what, _HELP_END, usage, suggest_assignment, other_name=foreign_parameter
    )
