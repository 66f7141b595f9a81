# SPDX-License-Identifier: Apache-2.0
"""Run a node with an ImageInput in the test process."""

import itertools
import threading
from types import SimpleNamespace

from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image

from support.camera_callbacks import FaultCallback
from support.nodes.numbered_camera import VALUES
from support.programs import Program, script
from support.waiting import WaitTimeoutError
from trt_perception.parameters.values import ParameterValues
from trt_perception.ros.camera.image_input import ImageInput
from trt_perception.ros.camera.messages import frame_from_image
from trt_perception.ros.camera.transport_choice import RAW
from trt_perception.ros.intake.buffers import MessageBuffers
from trt_perception.ros.intake.shared_intake import SharedIntake

VGA = '640x480'
topics = (f'/intake_{number}/image' for number in itertools.count())


def intakes():
    return sum(thread.name == 'intake' for thread in threading.enumerate())


def image_number(arrived):
    """Return an image's number, and check that all sampled pixels have this value."""
    frame = frame_from_image(arrived)
    number = arrived.header.stamp.sec
    seen = {*frame.data[::4099].tolist(), *frame.data[-2:].tolist()}
    assert seen == {number % VALUES}, f'image {number} (step {frame.step}): {seen}'
    return number


class MessageSink:
    """Replaces the detector of one camera, and calls a function with each submitted message."""

    def __init__(self, receive):
        self.cameras = [SimpleNamespace(name='')]
        self._receive = receive

    def submit(self, camera_index, message):
        assert camera_index == 0
        self._receive(message)


class Taker:
    """A node of this process with an ImageInput on its own topic."""

    def __init__(self, client, **settings):
        self.client = client
        self.topic = next(topics)
        self.parameters = ParameterValues(**settings)
        self.node = LifecycleNode(
            'taker',
            context=client.context,
            cli_args=['--ros-args', '-r', f'image:={self.topic}'],
        )
        client.add(self.node)
        self.images = []
        self.logged = []
        self.node.get_logger = lambda: self  # LifecycleNode.get_logger would call rcl each time
        self.intake = self.input = None
        self.buffers = MessageBuffers()
        self.faults = []
        self.programs = []

    def info(self, text, **_):
        self.logged.append(text)

    warning = error = info

    def open(self, receive=None, intake=None):
        """Subscribe with a new intake, or with another taker's intake."""
        self.intake = intake or SharedIntake(
            self.node,
            lambda: self.buffers,
            uses_rclpy=self.parameters.image_intake == 'rclpy',
            fault_handler=FaultCallback(self.faults.append),
        )
        sink = MessageSink(receive or self.images.append)
        self.input = ImageInput(self.node, self.parameters, RAW, self.intake, sink, 0)
        return self.input

    def camera(self, *sizes, reliability='reliable', depth=10, hz=100.0, count=0):
        command = [*script('nodes/numbered_camera.py'), self.topic, reliability, depth, hz, count]
        program = Program([*command, *sizes])
        self.programs.append(program)
        return program

    def publisher(self, reliability=ReliabilityPolicy.RELIABLE):
        """Return a publisher of this process that has discovered the intake."""
        qos = QoSProfile(depth=10, reliability=reliability)
        publisher = self.client.node.create_publisher(Image, self.topic, qos)
        self.client.spin_until(publisher.get_subscription_count, 'the subscription')
        return publisher

    def wait(self, count):
        try:
            self.client.spin_until(lambda: len(self.images) >= count, f'{count} images')
        except WaitTimeoutError:
            print(f'{len(self.images)} came, {self.input.not_delivered} did not;', self.logged)
            raise

    def close(self):
        if self.input is not None:
            self.input.close()
            self.input.close()
        self.buffers.close()
        for program in self.programs:
            program.close()
        self.client.remove(self.node)
        self.node.destroy_node()
