# SPDX-License-Identifier: Apache-2.0
"""Use the topics and the status of one camera of a detector with several cameras."""

import copy

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

from support.nodes.graph import HANDSHAKE, found_in, picture_of
from support.waiting import WaitTimeoutError

NAMES = ('front', 'rear', 'left')
COLOR, BLUE = (200, 120, 60), (0, 0, 200)
# The stamp is 0. The node would report an old stamp as a stamp from another clock.
HELLO = picture_of((0, 0, 0), frame_id=HANDSHAKE, stamp=(0, 0))


class CameraOfMany:
    """Publishes the images and reads the answers of one camera of a graph.Detector.

    Args:
        detector: the detector that serves the camera.
        name: the camera's name.
        publish: whether this process publishes the camera's images.
    """

    def __init__(self, detector, name, *, publish=True):
        self.detector, self.client, self.name = detector, detector.client, name
        self.topic = detector.topic(f'{name}/image')
        self.detections = detector.subscribe(Detection2DArray, f'{name}/detections')
        self.publisher = None
        if publish:
            self.create_publisher()

    def create_publisher(self, qos=None):
        self.destroy_publisher()
        qos = qos or QoSProfile(depth=10)
        self.publisher = self.client.node.create_publisher(Image, self.topic, qos)
        return self.publisher

    def destroy_publisher(self):
        if self.publisher is not None:
            self.client.node.destroy_publisher(self.publisher)
            self.publisher = None

    def connect(self, picture=None):
        """Publish images until one is answered, so that all participants are discovered.

        Then wait for the answer of one more image, so that none of the images is in flight.
        """
        connected = self.client.publish_until_answered(
            self.publisher, picture or HELLO, self.detections
        )
        if not connected:
            raise WaitTimeoutError(f'nothing arrives of {self.name}')
        last = copy.deepcopy(picture or HELLO)
        last.header.frame_id = 'connected'
        self.ask(last)
        self.detections.clear()

    def answers(self):
        """Return the detections of all images except handshake images."""
        return [m for m in self.detections if m.header.frame_id != HANDSHAKE]

    def ask(self, image):
        """Publish one image and return its detections."""
        self.detections.clear()
        self.publisher.publish(image)

        def answer():
            # The answer to an earlier image may come first.
            return next((m for m in self.answers() if m.header == image.header), None)

        return self.client.spin_until(answer, f'detections of {self.name}')

    def wait_for_status(self, accepts, what, *, publish=lambda: None):
        """Return the first status of this camera that ``accepts`` accepts, and its values."""

        def find(status, values):
            publish()
            return accepts(status, values)

        what = f'{self.name}: {what}'
        return self.detector.wait_for_status(find, what, of=self.name)

    def wait_for_report(self, level, part, *, publish=lambda: None):
        """Wait for a report of this camera; see graph.Detector.wait_for_report."""
        self.detector.wait_for_report(level, part, publish=publish, of=self.name)

    def counts(self):
        """Return this camera's counts when nothing is in flight; check that they add up."""
        counts = self.detector.settled_counts(of=self.name)
        dropped = sum(counts['dropped'].values())
        assert counts['received'] == counts['published'] + dropped + counts['failed'], counts
        return counts


def steady(cameras):
    """Return a function that publishes an image of each camera, with ascending numbers."""
    numbers = {camera.name: 0 for camera in cameras}

    def publish():
        for camera in cameras:
            # Each camera waits for its last answer, so that no image replaces another.
            if len(camera.answers()) == numbers[camera.name]:
                numbers[camera.name] += 1
                number = f'{numbers[camera.name]}'
                camera.publisher.publish(picture_of(BLUE, frame_id=number, stamp=(0, 0)))

    for camera in cameras:
        camera.detections.clear()
    return publish


def assert_unharmed(cameras, publish):
    """Check that every image is answered in order, and that no problem is reported.

    Args:
        cameras: the cameras of ``steady``.
        publish: the function that ``steady`` returned.
    """
    goals = [len(camera.answers()) + 4 for camera in cameras]

    def answered():
        publish()
        counts = [len(camera.answers()) for camera in cameras]
        return all(count >= goal for count, goal in zip(counts, goals, strict=True))

    cameras[0].client.spin_until(answered, 'answers to all images of the other cameras')
    for camera in cameras:
        camera.wait_for_status(
            lambda status, _: status.level == DiagnosticStatus.OK,
            'nothing wrong',
            publish=publish,
        )
        numbers = [int(message.header.frame_id) for message in camera.answers()]
        assert numbers == list(range(1, len(numbers) + 1))
        counts = camera.counts()
        assert not counts['dropped']
        assert not counts['failed']


def names_found(camera):
    return [name for name, _, _ in found_in(camera.ask(picture_of(COLOR)))]
