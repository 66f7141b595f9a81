# SPDX-License-Identifier: Apache-2.0
"""Test examples/subscriber/subscriber.py with nodes of each task, and with a missing mask.

--help is tested with all examples, signals with those that use rclpy's signal handlers.
"""

import math
import os
import signal
import sys

import cv2
import numpy as np
import pytest
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image, PointCloud2
from vision_msgs.msg import Detection2D, Detection2DArray, ObjectHypothesisWithPose

from support.docs_pages import ROOT, blocks
from support.models.open_model import open_by_parameters
from support.models.recorded_exports import recorded_values, write_export
from support.nodes.graph import Detector, image_message
from support.optional_packages import needs
from support.programs import Program
from trt_perception.api import load
from trt_perception.images.frame import frame_from_bgr
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.pipeline import detect_one

#: The programs of examples/ that a user starts, by name.
PROGRAMS = {
    name: ROOT / 'examples' / name / f'{name}.py'
    for name in ('count_line', 'follower', 'join_topics', 'subscriber', 'webcam')
}

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = pytest.mark.each_distro

NAMESPACE = '/subscriber_example'
#: Sends a signal to the program while it creates its node, and waits until rclpy has shut down.
SIGNAL_DURING_START = """
import os, signal, time
import rclpy
from rclpy.node import Node

create_subscription = Node.create_subscription

def create_after_the_signal(*arguments, **options):
    os.kill(os.getpid(), signal.{})
    while rclpy.ok():
        time.sleep(0.01)
    return create_subscription(*arguments, **options)

Node.create_subscription = create_after_the_signal
"""


@pytest.fixture
def start_example():
    """Return a function that starts the example in a namespace. The example ends with the test."""
    programs = []

    def start(namespace):
        command = [sys.executable, ROOT / 'examples/subscriber/subscriber.py']
        programs.append(Program([*command, '--ros-args', '-r', f'__ns:={namespace}']))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


def detect_in_process(values, bgr):
    parameters = ParameterValues.from_values(values)
    pipeline = open_by_parameters(parameters)
    thresholds = parameters.thresholds(pipeline.spec.class_names)
    return detect_one(pipeline, frame_from_bgr(bgr), thresholds).detections, pipeline.spec


def expected_lines(found, class_names):
    """Return the lines that the example must print, one for each object."""
    masks = None if found.masks is None else found.masks.whole()
    for i in range(len(found)):
        left, top, right, bottom = found.xyxy[i].tolist()
        x, y, width, height = (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
        rest = ''
        if found.oriented is not None:
            x, y, width, height, angle = found.oriented[i].tolist()
            rest = f', rotated by {math.degrees(angle):.1f} degrees'
        if found.keypoints is not None:
            points = found.keypoints[i].tolist()
            rest = ', keypoints ' + ' '.join(f'({x:.1f}, {y:.1f})' for x, y, _ in points)
        if masks is not None:
            better = masks[:i].any(axis=0)
            rest = f', mask of {np.count_nonzero(masks[i] & ~better)} pixels'
        name = class_names[found.class_ids[i]]
        yield (
            f'  {name} {found.scores[i]:.2f}: {width:.1f} x {height:.1f} pixels around '
            f'({x:.1f}, {y:.1f}){rest}'
        )


@needs('onnx')
@pytest.mark.parametrize('export', ['pose', 'obb', 'segment_26'])
def test_example_prints_the_objects_of_each_task(client, start_example, tmp_path, export):
    told = recorded_values(f'ultralytics_{export}')
    values = {**write_export(told, tmp_path / 'model.onnx'), 'confidence_threshold': 0.02}
    found, spec = detect_in_process(values, told['image'])
    expected = list(expected_lines(found, spec.class_names))
    assert len(expected) > 2
    height, width = told['image'].shape[:2]
    node = Detector(client, {**values, 'autostart': True})
    try:
        node.connect()
        example = start_example(node.namespace)
        image = image_message(told['image'], width, height, 'bgr8', step=3 * width, frame_id='it')

        def printed():
            # The first images may come before the example has discovered all topics.
            node.camera.publish(image)
            client.spin_for(0.05)
            return '\n'.join(expected) + '\n' in example.output

        client.spin_until(printed, f'the lines {expected}')
    finally:
        node.close()


def test_tracker_of_the_page_about_extending_prints_each_object(client, tmp_path):
    page = (ROOT / 'docs' / 'extending.md').read_text(encoding='utf-8')
    (code,) = [block for block in blocks(page, 'python') if 'rclpy' in block]
    (tmp_path / 'tracker.py').write_text(code)
    path = str(ROOT / 'models' / 'digits.onnx')
    bgr = cv2.imread(str(ROOT / 'demo' / 'scenes' / 'scene_034.jpg'))
    with load(path) as loaded:
        found = loaded(bgr)
        centres = (found.xyxy[:, :2] + found.xyxy[:, 2:]) / 2
        expected = [
            f'{loaded.class_names[class_id]} {score:.2f} at {x:.0f}, {y:.0f}'
            for class_id, score, (x, y) in zip(
                found.class_ids, found.scores, centres.tolist(), strict=True
            )
        ]
    assert len(expected) > 2
    height, width = bgr.shape[:2]
    node = Detector(client, {'engine_path': path, 'autostart': True})
    try:
        node.connect()
        command = [sys.executable, tmp_path / 'tracker.py', '--ros-args']
        tracker = Program([*command, '-r', f'__ns:={node.namespace}'])
        try:
            image = image_message(bgr, width, height, 'bgr8', step=3 * width, frame_id='it')

            def printed():
                node.camera.publish(image)
                client.spin_for(0.05)
                # Kilted prints a warning first.
                lines = [line.partition(' ')[2] for line in tracker.output.splitlines()]
                return '\n'.join(expected) in '\n'.join(lines)

            client.spin_until(printed, f'the lines {expected}')
        finally:
            tracker.close()
    finally:
        node.close()


def expected_classes(found, class_names):
    best = np.argsort(-found.scores)[:5]
    return [f'  {class_names[i]} {found.scores[i]:.2f}' for i in best]


def expected_shares(found, class_names):
    shares = {name: np.mean(found.class_ids() == i) for i, name in enumerate(class_names)}
    shown = sorted((name for name in shares if shares[name]), key=lambda name: -shares[name])
    return [f'  {name}: {shares[name]:.1%} of the image' for name in shown]


def expected_depth(found, _):
    low, middle, high = (f'{one(found.depth()):.2f}' for one in (np.min, np.median, np.max))
    return [f'relative depth: {low} to {high}, median {middle}']


@pytest.mark.parametrize(
    ('model', 'expected_lines'),
    [
        ('digits_classify', expected_classes),
        ('digits_semantic', expected_shares),
        ('depth_tiny', expected_depth),
    ],
)
def test_example_prints_results_of_the_whole_image(client, start_example, model, expected_lines):
    path = str(ROOT / 'models' / f'{model}.onnx')
    bgr = cv2.imread(str(ROOT / 'demo' / 'scenes' / 'scene_034.jpg'))
    with load(path) as loaded:
        expected = '\n'.join(expected_lines(loaded(bgr), loaded.class_names)) + '\n'
    height, width = bgr.shape[:2]
    node = Detector(client, {'engine_path': path, 'autostart': True})
    try:
        node.connect()
        example = start_example(node.namespace)
        image = image_message(bgr, width, height, 'bgr8', step=3 * width, frame_id='it')

        def printed():
            node.camera.publish(image)
            client.spin_for(0.05)
            return expected in example.output

        client.spin_until(printed, f'the lines {expected}')
    finally:
        node.close()


def test_example_prints_metres_without_unknown_depth(client, start_example):
    publisher = client.node.create_publisher(Image, f'{NAMESPACE}/depth', QoSProfile(depth=10))
    example = start_example(NAMESPACE)

    def published(values):
        message = Image(height=1, width=len(values), step=4 * len(values), encoding='32FC1')
        message.data = np.array(values, '<f4').tobytes()
        publisher.publish(message)

    def printed():
        published([4, math.nan, 1, 2])
        published([math.nan])
        client.spin_for(0.05)
        lines = {line.partition(': ')[2] for line in example.output.splitlines()}
        known = 'depth in metres: 1.00 to 4.00, median 2.00'
        return lines >= {known, 'depth in metres: unknown'}

    try:
        client.spin_until(printed, 'the range of the depth')
    finally:
        client.node.destroy_publisher(publisher)


def test_example_prints_an_image_whose_mask_is_missing(client, start_example):
    kinds = {'detections': Detection2DArray, 'masks': Image, 'keypoints': PointCloud2}
    publishers = {
        name: client.node.create_publisher(
            kinds[name], f'{NAMESPACE}/{name}', QoSProfile(depth=10)
        )
        for name in ('detections', 'masks')
    }
    example = start_example(NAMESPACE)
    stamps = iter(range(1, 10**6))

    def publish(name, has_mask):
        """Publish an image with one object of three pixels."""
        found = Detection2DArray()
        found.header.frame_id = name
        found.header.stamp.sec = next(stamps)
        found.detections.append(Detection2D(results=[ObjectHypothesisWithPose()]))
        publishers['detections'].publish(found)
        if has_mask:
            mask = Image(header=found.header, height=2, width=4, step=8, encoding='mono16')
            mask.data = np.array([[1, 1, 1, 0], [2, 0, 0, 0]], '<u2').tobytes()
            publishers['masks'].publish(mask)

    def printed():
        for name in ('before', 'missing', 'after'):
            publish(name, has_mask=name != 'missing')
        client.spin_for(0.05)
        lines = [
            line.partition(' ')[2]
            for line in example.output.splitlines()
            # Skip warnings of ROS 2.
            if line.endswith(' objects') or line.startswith('   ')
        ]
        shown = [
            (line.partition(':')[0], 'mask of 3 pixels' in rest)
            for line, rest in zip(lines[::2], lines[1::2], strict=False)
        ]
        wanted = [('before', True), ('missing', False), ('after', True)]
        return any(shown[i : i + 3] == wanted for i in range(len(shown)))

    try:
        client.spin_until(printed, 'three images, the second without a mask')
    finally:
        for publisher in publishers.values():
            client.node.destroy_publisher(publisher)


@pytest.mark.parametrize('name', ['subscriber', 'follower'])
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_example_ends_without_a_traceback_after_a_signal_during_its_start(tmp_path, name, number):
    (tmp_path / 'sitecustomize.py').write_text(SIGNAL_DURING_START.format(number.name))
    # Programs that a script starts in the background ignore SIGINT. Programs with rclpy handle it.
    in_background = ['sh', '-c', 'trap "" INT; exec "$@"', 'sh']
    program = Program(
        [*in_background, sys.executable, PROGRAMS[name]],
        {'PYTHONPATH': os.pathsep.join([str(tmp_path), os.environ.get('PYTHONPATH', '')])},
    )
    try:
        assert program.wait() == 0
    finally:
        program.close()
    assert 'Traceback' not in program.output


@pytest.mark.parametrize('name', sorted(PROGRAMS))
def test_help_has_the_command_that_starts_the_example(name):
    program = Program([sys.executable, PROGRAMS[name], '--help'])
    try:
        assert program.wait() == 0
    finally:
        program.close()
    assert program.output.startswith(f'usage: {name}.py')
    assert f'    python3 examples/{name}/{name}.py' in program.output
