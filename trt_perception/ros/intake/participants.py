# SPDX-License-Identifier: Apache-2.0
"""DDS participants that receive the raw images of a node, besides the node's own participant.

One thread of a DDS participant copies messages out of shared memory, 1 to 2.5 ms for each raw
1080p image. Images that arrive together wait for this thread. With several participants, the
images of several cameras are copied at the same time.
"""

from __future__ import annotations

import os
import threading

from rclpy.context import Context
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.utilities import get_rmw_implementation_identifier

from trt_perception.parameters.camera import NodeParameters
from trt_perception.process.interruption import is_interrupted
from trt_perception.ros.runtime.log import log_text
from trt_perception.transport.advice import has_node_profile
from trt_perception.transport.shared_memory import (
    LARGE_PARTICIPANT_BYTES,
    SHARED_MEMORY,
    SMALL_PARTICIPANT_BYTES,
    affordable_participants,
)


class ImageParticipants:
    """DDS participants for raw images, from `start` to `close`.

    rcl creates one participant for each context. Each context has a hidden node, with the domain,
    namespace and enclave of the main node, and without services and remappings.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._nodes: list[Node] = []
        self._wanted = 0
        self._problem = ''
        self._thread: threading.Thread | None = None

    def start(self, node_parameters: NodeParameters) -> None:
        """Start a thread that creates the participants, because each takes up to 0.3 s."""
        cameras = node_parameters.raw_camera_count()
        requested = node_parameters.node.image_participants
        wanted = cameras if cameras > 1 else 0  # one camera has no other camera to wait for
        if requested >= 0:
            wanted = requested
        if node_parameters.node.image_intake == 'rclpy':
            wanted = 0
        if not get_rmw_implementation_identifier().startswith('rmw_fastrtps'):
            wanted = 0  # The benefit was measured only with Fast DDS.
        self._wanted, self._problem = wanted, ''
        nodes = node_parameters.node.nodes_on_this_machine
        count = self._affordable(wanted, nodes) if requested < 0 and wanted else wanted
        self._thread = threading.Thread(
            target=self._create, args=(count,), name='participants', daemon=True
        )
        self._thread.start()

    def _affordable(self, wanted: int, nodes: int) -> int:
        """Return how many participants the free shared memory permits to one of several nodes."""
        try:
            state = os.statvfs(SHARED_MEMORY)
        except OSError as error:
            self._problem = f'{SHARED_MEMORY}: {error.strerror}'
            return 0
        free_bytes = state.f_bavail * state.f_frsize
        bytes_each = LARGE_PARTICIPANT_BYTES
        if has_node_profile(os.environ):
            bytes_each = SMALL_PARTICIPANT_BYTES
        count = affordable_participants(wanted, free_bytes, bytes_each, nodes=nodes)
        if count < wanted:
            of_nodes = f' of {nodes} nodes' if nodes > 1 else ''
            self._problem = (
                f'{SHARED_MEMORY} has {free_bytes // 2**20} MiB free, a quarter of it for '
                f'participants{of_nodes} of {bytes_each // 2**20} MiB each'
            )
        return count

    def _create(self, count: int) -> None:
        try:
            enclave = _enclave(self._node)
            while len(self._nodes) < count and not is_interrupted():
                self._nodes.append(_create_hidden_node(self._node, len(self._nodes), enclave))
        except Exception as error:  # rclpy raises several exception types
            self._problem = str(error)

    def ready(self) -> list[Node]:
        """Wait for the thread. Return the hidden nodes; log once if there are too few."""
        self._join()
        problem, self._problem = self._problem, ''
        if problem:
            self._node.get_logger().warning(
                log_text(
                    f'additional DDS participants that receive raw images: {len(self._nodes)} '
                    f'instead of {self._wanted}, so cameras wait for each other: {problem}'
                )
            )
        return self._nodes

    def close(self) -> None:
        """Destroy all participants, after their subscriptions. May be called again."""
        self._join()
        nodes, self._nodes = self._nodes, []
        for node in nodes:
            context = node.context
            node.destroy_node()
            context.try_shutdown()
            context.destroy()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()


def _create_hidden_node(node: Node, index: int, enclave: str) -> Node:
    """Return a hidden node in a new context."""
    context = Context()
    context.init(
        ['--ros-args', '--enclave', enclave],
        initialize_logging=False,
        domain_id=node.context.get_domain_id(),
    )
    try:
        return Node(
            f'_{node.get_name()}_images_{index}',  # `ros2 node list` hides such a name
            context=context,
            namespace=node.get_namespace(),
            use_global_arguments=False,
            enable_rosout=False,
            start_parameter_services=False,
            parameter_overrides=[Parameter('start_type_description_service', value=False)],
        )
    except BaseException:
        context.try_shutdown()
        context.destroy()
        raise


def _enclave(node: Node) -> str:
    """Return the enclave of a node, which rclpy shows only in the ROS graph."""
    own = node.get_name(), node.get_namespace()
    found = node.get_node_names_and_namespaces_with_enclaves()
    return next((enclave for *name, enclave in found if tuple(name) == own), '/')
