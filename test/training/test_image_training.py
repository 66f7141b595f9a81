# SPDX-License-Identifier: Apache-2.0
"""Tests of a tiny training of the models that describe the whole image, and of their exports.

These tests need the packages of training/requirements.txt, which the package does not need:
`python -m pytest --noconftest test/training`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

for package in ('torch', 'skimage', 'sklearn'):
    pytest.importorskip(
        package, reason='the packages of training/requirements.txt are not installed'
    )

pytestmark = pytest.mark.timeout(600)  # trains a network

TRAINING = Path(__file__).resolve().parents[2] / 'training'


def run(script, *arguments):
    return run_python(TRAINING / script, *arguments)


def run_python(*arguments):
    process = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=TRAINING,
        env={**os.environ, 'OMP_NUM_THREADS': '2'},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


VISIBLE_INK = """
import image_samples, json, numpy as np, scenes

shares = []
for index in range(6):
    scene = scenes.compose(scenes.EVAL, index)
    classes = image_samples.class_map(scene)
    for box, label, hidden, shape in zip(*scene[1:5]):
        x0, y0, x1, y1 = box.astype(int)
        visible = np.count_nonzero(classes[y0:y1, x0:x1] == label + 1)
        inside = 0 < x0 and 0 < y0 and x1 < classes.shape[1] and y1 < classes.shape[0]
        if inside:
            shares.append([1 - visible / np.count_nonzero(shape.mask), float(hidden)])
print(json.dumps(shares))
"""


def test_maps_omit_the_ink_that_occluders_hide():
    shares = json.loads(run_python('-c', VISIBLE_INK))
    assert max(hidden for _, hidden in shares) > 0.2
    for missing, hidden in shares:
        # `hidden` counts coverage, also below the threshold of inked pixels.
        assert missing == pytest.approx(hidden, abs=0.05)


WRITTEN_TRUTH = """
import coco_truth, image_samples, json, numpy as np, scenes
from pycocotools import mask as coco_masks

drawn = [scenes.compose(scenes.EVAL, index) for index in range(6)]
truth = coco_truth.coco_truth(drawn)
maps = [np.zeros(scene.image.shape[:2], np.uint8) for scene in drawn]
for one in truth['annotations']:
    mask = coco_masks.decode(one.get('visible', one['segmentation'])) > 0
    maps[one['image_id'] - 1][mask] = one['category_id'] + 1
equal = [bool((one == image_samples.class_map(scene)).all()) for one, scene in zip(maps, drawn)]
print(json.dumps([equal, sum('visible' in one for one in truth['annotations'])]))
"""


def test_written_truth_has_the_visible_ink():
    equal, hidden_digits = json.loads(run_python('-c', WRITTEN_TRUTH))
    assert equal == [True] * 6
    assert hidden_digits > 5


@pytest.mark.parametrize(
    ('task', 'output', 'figure'),
    [('classify', [1, 10], 'top1'), ('semantic', [1, 11, 240, 320], 'mean_iou')],
)
def test_trained_network_is_exported_and_evaluated(tmp_path, task, output, figure):
    weights, model = tmp_path / 'weights.pt', tmp_path / f'digits_{task}.onnx'
    sizes = ('--chunk', 2, '--pool', 4, '--batch', 2, '--workers', 1)
    common = ('train_images.py', task, '--out', weights, *sizes)
    run(*common, '--steps', 2)
    record = run(*common, '--steps', 1, '--resume', weights)
    assert record.index('"steps": 2') < record.index('"steps": 1')
    run('export_images.py', weights, '--out', tmp_path)
    manifest = json.loads(model.with_name(f'{model.name}.json').read_text())
    assert manifest['task'] == task
    assert manifest['onnx']['size_bytes'] == model.stat().st_size <= 300_000
    assert manifest['outputs'][0]['shape'] == output
    assert len(manifest['class_names']) == output[1]
    figures = run('evaluate_images.py', '--models', tmp_path, '--tasks', task, '--scenes', 2)
    assert 0 <= json.loads(figures.removeprefix(task))[figure] <= 1
