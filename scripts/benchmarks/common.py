"""Common parts of the benchmarks: camera processes, child processes, and result files."""

from __future__ import annotations

import array
import itertools
import json
import os
import platform
import select
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import rclpy
from ament_index_python.packages import get_package_share_directory
from rclpy.node import Node
from rclpy.qos import QoSProfile, QoSReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image

from trt_perception.ros.wire.unlocked_publish import serialize_with_room
from trt_perception.transport.advice import transport_environment

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / 'test'))
from support.ties import tie  # noqa: E402

WIDTH, HEIGHT = 1920, 1080
SHARE = Path(get_package_share_directory('trt_perception'))
NODE = SHARE.parents[1] / 'lib' / 'trt_perception' / 'detector_node'
# A serialised message begins with a 4-byte header. The stamp's seconds and nanoseconds follow.
STAMP_AT = slice(4, 12)
CLOCK_TICKS = os.sysconf('SC_CLK_TCK')


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
    """Return the variables that detect.launch.py sets for the detector."""
    return transport_environment(str(SHARE / 'config' / 'fastdds_large_images.xml'))


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


def serialized_photograph(kind, size, quality):
    """Return the message type, the topic and the serialised message of a camera image.

    Args:
        kind: ``raw`` or ``jpeg``.
        size: such as ``1920x1080``.
        quality: the JPEG quality, 0 to 100.
    """
    bgr = photograph(*map(int, size.split('x')))
    if kind == 'jpeg':
        data = cv2.imencode('.jpg', bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
        empty, topic = CompressedImage(format='jpeg'), 'image/compressed'
    else:
        height, width, _ = bgr.shape
        empty = Image(width=width, height=height, encoding='bgr8', step=3 * width)
        data, topic = bgr.reshape(-1), 'image'
    message, place = serialize_with_room(empty, data.size)
    place[:] = data.reshape(-1)
    return type(empty), topic, message


def cpu_seconds(process):
    """Return the CPU time of a process so far: user and system, all threads."""
    fields = Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


class Child:
    """A child process of the benchmark. It ends with the ``with`` block."""

    def __init__(self, script, *arguments, environment=None):
        self._process = subprocess.Popen(
            [sys.executable, script, *map(str, arguments)],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        tie(self._process.pid)

    @property
    def pid(self):
        """The process ID."""
        return self._process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def tell(self, line):
        """Write a line to the process's standard input."""
        self._process.stdin.write(f'{line}\n')
        self._process.stdin.flush()

    def wait_for(self, line, timeout_s):
        """Wait for the process's next line, which must equal ``line``."""
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            raise SystemExit(f"a process of the benchmark did not print '{line}' in {timeout_s} s")
        printed = self._process.stdout.readline().rstrip()
        if printed != line:
            raise SystemExit(f"a process of the benchmark printed '{printed}', not '{line}'")

    def result(self, timeout_s):
        """Return the JSON object that the process prints at its end."""
        output, _ = self._process.communicate(timeout=timeout_s)
        if self._process.returncode:
            raise SystemExit(f'a process of the benchmark failed with {self._process.returncode}')
        return json.loads(output.splitlines()[-1])


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
