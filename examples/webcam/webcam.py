# SPDX-License-Identifier: Apache-2.0
"""Publish the images of a camera: an example of a camera without a ROS driver.

    python3 examples/webcam/webcam.py

The topic is /front/image_raw. Images above 512 KiB need the transport profile (docs/cameras.md).
"""

import signal
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from array import array
from contextlib import suppress

import cv2
import rclpy
from rclpy.signals import SignalHandlerOptions
from rclpy.utilities import remove_ros_args
from sensor_msgs.msg import Image

ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args(
    remove_ros_args()[1:]
)
capture = cv2.VideoCapture(0)
if not capture.isOpened():
    raise SystemExit('camera 0 cannot be opened: ls /dev/video* lists the devices')
# Ctrl-C and SIGTERM end the loop below. With rclpy's handlers, `publish` would raise an error.
rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
signal.signal(signal.SIGTERM, signal.default_int_handler)
node = rclpy.create_node('webcam')
publisher = node.create_publisher(Image, '/front/image_raw', 1)
with suppress(KeyboardInterrupt):
    while True:
        found, bgr = capture.read()
        if not found:
            raise SystemExit('the camera sends no more images')
        height, width, _ = bgr.shape
        message = Image(height=height, width=width, encoding='bgr8', step=3 * width)
        message.header.stamp = node.get_clock().now().to_msg()
        message.header.frame_id = 'webcam'
        message.data = array('B', bgr.tobytes())
        publisher.publish(message)
