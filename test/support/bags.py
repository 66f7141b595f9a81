# SPDX-License-Identifier: Apache-2.0
"""Bags for tests, written by the libraries mcap and rosbags, and read by them for comparison."""

import cv2
import numpy as np
from mcap.reader import make_reader
from mcap.writer import CompressionType, Writer
from rosbags.rosbag2 import CompressionFormat, CompressionMode, Reader, StoragePlugin
from rosbags.rosbag2 import Writer as RosbagsWriter
from rosbags.typesys import Stores, get_typestore

STORE = get_typestore(Stores.ROS2_JAZZY)
TYPES = STORE.types
SECOND = 10**9
START = 1_700_000_000 * SECOND
STRING = 'std_msgs/msg/String'
DEFINITION = 'string data\n'
METADATA = {'offered_qos_profiles': '- history: 1\n', 'topic_type_hash': 'RIHS01_ab'}


def string_message(text):
    """Return a serialised std_msgs/String."""
    data = text.encode() + b'\0'
    return b'\0\1\0\0' + len(data).to_bytes(4, 'little') + data


def messages(count=60, topics=('/a', '/b', '/c'), size=2000):
    """Return (topic, log time, data) of messages whose data differ, sorted by log time."""
    return [
        (topics[i % len(topics)], START + i * SECOND // 10, string_message(f'{i} ' + 'x' * size))
        for i in range(count)
    ]


def write_mcap(path, rows, **options):
    """Write an MCAP file with the library mcap. `options` are those of its writer."""
    options.setdefault('chunk_size', 8000)
    options.setdefault('compression', CompressionType.ZSTD)
    with open(path, 'wb') as file:
        writer = Writer(file, **options)
        writer.start('ros2', 'test')
        schema = writer.register_schema(STRING, 'ros2msg', DEFINITION.encode())
        channels = {}
        for topic, log_ns, data in rows:
            if topic not in channels:
                channels[topic] = writer.register_channel(topic, 'cdr', schema, METADATA)
            writer.add_message(channels[topic], log_ns, data, log_ns - 5)
        writer.finish()
    return path


def write_folder(folder, rows, storage='SQLITE3', mode='NONE'):
    """Write a bag of rosbag2 with rosbags."""
    writer = RosbagsWriter(folder, version=9, storage_plugin=StoragePlugin[storage])
    if mode != 'NONE':
        writer.set_compression(CompressionMode[mode], CompressionFormat.ZSTD)
    with writer:
        connections = {}
        for topic, log_ns, data in rows:
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, STRING, typestore=STORE)
            writer.write(connections[topic], log_ns, data)
    return folder


def read_with_mcap(path):
    """Return (topic, log time, data) as the library mcap reads an MCAP file."""
    with open(path, 'rb') as file:
        found = make_reader(file, validate_crcs=True).iter_messages()
        return [(channel.topic, message.log_time, message.data) for _, channel, message in found]


def read_with_rosbags(path):
    """Return (topic, log time, data) as rosbags reads a bag."""
    with Reader(path) as reader:
        return [(c.topic, ns, bytes(data)) for c, ns, data in reader.messages()]


def rows_of(bag, *range_ns, topics=None):
    """Return (topic, log time, data) as the package reads a bag."""
    return [message[:2] + message[3:] for message in bag.messages(topics or bag.topics, *range_ns)]


def _header():
    stamp = TYPES['builtin_interfaces/msg/Time'](sec=1, nanosec=2)
    return TYPES['std_msgs/msg/Header'](stamp=stamp, frame_id='camera')


def raw_image(pixels, encoding='bgr8'):
    """Return a sensor_msgs/Image of rosbags."""
    pixels = np.ascontiguousarray(pixels)
    step, data = pixels.strides[0], pixels.reshape(-1).view(np.uint8)
    height, width = pixels.shape[:2]
    return TYPES['sensor_msgs/msg/Image'](_header(), height, width, encoding, 0, step, data)


def compressed_image(bgr, suffix, text):
    """Return a sensor_msgs/CompressedImage of rosbags. `text` is its format."""
    file = cv2.imencode(suffix, bgr)[1].reshape(-1)
    return TYPES['sensor_msgs/msg/CompressedImage'](_header(), text, file)


def random_image(seed, shape=(24, 32, 3)):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def write_typed_folder(folder, topics, storage='MCAP'):
    """Write a bag. `topics`: messages of rosbags by topic, one for each 0.1 s."""
    with RosbagsWriter(folder, version=9, storage_plugin=StoragePlugin[storage]) as writer:
        for topic, sent in topics.items():
            kind = sent[0].__msgtype__
            connection = writer.add_connection(topic, kind, typestore=STORE)
            for number, message in enumerate(sent):
                data = STORE.serialize_cdr(message, kind)
                writer.write(connection, START + number * SECOND // 10, data)
    return folder
