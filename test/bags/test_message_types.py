# SPDX-License-Identifier: Apache-2.0
"""Tests that other libraries decode each field of each type from bags: rosbags and mcap_ros2."""

import numpy as np
import pytest
from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory
from rosbags.highlevel import AnyReader

from support.ros_messages import decoded_values, plain_values, random_message, serialised
from support.written_bags import START
from trt_perception.bags.bag import BagMessage
from trt_perception.bags.definitions import bag_topic
from trt_perception.bags.writer import STORAGES, BagWriter

pytestmark = pytest.mark.ros

#: All types that the package publishes or reads.
MESSAGES = (
    'diagnostic_msgs/DiagnosticArray',
    'sensor_msgs/CameraInfo',
    'sensor_msgs/CompressedImage',
    'sensor_msgs/Image',
    'sensor_msgs/PointCloud2',
    'vision_msgs/Classification',
    'vision_msgs/Detection2DArray',
    'vision_msgs/Detection3DArray',
    'vision_msgs/LabelInfo',
    'visualization_msgs/MarkerArray',
)


@pytest.mark.parametrize('storage', STORAGES)
def test_rosbags_decodes_every_field_of_every_type(tmp_path, storage):
    random = np.random.default_rng(1)
    sent = {f'/{name}': random_message(name.replace('/', '/msg/'), random) for name in MESSAGES}
    write_messages(tmp_path / 'bag', sent, storage)
    with AnyReader([tmp_path / 'bag']) as reader:
        found = {c.topic: reader.deserialize(data, c.msgtype) for c, _, data in reader.messages()}
    assert found.keys() == sent.keys()
    for topic, message in sent.items():
        expected = plain_values(message)
        assert decoded_values(found[topic], expected) == expected


@pytest.mark.parametrize('compression', ['zstd', 'lz4', 'none'])
def test_mcap_ros2_support_decodes_every_field_of_every_type(tmp_path, compression):
    random = np.random.default_rng(2)
    sent = {f'/{name}': random_message(name.replace('/', '/msg/'), random) for name in MESSAGES}
    write_messages(tmp_path / 'bag', sent, 'mcap', compression)
    with open(tmp_path / 'bag' / 'bag_0.mcap', 'rb') as file:
        reader = make_reader(file, validate_crcs=True, decoder_factories=[DecoderFactory()])
        found = {
            channel.topic: decoded for _, channel, _, decoded in reader.iter_decoded_messages()
        }
    assert found.keys() == sent.keys()
    for topic, message in sent.items():
        expected = plain_values(message)
        assert decoded_values(found[topic], expected) == expected


def write_messages(folder, by_topic, storage, compression='zstd'):
    topics = [bag_topic(topic, topic[1:]) for topic in by_topic]
    with BagWriter(folder, topics, storage=storage, compression=compression) as bag:
        bag.begin_file()
        for number, (topic, message) in enumerate(by_topic.items()):
            bag.write(BagMessage(topic, START + number, START, serialised(message)))
