# SPDX-License-Identifier: Apache-2.0
"""Test topic names, their remapping for each camera, and the report of unused remappings."""

import re

import pytest
from rclpy.node import Node

from support.docs_pages import ROOT, section
from trt_perception.errors import ConfigError
from trt_perception.model.tasks.table import PUBLISHED_TOPICS
from trt_perception.ros.topics import (
    camera_info_topic,
    check_topics,
    compressed_topic,
    image_topic,
    unused_remappings,
)

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro


@pytest.fixture
def make_node(client):
    """Return a function that creates nodes with remappings. They are destroyed after the test."""
    nodes = []

    def make(*remaps):
        words = [word for remap in remaps for word in ('-r', remap)]
        node = Node(
            'topics', namespace='robot', context=client.context, cli_args=['--ros-args', *words]
        )
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        node.destroy_node()


def test_topics_of_each_camera_are_remapped_separately(make_node):
    node = make_node('front/image:=/front/camera/image_raw', 'rear/detections:=/found')
    assert image_topic(node, 'front') == '/front/camera/image_raw'
    assert compressed_topic(node, 'front') == '/front/camera/image_raw/compressed'
    assert image_topic(node, 'rear') == '/robot/rear/image'
    assert image_topic(node) == '/robot/image'
    assert camera_info_topic(node, 'front') == '/front/camera/camera_info'
    assert camera_info_topic(node, 'rear') == '/robot/rear/camera_info'
    node = make_node('image:=/x/image_raw', 'camera_info:=/y/info')
    assert node.resolve_topic_name(camera_info_topic(node)) == '/y/info'
    check_topics(node, ('front', 'rear'))
    check_topics(node)
    check_topics(node, tuple(f'c{number}' for number in range(64)))


@pytest.mark.parametrize(
    'remaps',
    [
        ['front/image:=/image', 'rear/image:=/image'],
        ['rear/detections:=front/detections'],
        ['rear/masks:=/diagnostics'],
        ['front/label_info:=/rosout'],
        ['front/masks:=~/transition_event'],
        ['front/image:=rear/image/compressed'],
        ['front/image/compressed:=/x', 'rear/image/compressed:=/x'],
    ],
)
def test_two_topics_with_one_name_are_refused(make_node, remaps, golden_messages):
    node = make_node(*remaps)
    with golden_messages.raises(ConfigError):
        check_topics(node, ('front', 'rear'))
    check_topics(node, ('left',))  # the remappings do not apply to this camera


@pytest.mark.parametrize(
    ('remap', 'cameras', 'suggested'),
    [
        ('image:=/x', ('front', 'rear'), 'front/image, rear/image'),
        ('frnt/image:=/x', ('front',), 'front/image'),
        ('frnt/image/compressed:=/x', ('front',), 'front/image'),
        ('front/detections:=/x', ('',), 'detections'),
        ('topics:masks:=/x', ('front',), 'front/masks'),
        ('front/image_raw:=/x', ('front',), 'front/image'),
        ('image_raw:=/x', ('',), 'image'),
        ('front:=/x', ('front', 'rear'), 'front/image, rear/image'),
        ('imag:=/x', ('',), 'image'),
        ('imgae:=/x', ('',), 'image'),
        ('front/mask:=/x', ('front',), 'front/masks'),
        ('debug_image/compressed:=/x', ('',), 'debug_image'),
        ('camera_info:=/x', ('front',), 'front/camera_info'),
        ('front/points:=/x', ('front',), 'front/image'),
        *(('~/image:=/x', cameras, 'image') for cameras in (('',), ('front',))),
        *((name, ('front',), '') for name in ('front/image:=/x', 'front/camera_info:=/x')),
        *((name, ('',), '') for name in ('image:=/x', 'topics:image:=/x', 'label_info:=/y')),
        # Remappings of other nodes and other names are not reported.
        *((name, ('front',), '') for name in ('other:image:=/x', '/robot/image:=/x', 'tf:=/x')),
        *((name, ('front',), '') for name in ('__ns:=/image', '__node:=image', 'image_info:=/x')),
    ],
)
def test_remapping_without_a_topic_is_reported(
    make_node, remap, cameras, suggested, golden_messages
):
    node = make_node(remap)
    for option in ('-r', '--remap'):
        printed = unused_remappings(['node', '--ros-args', option, remap], node, cameras)
        assert len(printed) == bool(suggested)
        for sentence in printed:
            golden_messages.add(sentence)
            assert suggested in sentence


def test_compressed_topic_of_a_remapped_topic_cannot_be_remapped(make_node, golden_messages):
    rules = 'image:=/aa', 'image/compressed:=/bb'
    node = make_node(*rules)
    words = [word for rule in rules for word in ('-r', rule)]
    [printed] = unused_remappings(['node', '--ros-args', *words], node)
    golden_messages.add(printed)
    assert compressed_topic(node) == '/aa/compressed'


def test_unused_ros_1_remapping_is_reported(make_node, golden_messages):
    node = make_node('image_raw:=/x')
    [printed] = unused_remappings(['node', 'image_raw:=/x', '--ros-args', '-p', 'a:=image'], node)
    golden_messages.add(printed)
    assert (
        unused_remappings(['node', '--ros-args', '-p', 'masks:=x', '--', 'image:=/x'], node) == []
    )


def test_page_explains_every_topic():
    page = (ROOT / 'docs' / 'topics.md').read_text(encoding='utf-8')
    explained = re.findall(r'^- \*\*`([\w/]+)`\*\*: ', section(page, 'Results'), re.MULTILINE)
    assert explained == [topic.name for topic in PUBLISHED_TOPICS]
