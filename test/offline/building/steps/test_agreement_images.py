# SPDX-License-Identifier: Apache-2.0
"""Tests of how many images the comparison of two models uses."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from trt_perception.images.detections import Detections
from trt_perception.model.tasks.detect import DETECT
from trt_perception.offline.building.steps import agreement_gate
from trt_perception.offline.building.steps.agreement_gate import compare_on_sample


class FakePipeline:
    """A pipeline that finds the same number of objects in each image."""

    def __init__(self, monkeypatch, objects_per_image):
        self.spec = SimpleNamespace(class_names=('thing',), batch=1, task=DETECT)
        self.seen = []

        def detect(_pipeline, pictures, _thresholds, progress, _measure):
            self.seen.append([path for path, _ in pictures])
            progress(len(pictures), len(pictures))
            corner = np.arange(objects_per_image, dtype=np.float32)[:, None] * 20
            boxes = np.concatenate([corner, corner, corner + 9, corner + 9], axis=1)
            scores, ids = (
                np.full(objects_per_image, 0.9, np.float32),
                np.zeros(objects_per_image, np.int32),
            )
            return SimpleNamespace(detections=[Detections(boxes, scores, ids)] * len(pictures))

        monkeypatch.setattr(agreement_gate, 'detect_in_files', detect)


@pytest.mark.parametrize(
    ('image_count', 'objects_per_image', 'expected_count'),
    [(5, 1, 5), (400, 0, 300), (400, 1, 300), (400, 3, 170), (400, 25, 20), (400, 300, 20)],
)
def test_comparison_uses_only_as_many_images_as_needed(
    monkeypatch, image_count, objects_per_image, expected_count
):
    pipeline = FakePipeline(monkeypatch, objects_per_image)
    images = [Path(f'{number}.png') for number in range(image_count)]
    progress_calls = []
    compared = compare_on_sample(
        pipeline,
        pipeline,
        images,
        lambda *facts: progress_calls.append(facts),
        'FP32',
        'ONNX Runtime',
    )
    files = compared.files
    assert (compared.images, compared.given) == (expected_count, image_count)
    assert len(files) == len(set(files)) == expected_count
    assert compared.reference_detections == expected_count * objects_per_image
    assert [path for part in pipeline.seen[:-1] for path in part] == pipeline.seen[-1] == files
    if objects_per_image and expected_count >= 20:
        assert compared.share == 1
    running = [done for step, done, _ in progress_calls if step == 'running FP32']
    assert running == sorted(running)
    assert running[-1] == expected_count
    assert {total for step, _, total in progress_calls if step == 'running FP32'} == {
        min(image_count, 300)
    }
    again = compare_on_sample(pipeline, pipeline, images, lambda *_: None, 'FP32', 'ONNX Runtime')
    assert again == compared
    if expected_count < image_count:
        assert files != images[:expected_count]  # the sample is spread over all images
