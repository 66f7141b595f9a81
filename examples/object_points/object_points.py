# SPDX-License-Identifier: Apache-2.0
"""Publish the boxes of detections_3d as a point cloud, such as for the costmap of Nav2.

    python3 examples/object_points/object_points.py --resolution 0.05
    python3 examples/object_points/object_points.py --ros-args -r __ns:=/front

Reads detections_3d, and publishes objects/points with the header of the boxes. The points fill
each box. Their distance is half the resolution of the costmap, so that no cell inside a box stays
free, however the box is turned.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter

import numpy as np
import rclpy
from rclpy.node import Node
from rclpy.utilities import remove_ros_args
from sensor_msgs.msg import PointCloud2, PointField
from vision_msgs.msg import Detection3DArray

#: Most points of a message (12 MB). The farthest objects are left out.
MOST_POINTS = 1_000_000


class ObjectPoints(Node):
    """Publishes points in the boxes of each message."""

    def __init__(self, resolution):
        super().__init__('object_points')
        self._spacing = resolution / 2
        self._publisher = self.create_publisher(PointCloud2, 'objects/points', 1)
        self.create_subscription(Detection3DArray, 'detections_3d', self._on_boxes, 1)

    def _on_boxes(self, message):
        boxes = sorted((found.bbox for found in message.detections), key=distance)
        clouds, left = [np.empty((0, 3))], MOST_POINTS
        for number, box in enumerate(boxes):
            counts = points_by_axis(box, self._spacing)
            left -= counts.prod()
            if left < 0:
                self.get_logger().warning(
                    f'{len(boxes) - number} far objects are left out: too many points',
                    throttle_duration_sec=10,
                )
                break
            clouds.append(points_of(box, counts))
        self._publisher.publish(cloud_of(message.header, np.concatenate(clouds)))


def distance(box):
    """Return the distance from the camera to the middle of a box."""
    at = box.center.position
    return np.hypot(np.hypot(at.x, at.y), at.z)


def points_by_axis(box, spacing):
    """Return how many points along each axis of a box are at most `spacing` apart."""
    size = np.array([box.size.x, box.size.y, box.size.z])
    return (size / spacing).astype(np.int64) + 2


def points_of(box, counts):
    """Return a grid of points in a box, float64[N, 3]."""
    at, turn, size = box.center.position, box.center.orientation, box.size
    sides = zip((size.x, size.y, size.z), counts, strict=True)
    axes = [np.linspace(-side / 2, side / 2, count) for side, count in sides]
    grid = np.stack(np.meshgrid(*axes), -1).reshape(-1, 3)
    axis = np.array([turn.x, turn.y, turn.z])  # rotate the grid by a quaternion
    grid += 2 * np.cross(axis, np.cross(axis, grid) + turn.w * grid)
    return grid + np.array([at.x, at.y, at.z])


def cloud_of(header, points):
    """Return a message with the fields x, y and z (float32)."""
    fields = [
        PointField(name=name, offset=4 * i, datatype=PointField.FLOAT32, count=1)
        for i, name in enumerate('xyz')
    ]
    cloud = PointCloud2(header=header, height=1, width=len(points), fields=fields, is_dense=True)
    cloud.point_step, cloud.row_step = 12, 12 * len(points)
    cloud.data.frombytes(points.astype('<f4').tobytes())
    return cloud


if __name__ == '__main__':
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument('--resolution', type=float, default=0.05, help='of the costmap, in metres')
    options = parser.parse_args(remove_ros_args()[1:])
    rclpy.init()
    try:
        node = ObjectPoints(options.resolution)
        while rclpy.ok():  # rclpy.spin may miss a SIGTERM that comes while a message is read
            rclpy.spin_once(node, timeout_sec=1)
    except (KeyboardInterrupt, Exception) as error:  # rclpy's calls fail after a signal
        if rclpy.ok() and not isinstance(error, KeyboardInterrupt):
            raise
