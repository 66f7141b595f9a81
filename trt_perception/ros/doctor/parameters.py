"""doctor's look at parameters: what a node would make of files and command line.

A program of its own, which prints as one line of JSON what it found. ROS reads the files and the
node's own code checks the values, so that nothing is found here that the node would not find too.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import rclpy
from rclpy.node import Node

from trt_perception.errors import ValuesError
from trt_perception.parameters.camera import NodeConfig
from trt_perception.parameters.sections import unused_parameters
from trt_perception.ros.parameters import NodeParameters
from trt_perception.ros.runtime.command_line import check_ros_arguments, explain_ros_error

__all__ = ['main', 'read_parameters']


def read_parameters(name: str, arguments: list[str]) -> dict[str, Any]:
    """Return the parameters that a node would have.

    Args:
        name: of the node, with its namespace.
        arguments: as they stand behind ``--ros-args``.

    Returns:
        ``values``: those that are not the defaults, and what cameras have for themselves, by name;
        ``mistakes``: sentences, for which the node would not start; ``unused``: sentences about
        files that have nothing for it.
    """
    context = rclpy.Context()
    try:
        check_ros_arguments(arguments)
        rclpy.init(args=['doctor', '--ros-args', *arguments], context=context)
        namespace, _, node_name = name.rpartition('/')
        node = Node(
            node_name,
            context=context,
            namespace=namespace or '/',
            enable_rosout=False,
            start_parameter_services=False,
        )
        configs = NodeParameters(node).configs
    except Exception as error:  # rclpy has several for arguments and YAML that it cannot read
        if isinstance(error, ValuesError):
            mistakes = list(error.mistakes)
        else:
            mistakes = explain_ros_error(error)
        return {'values': {}, 'mistakes': mistakes, 'unused': []}
    default = NodeConfig().values()
    own = {name: value for name, value in configs.values().items() if name in default}
    values = {name: value for name, value in own.items() if value != default[name]}
    values.update(configs.camera_values)
    return {'values': values, 'mistakes': [], 'unused': unused_parameters(arguments, name)}


def main() -> None:
    """Print what was found; the first argument is the node's name."""
    # No other node may see a second one of that name.
    os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'OFF'
    print(json.dumps(read_parameters(sys.argv[1], sys.argv[2:])))
    sys.stdout.flush()
    os._exit(0)  # nothing was begun that must be ended in order


if __name__ == '__main__':
    main()
