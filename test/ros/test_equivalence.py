"""Detections over DDS are those of the core: same count, order and classes, scores, boxes.

The digits model on every third demo scene, in a node of its own and in this process.
"""

from pathlib import Path

import cv2
import numpy as np
import pytest
from ament_index_python.packages import get_package_share_directory

from support.models.open_model import open_by_parameters
from support.nodes.graph import Detector, assert_found, image_message
from trt_perception.images.frame import Frame
from trt_perception.parameters.config import DetectorConfig
from trt_perception.pipelines.pipeline import detect_one

pytest_plugins = ['support.nodes.graph_fixtures']

SHARE = Path(get_package_share_directory('trt_perception'))
MODEL = SHARE / 'models' / 'digits.onnx'
SCENES = sorted((SHARE / 'demo' / 'scenes').glob('*.jpg'))
# Low, so that unsure detections are compared, too.
THRESHOLD = 0.05


@pytest.fixture(scope='module')
def node(client):
    parameters = {
        'engine_path': str(MODEL),
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
def core():
    config = DetectorConfig(engine_path=str(MODEL), confidence_threshold=THRESHOLD)
    pipeline = open_by_parameters(config)
    yield pipeline, config.thresholds(pipeline.spec.class_names)
    pipeline.close()


def found_by(core, bgr):
    """Return what the core finds, in the form of graph.found_in."""
    pipeline, thresholds = core
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


def test_all_scenes_are_installed():
    assert len(SCENES) == 60


def test_every_third_scene(node, core):
    count = 0
    for index, path in enumerate(SCENES[::3]):
        bgr = np.ascontiguousarray(cv2.imread(str(path)))
        height, width = bgr.shape[:2]
        image = image_message(
            bgr.tobytes(), width, height, 'bgr8', step=3 * width, stamp=(index, 0)
        )
        answer = node.ask(image)
        assert answer.header == image.header
        expected = found_by(core, bgr)
        assert_found(answer, expected, 1e-4, abs=0.05)
        count += len(expected)
    # About five digits in a scene; without any, nothing would have been compared.
    assert count > 2 * len(SCENES[::3])
