# SPDX-License-Identifier: Apache-2.0
"""Tests of a tiny training of the three tasks: falling losses, resumption and exports.

These tests need the packages of training/requirements.txt, which the package does not need:
`python -m pytest --noconftest test/training`.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

for package in ('torch', 'skimage', 'sklearn'):
    pytest.importorskip(
        package, reason='the packages of training/requirements.txt are not installed'
    )

pytestmark = pytest.mark.timeout(600)  # trains a network

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import json, pathlib, sys
import numpy as np, onnxruntime, torch
import export, export_tasks, scenes, task_dense, task_model, train, train_tasks

torch.manual_seed(0)
torch.set_num_threads(2)
folder = pathlib.Path(sys.argv[1])
drawn = [train_tasks.sample(train_tasks.CONFIG, index) for index in range(2)]
stacked = [torch.from_numpy(np.stack(one)) for one in zip(*drawn)]
batch = stacked[0].float() / 255, *stacked[1:]
run = train_tasks.begin(folder, torch.device('cpu'))

# The untrained network must give the boxes of the detector's own file.
expected = onnxruntime.InferenceSession(str(train_tasks.DIGITS)).run(
    None, {'images': batch[0][:1].numpy()}
)[0]
with torch.no_grad():
    rows = run.average.model_of('pose')(batch[0][:1]).numpy()[:, :14]
is_confident = expected[0, 4:].max(0) > 0.5
found = {'pixels': float(np.abs(rows - expected)[0, :4, is_confident].max())}
found['scores'] = float(np.abs(rows[:, 4:] - expected[:, 4:]).max())

losses = []
for _ in range(12):
    for group in run.optimizer.param_groups:
        group['lr'] = 1e-3
    parts = train_tasks.step(run, run.network, batch, 0.5)
    losses.append({name: float(value) for name, value in parts.items()})
found['losses'] = losses
train.follow(run.average, run.network, 0.0)
record = {'seconds': 1, 'steps': 12, 'batch': 2, 'scenes_composed': 2, 'device': 'CPU'}
record['origin'] = run.origin
train_tasks.save(run, folder, record)
resumed = train_tasks.begin(folder, torch.device('cpu'))
found['same_weights'] = all(
    torch.equal(a, b)
    for a, b in zip(run.network.state_dict().values(), resumed.network.state_dict().values())
)
found['stages'] = len(resumed.stages)
network, stages = export_tasks.load(folder / train_tasks.STATE)
found['exports'] = [
    export_tasks.export_task(network, task, stages, folder / 'models', 1)
    for task in task_model.TASKS
]
# A training that begins with exported models must begin with their outputs.
next_run = train_tasks.begin(folder / 'next', torch.device('cpu'), folder / 'models')
found['origin'] = next_run.origin
found['differences'] = {
    task: export_tasks.largest_difference(
        next_run.average.model_of(task), folder / 'models' / f'digits_{task}.onnx'
    )
    for task in task_model.TASKS
}
for task in task_model.TASKS:
    detector = task_dense.TaskDetector(folder / 'models' / f'digits_{task}.onnx')
    seen = detector(scenes.compose(scenes.EVAL, 0).image)
    shapes = list(seen.oriented.shape), list(seen.corners.shape)
    found[task] = [len(seen.scores), len(seen.masks), *shapes]
print(json.dumps(found))
"""


def json_from_process(script, *arguments):
    process = subprocess.run(
        [sys.executable, '-c', script, *map(str, arguments)],
        env={**os.environ, 'PYTHONPATH': str(ROOT / 'training')},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.fixture(scope='module')
def found(tmp_path_factory):
    return json_from_process(SCRIPT, tmp_path_factory.mktemp('tasks'))


def test_training_begins_with_the_weights_of_the_detector(found):
    assert found['pixels'] < 0.5
    assert found['scores'] < 0.05


def test_every_new_loss_term_falls(found):
    first, last = found['losses'][0], found['losses'][-1]
    for name in ('segment mask', 'pose corners', 'obb box', 'obb angle'):
        assert last[name] < 0.7 * first[name], name
    assert sum(last.values()) < 0.7 * sum(first.values())
    assert all(np.isfinite(list(one.values())).all() for one in found['losses'])


def test_training_resumes_from_its_saved_state(found):
    assert found['same_weights']
    assert found['stages'] == 1


def test_training_resumes_from_exported_models(found):
    for scores, rest in found['differences'].values():
        assert scores < 1e-3
        assert rest < 0.05
    assert found['origin'] == (
        'from the weights of digits.onnx; then 2 composed scenes, 12 steps of 2 in 1 s on one CPU'
    )


def test_exported_models_run_and_are_small(found):
    assert [one['task'] for one in found['exports']] == ['segment', 'obb', 'pose']
    assert all(one['bytes'] <= 2_500_000 for one in found['exports'])
    for task, counts in (
        ('segment', lambda n: [n, n, [n, 0], [n, 0, 2]]),
        ('obb', lambda n: [n, 0, [n, 5], [n, 0, 2]]),
        ('pose', lambda n: [n, 0, [n, 0], [n, 4, 2]]),
    ):
        assert found[task] == counts(found[task][0])
        assert found[task][0] > 0


DRAW = """
import json, sys
import cv2, scenes
drawn = []
for index in (0, 7, 31):
    scene = scenes.compose(scenes.DEMO, index)
    pixels = cv2.cvtColor(scene.image, cv2.COLOR_RGB2BGR)
    cv2.imwrite(f'{sys.argv[1]}/scene_{index:03d}.png', pixels)
    drawn.append([index, scene.xyxy.tolist(), scene.classes.tolist()])
print(json.dumps(drawn))
"""


def test_composed_scenes_equal_the_scenes_of_the_demo(tmp_path):
    truth = json.loads((ROOT / 'demo' / 'truth.json').read_text())
    for index, boxes, classes in json_from_process(DRAW, tmp_path):
        rows = [one for one in truth['annotations'] if one['image_id'] == index + 1]
        assert [[x, y, x + w, y + h] for x, y, w, h in (one['bbox'] for one in rows)] == boxes
        assert [one['category_id'] for one in rows] == classes
        name = f'scene_{index:03d}'
        drawn = cv2.imread(str(tmp_path / f'{name}.png')).astype(np.float32)
        shipped = cv2.imread(str(ROOT / 'demo' / 'scenes' / f'{name}.jpg'))
        assert np.abs(drawn - shipped).mean() < 4  # JPEG compression changes the pixels


@pytest.mark.parametrize('option', ['--help', '--nonsense'])
def test_help_and_wrong_usage_draw_nothing(tmp_path, option):
    shutil.copytree(ROOT / 'training', tmp_path / 'training')
    script = [sys.executable, str(tmp_path / 'training' / 'make_demo.py'), option]
    process = subprocess.run(script, capture_output=True, text=True)
    assert process.returncode == (0 if option == '--help' else 2), process.stderr
    assert 'usage: make_demo.py' in process.stdout + process.stderr
    assert not (tmp_path / 'demo').exists()
