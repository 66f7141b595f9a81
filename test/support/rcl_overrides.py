# SPDX-License-Identifier: Apache-2.0
"""Return the parameters that rcl gives a node, as a reference for the package's own reader."""

import contextlib

import rclpy
from rclpy.node import Node

ALONE = {
    'use_global_arguments': False,
    'enable_rosout': False,
    'start_parameter_services': False,
}


@contextlib.contextmanager
def nodes_of_arguments():
    """Yield a function that makes a node with a namespace and parameter files, and destroys it.

    One extra node exists until the end. Otherwise Fast DDS would destroy its participant after
    each node. This takes long, and it hung three times in some thousand calls.
    """
    context = rclpy.Context()
    rclpy.init(args=[], context=context)
    keeper = Node('keeper', context=context, **ALONE)

    @contextlib.contextmanager
    def node_of(namespace, *files):
        arguments = [part for file in files for part in ('--params-file', str(file))]
        node = Node(
            'detector',
            namespace=namespace,
            context=context,
            cli_args=['--ros-args', *arguments],
            **ALONE,
        )
        try:
            yield node
        finally:
            node.destroy_node()

    try:
        yield node_of
    finally:
        keeper.destroy_node()
        rclpy.shutdown(context=context)


def overrides(node):
    """Return the parameter overrides of a node by name."""
    return {name: value.value for name, value in node._parameter_overrides.items()}
