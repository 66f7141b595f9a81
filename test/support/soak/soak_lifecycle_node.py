# SPDX-License-Identifier: Apache-2.0
"""Configure, activate, deactivate and clean up many times; print the resources that remain.

    python soak_lifecycle_node.py MODEL WARM_UP CYCLES INTAKE

Prints a JSON object for CYCLES cycles after WARM_UP cycles: the growth of resident memory per
cycle in kilobytes, and the change in file descriptors and threads.
"""

import gc
import json
import os
import sys
import threading
import time
from pathlib import Path

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image

from trt_perception.ros.detector_node import DetectorNode

SUCCESS = TransitionCallbackReturn.SUCCESS


def state():
    gc.collect()
    pages = int(Path('/proc/self/statm').read_text().split()[1])
    return {
        'rss_kb': pages * os.sysconf('SC_PAGE_SIZE') / 1024,
        'descriptors': len(os.listdir('/proc/self/fd')),
        'threads': len(os.listdir('/proc/self/task')),
        'python_threads': threading.active_count(),
    }


def cycle(node, executor, camera, message):
    """Configure, activate, process images, deactivate and clean up once."""
    assert node.trigger_configure() == SUCCESS
    assert node.trigger_activate() == SUCCESS
    end = time.monotonic() + 90
    while node._pool.statistics()[0].published < 3 and time.monotonic() < end:
        if not node._pool.statistics()[0].in_flight:
            camera.publish(message)
        executor.spin_once(timeout_sec=0.001)
    assert node._pool.statistics()[0].published
    assert node.trigger_deactivate() == SUCCESS
    assert node.trigger_cleanup() == SUCCESS
    executor.spin_once(timeout_sec=0)


def main():
    model, warm_up, cycles, intake = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    rclpy.init()
    parameters = {'engine_path': model, 'image_intake': intake}
    node = DetectorNode(
        parameter_overrides=[Parameter(name, value=value) for name, value in parameters.items()]
    )
    node.get_logger().set_level(rclpy.logging.LoggingSeverity.WARN)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    camera = node.create_publisher(Image, 'image', 10)
    message = Image(encoding='bgr8', width=64, height=48, step=192, data=bytes(192 * 48))
    for _ in range(warm_up):
        cycle(node, executor, camera, message)
    before = state()
    for _ in range(cycles):
        cycle(node, executor, camera, message)
    after = state()
    result = {name: after[name] - before[name] for name in before}
    result['rss_kb_per_cycle'] = result['rss_kb'] / cycles
    print(json.dumps(result), flush=True)
    node.close()
    rclpy.shutdown()


if __name__ == '__main__':
    main()
