# SPDX-License-Identifier: Apache-2.0
"""Draw messages of `annotations` onto their image: scripts/run scripts/pictures/annotations.py

Starts a node with each of four models, sends it a scene of the demo, and draws what arrives on
`annotations` with OpenCV. Writes docs/images/annotations.jpg, or the file that an argument names.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import rclpy
from ament_index_python.packages import get_package_prefix
from foxglove_msgs.msg import ImageAnnotations, PointsAnnotation
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image

ROOT = Path(__file__).resolve().parents[2]
NODE = Path(get_package_prefix('trt_perception')) / 'lib' / 'trt_perception' / 'detector_node'
SCENE = ROOT / 'demo' / 'scenes' / 'scene_046.jpg'
MODELS = ('digits', 'digits_segment', 'digits_obb', 'digits_pose')
PERIOD_S = 0.2
LIMIT_S = 60.0
#: Parts of a pixel that OpenCV's functions can draw, as a power of two.
SHIFT = 4


def main():
    path = Path(sys.argv[1]) if sys.argv[1:] else ROOT / 'docs' / 'images' / 'annotations.jpg'
    bgr = cv2.imread(str(SCENE))
    rclpy.init()
    node = rclpy.create_node('annotations_picture')
    pictures = [drawn(bgr, annotations_of(node, model, bgr)) for model in MODELS]
    rclpy.shutdown()
    rows = [np.hstack(pictures[:2]), np.hstack(pictures[2:])]
    cv2.imwrite(str(path), np.vstack(rows), [cv2.IMWRITE_JPEG_QUALITY, 85])
    print(f'wrote {path}')


def annotations_of(node, model, bgr):
    """Return the first annotations with the id of a track that a node publishes for an image."""
    return first_message(
        *(node, model, bgr, ImageAnnotations, 'annotations'),
        accepts=lambda message: any(text.text.startswith('#') for text in message.texts),
        values={'tracker.type': 'bytetrack'},
    )


def first_message(node, model, bgr, kind, topic, accepts, values):
    """Return the first accepted message that a detector publishes for an image.

    Args:
        node: sends the image again and again, and subscribes.
        model: name of a shipped model.
        bgr: uint8[H, W, 3].
        kind: type of the messages.
        topic: topic of the detector, relative.
        accepts: returns whether a message is the wanted one.
        values: parameters of the detector besides the model.
    """
    namespace = f'/{topic}_picture_{os.getpid()}_{model}'
    camera = node.create_publisher(Image, f'{namespace}/image', 10)
    messages = []
    subscription = node.create_subscription(
        kind, f'{namespace}/{topic}', messages.append, QoSProfile(depth=10)
    )
    values = {'engine_path': ROOT / 'models' / f'{model}.onnx', 'autostart': 'true', **values}
    command = [NODE, '--ros-args', '-r', f'__ns:={namespace}']
    for name, value in values.items():
        command += ['-p', f'{name}:={value}']
    detector = subprocess.Popen(command)
    try:
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            camera.publish(image_message(node, bgr))
            due = time.monotonic() + PERIOD_S
            while (left := due - time.monotonic()) > 0:
                rclpy.spin_once(node, timeout_sec=left)
            for message in messages:
                if accepts(message):
                    return message
    finally:
        detector.terminate()
        detector.wait()
        node.destroy_subscription(subscription)
        node.destroy_publisher(camera)
    raise SystemExit(f'error: no {topic} of {model} came within {LIMIT_S:.0f} s')


def image_message(node, bgr):
    height, width = bgr.shape[:2]
    message = Image(height=height, width=width, encoding='bgr8', step=3 * width)
    message.header.stamp = node.get_clock().now().to_msg()
    message.data.frombytes(bgr.tobytes())
    return message


def drawn(bgr, message):
    """Return a copy of the image with the drawings of a message."""
    bgr = bgr.copy()
    for points in message.points:
        places = np.array([(point.x, point.y) for point in points.points])
        color, width = bgr_of(points.outline_color), round(points.thickness)
        if points.type == PointsAnnotation.LINE_LIST:
            for line in fixed_point(places).reshape(-1, 1, 2, 2):
                cv2.polylines(bgr, list(line), False, color, width, cv2.LINE_AA, SHIFT)
        else:
            is_closed = points.type == PointsAnnotation.LINE_LOOP
            cv2.polylines(bgr, [fixed_point(places)], is_closed, color, width, cv2.LINE_AA, SHIFT)
    for circle in message.circles:
        place = fixed_point(np.array((circle.position.x, circle.position.y))).tolist()
        radius = round(circle.diameter / 2 * 2**SHIFT)
        fill, outline = bgr_of(circle.fill_color), bgr_of(circle.outline_color)
        cv2.circle(bgr, place, radius, fill, cv2.FILLED, cv2.LINE_AA, SHIFT)
        cv2.circle(bgr, place, radius, outline, round(circle.thickness), cv2.LINE_AA, SHIFT)
    for text in message.texts:
        draw_text(bgr, text)
    return bgr


def fixed_point(places):
    """Return coordinates for OpenCV, which counts from the middle of the first pixel."""
    return np.rint((places - 0.5) * 2**SHIFT).astype(np.int32)


def bgr_of(color):
    return tuple(round(255 * value) for value in (color.b, color.g, color.r))


def draw_text(bgr, text):
    font, scale = cv2.FONT_HERSHEY_SIMPLEX, text.font_size / 31
    (width, height), below = cv2.getTextSize(text.text, font, scale, 1)
    left, bottom = round(text.position.x), round(text.position.y)
    corner = left + width, bottom - height - below
    cv2.rectangle(bgr, (left, bottom), corner, bgr_of(text.background_color), cv2.FILLED)
    place = left, bottom - below
    cv2.putText(bgr, text.text, place, font, scale, bgr_of(text.text_color), 1, cv2.LINE_AA)


if __name__ == '__main__':
    main()
