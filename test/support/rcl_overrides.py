"""What rcl gives a node of parameters, to hold what we make of its arguments and files to."""

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
    """Give what makes a node with a namespace and parameter files, and ends it after use.

    The last node of a context ends Fast DDS's participant, which is slow, and hung three times in
    some thousands: one node stays until all are done.
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
    """Return the parameters that a node was given, by name."""
    return {name: value.value for name, value in node._parameter_overrides.items()}
