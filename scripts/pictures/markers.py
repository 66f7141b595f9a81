# SPDX-License-Identifier: Apache-2.0
"""Draw messages of `markers` into their scene: scripts/run scripts/pictures/markers.py

Starts detections_3d, sends it a synthetic scene with people and boxes, and projects what arrives
on `markers` with OpenCV: as the camera sees it, and with the view of config/detect.rviz. Writes
docs/images/markers.jpg, or the file that an argument names.
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
import yaml
from ament_index_python.packages import get_package_prefix
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import CameraInfo, Image
from vision_msgs.msg import (
    Detection2D,
    Detection2DArray,
    LabelInfo,
    ObjectHypothesisWithPose,
    VisionClass,
)
from visualization_msgs.msg import Marker, MarkerArray

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'test'))

from support import rgbd_scenes as scenes  # noqa: E402

NODE = Path(get_package_prefix('trt_perception')) / 'lib' / 'trt_perception' / 'detections_3d'
SHAPES = [
    scenes.Shape('person', (-0.9, 0.25, 3.6), (0.45, 1.7, 0.45)),
    scenes.Shape('person', (1.3, 0.2, 4.6), (0.5, 1.8, 0.5)),
    scenes.Shape('box', (0.3, 0.75, 3.0), (0.7, 0.7, 0.6), 0.5),
    scenes.Shape('bottle', (0.3, 0.28, 2.75), (0.09, 0.26, 0.09)),
]
CLASSES = ('person', 'box', 'bottle')
SCORES = (0.93, 0.88, 0.81, 0.77)
K = np.array([[scenes.FOCAL, 0, scenes.CX], [0, scenes.FOCAL, scenes.CY], [0, 0, 1]])
PERIOD_S, LIMIT_S = 0.2, 60.0
# Corners of a cube of 1 m, and its faces as indices of corners.
CORNERS = np.array([(x, y, z) for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (-0.5, 0.5)])
FACES = ((0, 1, 3, 2), (4, 5, 7, 6), (0, 1, 5, 4), (2, 3, 7, 6), (0, 2, 6, 4), (1, 3, 7, 5))
NEAREST_M, FARTHEST_M = 1.5, 9.0


def main():
    path = Path(sys.argv[1]) if sys.argv[1:] else ROOT / 'docs' / 'images' / 'markers.jpg'
    scene = scenes.render(SHAPES, np.random.default_rng(1))
    rclpy.init()
    markers = markers_of(rclpy.create_node('markers_picture'), scene).markers
    rclpy.shutdown()
    views = (np.eye(3), np.zeros(3)), rviz_view()
    pictures = [drawn(scene.depth, markers, *view) for view in views]
    cv2.imwrite(str(path), np.hstack(pictures), [cv2.IMWRITE_JPEG_QUALITY, 85])
    print(f'wrote {path}')


def markers_of(node, scene):
    """Return the first markers with a box for each object that the node publishes."""
    namespace = f'/markers_picture_{os.getpid()}'
    latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    names = node.create_publisher(LabelInfo, f'{namespace}/label_info', latched)
    classes = [VisionClass(class_name=name, class_id=i) for i, name in enumerate(CLASSES)]
    names.publish(LabelInfo(class_map=classes))
    messages = messages_of(scene)
    publishers = {
        topic: node.create_publisher(type(message), f'{namespace}/{topic}', 10)
        for topic, message in messages.items()
    }
    found = []
    node.create_subscription(MarkerArray, f'{namespace}/markers', found.append, 10)
    program = subprocess.Popen(
        [NODE, '--ros-args', '-r', f'__ns:={namespace}', '-p', 'autostart:=true']
    )
    try:
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            stamp = node.get_clock().now().to_msg()
            for topic, message in messages.items():
                message.header.frame_id, message.header.stamp = 'camera_optical_frame', stamp
                publishers[topic].publish(message)
            due = time.monotonic() + PERIOD_S
            while (left := due - time.monotonic()) > 0:
                rclpy.spin_once(node, timeout_sec=left)
            # The node may get the names of the classes after the first images.
            if len(found) > 5 and len(found[-1].markers) == 1 + 2 * len(SHAPES):
                return found[-1]
    finally:
        program.terminate()
        program.wait()
    raise SystemExit(f'error: no markers of all objects came within {LIMIT_S:.0f} s')


def messages_of(scene):
    """Return the messages of a scene by topic, without headers."""
    depth = Image(height=scenes.HEIGHT, width=scenes.WIDTH, encoding='32FC1')
    depth.step = 4 * scenes.WIDTH
    depth.data.frombytes(scene.depth.tobytes())
    detections = Detection2DArray()
    numbers = np.zeros(scene.depth.shape, np.uint16)
    for number, (truth, score) in enumerate(zip(scene.objects, SCORES, strict=True), 1):
        numbers[truth.mask] = number
        result = ObjectHypothesisWithPose()
        result.hypothesis.class_id, result.hypothesis.score = truth.shape.kind, score
        found = Detection2D(results=[result])
        center = found.bbox.center.position
        center.x, center.y, found.bbox.size_x, found.bbox.size_y = map(float, truth.box)
        detections.detections.append(found)
    masks = Image(height=scenes.HEIGHT, width=scenes.WIDTH, encoding='mono16')
    masks.step = 2 * scenes.WIDTH
    masks.data.frombytes(numbers.tobytes())
    info = CameraInfo(width=scenes.WIDTH, height=scenes.HEIGHT, k=K.ravel())
    return {'camera_info': info, 'depth': depth, 'masks': masks, 'detections': detections}


def rviz_view():
    """Return rotation and translation from the fixed frame to the view of RViz's Orbit."""
    config = yaml.safe_load((ROOT / 'config' / 'detect.rviz').read_text(encoding='utf-8'))
    view = config['Visualization Manager']['Views']['Current']
    yaw, pitch = view['Yaw'], view['Pitch']
    back = np.array([np.cos(yaw) * np.cos(pitch), np.sin(yaw) * np.cos(pitch), np.sin(pitch)])
    right = np.cross([0, 0, 1], back)
    right /= np.linalg.norm(right)
    rotation = np.array([right, np.cross(right, back), -back])
    eye = np.array([view['Focal Point'][axis] for axis in 'XYZ']) + view['Distance'] * back
    return rotation, -rotation @ eye


def drawn(depth, markers, rotation, translation):
    """Return the points of a depth image and the markers, as a camera with matrix K sees them."""
    bgr = np.full((*depth.shape, 3), 48, np.uint8)

    def project(points):
        return cv2.projectPoints(points, cv2.Rodrigues(rotation)[0], translation, K, None)[0][:, 0]

    rows, columns = np.nonzero(depth)
    z = depth[rows, columns]
    x, y = (columns - scenes.CX) / scenes.FOCAL * z, (rows - scenes.CY) / scenes.FOCAL * z
    points = np.stack([x, y, z], 1)
    grey = np.interp(z, [NEAREST_M, FARTHEST_M], [220, 60]).astype(np.uint8)
    places = np.rint(project(points.astype(np.float64))).astype(int)
    for index in np.argsort(-(points @ rotation[2])):  # nearer points cover farther points
        x, y = places[index]
        if 0 <= x < scenes.WIDTH and 0 <= y < scenes.HEIGHT:
            bgr[y : y + 2, x : x + 2] = grey[index]
    for marker in markers:
        color = color_of(marker)
        if marker.type == Marker.CUBE and marker.action == Marker.ADD:
            turn = 2 * np.arctan2(marker.pose.orientation.z, marker.pose.orientation.w)
            size = [getattr(marker.scale, axis) for axis in 'xyz']
            corners = (CORNERS * size) @ cv2.Rodrigues(np.array([0, 0, turn]))[0].T + position_of(
                marker
            )
            corners = np.rint(project(corners)).astype(np.int32)
            filled = bgr.copy()
            cv2.fillConvexPoly(filled, cv2.convexHull(corners), color)
            bgr = cv2.addWeighted(filled, marker.color.a, bgr, 1 - marker.color.a, 0)
            for face in FACES:
                cv2.polylines(bgr, [corners[list(face)]], True, color, 1, cv2.LINE_AA)
    for marker in markers:
        if marker.type == Marker.TEXT_VIEW_FACING:
            draw_text(bgr, marker.text, project(position_of(marker)[None])[0], color_of(marker))
    return bgr


def position_of(marker):
    return np.array([getattr(marker.pose.position, axis) for axis in 'xyz'])


def color_of(marker):
    """Return blue, green and red, 0 to 255."""
    return [round(255 * value) for value in (marker.color.b, marker.color.g, marker.color.r)]


def draw_text(bgr, text, middle, color):
    font, scale = cv2.FONT_HERSHEY_SIMPLEX, 0.45
    (width, height), _ = cv2.getTextSize(text, font, scale, 1)
    place = round(middle[0] - width / 2), round(middle[1] + height / 2)
    cv2.putText(bgr, text, place, font, scale, (0, 0, 0), 3, cv2.LINE_AA)
    cv2.putText(bgr, text, place, font, scale, color, 1, cv2.LINE_AA)


if __name__ == '__main__':
    main()
