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

TRAINING = Path(__file__).resolve().parents[2] / 'training'


def run(script, *arguments):
    process = subprocess.run(
        [sys.executable, str(TRAINING / script), *map(str, arguments)],
        env={**os.environ, 'OMP_NUM_THREADS': '2'},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.parametrize(
    ('task', 'output', 'figure'),
    [('classify', [1, 10], 'top1'), ('semantic', [1, 11, 120, 160], 'mean_iou')],
)
def test_trained_network_is_exported_and_evaluated(tmp_path, task, output, figure):
    weights, model = tmp_path / 'weights.pt', tmp_path / f'digits_{task}.onnx'
    sizes = ('--scenes', 2, '--steps', 3, '--batch', 4, '--workers', 1)
    record = run('train_images.py', task, '--out', weights, *sizes)
    assert '"steps": 3' in record
    run('export_images.py', weights, '--out', tmp_path)
    manifest = json.loads(model.with_name(f'{model.name}.json').read_text())
    assert manifest['task'] == task
    assert manifest['onnx']['size_bytes'] == model.stat().st_size <= 300_000
    assert manifest['outputs'][0]['shape'] == output
    assert len(manifest['class_names']) == output[1]
    figures = run('evaluate_images.py', '--models', tmp_path, '--tasks', task, '--scenes', 2)
    assert 0 <= json.loads(figures.removeprefix(task))[figure] <= 1
