# SPDX-License-Identifier: Apache-2.0
"""Count objects that cross a vertical line of the image, in both directions: an example of ids.

    python3 examples/count_line/count_line.py 320
    python3 examples/count_line/count_line.py 320 --ros-args -r __ns:=/front

The argument is the column of the line in pixels. The detector needs tracker.type:=bytetrack. When
the detector's process starts again, so must this program: the ids begin again at 1.
"""

import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import rclpy
from rclpy.node import Node
from rclpy.utilities import remove_ros_args
from vision_msgs.msg import Detection2DArray


class LineCounter(Node):
    """Counts the objects whose centre changes the side of the line. An id is one object."""

    def __init__(self, line):
        super().__init__('count_line')
        self._line, self._side, self._counts = line, {}, {'right': 0, 'left': 0}
        self.create_subscription(Detection2DArray, 'detections', self._on_detections, 10)

    def _on_detections(self, message):
        for found in message.detections:
            if not found.id:  # the track is not confirmed yet
                continue
            side = 'right' if found.bbox.center.position.x > self._line else 'left'
            if self._side.pop(found.id, side) != side:
                self._counts[side] += 1
                print(f'#{found.id} to the {side}: {self._counts}', flush=True)
            self._side[found.id] = side  # the last one is the one seen last
        while len(self._side) > 10_000:  # forget objects that have long been gone
            del self._side[next(iter(self._side))]


if __name__ == '__main__':
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument('line', type=float, help='column of the line in pixels')
    options = parser.parse_args(remove_ros_args()[1:])
    rclpy.init()
    try:
        node = LineCounter(options.line)
        while rclpy.ok():  # rclpy.spin may miss a SIGTERM that comes while a message is read
            rclpy.spin_once(node, timeout_sec=1)
    except BrokenPipeError:  # the reader of the output has ended, as in `... | head`
        # At its end, Python writes the text that is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (KeyboardInterrupt, Exception) as error:  # rclpy's calls fail after a signal
        if rclpy.ok() and not isinstance(error, KeyboardInterrupt):
            raise
