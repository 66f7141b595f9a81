# SPDX-License-Identifier: Apache-2.0
"""Subscribe to images with plain rclpy and keep none, to measure the memory of the middleware.

python plain_subscriber.py IMAGE_TOPIC COMPRESSED_IMAGE_TOPIC

The program prints 'received' for each message.
"""

import sys

import rclpy
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage, Image


def main(*topics):
    rclpy.init()
    node = rclpy.create_node('plain_subscriber')
    for kind, topic in zip((Image, CompressedImage), topics, strict=True):
        node.create_subscription(
            kind, topic, lambda _: print('received', flush=True), QoSProfile(depth=1), raw=True
        )
    rclpy.spin(node)


if __name__ == '__main__':
    main(*sys.argv[1:])
