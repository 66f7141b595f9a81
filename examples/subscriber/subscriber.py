# SPDX-License-Identifier: Apache-2.0
"""Print the results of each image, whatever the model's task: an example of a subscriber.

    python3 examples/subscriber/subscriber.py
    python3 examples/subscriber/subscriber.py --ros-args -r __ns:=/front

Boxes, keypoints and masks of one image have equal stamps. A mask image may be missing, because
the node skips mask images that it cannot make in time. The node makes class and depth maps
only because this program subscribes to them.
"""

import math
import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from functools import partial

import numpy as np
import rclpy
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.utilities import remove_ros_args
from sensor_msgs.msg import Image, PointCloud2
from vision_msgs.msg import Classification, Detection2DArray, LabelInfo

OBJECT_TOPICS = {'detections': Detection2DArray, 'keypoints': PointCloud2, 'masks': Image}
MAX_WAITING = 10  # images


class Subscriber(Node):
    """Prints results of the whole image as they arrive, and objects when they are complete.

    It collects the messages of each image until each topic of objects has sent one.
    """

    def __init__(self):
        super().__init__('subscriber')
        self._waiting = {}  # maps a stamp to messages by topic, in the order of arrival
        self._class_names = {}
        # The model's task decides which topics exist.
        # A queue depth as QoS requests reliable, volatile messages, as the node publishes them.
        for topic, kind in OBJECT_TOPICS.items():
            self.create_subscription(kind, topic, partial(self._add, topic), 10)
        self.create_subscription(Classification, 'classification', show_classes, 10)
        self.create_subscription(Image, 'segmentation/mask', self._show_class_map, 10)
        self.create_subscription(Image, 'depth', partial(show_depth, 'depth in metres'), 10)
        show_relative = partial(show_depth, 'relative depth')
        self.create_subscription(Image, 'relative_depth', show_relative, 10)
        # Transient local subscribers also get the names that were published before.
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self.create_subscription(LabelInfo, 'label_info', self._set_class_names, latched)

    def _add(self, topic, message):
        stamp = message.header.stamp.sec, message.header.stamp.nanosec
        messages = self._waiting.setdefault(stamp, {})
        messages[topic] = message
        # Each topic keeps its order, so older images get no further messages.
        is_complete = all(
            name in messages for name in OBJECT_TOPICS if self.count_publishers(name)
        )
        while self._waiting and (is_complete or len(self._waiting) > MAX_WAITING):
            oldest = next(iter(self._waiting))
            show_objects(self._waiting.pop(oldest))
            is_complete = is_complete and oldest != stamp

    def _set_class_names(self, message):
        self._class_names = {one.class_id: one.class_name for one in message.class_map}

    def _show_class_map(self, message):
        """Print the classes of a map, the largest first. Each pixel holds a class id."""
        ids, counts = np.unique(np.frombuffer(message.data, np.uint8), return_counts=True)
        print(f'{title(message)}: {len(ids)} classes')
        for i in np.argsort(-counts, kind='stable'):
            name = self._class_names.get(int(ids[i]), f'class {ids[i]}')
            print(f'  {name}: {counts[i] / counts.sum():.1%} of the image')


def title(message):
    """Return the stamp and the frame of an image."""
    stamp = message.header.stamp
    return f'{stamp.sec}.{stamp.nanosec:09} {message.header.frame_id}'


def show_classes(message):
    """Print the best classes of an image."""
    print(f'{title(message)}: {len(message.results)} best classes')
    for found in message.results:
        print(f'  {found.class_id} {found.score:.2f}')


def show_depth(what, message):
    """Print the range of a depth map. NaN is unknown. Larger relative depth is nearer."""
    depth = np.frombuffer(message.data, '<f4')
    known = depth[np.isfinite(depth)]
    if known.size:
        low, median, high = np.quantile(known, (0, 0.5, 1))
        print(f'{title(message)}: {what}: {low:.2f} to {high:.2f}, median {median:.2f}')
    else:
        print(f'{title(message)}: {what}: unknown')


def show_objects(messages):
    """Print the objects of one image. `messages` maps each topic to its message."""
    if 'detections' not in messages:
        return
    objects = messages['detections'].detections
    print(f'{title(messages["detections"])}: {len(objects)} objects')
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
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args(
        remove_ros_args()[1:]
    )
    sys.stdout.reconfigure(line_buffering=True)  # a pipe gets each line at once
    rclpy.init()
    try:
        node = Subscriber()
        while rclpy.ok():  # rclpy.spin may miss a SIGTERM that comes while a message is read
            rclpy.spin_once(node, timeout_sec=1)
    except BrokenPipeError:  # the reader of the output has ended, as in `... | head`
        # At its end, Python writes the text that is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (KeyboardInterrupt, Exception) as error:  # rclpy's calls fail after a signal
        if rclpy.ok() and not isinstance(error, KeyboardInterrupt):
            raise
