# SPDX-License-Identifier: Apache-2.0
"""Tests of the message definitions that bags need, and of the topics' QoS."""

import json
import sys

import pytest
from rosbags.rosbag2.metadata import parse_qos
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from support.optional_packages import needs
from support.source_trees import PACKAGE, ROOT
from trt_perception.bags.bag import BagTopic
from trt_perception.bags.definitions import bag_topic
from trt_perception.bags.qos import jazzy_qos
from trt_perception.errors import ConfigError
from trt_perception.model.tasks.task import Topic
from trt_perception.ros.topics import LABEL_INFO, PUBLISHED_TOPICS, topic_qos

sys.path.append(str(ROOT / 'scripts'))
from message_definitions import TYPES, installed_definitions, plain_line

pytestmark = pytest.mark.ros

STORED = json.loads((PACKAGE / 'bags' / 'message_definitions.json').read_text())
NUMBERS = {
    'history': ['system_default', 'keep_last', 'keep_all', 'unknown'],
    'reliability': ['system_default', 'reliable', 'best_effort', 'unknown', 'best_available'],
    'durability': ['system_default', 'transient_local', 'volatile', 'unknown', 'best_available'],
}


@needs('foxglove_msgs')
def test_stored_definitions_and_hashes_are_those_of_the_installed_packages():
    """The suite runs for Jazzy and for Kilted, so this compares both."""
    assert installed_definitions() == STORED


@pytest.mark.parametrize('type_name', TYPES)
def test_type_hash_follows_from_the_definition(type_name):
    """rosbags computes the hash from the text alone."""
    topic = bag_topic('/a', type_name.replace('/msg/', '/'))
    store = get_typestore(Stores.EMPTY)
    store.register(get_types_from_msg(topic.definition, type_name))
    assert topic.type == type_name
    assert topic.type_hash == store.hash_rihs01(type_name)


def test_all_published_types_have_a_definition():
    assert len(PUBLISHED_TOPICS) > 10
    for topic in PUBLISHED_TOPICS:
        assert bag_topic(f'/{topic.name}', topic.message).definition


def test_definitions_have_no_comments():
    assert not [line for entry in STORED.values() for line in entry['lines'] if '#' in line]


@pytest.mark.parametrize(
    ('line', 'expected'),
    [
        ('  # only a comment', ''),
        ('uint8   x  # a comment', 'uint8 x'),
        ('string<=10[<=3] names', 'string<=10[<=3] names'),
        ('float64[36] covariance', 'float64[36] covariance'),
        ('float64 w  1', 'float64 w 1'),
        ('int32 ADD = 0', 'int32 ADD=0'),
    ],
)
def test_lines_keep_fields_constants_and_defaults(line, expected):
    assert plain_line(line) == expected


@pytest.mark.parametrize('line', ['string COLOUR="a # b"', 'no-field', 'uint8'])
def test_lines_that_are_not_understood_are_refused(line):
    with pytest.raises(ValueError, match='not a field'):
        plain_line(line)


@pytest.mark.parametrize('topic', [LABEL_INFO, *PUBLISHED_TOPICS[:4]])
def test_qos_is_that_of_the_nodes_publisher(topic: Topic):
    expected = topic_qos(topic)
    text = bag_topic('/a', topic.message, depth=topic.depth, is_latched=topic.is_latched).qos
    (profile,) = parse_qos(text)
    assert profile.depth == expected.depth
    for name in ('history', 'reliability', 'durability'):
        assert getattr(profile, name).value == getattr(expected, name).value
    assert profile.liveliness.name == 'AUTOMATIC'
    for name in ('deadline', 'lifespan', 'liveliness_lease_duration'):
        duration = getattr(profile, name)
        assert duration.sec * 10**9 + duration.nsec == 2**63 - 1  # RMW_DURATION_INFINITE
    assert profile.avoid_ros_namespace_conventions is False


def qos_with(**changes):
    text = bag_topic('/a', 'sensor_msgs/Image').qos
    for name, value in changes.items():
        before, _, after = text.partition(f'{name}: ')
        text = f'{before}{name}: {value}\n' + after.partition('\n')[2]
    return text


@pytest.mark.parametrize('name', NUMBERS)
def test_numbers_of_older_releases_become_names(name):
    for number, policy in enumerate(NUMBERS[name]):
        changed = jazzy_qos(BagTopic('/a', 'x', qos=qos_with(**{name: number})))
        assert changed == jazzy_qos(BagTopic('/a', 'x', qos=qos_with(**{name: policy})))
        assert f'{name}: {policy}\n' in changed


@pytest.mark.parametrize('text', ['', '[]', qos_with(reliability='best_effort', depth=0)])
def test_qos_of_jazzy_stays_as_it_is(text):
    assert jazzy_qos(BagTopic('/a', 'x', qos=text)) == text


def test_invalid_qos_is_refused(golden_messages):
    texts = [
        'depth: 1',
        '[1]',
        '- history: keep_last',
        '- {',
        qos_with(reliability=5),
        qos_with(reliability='always'),
        qos_with(depth=-1),
        qos_with(depth='true'),
        qos_with(sec='x'),
        qos_with(avoid_ros_namespace_conventions=0),
    ]
    for text in texts:
        with golden_messages.raises(ConfigError):
            jazzy_qos(BagTopic('/a', 'x', qos=text))
