# SPDX-License-Identifier: Apache-2.0
"""Test when markers are made, their colours with and without tracks, and files for viewers."""

import itertools
import json
import math

import numpy as np
import pytest
import yaml
from rclpy.parameter import Parameter
from std_msgs.msg import Header
from visualization_msgs.msg import MarkerArray

from support.source_trees import ROOT
from trt_perception.boxes_3d.surface import Box3D, ImageBox
from trt_perception.images.detections import Detections
from trt_perception.images.drawing import object_colors
from trt_perception.model.tasks.task import DEBUG_IMAGE
from trt_perception.ros.boxes_3d import node as node_module
from trt_perception.ros.boxes_3d.locator import LocatedImage
from trt_perception.ros.boxes_3d.markers import label_info_topic, markers_message
from trt_perception.ros.boxes_3d.messages import LocatedObject
from trt_perception.ros.boxes_3d.node import Boxes3DNode
from trt_perception.ros.topics import topic_qos
from trt_perception.wire.detections import FoundObject

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro
NUMBERS = itertools.count()
CLASS_IDS = {'person': 0, 'cup': 41}


def located(name='person', own_id='', hypotheses=None, theta=0.0):
    box = ImageBox(50, 60, 20, 30, theta)
    found = FoundObject(hypotheses or ((name, 0.5),), box, own_id)
    return LocatedObject(found, Box3D((1.0, 2.0, 2.0), (0.4, 0.6, 0.2), theta, (2, 4)))


def all_markers(objects):
    return markers_message(Header(frame_id='optical'), objects, CLASS_IDS).markers


def markers_of(objects, ns):
    return [marker for marker in all_markers(objects) if marker.ns == ns]


def colors_of(objects):
    """Return blue, green and red of each label, 0 to 255."""
    colors = [marker.color for marker in markers_of(objects, 'labels')]
    return [tuple(round(255 * value) for value in (c.b, c.g, c.r)) for c in colors]


def drawn_colors(class_ids, ids=None):
    """Return the colours of objects in the debug image."""
    count = len(class_ids)
    return object_colors(
        Detections(
            np.zeros((count, 4), np.float32),
            np.ones(count, np.float32),
            np.array(class_ids),
            ids=None if ids is None else np.array(ids),
        )
    )


def test_objects_without_tracks_have_the_colours_of_their_classes():
    objects = [located('cup'), located('person'), located('cup', own_id='id 7')]
    assert colors_of(objects) == drawn_colors([41, 0, 41])


def test_objects_with_tracks_have_the_colours_of_their_ids():
    objects = [located('cup', '7'), located('person', '130'), located('cup')]
    assert colors_of(objects) == drawn_colors([41, 0, 41], ids=[7, 130, -1])


def test_unknown_class_has_the_colour_of_no_track():
    strangers = [located('tree'), located('tree', '9' * 5000)]
    assert colors_of(strangers) == drawn_colors([0, 0], ids=[-1, -1])


def test_label_names_the_best_hypothesis_and_the_distance():
    several = (('cup', 0.25), ('person', 0.75))
    [label] = markers_of([located(hypotheses=several)], 'labels')
    assert label.text == 'person 0.75, 3.00 m'


def test_label_stands_above_a_turned_box():
    [label] = markers_of([located(theta=math.pi / 2)], 'labels')
    # The box lies on its side: it is 0.6 m wide and 0.4 m high.
    assert label.pose.position.y == pytest.approx(2.0 - 0.2 - label.scale.z)


def test_image_without_objects_deletes_all_markers():
    [marker] = all_markers([])
    assert (marker.action, marker.ns) == (marker.DELETEALL, '')


@pytest.fixture
def make_node(client):
    """Return a function that makes active nodes with command-line arguments."""
    nodes = []

    def make(*arguments):
        nodes.append(
            Boxes3DNode(
                context=client.context,
                namespace=f'/markers_{next(NUMBERS)}',
                cli_args=['--ros-args', *arguments],
                parameter_overrides=[Parameter('autostart', value=False)],
            )
        )
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


def test_markers_are_made_only_while_somebody_subscribes(make_node, client, monkeypatch):
    made = []

    def make_message(*arguments):
        made.append(arguments)
        return MarkerArray()

    monkeypatch.setattr(node_module, 'markers_message', make_message)
    node = make_node()
    node.trigger_configure()
    node.trigger_activate()
    image = LocatedImage(Header(), [located()])
    node._publish(image)
    assert made == []
    topic = node.resolve_topic_name('markers')
    messages, subscription = client.subscribe(MarkerArray, topic)
    client.spin_until(lambda: node.count_subscribers(topic), 'the subscriber')

    def publish():
        node._publish(image)
        client.spin_for(0.05)
        return messages

    client.spin_until(publish, 'markers')
    client.node.destroy_subscription(subscription)
    client.spin_until(
        lambda: not node._outputs[node_module.MARKERS].get_subscription_count(), 'its end'
    )
    made.clear()
    node._publish(image)
    assert made == []


@pytest.mark.parametrize(
    ('remapping', 'expected'),
    [
        ('unused:=unused', '{namespace}/label_info'),
        ('detections:=/front/detections', '/front/label_info'),
        ('label_info:=/names', '/names'),
    ],
)
def test_class_names_are_next_to_the_detections(make_node, remapping, expected):
    node = make_node('-r', remapping)
    found = node.resolve_topic_name(label_info_topic(node))
    assert found == expected.format(namespace=node.get_namespace())


# Files for viewers.


def test_rviz_shows_the_debug_image_and_the_markers():
    config = yaml.safe_load((ROOT / 'config' / 'detect.rviz').read_text(encoding='utf-8'))
    manager = config['Visualization Manager']
    displays = {
        each['Class'].removeprefix('rviz_default_plugins/'): each for each in manager['Displays']
    }
    assert displays.keys() == {'Grid', 'Image', 'MarkerArray'}
    assert all(display['Enabled'] for display in displays.values())
    for kind, topic in (('Image', DEBUG_IMAGE), ('MarkerArray', node_module.MARKERS)):
        # RViz lists the policies as "Keep Last" and so on.
        qos = topic_qos(topic)
        assert displays[kind]['Topic'] == {
            'Value': f'/{topic.name}',
            'Depth': qos.depth,
            **{
                f'{name.title()} Policy': getattr(qos, name).name.replace('_', ' ').title()
                for name in ('history', 'reliability', 'durability')
            },
        }
    namespaces = {marker.ns for marker in all_markers([located()]) if marker.ns}
    assert displays['MarkerArray']['Namespaces'] == dict.fromkeys(namespaces, True)
    assert manager['Global Options']['Fixed Frame']


def test_view_of_rviz_has_the_image_upright():
    """Compute the view's axes as RViz's Orbit does: the z axis of the fixed frame is up."""
    config = yaml.safe_load((ROOT / 'config' / 'detect.rviz').read_text(encoding='utf-8'))
    view = config['Visualization Manager']['Views']['Current']
    assert view['Class'] == 'rviz_default_plugins/Orbit'
    yaw, pitch = view['Yaw'], view['Pitch']
    assert abs(pitch) < math.pi / 2 - 0.001  # RViz's limit
    back = np.array(
        [math.cos(yaw) * math.cos(pitch), math.sin(yaw) * math.cos(pitch), math.sin(pitch)]
    )
    right = np.cross([0, 0, 1], back)
    right /= np.linalg.norm(right)
    up = np.cross(back, right)
    focus = np.array([view['Focal Point'][axis] for axis in 'XYZ'])
    eye = focus + view['Distance'] * back
    assert right == pytest.approx([1, 0, 0], abs=0.01)
    assert up[1] < -0.8
    assert eye[1] < 0 < focus[2]


def test_foxglove_shows_the_markers():
    layout = json.loads((ROOT / 'config' / 'foxglove.json').read_text(encoding='utf-8'))
    [panel] = [
        panel for name, panel in layout['configById'].items() if name.partition('!')[0] == '3D'
    ]
    assert panel['topics'] == {f'/{node_module.MARKERS.name}': {'visible': True}}
