# SPDX-License-Identifier: Apache-2.0
"""Save a message of `debug_image`: scripts/run scripts/pictures/debug_image.py

Starts a node with the demo's model, sends it a scene of the demo, and saves the image that it
publishes on `debug_image`. Writes docs/images/debug_image.jpg, or the file that an argument names.
"""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np
import rclpy
from annotations import ROOT, SCENE, first_message
from sensor_msgs.msg import Image


def main():
    path = Path(sys.argv[1]) if sys.argv[1:] else ROOT / 'docs' / 'images' / 'debug_image.jpg'
    bgr = cv2.imread(str(SCENE))
    rclpy.init()
    node = rclpy.create_node('debug_image_picture')
    message = first_message(
        *(node, 'digits', bgr, Image, 'debug_image'), accepts=lambda message: True, values={}
    )
    rclpy.shutdown()
    if message.encoding != 'bgr8':
        raise SystemExit(f'error: the debug image is not bgr8, but {message.encoding}')
    rows = np.frombuffer(message.data, np.uint8).reshape(message.height, message.step)
    drawn = rows[:, : 3 * message.width].reshape(message.height, message.width, 3)
    cv2.imwrite(str(path), drawn, [cv2.IMWRITE_JPEG_QUALITY, 85])
    print(f'wrote {path}')


if __name__ == '__main__':
    main()
