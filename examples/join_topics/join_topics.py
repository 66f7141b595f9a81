# SPDX-License-Identifier: Apache-2.0
"""Join all messages about one image by their stamps: an example of a node with several inputs.

    python3 examples/join_topics/join_topics.py detections keypoints
    python3 examples/join_topics/join_topics.py image detections masks --ros-args -r __ns:=/front

All results carry the header of their image, so equal stamps mean the same image. Replace
`on_image` with your own code. Without ROS 2's message_filters, this needs no other package.
"""

import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from functools import partial

import rclpy
from rclpy.node import Node
from rclpy.utilities import remove_ros_args
from sensor_msgs.msg import Image, PointCloud2
from vision_msgs.msg import Classification, Detection2DArray, Detection3DArray

TOPICS = {
    'image': Image,
    'detections': Detection2DArray,
    'masks': Image,
    'keypoints': PointCloud2,
    'detections_3d': Detection3DArray,
    'classification': Classification,
    'segmentation/mask': Image,
    'depth': Image,
}
MAX_WAITING = 10  # images


class Joiner(Node):
    """Calls a function with the messages of each image that has one on every topic."""

    def __init__(self, topics, on_image):
        super().__init__('join_topics')
        self._topics, self._on_image = topics, on_image
        self._waiting = {}  # maps a stamp to messages by topic, in the order of arrival
        for topic in topics:
            self.create_subscription(TOPICS[topic], topic, partial(self._add, topic), 10)

    def _add(self, topic, message):
        stamp = message.header.stamp.sec, message.header.stamp.nanosec
        self._waiting.setdefault(stamp, {})[topic] = message
        if len(self._waiting[stamp]) == len(self._topics):
            self._on_image(self._waiting.pop(stamp))
        # The node drops images and masks that it cannot process in time: these never complete.
        while len(self._waiting) > MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]


def on_image(messages):
    """Print the topics of an image. Here, your own code uses the messages by topic."""
    stamp = next(iter(messages.values())).header.stamp
    print(f'{stamp.sec}.{stamp.nanosec:09} {", ".join(sorted(messages))}', flush=True)


if __name__ == '__main__':
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument(
        'topics', nargs='+', choices=TOPICS, metavar='TOPIC', help=', '.join(TOPICS)
    )
    options = parser.parse_args(remove_ros_args()[1:])
    rclpy.init()
    try:
        node = Joiner(set(options.topics), on_image)
        while rclpy.ok():  # rclpy.spin may miss a SIGTERM that comes while a message is read
            rclpy.spin_once(node, timeout_sec=1)
    except BrokenPipeError:  # the reader of the output has ended, as in `... | head`
        # At its end, Python writes the text that is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (KeyboardInterrupt, Exception) as error:  # rclpy's calls fail after a signal
        if rclpy.ok() and not isinstance(error, KeyboardInterrupt):
            raise
