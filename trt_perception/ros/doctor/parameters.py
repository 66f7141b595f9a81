# SPDX-License-Identifier: Apache-2.0
"""Reads parameter files and arguments for doctor, exactly like a node.

This module is a separate program that prints one line of JSON. ROS reads the files, and the node's
code checks the values, so that doctor and the node find the same mistakes.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import rclpy
from rclpy.node import Node

from trt_perception.errors import ValuesError
from trt_perception.parameters.camera import NodeParameters
from trt_perception.parameters.sections import unused_parameters
from trt_perception.ros.parameters import DeclaredParameters
from trt_perception.ros.runtime.command_line import check_ros_arguments, ros_argument_mistakes


def read_parameters(name: str, arguments: list[str]) -> dict[str, Any]:
    """Return the parameters that a node would have.

    Args:
        name: full name of the node.
        arguments: arguments after ``--ros-args``.

    Returns:
        A dictionary with three keys. ``values`` maps the parameters that differ from the
        defaults, and all camera parameters, to their values. ``mistakes`` has sentences about
        errors that prevent the start. ``unused`` has sentences about files without parameters
        for this node.
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
        node_parameters = DeclaredParameters(node).node_parameters
    except Exception as error:
        # rclpy raises several exception types for unreadable arguments and YAML.
        if isinstance(error, ValuesError):
            mistakes = list(error.mistakes)
        else:
            mistakes = ros_argument_mistakes(error)
        return {'values': {}, 'mistakes': mistakes, 'unused': []}
    default = NodeParameters().values()
    own = {name: value for name, value in node_parameters.values().items() if name in default}
    values = {name: value for name, value in own.items() if value != default[name]}
    values.update(node_parameters.camera_values)
    return {'values': values, 'mistakes': [], 'unused': unused_parameters(arguments, name)}


def main() -> None:
    """Print the result as JSON. The first argument is the node's name."""
    # Other nodes must not discover a second node with this name.
    os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'OFF'
    print(json.dumps(read_parameters(sys.argv[1], sys.argv[2:])))
    sys.stdout.flush()
    os._exit(0)  # skips the cleanup, which no other process needs


if __name__ == '__main__':
    main()
