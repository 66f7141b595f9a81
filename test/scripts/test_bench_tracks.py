"""Test the scene of scripts/bench cameras_tracks: its model reads the boxes of a picture."""

import sys

import numpy as np
import pytest

from support.docs_pages import ROOT
from support.optional_packages import needs
from trt_perception.api import load

pytestmark = [pytest.mark.ros, needs('onnx', 'scipy')]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setattr(sys, 'path', [str(ROOT / 'scripts' / 'benchmarks'), *sys.path])
    import cameras_tracks

    return cameras_tracks


def test_model_finds_the_boxes_that_the_picture_holds(bench, tmp_path):
    model_path = bench.write_box_model(tmp_path / 'boxes.onnx')
    with load(model_path, confidence_threshold=0.02, iou_threshold=1.0) as model:
        for _, _, boxes, scores in bench.crossing_scene(3, 4):
            found = model(bench.picture_of(boxes, scores))
            shown = np.flatnonzero(np.rint(255 * scores) / 255 > 0.02)
            order = np.argsort(-np.rint(255 * scores[shown]), kind='stable')
            expected = boxes[shown][order]
            assert len(found) == len(expected) > 5
            # Equal scores may come in another order.
            assert np.sort(found.xyxy, axis=0) == pytest.approx(
                np.sort(expected, axis=0), abs=0.05
            )


def test_covered_objects_have_low_scores(bench):
    boxes = np.array([[100, 100, 140, 180], [120, 110, 160, 190.0]])
    seen = bench.visible_shares(boxes)
    assert seen[1] == 1, 'the lower one is nearer'
    assert seen[0] == pytest.approx(1 - 20 * 70 / (40 * 80))
