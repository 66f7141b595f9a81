# SPDX-License-Identifier: Apache-2.0
"""Drive a robot after one tracked person: an example of a program that acts on tracks.

    python3 examples/follower/follower.py --image-size 640x480
    python3 examples/follower/follower.py --class-name dog --ros-args -r cmd_vel:=/robot/cmd_vel

The detector needs tracker.type:=bytetrack. The robot follows the largest object of the class until
its track ends. Then it stops, and follows the largest object again. It also stops if no detections
come for 0.5 s. Try it with raised wheels first: this program sees no obstacles.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter

import rclpy
from geometry_msgs.msg import Twist
from rclpy.node import Node
from rclpy.utilities import remove_ros_args
from vision_msgs.msg import Detection2DArray

WANTED_HEIGHT = 0.6  # of the image: the nearer the object, the taller its box
MAX_SPEED, MAX_TURN = 0.5, 1.0  # m/s, rad/s


class Follower(Node):
    """Publishes cmd_vel for each message of detections."""

    def __init__(self, class_name, image_size):
        super().__init__('follower')
        self._class_name, self._followed = class_name, ''
        self._width, self._height = image_size
        self._publisher = self.create_publisher(Twist, 'cmd_vel', 1)
        self.create_subscription(Detection2DArray, 'detections', self._on_detections, 1)
        self._silence = self.create_timer(0.5, lambda: self._publisher.publish(Twist()))

    def _on_detections(self, message):
        self._silence.reset()
        boxes = {
            found.id: found.bbox
            for found in message.detections
            if found.id and found.results[0].hypothesis.class_id == self._class_name
        }
        command = Twist()  # zeros stop the robot
        if self._followed in boxes:
            box = boxes[self._followed]
            offset = box.center.position.x / self._width - 0.5  # to the right is positive
            distance = WANTED_HEIGHT - box.size_y / self._height
            command.angular.z = max(-MAX_TURN, min(MAX_TURN, -2 * offset))
            command.linear.x = max(0.0, min(MAX_SPEED, distance))  # never backwards
        else:  # its track has ended: stop, and follow the largest object from the next image on
            self._followed = max(boxes, key=lambda id_: boxes[id_].size_y, default='')
        self._publisher.publish(command)


def size(text):
    """Read a size such as 640x480."""
    width, height = map(int, text.split('x'))
    return width, height


if __name__ == '__main__':
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument('--class-name', default='person', help='default: person')
    parser.add_argument(
        '--image-size', type=size, default='640x480', help='of the camera; default: 640x480'
    )
    options = parser.parse_args(remove_ros_args()[1:])
    rclpy.init()
    try:
        node = Follower(options.class_name, options.image_size)
        while rclpy.ok():  # rclpy.spin may miss a SIGTERM that comes while a message is read
            rclpy.spin_once(node, timeout_sec=1)
    except (KeyboardInterrupt, Exception) as error:  # rclpy's calls fail after a signal
        if rclpy.ok() and not isinstance(error, KeyboardInterrupt):
            raise
