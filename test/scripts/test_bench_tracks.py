# SPDX-License-Identifier: Apache-2.0
"""Test scripts/bench cameras_tracks: short runs of both parts, the scene and its model."""

import json
import subprocess
import sys

import numpy as np
import pytest

from support.docs_pages import ROOT
from support.optional_packages import needs
from support.waiting import require_arrivals
from trt_perception.api import load
from trt_perception.images.detections import Detections

pytestmark = [pytest.mark.ros, needs('onnx', 'scipy')]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setattr(sys, 'path', [str(ROOT / 'scripts' / 'benchmarks'), *sys.path])
    import cameras_tracks

    return cameras_tracks


@pytest.fixture
def scenes(bench):
    import track_scenes

    return track_scenes


def run_bench(folder, *arguments):
    """Run the benchmark, and return its result."""
    script = ROOT / 'scripts' / 'benchmarks' / 'cameras_tracks.py'
    command = [sys.executable, script, *map(str, arguments), '--json', 'result.json']
    result = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=280)
    assert not result.returncode, result.stderr
    return json.loads((folder / 'result.json').read_text())[arguments[0]]


def test_load_measures_the_node_with_and_without_the_tracker(tmp_path):
    model = ROOT / 'models' / 'digits.onnx'
    options = ('--count', 1, '--rounds', 1, '--seconds', 2, '--warm-up', 1, '--rate', 5)
    found = run_bench(tmp_path, 'load', model, *options, '--size', '64x48')
    (off,), (on,) = found['rounds']['off'], found['rounds']['on']
    require_arrivals([figures['received'] for figures in (off, on)], 'detections')
    for figures in (off, on):
        assert figures['sent'] == figures['received'] + figures['lost']
    assert found['differences_ms']['cpu_ms'] == [on['cpu_ms'] - off['cpu_ms']]


def test_crossing_counts_the_switches_of_each_seed(tmp_path):
    found = run_bench(tmp_path, 'crossing', '--images', 10, '--seeds', 2)
    assert list(found['seeds']) == ['0', '1']
    for figures in found['seeds'].values():
        assert figures['unanswered'] == 0
        assert figures['objects'] > 0


@pytest.mark.parametrize('name', ['walking', 'crowded'])
def test_model_finds_the_boxes_that_the_picture_holds(bench, scenes, name, tmp_path):
    model_path = bench.write_box_model(tmp_path / 'boxes.onnx')
    with load(model_path, confidence_threshold=0.02, iou_threshold=1.0) as model:
        for image in scenes.SCENES[name](3, 4):
            boxes, scores = image.detected, image.scores
            found = model(bench.picture_of(boxes, scores))
            shown = np.flatnonzero(np.rint(255 * scores) / 255 > 0.02)
            order = np.argsort(-np.rint(255 * scores[shown]), kind='stable')
            expected = boxes[shown][order]
            assert len(found) == len(expected) > 5
            # Equal scores may come in another order.
            assert np.sort(found.xyxy, axis=0) == pytest.approx(
                np.sort(expected, axis=0), abs=0.05
            )


def test_covered_objects_have_low_scores(scenes):
    boxes = np.array([[100, 100, 140, 180], [120, 110, 160, 190.0]])
    seen = scenes.visible_shares(boxes)
    assert seen[1] == 1, 'the lower one is nearer'
    assert seen[0] == pytest.approx(1 - 20 * 70 / (40 * 80))


def test_people_walk_at_the_stated_speed_and_are_replaced_when_they_leave(scenes):
    people = scenes.People(np.random.default_rng(4))
    speeds, first = [], people.numbers.copy()
    for _ in range(1200):
        before, numbers = people.place.copy(), people.numbers.copy()
        people.walk(1 / 30)
        stayed = people.numbers == numbers
        speeds.extend(30 * np.hypot(*(people.place - before)[stayed].T))
        assert len(set(people.numbers.tolist())) == scenes.OBJECTS
    assert np.mean(speeds) == pytest.approx(1.4, abs=0.15)
    # Nobody turns back at a border: a change of direction would need more than this speed.
    assert np.max(speeds) < 2.8
    assert not set(first.tolist()) & set(people.numbers.tolist())


def test_box_of_a_person_has_the_size_that_the_camera_shows(scenes):
    people = scenes.People(np.random.default_rng(4))
    left, top, right, bottom = people.boxes().T
    distance = people.place[:, 1]
    # The image's width shows 2 * tan(62.2° / 2) = 1.206 m for each metre of distance.
    pixels_per_m = 640 / (1.206 * distance)
    assert (bottom - top) / pixels_per_m == pytest.approx(1.7, abs=0.3)
    assert np.all((right - left) / pixels_per_m > 0.49)
    assert np.all((right - left) / pixels_per_m < 0.76)
    assert (bottom - 240) / pixels_per_m == pytest.approx(np.ones(20), rel=1e-3)


def test_switch_is_counted_when_an_object_has_another_id(scenes):
    box = np.array([[100, 100, 140, 180.0]])
    image = scenes.SceneImage(box, np.array([7]), np.ones(1), box, np.ones(1))
    count = scenes.SwitchCount()
    for number in (3, -1, 3, 4, 4):
        found = Detections(
            box.astype(np.float32),
            np.ones(1, np.float32),
            np.zeros(1, np.int32),
            ids=np.array([number]),
        )
        count.add(image, found)
    count.add(image, None)
    figures = count.figures(6)
    assert (figures['switches'], figures['ids'], figures['objects']) == (1, 2, 1)
    assert figures['objects_with_an_id_percent'] == pytest.approx(100 * 4 / 6)
