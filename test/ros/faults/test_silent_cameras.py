# SPDX-License-Identifier: Apache-2.0
"""Tests of the graph queries of a node with silent cameras."""

import pytest
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image

from support.nodes import scripted_node
from trt_perception.ros.detector_node import DetectorNode

pytest_plugins = ['support.nodes.graph_fixtures']

NAMES = ('front', 'rear', 'left')


@pytest.fixture
def active_node(client):
    """Return an active node of this process that does not spin."""
    node = DetectorNode(
        open_pipeline=scripted_node.ScriptedPipeline,
        context=client.context,
        namespace='silent_cameras',
        parameter_overrides=[
            Parameter('cameras', value=list(NAMES)),
            Parameter('engine_path', value='none'),
        ],
    )
    node.trigger_configure()
    node.trigger_activate()
    yield node
    node.close()


def test_silent_camera_does_not_query_publishers_of_the_nodes_topics(
    active_node, client, monkeypatch
):
    own = {f'{active_node.get_namespace()}/{name}/debug_image' for name in NAMES}
    other = client.node.create_publisher(Image, '/silent_cameras/other/image', 1)

    def all_topics_are_known():  # waits until topics of earlier tests are gone
        image = 'sensor_msgs/msg/Image'
        known = {name for name, kinds in active_node.get_topic_names_and_types() if image in kinds}
        return {name for name in known if count_publishers(name)} == {*own, other.topic_name}

    count_publishers = active_node.count_publishers
    client.spin_until(all_topics_are_known, 'all topics')
    queried_topics = []
    monkeypatch.setattr(
        active_node,
        'count_publishers',
        lambda topic: queried_topics.append(topic) or count_publishers(topic),
    )
    for camera in active_node._cameras:
        assert f'images are on {other.topic_name}: ' in camera._input.topic_state().elsewhere
    # With 64 cameras, one more query per topic means 64 x 64 queries, twice a second.
    queried_of_node = [topic for topic in queried_topics if topic.startswith('/silent_cameras/')]
    assert queried_of_node == [other.topic_name] * len(NAMES)
    client.node.destroy_publisher(other)


@pytest.mark.parametrize(
    ('changed_byte', 'expected'), [(None, True), (6, True), (2, False), (3, False), (1, None)]
)
def test_machine_of_a_silent_camera_is_known_from_its_gid(
    active_node, client, monkeypatch, changed_byte, expected
):
    """Bytes 0 and 1 of a GID are the vendor, 2 and 3 the host, 4 to 7 the process."""
    topic = active_node._cameras[0]._input.topic
    camera = client.node.create_publisher(Image, topic, 1)
    infos_of = active_node.get_publishers_info_by_topic
    client.spin_until(lambda: infos_of(topic), 'the camera')

    def changed_infos(name):
        infos = infos_of(name)
        if name != '/parameter_events' and changed_byte is not None:
            for info in infos:
                gid = list(info.endpoint_gid)
                gid[changed_byte] ^= 1
                info.endpoint_gid = gid
        return infos

    monkeypatch.setattr(active_node, 'get_publishers_info_by_topic', changed_infos)
    assert active_node._cameras[0]._input.topic_state().on_this_machine is expected
    client.node.destroy_publisher(camera)
