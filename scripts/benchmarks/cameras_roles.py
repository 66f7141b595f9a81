# SPDX-License-Identifier: Apache-2.0
"""The processes that `scripts/bench cameras` starts around the nodes.

Each process prints ``ready`` when its topics are connected. It then reads a line with a Schedule,
works, and prints its result as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import math
import os
import random
import signal
import struct
import sys
import time
from types import SimpleNamespace

import numpy as np
import rclpy
from common import SHARE, photograph_message, quality
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from trt_perception.parameters.camera import NodeParameters
from trt_perception.ros.intake.buffers import MessageBuffers
from trt_perception.ros.intake.participants import ImageParticipants
from trt_perception.ros.intake.shared_intake import SharedIntake
from trt_perception.ros.intake.subscriptions import ImageTopicOptions
from trt_perception.ros.wire.unlocked_publish import publish_unlocked
from trt_perception.transport.advice import node_profile_environment
from trt_perception.wire.image_message import image_message_start, serialize_with_room

READY_LINE = 'ready'
#: Seconds for which receivers wait for images in flight, after the cameras' last image.
DRAIN_S = 2.0
#: A process that has not ended after this time ends without freeing its shared memory.
END_LIMIT_S = 10
#: Random cameras are up to half a per cent faster than the rate.
MAX_RATE_FACTOR = 1.005
# A serialised message begins with a 4-byte header. The stamp's seconds and nanoseconds follow.
STAMP_BYTES = slice(4, 12)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The times of one measurement, in seconds of the system clock.

    Attributes:
        start_s: the cameras begin to send.
        end_s: the cameras stop.
        rate_hz: the rate of the cameras.
        timing: ``random`` or ``triggered``.
        seed: chooses the phases and rates of random cameras.
    """

    start_s: float
    end_s: float
    rate_hz: float
    timing: str
    seed: int

    def line(self):
        """Return the schedule as one line."""
        return json.dumps(dataclasses.asdict(self))

    def due_times(self, camera):
        """Yield the times at which a camera must send. A late camera skips all but the last."""
        first_s, rate_hz = self.start_s, self.rate_hz
        if self.timing == 'random':
            # All sides of a round have the same seed, so they have equal phases and rates.
            numbers = random.Random(f'{self.seed} {camera}')
            rate_hz *= numbers.uniform(1.0, MAX_RATE_FACTOR)
            first_s += numbers.uniform(0.0, 1 / rate_hz)
        number = 0
        while (due_s := first_s + number / rate_hz) < self.end_s:
            yield due_s
            number = max(number + 1, math.floor((time.time() - first_s) * rate_hz))


def read_schedule():
    """Return the schedule from the standard input. Exit if the input has ended."""
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(1)
    return Schedule(**json.loads(line))


def say_ready_when(connected):
    """Wait until a function returns true, then print READY_LINE."""
    while rclpy.ok() and not connected():
        time.sleep(0.05)
    print(READY_LINE, flush=True)


@contextlib.contextmanager
def ros_node(name, namespace=''):
    """Provide a node. The end of the ``with`` block destroys it and shuts ROS down.

    Print results inside the block. While many processes end at once, Fast DDS sometimes never
    returns from the destruction of a node, with Python's lock held: 5 of about 600 processes on an
    H100 machine. Therefore the kernel ends a process that takes too long.
    """
    rclpy.init()
    try:
        node = Node(name, namespace=namespace)
        yield node
        signal.alarm(END_LIMIT_S)
        node.destroy_node()
    finally:
        rclpy.try_shutdown()


def run_camera(options):
    """Publish images of one camera like a driver; print the stamps of all images."""
    [camera] = options.cameras
    message, topic = photograph_message(options.image, options.size, options.picture)
    with ros_node('driver', camera) as node:
        publisher = node.create_publisher(type(message), topic, quality('reliable'))
        say_ready_when(publisher.get_subscription_count)
        sent_ns = []
        for due_s in read_schedule().due_times(camera):
            time.sleep(max(0.0, due_s - time.time()))
            now_ns = time.time_ns()
            stamp = message.header.stamp
            stamp.sec, stamp.nanosec = divmod(now_ns, 10**9)
            publisher.publish(message)
            sent_ns.append(now_ns)
        print(json.dumps({camera: sent_ns}), flush=True)


def stamp_ns(serialized):
    """Return the stamp of a serialised message."""
    seconds, nanoseconds = struct.unpack('=iI', serialized[STAMP_BYTES])
    return seconds * 10**9 + nanoseconds


def print_arrivals(arrivals, missed=0, objects=None):
    """Print the arrivals of all cameras.

    Args:
        arrivals: for each camera, stamp and time of arrival of each message, in nanoseconds.
        missed: number of messages that were sent to this process and did not arrive.
        objects: for each camera, the number of objects in its last message.
    """
    print(
        json.dumps({'arrivals': arrivals, 'missed': missed, 'objects': objects or {}}), flush=True
    )


def run_client(options):
    """Receive the results of some cameras; print their arrivals at the middleware."""
    arrivals = {camera: [] for camera in options.cameras}
    sequences = {camera: [] for camera in options.cameras}
    last = {}

    def on_result(camera, message, info):
        last[camera] = message
        arrivals[camera].append((stamp_ns(message), info['received_timestamp']))
        sequences[camera].append(info['publication_sequence_number'])

    with ros_node('client', options.cameras[0]) as node:
        # Receive bytes, because rclpy needs at least 10 ms to convert 300 boxes to objects.
        subscriptions = [
            node.create_subscription(
                Detection2DArray if options.topic == 'detections' else Image,
                f'/{camera}/{options.topic}',
                functools.partial(on_result, camera),
                QoSProfile(depth=100),
                raw=True,
            )
            for camera in options.cameras
        ]
        topics = [subscription.topic_name for subscription in subscriptions]
        say_ready_when(lambda: all(map(node.count_publishers, topics)))
        end_s = read_schedule().end_s + DRAIN_S
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        while time.time() < end_s:
            executor.spin_once(0.05)
        executor.remove_node(node)
        missed = sum(
            max(numbers) - min(numbers) + 1 - len(numbers)
            for numbers in sequences.values()
            if numbers
        )
        objects = {}
        if options.topic == 'detections':
            objects = {
                camera: len(deserialize_message(message, Detection2DArray).detections)
                for camera, message in last.items()
            }
        print_arrivals(arrivals, missed, objects)


@contextlib.contextmanager
def open_intake(node, options, on_fault):
    """Provide the intake of a detector node, without model and worker."""
    transport = 'compressed' if options.image == 'jpeg' else 'raw'
    participants = ImageParticipants(node)
    participants.start(
        NodeParameters.from_values({'cameras': options.cameras, 'image_transport': transport})
    )
    yield SharedIntake(
        node,
        MessageBuffers,
        participants.ready(),
        uses_rclpy=False,
        fault_handler=SimpleNamespace(on_fault=on_fault),
    )
    participants.close()


class Receiver:
    """Keeps the arrivals of one camera's images. The intake calls its methods."""

    def __init__(self, on_fault):
        self.arrivals = []
        self.on_receiver_failed = on_fault

    def on_image(self, message, *_):
        self.arrivals.append((stamp_ns(message.data), time.time_ns()))

    def ignore(self, event):
        pass

    on_message_lost = on_publishers_matched = on_incompatible_qos = ignore


def run_intake(options):
    """Take the images of all cameras like a node does; print when each image was taken."""
    kind, topic = (
        (CompressedImage, 'image/compressed') if options.image == 'jpeg' else (Image, 'image')
    )
    faults = []
    receivers = {camera: Receiver(faults.append) for camera in options.cameras}
    os.environ.update(node_profile_environment(SHARE, os.environ))
    with ros_node('intake') as node, open_intake(node, options, faults.append) as intake:
        subscriptions = [
            intake.subscribe(
                ImageTopicOptions(
                    *(node, kind, f'/{camera}/{topic}', quality('reliable')),
                    may_be_large=options.image == 'raw',
                ),
                receiver,
            )
            for camera, receiver in receivers.items()
        ]
        if intake.uses_rclpy:
            raise SystemExit('the intake does not work with this version of ROS 2')
        say_ready_when(lambda: True)
        time.sleep(max(0.0, read_schedule().end_s + DRAIN_S - time.time()))
        faults += [topic for topic in subscriptions if topic.is_lost]
        for subscription in subscriptions:
            subscription.close()
        if faults:
            raise SystemExit(f'the intake failed: {faults}')
        print_arrivals({camera: receiver.arrivals for camera, receiver in receivers.items()})


class Relay(Receiver):
    """Answers each image of one camera with a map of the same size, without a model."""

    def __init__(self, node, camera, options, on_fault):
        super().__init__(on_fault)
        width, height = map(int, options.size.split('x'))
        is_depth = options.topic.endswith('depth')
        encoding, pixel_bytes = ('32FC1', 4) if is_depth else ('mono8', 1)
        start = image_message_start(Header(), (width, height), encoding, pixel_bytes)
        self._message, pixels = serialize_with_room(start)
        # Memory that was never written is a single page of zeros, which is always in the cache.
        pixels[:] = np.random.default_rng(0).integers(0, 256, pixels.size, np.uint8)
        self._publisher = node.create_publisher(Image, f'/{camera}/{options.topic}', 1)

    def on_image(self, message, *_):
        self._message[STAMP_BYTES] = message.data[STAMP_BYTES]
        publish_unlocked(self._publisher, self._message)


def run_relay(options):
    """Take the images of all cameras like a node does, and publish a map for each."""
    faults = []
    os.environ.update(node_profile_environment(SHARE, os.environ))
    with ros_node('relay') as node, open_intake(node, options, faults.append) as intake:
        subscriptions = [
            intake.subscribe(
                ImageTopicOptions(
                    *(node, Image, f'/{camera}/image', quality('reliable')), may_be_large=True
                ),
                Relay(node, camera, options, faults.append),
            )
            for camera in options.cameras
        ]
        while not faults:
            time.sleep(0.1)
        for subscription in subscriptions:
            subscription.close()
        raise SystemExit(f'the relay failed: {faults}')


def run_viewer(options):
    """Receive the images of one topic of each camera until the process is ended."""
    with ros_node('viewer') as node:
        for camera in options.cameras:
            topic = f'/{camera}/{options.view}'
            node.create_subscription(Image, topic, lambda _: None, quality('reliable'), raw=True)
        say_ready_when(lambda: True)
        rclpy.spin(node)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('role', choices=['camera', 'client', 'intake', 'relay', 'viewer'])
    parser.add_argument('cameras', nargs='+')
    parser.add_argument('--image', choices=['raw', 'jpeg'], default='raw')
    parser.add_argument('--size', default='640x480')
    parser.add_argument('--picture', help='file of the picture that a camera sends')
    parser.add_argument('--topic', default='detections')
    parser.add_argument('--view')
    options = parser.parse_args()
    # Fast DDS writes its errors to standard output (file descriptor 1). They belong to the log,
    # not to the benchmark's pipe.
    sys.stdout = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)
    roles = {
        'camera': run_camera,
        'client': run_client,
        'intake': run_intake,
        'relay': run_relay,
        'viewer': run_viewer,
    }
    roles[options.role](options)


if __name__ == '__main__':
    main()
