# SPDX-License-Identifier: Apache-2.0
"""Finds nodes with the same name. ROS allows them, and a request may reach any of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from typing import Any, Final

from rclpy.node import Node

# Name in the graph of a node whose real name has not arrived, or never arrives.
_UNKNOWN_NAME: Final = '_NODE_NAME_UNKNOWN_'
# A GID of Fast DDS begins with the number of its vendor and two bytes that identify the host.
_FAST_DDS: Final = [1, 15]
_HOST_BYTES: Final = 4


def endpoint_node_name(endpoint: Any) -> str:
    """Return the full name of the node that a publisher or subscription belongs to."""
    if endpoint.node_name == _UNKNOWN_NAME:
        return 'a node whose name is not known'
    return _full_name(endpoint.node_namespace, endpoint.node_name)


def is_on_this_machine(node: Node, endpoint: Any) -> bool | None:
    """Return whether an endpoint runs on this machine; None if the middleware is not Fast DDS.

    The result is False for a container with another network. Shared memory does not reach it.
    """
    name = node.get_fully_qualified_name()
    own = next(
        (
            list(each.endpoint_gid)
            for each in node.get_publishers_info_by_topic('/parameter_events')
            if endpoint_node_name(each) == name
        ),
        [],
    )
    other = list(endpoint.endpoint_gid)
    if any(gid[: len(_FAST_DDS)] != _FAST_DDS for gid in (own, other)):
        return None
    return own[:_HOST_BYTES] == other[:_HOST_BYTES]


def same_name_problem(node: Node) -> str:
    """Return a warning if other nodes have the full name of this node, otherwise ''."""
    name = node.get_fully_qualified_name()
    count = _count_node_names(node)[name]
    if count < 2:
        return ''
    return (
        f'{count} nodes are called {name}: all publish on the same topics, and a transition or a '
        'parameter reaches any of them; end all but one, or start each in a separate namespace, '
        'with namespace:=front (detect.launch.py) or --ros-args -r __ns:=/front (detector_node); '
        'a killed node disappears within 20 s'
    )


def shared_node_names(node: Node, types: Set[str]) -> dict[str, int]:
    """Return the number of nodes for each name that several nodes share.

    Only names of nodes that publish one of the types count.

    Args:
        types: message types, such as ``sensor_msgs/msg/Image``.
    """
    publishers = {
        endpoint_node_name(info)
        for topic, kinds in node.get_topic_names_and_types()
        if not types.isdisjoint(kinds)
        for info in node.get_publishers_info_by_topic(topic)
    }
    return {
        name: count
        for name, count in _count_node_names(node).items()
        if count > 1 and name in publishers
    }


def _full_name(namespace: str, name: str) -> str:
    return f'{namespace.rstrip("/")}/{name}'


def _count_node_names(node: Node) -> Counter[str]:
    return Counter(
        _full_name(namespace, name) for name, namespace in node.get_node_names_and_namespaces()
    )
