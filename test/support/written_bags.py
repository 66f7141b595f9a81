# SPDX-License-Identifier: Apache-2.0
"""Bags for tests of the writer. As a program, it writes a bag and prints each complete file."""

import json
import sys
from pathlib import Path

import numpy as np

from trt_perception.bags.bag import BagMessage, BagTopic
from trt_perception.bags.definitions import bag_topic
from trt_perception.bags.writer import BagWriter
from trt_perception.errors import WriteError

SECOND = 10**9
START = 1_700_000_000 * SECOND
TOPICS = (
    bag_topic('/image', 'sensor_msgs/Image'),
    bag_topic('/detections', 'vision_msgs/Detection2DArray'),
    bag_topic('/label_info', 'vision_msgs/LabelInfo', depth=1, is_latched=True),
    BagTopic('/unknown', 'their_msgs/msg/Their'),
)


def some_messages(file_index, size=3000):
    """Return 40 messages of one file, within 1 s. Their data are random, and not valid CDR."""
    random = np.random.default_rng(file_index)
    times = [START + file_index * SECOND + i * 1_000_000 for i in range(40)]
    return [
        BagMessage(
            TOPICS[i % 3].name,
            log_ns,
            log_ns - 5,
            b'\0\1\0\0' + random.integers(0, 9, size, np.uint8).tobytes(),
        )
        for i, log_ns in enumerate(times)
    ]


def write_files(bag, indexes, size=3000):
    """Write some files of an open bag, and print the name of each complete file."""
    for index in indexes:
        bag.begin_file()
        for message in some_messages(index, size):
            bag.write(message)
        print(bag.end_file().name, flush=True)


def write_bag(folder, files=3, size=3000, **options):
    """Write a bag, or continue it after `first_file`. Return the folder."""
    with BagWriter(folder, TOPICS, **options) as bag:
        write_files(bag, range(len(bag.files), files), size)
    return folder


def command(folder, **options):
    """Return the command line that calls `write_bag` in another process."""
    return [sys.executable, __file__, str(folder), json.dumps(options)]


if __name__ == '__main__':
    try:
        write_bag(Path(sys.argv[1]), **json.loads(sys.argv[2]))
    except WriteError as error:
        sys.exit(str(error))
