"""What the demo hears of the detector: detections and labels of each camera, and diagnostics."""

from __future__ import annotations

import time

from diagnostic_msgs.msg import DiagnosticArray
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node
from rclpy.qos import QoSDurabilityPolicy
from rclpy.qos import QoSProfile
from vision_msgs.msg import Detection2DArray
from vision_msgs.msg import LabelInfo

NODE = 'detector'


class Camera:
    """Keeps every detection message of one camera with its time of arrival.

    Attributes:
        name: '' for the only one.
        detections: messages by the image's stamp in nanoseconds.
        arrivals_ns: when they came, by the same stamp, in the same clock.
        classes: names of the model's classes, None before they came.
        diagnostics: the newest values of its status, by their keys.
    """

    def __init__(self, node, name):
        self.name = name
        self.detections = {}
        self.arrivals_ns = {}
        self.classes = None
        self.diagnostics = {}
        before = f'{name}/' if name else ''
        latched = QoSProfile(depth=1, durability=QoSDurabilityPolicy.TRANSIENT_LOCAL)
        node.create_subscription(LabelInfo, f'{before}label_info', self._on_labels, latched)
        node.create_subscription(Detection2DArray, f'{before}detections', self._on_detections, 100)

    def _on_detections(self, message):
        now = time.time_ns()
        stamp = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
        self.detections[stamp] = message
        self.arrivals_ns[stamp] = now

    def _on_labels(self, message):
        self.classes = [entry.class_name for entry in message.class_map]

    def counts(self):
        """Return received, published, failed, in flight, not delivered and dropped by reason."""
        names = ('received', 'published', 'failed', 'in flight', 'not delivered')
        counts = {name.replace(' ', '_'): number(self.diagnostics.get(name)) for name in names}
        counts['dropped'] = {
            key.removeprefix('dropped: '): int(value)
            for key, value in self.diagnostics.items()
            if key.startswith('dropped: ')
        }
        return counts

    def settled(self):
        """Return whether everything that was received has come out, and has come here."""
        counts = self.counts()
        return counts['in_flight'] == 0 and counts['published'] == len(self.detections)


class Recorder(Node):
    """Listens to some cameras of the detector.

    Args:
        names: of the cameras; empty for a detector of one camera without a name.

    Attributes:
        cameras: by their names.
        state: the node's lifecycle state, '' before its diagnostics came.
        problem: what the node's diagnostics call an error, '' where nothing is.
    """

    def __init__(self, names=()):
        super().__init__('recorder')
        self.cameras = {name: Camera(self, name) for name in names or ('',)}
        self.state = self.problem = ''
        self.create_subscription(DiagnosticArray, '/diagnostics', self._on_diagnostics, 100)

    def _on_diagnostics(self, message):
        for status in message.status:
            owner, _, part = status.name.rpartition(': ')
            if owner.rpartition('/')[2] != NODE:
                continue
            values = {entry.key: entry.value for entry in status.values}
            if part == NODE:
                self.state = values.get('state', '')
                failed = status.level == DiagnosticStatus.ERROR
                self.problem = status.message if failed else ''
            # The status of a node with one camera is that of the camera.
            name = '' if part == NODE else part
            if name in self.cameras:
                self.cameras[name].diagnostics = values

    @property
    def received(self):
        """Number of images with detections, of all cameras."""
        return sum(len(camera.detections) for camera in self.cameras.values())

    def ready(self):
        """Return whether the detector is active, and its classes are known."""
        known = all(camera.classes is not None for camera in self.cameras.values())
        return self.state == 'active' and known


def number(text):
    """Return a count, None where the detector cannot tell: several cameras share the topic."""
    return int(text) if text and text.isdigit() else None
