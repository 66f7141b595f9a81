# SPDX-License-Identifier: Apache-2.0
"""The viewer of `scripts/bench view_cost`: a process that subscribes to a topic when it is told.

The process prints ``ready`` and reads lines: ``on`` and ``off`` create and destroy the
subscriptions. ``compare SECONDS`` compares `annotations` with `detections`, prints the result as
JSON, and ends the process.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time

import numpy as np
from cameras_roles import READY_LINE, ros_node
from common import quality
from foxglove_msgs.msg import ImageAnnotations
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

#: Pixels by which corners may differ: messages have float64 corners of float32 boxes.
TOLERANCE_PX = 1e-2


def is_same(annotations, detections):
    """Return whether drawings have the boxes, classes and scores of detections, in their order."""
    found = detections.detections
    if len(annotations.texts) != len(found) or len(annotations.points) < len(found):
        return False
    for detection, drawing in zip(found, annotations.points, strict=False):
        result = detection.results[0].hypothesis
        values = {pair.key: pair.value for pair in drawing.metadata}
        if values['class'] != result.class_id or np.float32(values['score']) != np.float32(
            result.score
        ):
            return False
        center, size = (
            detection.bbox.center.position,
            (detection.bbox.size_x, detection.bbox.size_y),
        )
        corners = np.array([(point.x, point.y) for point in drawing.points])
        ends = np.array([center.x, center.y]) + np.outer((-0.5, 0.5), size)
        if np.abs([corners.min(0), corners.max(0)] - ends).max() > TOLERANCE_PX:
            return False
    return True


def compare(node, camera, seconds):
    """Return the numbers of compared and of equal pairs of messages of the same image."""
    drawings, detections = {}, {}

    def keep(messages, stamp_of):
        def on_message(message):
            stamp = stamp_of(message)
            messages[stamp.sec, stamp.nanosec] = message

        return on_message

    depth = QoSProfile(depth=10)
    topics = [
        (ImageAnnotations, 'annotations', keep(drawings, lambda message: message.timestamp)),
        (Detection2DArray, 'detections', keep(detections, lambda message: message.header.stamp)),
    ]
    for kind, topic, on_message in topics:
        node.create_subscription(kind, f'/{camera}/{topic}', on_message, depth)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        executor.spin_once(0.05)
    executor.remove_node(node)
    stamps = drawings.keys() & detections.keys()
    equal = sum(is_same(drawings[stamp], detections[stamp]) for stamp in stamps)
    return {'compared': len(stamps), 'equal': equal}


def main():
    topic, *cameras = sys.argv[1:]
    kind = ImageAnnotations if topic == 'annotations' else Image
    # Fast DDS writes its errors to standard output, which belongs to the benchmark.
    output = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)
    counts = []

    def on_message(_):
        counts[-1] += 1

    lines = queue.SimpleQueue()
    threading.Thread(target=lambda: [lines.put(line) for line in sys.stdin], daemon=True).start()
    with ros_node('viewer') as node:
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        subscriptions = []
        print(READY_LINE, file=output, flush=True)
        while True:
            executor.spin_once(0.05)
            if lines.empty():
                continue
            command, *seconds = lines.get().split()
            while subscriptions:
                node.destroy_subscription(subscriptions.pop())
            if command == 'compare':
                break
            counts.append(0)
            if command == 'on':
                subscriptions += [
                    node.create_subscription(
                        kind, f'/{camera}/{topic}', on_message, quality('reliable'), raw=True
                    )
                    for camera in cameras
                ]
        executor.remove_node(node)
        found = {'compared': 0, 'equal': 0}
        if topic == 'annotations':
            found = compare(node, cameras[0], float(seconds[0]))
        print(json.dumps({'messages': counts, **found}), file=output, flush=True)


if __name__ == '__main__':
    main()
