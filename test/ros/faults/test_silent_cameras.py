"""What a node asks the graph while its cameras are silent."""

import pytest
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image

from support.nodes import scripted_node
from trt_perception.ros.detector_node import DetectorNode

pytest_plugins = ['support.nodes.graph_fixtures']

NAMES = ('front', 'rear', 'left')


@pytest.fixture
def active_node(client):
    """An active node of this process, which nobody spins."""
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


def test_a_silent_camera_asks_for_no_publishers_of_the_nodes_own_topics(
    active_node, client, monkeypatch
):
    own = {f'{active_node.get_namespace()}/{name}/debug_image' for name in NAMES}
    other = client.node.create_publisher(Image, '/silent_cameras/other/image', 1)

    def seen():  # and none of an earlier test's
        image = 'sensor_msgs/msg/Image'
        known = {name for name, kinds in active_node.get_topic_names_and_types() if image in kinds}
        return {name for name in known if count(name)} == {*own, other.topic_name}

    count = active_node.count_publishers
    client.spin_until(seen, 'all topics')
    asked = []
    monkeypatch.setattr(
        active_node, 'count_publishers', lambda topic: asked.append(topic) or count(topic)
    )
    for camera in active_node._cameras:
        assert f'images are on {other.topic_name}: ' in camera._input.topic_state().elsewhere
    # With 64 cameras each question more is 64 x 64 of them, twice a second.
    of_node = [topic for topic in asked if topic.startswith('/silent_cameras/')]
    assert of_node == [other.topic_name] * len(NAMES)
    client.node.destroy_publisher(other)
