# SPDX-License-Identifier: Apache-2.0
"""The messages that detect_bag writes are those that a node publishes, over DDS."""

import numpy as np
import pytest
from rclpy.serialization import serialize_message

from support.detect_bags import STORE, boxes_of, messages_of, raw_image, run_detect_bag, write_bag
from support.models.picture_model import picture_with, write_picture_model
from support.nodes.graph import HANDSHAKE, Detector, image_message
from support.optional_packages import needs

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = [
    pytest.mark.each_distro,
    *(needs(name) for name in ('onnx', 'scipy', 'rosbags', 'mcap')),
]
START_S = 1_700_000_000
PARAMETERS = {'tracker.type': 'bytetrack', 'confidence_threshold': 0.5}


def pictures():
    """Return pictures of two objects. The score of the second one is low at times."""
    random = np.random.default_rng(3)
    return [
        picture_with(
            [
                (20 + number, 20, 10, 12, 0.9),
                (40, 30, 12, 10, 0.3 + 0.6 * random.random(), 1),
            ]
        )
        for number in range(12)
    ]


def test_bag_has_the_messages_of_the_node(client, tmp_path):
    model = write_picture_model(tmp_path / 'picture.onnx')
    stamps = [(START_S + number // 10, number % 10 * 10**8) for number in range(12)]
    rows = [
        ('/image_raw', sec * 10**9 + nanosec, raw_image(picture, sec * 10**9 + nanosec))
        for picture, (sec, nanosec) in zip(pictures(), stamps, strict=True)
    ]
    bag = write_bag(tmp_path / 'bag', rows)
    options = '--track', '--confidence', 0.5, '--part-s', 0.5
    assert run_detect_bag(model, bag, '--output', tmp_path / 'out', *options) == 0
    found = messages_of(tmp_path / 'out', '/detections')
    parameters = {'engine_path': str(model), 'autostart': True, **PARAMETERS}
    detector = Detector(client, parameters)
    try:
        detector.connect(message_of(picture_with(()), (0, 0), HANDSHAKE))
        answers = [
            detector.ask(message_of(picture, stamp))
            for picture, stamp in zip(pictures(), stamps, strict=True)
        ]
    finally:
        detector.close()
    assert len(found) == len(answers)
    for one, answer in zip(found, answers, strict=True):
        other = STORE.deserialize_cdr(
            serialize_message(answer), 'vision_msgs/msg/Detection2DArray'
        )
        assert one.header == other.header
        assert boxes_of(one) == boxes_of(other)
    assert {row[2] for message in found for row in boxes_of(message)} >= {'1', '2'}


def message_of(picture, stamp, frame_id='camera'):
    height, width = picture.shape[:2]
    return image_message(
        picture, width, height, 'bgr8', step=3 * width, frame_id=frame_id, stamp=stamp
    )
