# SPDX-License-Identifier: Apache-2.0
"""A detector node as it is usually written with rclpy, around a detector of this folder.

    python ros_node.py ultralytics yolo11n.pt camera_0
    python ros_node.py onnxruntime yolo11n.onnx camera_0 camera_1 --device cpu

The node runs the detector in the callback of the image, in rclpy's executor with one thread, and
builds a Detection2DArray with rclpy's classes. It takes `/CAMERA/image` and publishes
`/CAMERA/detections`. These choices favour it: no copy in cv_bridge, the boxes in one download,
FP16 for Ultralytics on a GPU, a first frame before the subscription, and no drawn picture.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys

import numpy as np
import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2D, Detection2DArray, ObjectHypothesisWithPose

DETECTORS = {
    'ultralytics': ('ultralytics_predictor', 'UltralyticsPredictor'),
    'onnxruntime': ('onnxruntime_opencv', 'OnnxRuntimeOpenCv'),
}


class DetectorNode(Node):
    """Detects objects in the images of one or more cameras."""

    def __init__(self, detector, cameras):
        super().__init__('detector', namespace=cameras[0])
        self.detector = detector
        newest = QoSProfile(depth=1)
        for camera in cameras:
            publisher = self.create_publisher(Detection2DArray, f'/{camera}/detections', newest)
            on_image = functools.partial(self.on_image, publisher)
            self.create_subscription(Image, f'/{camera}/image', on_image, newest)

    def on_image(self, publisher, message):
        # cv_bridge makes the same array for bgr8.
        bgr = np.frombuffer(message.data, np.uint8).reshape(message.height, message.width, 3)
        publisher.publish(detections_message(message.header, *self.detector.detect(bgr)))


def detections_message(header, xyxy, scores, class_ids):
    """Return a Detection2DArray.

    Args:
        header: of the image.
        xyxy: boxes in pixels of the image, (n, 4).
        scores: (n,).
        class_ids: integers, (n,).
    """
    message = Detection2DArray(header=header)
    for box, score, class_id in zip(xyxy, scores, class_ids, strict=True):
        left, top, right, bottom = map(float, box)
        detection = Detection2D(header=header)
        detection.bbox.center.position.x = (left + right) / 2
        detection.bbox.center.position.y = (top + bottom) / 2
        detection.bbox.size_x = right - left
        detection.bbox.size_y = bottom - top
        result = ObjectHypothesisWithPose()
        result.hypothesis.class_id = str(class_id)
        result.hypothesis.score = float(score)
        detection.results.append(result)
        message.detections.append(detection)
    return message


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('detector', choices=DETECTORS)
    parser.add_argument('model')
    parser.add_argument('cameras', nargs='+')
    parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda')
    # Ultralytics' own choice of padding.
    parser.set_defaults(square=False)
    options = parser.parse_args()
    module, name = DETECTORS[options.detector]
    detector = getattr(importlib.import_module(module), name)(options)
    detector.detect(np.zeros((1080, 1920, 3), np.uint8))
    rclpy.init()
    try:
        rclpy.spin(DetectorNode(detector, options.cameras))
    except ExternalShutdownException:
        pass
    finally:
        rclpy.try_shutdown()
    return 0


if __name__ == '__main__':
    sys.exit(main())
