"""Publish where detected objects are in space: an example that adds depth to detections.

    python3 examples/detections_3d.py --ros-args -r depth:=/rgbd/depth -r camera_info:=/rgbd/info

Topics, which -r renames, as above. With -r __ns:=/front, all topics are below /front:
    detections     of the detector; and masks, if its model has masks
    depth          Image, depth of each camera pixel in any size: 32FC1 (m) or 16UC1 (mm)
    camera_info    of the camera image; the distortion of the lens is not corrected
    detections_3d  published: Detection3DArray in the optical frame of the camera
Messages of one image must have equal stamps. The depth of an object is the median over its mask,
or, without masks, over its box halved in width and height. Pixels with 0, NaN or infinity have no
depth. Objects without depth are left out. size.z spans the middle 80 percent of visible depths.
For best-effort depth, add -p qos_overrides./FULL/TOPIC/NAME.subscription.reliability:=best_effort
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from functools import partial
from math import cos, hypot, sin

import numpy as np
import rclpy
from geometry_msgs.msg import Point, Quaternion, Vector3
from rclpy.node import Node
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.utilities import remove_ros_args
from sensor_msgs.msg import CameraInfo, Image
from vision_msgs.msg import Detection2DArray, Detection3D, Detection3DArray

TYPES = {'detections': Detection2DArray, 'depth': Image, 'camera_info': CameraInfo, 'masks': Image}
DEPTH_ENCODINGS = {'32FC1': ('f4', 1.0), '16UC1': ('u2', 0.001)}  # dtype, metres per unit
MAX_WAITING = 20  # images


class Detections3D(Node):
    """Collects the messages of each image by their stamp, and publishes its objects in space."""

    def __init__(self):
        super().__init__('detections_3d')
        self._waiting = {}  # maps a stamp to messages by topic, in the order of arrival
        self._warn = partial(self.get_logger().warning, throttle_duration_sec=10)
        self._publisher = self.create_publisher(Detection3DArray, 'detections_3d', 10)
        options = {'qos_overriding_options': QoSOverridingOptions.with_default_policies()}
        for topic, kind in TYPES.items():
            self.create_subscription(kind, topic, partial(self._add, topic), 10, **options)

    def _add(self, topic, message):
        stamp = message.header.stamp.sec, message.header.stamp.nanosec
        messages = self._waiting.setdefault(stamp, {})
        messages[topic] = message
        has_masks = self.count_publishers(self.resolve_topic_name('masks')) > 0
        is_complete = all(name in messages for name in TYPES if has_masks or name != 'masks')
        # Each topic keeps its order, so older images get no further messages.
        while self._waiting and (is_complete or len(self._waiting) > MAX_WAITING):
            oldest = next(iter(self._waiting))
            self._locate(**self._waiting.pop(oldest))
            is_complete = is_complete and oldest != stamp

    def _locate(self, detections=None, depth=None, camera_info=None, masks=None):
        if detections is None:
            return
        info, message = camera_info, Detection3DArray(header=detections.header)
        if not (depth and depth.encoding in DEPTH_ENCODINGS and info and info.k[0]):
            self._warn('needs depth (32FC1 or 16UC1) and calibrated camera_info with equal stamps')
            return
        kind, unit = DEPTH_ENCODINGS[depth.encoding]
        metres = pixels(depth, kind, info) * unit
        numbers = masks and pixels(masks, 'u2', info)  # the first object has the number 1
        for number, found in enumerate(detections.detections, 1):
            depths = metres[numbers == number] if masks else inner_half(found.bbox, metres)
            depths = depths[np.isfinite(depths) & (depths > 0)]
            if len(depths):
                message.detections.append(place(found, depths, info))
        self._publisher.publish(message)
        if left_out := len(detections.detections) - len(message.detections):
            self._warn(f'{left_out} objects without depth are left out')


def pixels(image, kind, info):
    """Return an image in the size of the camera image: pixels are repeated or skipped."""
    rows = np.frombuffer(image.data, '<>'[image.is_bigendian] + kind).reshape(image.height, -1)
    y = (np.arange(info.height) + 0.5) * image.height / info.height
    x = (np.arange(info.width) + 0.5) * image.width / info.width
    return rows[np.ix_(y.astype(int), x.astype(int))]


def inner_half(box, metres):
    """Return the depths in half the width and half the height of a box, which may be rotated."""
    center, theta, reach = box.center.position, box.center.theta, hypot(box.size_x, box.size_y) / 4
    top, left = max(0, int(center.y - reach)), max(0, int(center.x - reach))
    part = metres[top : int(center.y + reach) + 1, left : int(center.x + reach) + 1]
    y, x = np.indices(part.shape) + 0.5
    x, y = x + left - center.x, y + top - center.y
    along, across = x * cos(theta) + y * sin(theta), y * cos(theta) - x * sin(theta)
    return part[(abs(along) <= box.size_x / 4) & (abs(across) <= box.size_y / 4)]


def place(found, depths, info):
    """Return a detection with its position and size in metres."""
    answer = Detection3D(header=found.header, results=found.results, id=found.id)
    box, center, theta = found.bbox, found.bbox.center.position, found.bbox.center.theta
    near, z, far = np.percentile(depths, [10, 50, 90])
    right, down = z / info.k[0], z / info.k[4]  # metres per pixel
    # Boxes count pixels from the image's corner, K from the centre of the first pixel.
    x, y = center.x - 0.5 - info.k[2], center.y - 0.5 - info.k[5]
    answer.bbox.center.position = Point(x=x * right, y=y * down, z=z)
    answer.bbox.center.orientation = Quaternion(z=sin(theta / 2), w=cos(theta / 2))
    answer.bbox.size = Vector3(x=box.size_x * right, y=box.size_y * down, z=far - near)
    for result in answer.results:
        result.pose.pose = answer.bbox.center
    return answer


if __name__ == '__main__':
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args(
        remove_ros_args()[1:]
    )
    rclpy.init()
    try:
        rclpy.spin(Detections3D())
    except (KeyboardInterrupt, Exception) as error:  # rclpy's calls fail after a signal
        if rclpy.ok() and not isinstance(error, KeyboardInterrupt):
            raise
