"""A camera of small images at a steady rate, until it is ended.

python soak_camera.py TOPIC HZ
"""

import array
import signal
import sys
import time

import rclpy
from rclpy.qos import QoSProfile
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import Image


def main():
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    node = rclpy.create_node('soak_camera')
    publisher = node.create_publisher(Image, sys.argv[1], QoSProfile(depth=1))
    message = Image(encoding='bgr8', width=16, height=12, step=48)
    message.data = array.array('B', bytes(48 * 12))
    period_s = 1 / float(sys.argv[2])
    due = time.monotonic()
    while True:
        publisher.publish(message)
        # A sleep that came back late is made up for at once: the rate is kept.
        due = max(due + period_s, time.monotonic() - 10 * period_s)
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == '__main__':
    main()
