# SPDX-License-Identifier: Apache-2.0
"""Test scripts/demo --track: the moving scene, the ids in its results, and their measure."""

import json
import sys
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from support.demo_runs import ROOT, run_demo
from support.optional_packages import needs
from trt_perception.images.detections import Detections

sys.path.append(str(ROOT / 'scripts'))
import demo_tracks

pytest_plugins = ['support.nodes.graph_fixtures']
pytestmark = needs('scipy')


@pytest.mark.ros
def test_moving_scene_has_ids_and_trails(tmp_path):
    """Twenty images, each after the answer to the previous one."""
    process = run_demo('--track', folder=tmp_path, in_step=True)
    assert process.returncode == 0, process.stderr
    assert 'Traceback' not in process.stderr
    summary = json.loads((tmp_path / 'summary.json').read_text())
    assert summary['published'] == 20
    assert summary['objects'] == demo_tracks.OBJECTS
    content = json.loads((tmp_path / 'detections.json').read_text())
    ids = {row['track_id'] for row in content['annotations']} - {None}
    assert len(ids) == summary['ids'] >= demo_tracks.OBJECTS
    assert 'identity switches' in process.stdout
    trails = cv2.imread(str(tmp_path / 'trails.jpg'))
    last = cv2.imread(str(tmp_path / 'scenes' / 'moving_019.jpg'))
    assert (np.abs(trails.astype(int) - last).max(axis=2) > 60).mean() > 0.005


def test_scene_moves_objects_in_both_directions(tmp_path):
    options = moving_scene(tmp_path)
    truth = json.loads(options.truth.read_text())
    lefts = {}
    for row in truth['annotations']:
        if row['image_id'] < 3:
            lefts.setdefault(row['track_id'], []).append(row['bbox'][0])
    moved = {number: left[-1] - left[0] for number, left in lefts.items()}
    assert len(moved) == demo_tracks.OBJECTS
    assert {distance > 0 for distance in moved.values()} == {True, False}
    assert len(list(options.scenes.glob('*.jpg'))) == demo_tracks.IMAGES


def moving_scene(folder):
    options = SimpleNamespace(
        truth=ROOT / 'demo' / 'truth.json', scenes=ROOT / 'demo' / 'scenes', output=folder
    )
    demo_tracks.write_moving_scene(options)
    return options


BOXES = [[0, 0, 10, 20], [50, 0, 10, 20]]


@pytest.mark.parametrize(
    ('ids', 'expected'),
    [
        ([(1, 2), (1, 2), (1, 2)], (2, 2, 0)),
        ([(1, 2), (2, 1), (2, 1)], (2, 2, 2)),
        ([(1, 2), (-1, 2), (1, 3)], (2, 3, 1)),
        ([(-1, -1), (1, -1), (1, -1)], (1, 1, 0)),
    ],
)
def test_switches_are_changes_of_the_id_of_an_object(tmp_path, ids, expected):
    images = [{'id': index, 'file_name': f'{index}.jpg'} for index in range(len(ids))]
    rows = [
        {'image_id': image['id'], 'track_id': number, 'bbox': box}
        for image in images
        for number, box in enumerate(BOXES, 1)
    ]
    truth = tmp_path / 'truth.json'
    truth.write_text(json.dumps({'images': images, 'annotations': rows}))
    corners = np.array(BOXES, np.float32)
    corners[:, 2:] += corners[:, :2]
    results = {
        image['file_name']: Detections(
            corners, np.full(2, 0.9, np.float32), np.zeros(2, np.int32), ids=np.array(both)
        )
        for image, both in zip(images, ids, strict=True)
    }
    figures = demo_tracks.track_figures(SimpleNamespace(truth=truth), results)
    assert tuple(figures[key] for key in demo_tracks.TRACK_FIGURES) == expected


def test_covered_object_does_not_get_the_detection_of_the_nearer_object():
    rows = [{'track_id': 1, 'bbox': [0, 0, 10, 20]}, {'track_id': 2, 'bbox': [2, 0, 10, 20]}]
    nearer = np.array([[2, 0, 12, 20]], np.float32)
    found = Detections(
        nearer, np.array([0.9], np.float32), np.zeros(1, np.int32), ids=np.array([7])
    )
    matched = list(demo_tracks.matched_ids(rows, found))
    assert [(row['track_id'], number) for row, number in matched] == [(2, 7)]
