# SPDX-License-Identifier: Apache-2.0
"""mypy checks programs of users against the types of the package."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
# Each line with a comment is wrong, and the comment is the code of mypy's error.
PROGRAM = """\
from pathlib import Path
import numpy as np
import trt_perception as tp

image = np.zeros((480, 640, 3), np.uint8)
with tp.load('yolo.onnx', confidence_threshold=0.4) as model:
    boxes: tp.Detections = model(image)
    several: list[tp.Detections] = model([image, image], class_filter=['person'])
    boxes.xyxy.round()
    boxes.plot().shape
    boxes.boxes  # attr-defined
    boxes.depth()  # attr-defined
    wrong: tp.DepthMap = model(image)  # assignment
    one: tp.Detections = model([image])  # assignment
    model(image, confidence_threshold='0.4')  # call-overload
    model('image.jpg')  # arg-type
    model.classes  # attr-defined
task = input()
tp.load(Path('a.onnx'), task=task)(image).plot()
tp.load(Path('a.onnx'), task=task)(image).xyxy  # union-attr
masks: tp.Detections = tp.load('a.onnx', task='segment')(image)
ids, scores = tp.load('a.onnx', task='classify')(image).best(5)
tp.load('a.onnx', task='classify')(image).xyxy  # attr-defined
confidence = tp.load('a.onnx', task='semantic')(image).confidence()
confidence.mean()  # union-attr
depth = tp.load('a.onnx', task='depth')(image).depth((640, 360))
depth.mean()
tp.load('a.onnx', task='depth')([image]).depth()  # attr-defined
tp.load(3)  # call-overload
tp.load()  # call-overload
"""

needs_mypy = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < '2.0.0', reason='mypy reads the types of NumPy 2'
)


def errors_of(program, folder):
    """Return line and code of the errors that mypy finds in a program, each once."""
    pytest.importorskip('mypy', reason='needs mypy')
    path = folder / 'program.py'
    path.write_text(program, encoding='utf-8')
    run = [sys.executable, '-m', 'mypy', '--strict', '--cache-dir', str(folder / 'cache')]
    done = subprocess.run(
        [*run, '--hide-error-context', '--show-error-codes', path.name],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r'^program\.py:(\d+): error: .*\[(.*)\]$', done.stdout, re.MULTILINE)
    return list(dict.fromkeys((int(line), code) for line, code in found))


@needs_mypy
def test_types_of_results_follow_the_task(tmp_path):
    expected = [
        (number, line.split('  # ')[1])
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if '  # ' in line
    ]
    assert len(expected) > 10
    assert errors_of(PROGRAM, tmp_path) == expected


@needs_mypy
def test_program_of_the_readme_has_correct_types(tmp_path):
    text = (ROOT / 'README.md').read_text(encoding='utf-8')
    (program,) = re.findall(r'^```python\n(.*?)^```', text, re.DOTALL | re.MULTILINE)
    assert errors_of(program, tmp_path) == []
    renamed = program.replace('detections.scores', 'detections.confidences')
    assert [code for _, code in errors_of(renamed, tmp_path)] == ['attr-defined']
