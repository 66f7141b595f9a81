"""How many images are looked at to say whether two models agree."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from trt_perception.building.steps import agreement_gate
from trt_perception.building.steps.agreement_gate import compare_on_sample
from trt_perception.images.detections import Detections
from trt_perception.model.tasks.detect import DETECT


class Counting:
    """A pipeline that finds a number of objects on each picture."""

    def __init__(self, monkeypatch, each):
        self.spec = SimpleNamespace(class_names=('thing',), batch=1, task=DETECT)
        self.seen = []

        def detect(_pipeline, pictures, _thresholds, progress, _measure):
            self.seen.append([path for path, _ in pictures])
            progress(len(pictures), len(pictures))
            corner = np.arange(each, dtype=np.float32)[:, None] * 20
            boxes = np.concatenate([corner, corner, corner + 9, corner + 9], axis=1)
            scores, ids = np.full(each, 0.9, np.float32), np.zeros(each, np.int32)
            return SimpleNamespace(detections=[Detections(boxes, scores, ids)] * len(pictures))

        monkeypatch.setattr(agreement_gate, 'detect_in_files', detect)


@pytest.mark.parametrize(
    ('given', 'each', 'used'),
    [(5, 1, 5), (400, 0, 300), (400, 1, 300), (400, 3, 170), (400, 25, 20), (400, 300, 20)],
)
def test_as_many_images_are_looked_at_as_are_needed(monkeypatch, given, each, used):
    pipeline = Counting(monkeypatch, each)
    images = [Path(f'{number}.png') for number in range(given)]
    told = []
    agreement, files = compare_on_sample(
        pipeline, pipeline, images, lambda *facts: told.append(facts), 'FP32'
    )
    assert len(files) == len(set(files)) == used
    assert agreement.overall.reference == used * each
    assert [path for part in pipeline.seen[:-1] for path in part] == pipeline.seen[-1] == files
    if each and used >= 20:
        assert agreement.overall.f1 == 1
    running = [done for step, done, _ in told if step == 'running FP32']
    assert running == sorted(running)
    assert running[-1] == used
    assert {total for step, _, total in told if step == 'running FP32'} == {min(given, 300)}
    again = compare_on_sample(pipeline, pipeline, images, lambda *_: None, 'FP32')[1]
    assert again == files
    if used < given:
        assert files != images[:used]  # spread over all of them
