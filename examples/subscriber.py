"""Print the objects of each image with their keypoints and masks: an example of a subscriber.

    python3 examples/subscriber.py
    python3 examples/subscriber.py --ros-args -r __ns:=/front

Messages of one image have equal stamps. A mask image may be missing, because the node skips mask
images that it cannot make in time.
"""

import math
from contextlib import suppress
from functools import partial

import numpy as np
import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from sensor_msgs.msg import Image, PointCloud2
from vision_msgs.msg import Detection2DArray

TOPICS = {'detections': Detection2DArray, 'keypoints': PointCloud2, 'masks': Image}
MAX_WAITING = 10  # images


class Subscriber(Node):
    """Collects the messages of each image until each topic has sent one, and prints them."""

    def __init__(self):
        super().__init__('subscriber')
        self._waiting = {}  # maps a stamp to messages by topic, in the order of arrival
        for topic, kind in TOPICS.items():
            # The depth 10 requests reliable, volatile messages. The node publishes such messages.
            self.create_subscription(kind, topic, partial(self._add, topic), 10)

    def _add(self, topic, message):
        stamp = message.header.stamp.sec, message.header.stamp.nanosec
        messages = self._waiting.setdefault(stamp, {})
        messages[topic] = message
        # The model's task decides which topics exist. Each topic keeps its order, so older images
        # get no further messages.
        is_complete = all(name in messages for name in TOPICS if self.count_publishers(name))
        while self._waiting and (is_complete or len(self._waiting) > MAX_WAITING):
            oldest = next(iter(self._waiting))
            show(self._waiting.pop(oldest))
            is_complete = is_complete and oldest != stamp


def show(messages):
    """Print the objects of one image. `messages` maps each topic to its message."""
    if 'detections' not in messages:
        return
    header, objects = messages['detections'].header, messages['detections'].detections
    stamp = f'{header.stamp.sec}.{header.stamp.nanosec:09}'
    print(f'{stamp} {header.frame_id}: {len(objects)} objects')
    points, mask = messages.get('keypoints'), messages.get('masks')
    if points is not None:  # one row for each object, with x, y and score of each keypoint
        points = np.frombuffer(points.data, '<f4').reshape(points.height, points.width, 3)
    if mask is not None:  # pixels of object i, counted from 1, have the value i
        mask = np.frombuffer(mask.data, '<u2').reshape(mask.height, mask.width)
    for i, found in enumerate(objects):
        box, best = found.bbox, found.results[0].hypothesis
        x, y = box.center.position.x, box.center.position.y
        text = f'  {best.class_id} {best.score:.2f}: {box.size_x:.1f} x {box.size_y:.1f} pixels '
        text += f'around ({x:.1f}, {y:.1f})'
        if box.center.theta:
            text += f', rotated by {math.degrees(box.center.theta):.1f} degrees'
        if points is not None:
            text += ', keypoints ' + ' '.join(f'({x:.1f}, {y:.1f})' for x, y, _ in points[i])
        if mask is not None:
            text += f', mask of {np.count_nonzero(mask == i + 1)} pixels'
        print(text)


if __name__ == '__main__':
    rclpy.init()
    with suppress(KeyboardInterrupt, ExternalShutdownException):
        rclpy.spin(Subscriber())
