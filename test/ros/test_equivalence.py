# SPDX-License-Identifier: Apache-2.0
"""Test that a node publishes the same detections as its pipeline returns in this process.

Both run the digits model on every third demo scene. Number, order and classes of the detections
must be equal, and scores and boxes must agree.
"""

import cv2
import numpy as np
import pytest

from support.models.digits import DIGITS, SCENES
from support.models.open_model import open_by_parameters
from support.nodes.graph import Detector, assert_found, image_message
from trt_perception.images.frame import Frame
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.pipeline import detect_one

pytest_plugins = ['support.nodes.graph_fixtures']

SCENE_FILES = sorted(SCENES.glob('*.jpg'))
# The threshold is low, so that detections with low scores are compared, too.
THRESHOLD = 0.05


@pytest.fixture(scope='module')
def node(client):
    parameters = {
        'engine_path': str(DIGITS),
        'confidence_threshold': THRESHOLD,
        'autostart': True,
    }
    detector = Detector(client, parameters)
    try:
        detector.connect()
        yield detector
    finally:
        detector.close()


@pytest.fixture(scope='module')
def pipeline_and_thresholds():
    parameters = ParameterValues(engine_path=str(DIGITS), confidence_threshold=THRESHOLD)
    pipeline = open_by_parameters(parameters)
    yield pipeline, parameters.thresholds(pipeline.spec.class_names)
    pipeline.close()


def detect_in_process(pipeline_and_thresholds, bgr):
    """Return the pipeline's detections in the form of graph.found_in."""
    pipeline, thresholds = pipeline_and_thresholds
    height, width = bgr.shape[:2]
    frame = Frame.view(
        bgr.reshape(-1), width=width, height=height, step=3 * width, encoding='bgr8'
    )
    detections = detect_one(pipeline, frame, thresholds).detections
    found = []
    for (left, top, right, bottom), score, class_id in zip(
        detections.xyxy.tolist(), detections.scores, detections.class_ids, strict=True
    ):
        box = (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
        found.append((pipeline.spec.class_names[class_id], float(score), box))
    return found


def test_node_publishes_the_detections_of_the_pipeline(node, pipeline_and_thresholds):
    count = 0
    for index, path in enumerate(SCENE_FILES[::3]):
        bgr = np.ascontiguousarray(cv2.imread(str(path)))
        height, width = bgr.shape[:2]
        image = image_message(
            bgr.tobytes(), width, height, 'bgr8', step=3 * width, stamp=(index, 0)
        )
        answer = node.ask(image)
        assert answer.header == image.header
        expected = detect_in_process(pipeline_and_thresholds, bgr)
        assert_found(answer, expected, 1e-4, abs=0.05)
        count += len(expected)
    # A scene has about five digits. The assertion fails if there was nothing to compare.
    assert count > 2 * len(SCENE_FILES[::3])
