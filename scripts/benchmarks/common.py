# SPDX-License-Identifier: Apache-2.0
"""Common parts of the benchmarks: camera processes and result files."""

from __future__ import annotations

import array
import itertools
import json
import os
import platform
from pathlib import Path

import cv2
import numpy as np
import rclpy
from ament_index_python.packages import get_package_share_directory
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, QoSReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image

from trt_perception.transport.advice import CAMERA_PROFILE, transport_environment

WIDTH, HEIGHT = 1920, 1080
SHARE = Path(get_package_share_directory('trt_perception'))


# Each image begins with its number. All other bytes hold the number modulo a prime, so that
# consecutive images differ even in reused memory.
NUMBER_BYTES = 8
SAMPLES = slice(2**16 - 1, None, 2**16)
SAMPLE_VALUES = 251


def number_of(pixels):
    """Return the number at the beginning of an image.

    Raises:
        ValueError: a sample of the pixels does not match this number.
    """
    number = int.from_bytes(pixels[:NUMBER_BYTES].tobytes(), 'little')
    samples = pixels[SAMPLES]
    if not samples.size or (samples != number % SAMPLE_VALUES).any():
        raise ValueError(f'image {number} has samples of other images: {set(samples.tolist())}')
    return number


def launch_environment():
    """Return the variables for large images."""
    return transport_environment(str(SHARE / CAMERA_PROFILE))


def quality(reliability):
    """Return the QoS of camera and subscribers: keep only the newest image."""
    return QoSProfile(depth=1, reliability=QoSReliabilityPolicy[reliability.upper()])


def run_camera(rate_hz, reliability, topics=('image',)):
    """Publish numbered 1080p bgr8 images on the topics in turn, until the process is ended.

    Args:
        rate_hz: the rate of each topic.
        reliability: ``reliable`` or ``best_effort``.
        topics: the topics, whose images are sent at different times.
    """
    rclpy.init()
    node = Node('camera')
    publishers = itertools.cycle(
        [node.create_publisher(Image, topic, quality(reliability)) for topic in topics]
    )
    message = Image(height=HEIGHT, width=WIDTH, encoding='bgr8', step=3 * WIDTH)
    message.data = array.array('B', os.urandom(3 * WIDTH * HEIGHT))
    pixels = np.frombuffer(message.data, np.uint8)
    numbers = itertools.count(1)

    def publish():
        number = next(numbers)
        pixels[:NUMBER_BYTES] = np.frombuffer(number.to_bytes(NUMBER_BYTES, 'little'), np.uint8)
        pixels[SAMPLES] = number % SAMPLE_VALUES
        message.header.stamp = node.get_clock().now().to_msg()
        next(publishers).publish(message)

    node.create_timer(1 / (len(topics) * rate_hz), publish)
    rclpy.spin(node)


def spin_until(node, is_done):
    """Run the callbacks of a node until `is_done` returns true."""
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    while not is_done():
        executor.spin_once()


def photograph(width, height):
    """Return a uint8 image (height, width, 3) with detail at all scales, like a photograph.

    A 1080p JPEG of quality 95 has 370 KB, as a photograph would.
    """
    random = np.random.default_rng(5)
    total = np.zeros((height, width, 3), np.float32)
    for cells in (4, 16, 64, 256, 960):
        coarse = random.normal(0, 100 / cells**0.55, (cells * 9 // 16 + 1, cells, 3))
        total += cv2.resize(coarse.astype(np.float32), (width, height))
    return np.clip(total + 128, 0, 255).astype(np.uint8)


def photograph_message(image, size, picture=None):
    """Return a camera's message with the same picture in each call, and its topic.

    Args:
        image: ``raw`` or ``jpeg``.
        size: such as ``1920x1080``.
        picture: file of another picture, which is scaled to the size.
    """
    width_height = tuple(map(int, size.split('x')))
    if picture is None:
        bgr = photograph(*width_height)
    else:
        bgr = cv2.resize(cv2.imread(str(picture)), width_height)
    if image == 'jpeg':
        message, topic = CompressedImage(format='jpeg'), 'image/compressed'
        data = cv2.imencode('.jpg', bgr, [cv2.IMWRITE_JPEG_QUALITY, 95])[1]
    else:
        height, width, _ = bgr.shape
        message, topic = (
            Image(width=width, height=height, encoding='bgr8', step=3 * width),
            'image',
        )
        data = bgr
    # rclpy publishes an array.array in 3 ms for 6 MB; other types take longer.
    message.data = array.array('B', data.tobytes())
    return message, topic


def save(name, content, path=None):
    """Write the result and a description of this machine to a file.

    Args:
        name: the file name below benchmark_output/.
        content: the result, which is written as JSON.
        path: write this file instead.
    """
    path = path or Path('benchmark_output') / f'{name}.json'
    path.parent.mkdir(exist_ok=True)
    machine = {
        'processor': platform.machine(),
        'cores': os.cpu_count(),
        'system': platform.platform(),
    }
    text = json.dumps({'machine': machine, **content}, indent=2)
    path.write_text(text.replace(f'{SHARE.parents[1]}/', '') + '\n', encoding='utf-8')
    print(f'saved {path}')
