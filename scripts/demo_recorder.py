# SPDX-License-Identifier: Apache-2.0
"""Record results, labels and diagnostics of each camera for the demo."""

from __future__ import annotations

import time

from demo_image_tasks import RESULT_TOPICS
from demo_tasks import TOPICS
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.parameter_client import AsyncParameterClient
from rclpy.qos import QoSDurabilityPolicy, QoSProfile
from vision_msgs.msg import Detection2DArray, LabelInfo

NODE = 'detector'


class Camera:
    """The results of one camera, with their arrival times.

    Attributes:
        name: the camera's name; '' for the only camera.
        results: messages of the detections, or of another topic with the task's result, by the
            image's stamp in nanoseconds.
        task_messages: messages of the task's additional topic by stamp, such as masks.
        arrivals_ns: arrival times by stamp, in the clock of the stamps.
        classes: the model's class names; None until they arrive.
        diagnostics: the newest values of the camera's status by key.
    """

    def __init__(self, node, name, task='detect'):
        self.name = name
        self.results = {}
        self.task_messages = {}
        self.arrivals_ns = {}
        self.classes = None
        self.diagnostics = {}
        before = f'{name}/' if name else ''
        latched = QoSProfile(depth=1, durability=QoSDurabilityPolicy.TRANSIENT_LOCAL)
        node.create_subscription(LabelInfo, f'{before}label_info', self._on_labels, latched)
        topic, kind = RESULT_TOPICS.get(task, ('detections', Detection2DArray))
        results = node.create_subscription(kind, f'{before}{topic}', self._on_result, 100)
        self._topics = [results.topic_name]
        self._has_task_topic = task in TOPICS
        if task in TOPICS:
            topic, kind = TOPICS[task]
            others = node.create_subscription(kind, f'{before}{topic}', self._on_task_message, 100)
            self._topics.append(others.topic_name)
        self._count_publishers = node.count_publishers

    def _on_task_message(self, message):
        self.task_messages[stamp_ns(message)] = message

    def _on_result(self, message):
        now = time.time_ns()
        stamp = stamp_ns(message)
        self.results[stamp] = message
        self.arrivals_ns[stamp] = now

    def _on_labels(self, message):
        self.classes = [entry.class_name for entry in message.class_map]

    def counts(self):
        """Return received, published, failed, in flight, not delivered, and dropped by reason."""
        names = ('received', 'published', 'failed', 'in flight', 'not delivered')
        counts = {name.replace(' ', '_'): number(self.diagnostics.get(name)) for name in names}
        counts['dropped'] = {
            key.removeprefix('dropped: '): int(value)
            for key, value in self.diagnostics.items()
            if key.startswith('dropped: ')
        }
        return counts

    def has_finished(self, sent=0):
        """Return whether the detector has received and finished this many images."""
        counts = self.counts()
        received = (counts['received'] or 0) + (counts['not_delivered'] or 0)
        return counts['in_flight'] == 0 and received >= sent

    def lost_count(self):
        """Return the number of published results that did not arrive here."""
        skipped = 0 if self._has_task_topic else self.skipped_count()
        return (self.counts()['published'] or 0) - skipped - len(self.results)

    def skipped_count(self):
        """Return the number of masks or maps that the node skipped, because they were late."""
        return number(self.diagnostics.get('result_images_skipped')) or 0

    def is_complete(self):
        """Return whether all published results and the newest masks or keypoints have arrived.

        Masks of older images may be missing, because the node skips masks that are late.
        """
        newest = max(self.results, default=None)
        is_complete = not self._has_task_topic or newest is None or newest in self.task_messages
        return is_complete and self.lost_count() == 0

    def is_ready(self):
        """Return whether the classes are known and the topics exist."""
        return self.classes is not None and all(map(self._count_publishers, self._topics))


class Recorder(Node):
    """A node that records some cameras of the detector.

    Args:
        names: the cameras' names; empty for a detector with one unnamed camera.
        task: the model's task, which decides the topics to record.

    Attributes:
        cameras: dict from a camera's name to its record.
        state: the node's lifecycle state; '' until its diagnostics arrive.
        task: the task of the node's model; '' until its diagnostics arrive.
        problem: the error in the node's diagnostics; '' without an error.
    """

    def __init__(self, names=(), task='detect'):
        super().__init__('recorder')
        self.cameras = {name: Camera(self, name, task) for name in names or ('',)}
        self.state = self.task = self.problem = ''
        self.create_subscription(DiagnosticArray, '/diagnostics', self._on_diagnostics, 100)
        self._parameters = AsyncParameterClient(self, NODE)

    def _on_diagnostics(self, message):
        for status in message.status:
            owner, _, part = status.name.rpartition(': ')
            if owner.rpartition('/')[2] != NODE:
                continue
            values = {entry.key: entry.value for entry in status.values}
            if part == NODE:
                self.state = values.get('state', '')
                self.task = values.get('task', '')
                failed = status.level == DiagnosticStatus.ERROR
                self.problem = status.message if failed else ''
            # The status of a node with one camera is the status of the camera.
            name = '' if part == NODE else part
            if name in self.cameras:
                self.cameras[name].diagnostics = values

    def switch_off(self, camera):
        """Ask the detector to switch a camera off. Return the future of the answer."""
        name = f'camera.{camera}.enabled' if camera else 'enabled'
        return self._parameters.set_parameters([Parameter(name, value=False)])

    @property
    def received(self):
        """The number of images with a result, of all cameras together."""
        return sum(len(camera.results) for camera in self.cameras.values())

    def is_ready(self):
        """Return whether the detector is active and its cameras' topics are known."""
        return self.state == 'active' and all(one.is_ready() for one in self.cameras.values())


def stamp_ns(message):
    """Return the stamp of a message in nanoseconds."""
    return message.header.stamp.sec * 10**9 + message.header.stamp.nanosec


def number(text):
    """Return a count; None if the detector cannot know it because cameras share the topic."""
    return int(text) if text and text.isdigit() else None
