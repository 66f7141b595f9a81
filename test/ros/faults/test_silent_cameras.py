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
