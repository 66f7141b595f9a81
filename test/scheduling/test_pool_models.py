# SPDX-License-Identifier: Apache-2.0
"""Tests of one pool with a real model: each camera gets the digits of its own images."""

from contextlib import ExitStack, closing

import cv2
import numpy as np
import pytest

from support.models.batch_models import write_digits_twin
from support.models.digits import DIGITS, SCENES
from support.models.open_model import open_by_parameters
from support.scheduling.pool_runs import found_by_cameras
from trt_perception.images.frame import Frame
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.pipeline import detect_one

CAMERAS = 6
BAD = (1, 4)


def frame_of(path):
    bgr = cv2.imread(str(path))
    height, width, _ = bgr.shape
    return Frame.view(bgr.reshape(-1), width=width, height=height, step=3 * width, encoding='bgr8')


@pytest.mark.parametrize(('batch', 'pipelines'), [(4, 1), (1, 2)])
def test_each_camera_gets_the_digits_of_its_own_images(tmp_path, batch, pipelines):
    model = DIGITS if batch == 1 else write_digits_twin(tmp_path / 'digits.onnx', batch)
    scenes = [frame_of(path) for path in sorted(SCENES.glob('*.jpg'))[:12]]
    sources = [scenes[2 * camera : 2 * camera + 2] for camera in range(CAMERAS)]
    thresholds = [Thresholds(0.25 + 0.1 * camera) for camera in range(CAMERAS)]
    with ExitStack() as opened:

        def opened_pipeline(path):
            parameters = ParameterValues(engine_path=str(path), cpu_threads=1)
            return opened.enter_context(closing(open_by_parameters(parameters)))

        found, _, statistics = found_by_cameras(
            [opened_pipeline(model) for _ in range(pipelines)], sources, thresholds, 3, BAD
        )
        alone = opened_pipeline(DIGITS)
        expected = [
            [detect_one(alone, frame, own).detections for frame in frames]
            for frames, own in zip(sources, thresholds, strict=True)
        ]
    for camera in range(CAMERAS):
        for index, detections in found[camera]:
            wanted = expected[camera][index]
            np.testing.assert_array_equal(detections.class_ids, wanted.class_ids)
            np.testing.assert_allclose(detections.xyxy, wanted.xyxy, atol=0.01, rtol=0)
    assert len({tuple(e.class_ids) for each in expected for e in each}) > CAMERAS
    for part in statistics:
        # Messages of all other cameras arrive while the model works on one batch.
        assert part.frames / part.batches > 0.5 * batch
