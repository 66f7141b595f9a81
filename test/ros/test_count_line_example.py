# SPDX-License-Identifier: Apache-2.0
"""Test examples/count_line/count_line.py with a node that tracks, over DDS."""

import re
import runpy
import sys

import pytest
import rclpy.node
from vision_msgs.msg import Detection2D, Detection2DArray

from support.docs_pages import ROOT
from support.models.picture_model import picture_with, write_picture_model
from support.nodes.graph import HANDSHAKE, Detector, image_message
from support.optional_packages import needs
from support.programs import Program

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = [pytest.mark.each_distro, needs('onnx', 'scipy')]


def message_of(boxes, stamp_s, frame_id='camera'):
    stamp = int(stamp_s), round(stamp_s % 1 * 10**9)
    return image_message(
        *(picture_with(boxes), 64, 48, 'bgr8'), step=3 * 64, frame_id=frame_id, stamp=stamp
    )


def test_each_object_is_counted_once_in_its_direction(client, tmp_path):
    """Two objects cross the line at column 32 to the right, one to the left; one stays."""
    model = str(write_picture_model(tmp_path / 'picture.onnx'))
    values = {'engine_path': model, 'autostart': True, 'tracker.type': 'bytetrack'}
    node = Detector(client, values)
    example = None
    try:
        hello = message_of((), 0, HANDSHAKE)
        node.connect(hello)
        command = [sys.executable, ROOT / 'examples/count_line/count_line.py', '32', '--ros-args']
        example = Program([*command, '-r', f'__ns:={node.namespace}'])
        topic = node.topic('detections')
        client.spin_until(
            lambda: client.node.count_subscribers(topic) == 2, 'the subscription of the example'
        )
        start_s = 1.0
        ids_of_scenes = []

        def crossing_is_counted():
            """Repeat the scene, because the example may not have discovered the node yet.

            Each scene has its own ids, because a track ends within the 10 s between scenes.
            """
            nonlocal start_s
            ids = set()
            for step in range(16):
                boxes = [
                    (12 + 2.5 * step, 6, 8, 6, 0.9),
                    (16 + 2.0 * step, 18, 8, 8, 0.8),
                    (52 - 2.5 * step, 30, 8, 8, 0.7),
                    (12, 42, 8, 6, 0.9),
                ]
                boxes = [tuple(round(side) for side in box[:4]) + box[4:] for box in boxes]
                found = node.ask(message_of(boxes, start_s + step / 30)).detections
                ids |= {detection.id for detection in found if detection.id}
            start_s += 10
            ids_of_scenes.append(ids)
            client.spin_for(0.3)
            return any(sides_of(ids) == ['left', 'right', 'right'] for ids in ids_of_scenes)

        def sides_of(ids):
            """Return the sides to which these objects crossed the line."""
            lines = re.findall(r'^#(\d+) to the (\w+): ', example.output, re.MULTILINE)
            assert len({number for number, _ in lines}) == len(lines)
            return sorted(side for number, side in lines if number in ids)

        client.spin_until(crossing_is_counted, 'three crossings')
        assert all(len(ids) == 4 for ids in ids_of_scenes)
        assert all(len(sides_of(ids)) <= 3 for ids in ids_of_scenes)
    finally:
        if example is not None:
            example.close()
        node.close()


def test_object_that_stays_is_not_forgotten(monkeypatch):
    """After 10,000 objects, only those that were not seen for the longest time are forgotten."""
    monkeypatch.setattr(rclpy.node.Node, '__init__', lambda *_: None)
    monkeypatch.setattr(rclpy.node.Node, 'create_subscription', lambda *_: None)
    counter = runpy.run_path(str(ROOT / 'examples/count_line/count_line.py'))['LineCounter'](320)

    def see(*objects):
        message = Detection2DArray()
        for id_, x in objects:
            found = Detection2D(id=str(id_))
            found.bbox.center.position.x = float(x)
            message.detections.append(found)
        counter._on_detections(message)

    for start in range(1000, 11000, 1000):
        see((1, 100), *((id_, 400) for id_ in range(start, start + 1000)))
    see((1, 400))
    assert counter._counts == {'right': 1, 'left': 0}
