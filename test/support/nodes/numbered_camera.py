# SPDX-License-Identifier: Apache-2.0
"""Publish images that are filled with their number, which is also the stamp's seconds.

python numbered_camera.py TOPIC RELIABILITY DEPTH HZ COUNT WIDTHxHEIGHT...

The frame_id is the last namespace of TOPIC, which is the camera's name if a node has several
cameras. Sizes alternate.
The size 'empty' is a message of 0 bytes.
HZ 0 means as fast as possible, COUNT 0 means endless. The camera starts at the first
subscription. It prints 'up' after its first image, and 'done' when all COUNT images have arrived.
Then it waits until it is ended.
"""

import contextlib
import itertools
import signal
import struct
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import rclpy
from rclpy.duration import Duration
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.serialization import serialize_message
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import Image

# Python starts this file by its path, so the folder of the tests' support is not in sys.path.
sys.path.append(str(Path(__file__).resolve().parents[2]))
from support.nodes.patient_publisher import until_accepted
from trt_perception.ros.wire.unlocked_publish import publish_unlocked

#: A prime, so that images with close numbers differ, also in a reused buffer.
VALUES = 251
_STAMP_AT = 4


def empty_of(size, frame_id):
    """Return a serialised bgr8 image, and a view of its pixels for writing."""
    if size == 'empty':
        return np.empty(0, np.uint8), np.empty(0, np.uint8)
    width, height = map(int, size.split('x'))
    empty = Image(width=width, height=height, encoding='bgr8', step=3 * width)
    empty.header.frame_id = frame_id
    pixels = 3 * width * height
    start = serialize_message(empty)[:-4] + struct.pack('=I', pixels)
    message = np.empty(len(start) + pixels, np.uint8)
    message[: len(start)] = np.frombuffer(start, np.uint8)
    return message, message[len(start) :]


def main(topic, reliability, depth, hz, count, *sizes):
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    node = rclpy.create_node('numbered_camera')
    qos = QoSProfile(depth=int(depth), reliability=ReliabilityPolicy[reliability.upper()])
    publisher = node.create_publisher(Image, topic, qos)
    while not publisher.get_subscription_count():
        time.sleep(0.01)
    frame_id = topic.rpartition('/')[0].rpartition('/')[2]
    images = itertools.cycle([empty_of(size, frame_id) for size in sizes])
    period_s = 1 / float(hz) if float(hz) else 0.0
    due = time.monotonic()
    for number in itertools.count(1):
        message, pixels = next(images)
        if message.size:
            message[_STAMP_AT : _STAMP_AT + 4] = np.frombuffer(struct.pack('=i', number), np.uint8)
        pixels[:] = number % VALUES
        if int(count):
            until_accepted(partial(publish_unlocked, publisher, message))
        else:  # an endless camera skips an image that the middleware refuses
            with contextlib.suppress(RuntimeError):
                publish_unlocked(publisher, message)
        if number == 1:
            print('up', flush=True)
        if number == int(count):
            break
        # After a late wake-up, an endless camera sends the next image earlier, so that the mean
        # rate stays correct. Counted images must not come in bursts, which overfill queues.
        due = max(due + period_s, time.monotonic() - (0 if int(count) else 10 * period_s))
        time.sleep(max(0.0, due - time.monotonic()))
    publisher.wait_for_all_acked(Duration(seconds=30))
    print('done', flush=True)
    signal.pause()


if __name__ == '__main__':
    main(*sys.argv[1:])
