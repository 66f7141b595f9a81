"""build_engine and inspect_engine on a GPU: precision as built, latency, accuracy against FP32.

In processes of their own, because CUDA reads NVIDIA_TF32_OVERRIDE once. Where the environment
variable OUT names a folder, reports, tables and layers of each precision are left there.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from support.gpu.gpu_support import needs_tensorrt
from support.models.detector_models import report_of
from support.models.detector_models import run as build
from trt_perception.building.steps import engine_steps
from trt_perception.model.files.model_file import read_model_file

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / 'models' / 'digits.onnx'
LABELLED = ('--validate', ROOT / 'demo' / 'scenes', '--annotations', ROOT / 'demo' / 'truth.json')
#: Full FP32 in FP32 engines; without it they compute in TF32.
FULL = {'NVIDIA_TF32_OVERRIDE': '0'}


def run(tool, *arguments, full):
    """Run a tool; return what it printed and the seconds it took."""
    environment = {k: v for k, v in os.environ.items() if k not in FULL} | (FULL if full else {})
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, '-m', f'trt_perception.tools.{tool}', *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return f'{done.stdout}{done.stderr}', time.perf_counter() - start


def keep(name, text):
    if os.environ.get('OUT'):
        (Path(os.environ['OUT']) / name).write_text(text, encoding='utf-8')


@needs_tensorrt
@pytest.mark.parametrize(
    ('precision', 'layers', 'most'),
    [
        ('fp32', 'fp32', 0.001),
        ('tf32', 'fp32', 0.002),  # the inspector does not tell them apart
        ('fp16', 'fp16', 0.002),
        ('bf16', 'bf16', 0.01),
    ],
)
def test_what_was_asked_is_what_was_built(tmp_path, precision, layers, most):
    engine, json_file = tmp_path / 'digits.engine', tmp_path / 'r.json'
    full = precision == 'fp32'
    given = ('--onnx', DIGITS, '--output', engine, '--precision', precision, '--json', json_file)
    given += ('--store', tmp_path / 'store', *LABELLED, '--max-accuracy-drop', most)
    text, seconds = run('build_engine', *given, full=full)
    report = report_of(json_file)
    again, seconds_again = run('build_engine', *given, full=full)
    assert report_of(json_file)['reused'] is True
    # As if it had been built elsewhere: the target fills in what it sees.
    manifest = engine.with_name('digits.engine.json')
    content = json.loads(manifest.read_text())
    counts = content['build']['precision']['as_built']
    content['build']['precision']['as_built'] = 'unverified'
    manifest.write_text(json.dumps(content))
    shown, _ = run(
        *('inspect_engine', engine, '--update-manifest', '--times', '50', '--layers', '100'),
        full=full,
    )
    told = f'{text}\n{seconds:.1f} s; again, from the store: {seconds_again:.1f} s\n{again}'
    keep(f'build_{precision}.txt', f'{told}\n{shown}')
    keep(f'build_{precision}.json', json.dumps(report, indent=1))

    assert content['build']['accuracy']['measure'] == 'mAP50'
    assert json.loads(manifest.read_text())['build']['precision']['as_built'] == counts
    built = report['optimization']['precision_as_built']
    assert counts == {'layers': built}
    assert read_model_file(engine).manifest.build.precision.as_built == built
    assert max(built, key=built.get) == layers
    assert report['optimization']['not_as_asked'] == {}
    assert len(report['optimization']['layers']) > 50
    assert 0 < report['performance']['latency_ms']['p50'] < 50
    accuracy = report['accuracy']
    assert 'not the engine' not in accuracy['runtime']
    assert accuracy['images'] == 60
    assert abs(accuracy['reference'] - accuracy['built']) <= most
    assert 'slowest first' in shown
    # The engine itself was compared with ONNX Runtime's FP32, on all pictures that were given.
    agreement = report['agreement']
    assert agreement['runtime'] == accuracy['runtime']
    assert (agreement['images'], agreement['images_of']) == (60, 'validation')
    assert agreement['reference_detections'] > 300
    assert agreement['f1'] > 0.99
    assert agreement['warning'] == ''
    assert read_model_file(engine).manifest.build.agreement.f1 == agreement['f1']
    assert 'of the detections agree with FP32' in text


@needs_tensorrt
def test_an_engine_that_finds_something_else_is_refused(tmp_path, monkeypatch):
    """TensorRT is given coarser weights than the original has."""
    real = engine_steps.build_plan

    def build_plan(content, *arguments, **named):
        model = onnx.load_model_from_string(content)
        for tensor in model.graph.initializer:
            values = numpy_helper.to_array(tensor)
            if values.ndim == 4:
                coarse = np.round(values * 8) / values.dtype.type(8)
                tensor.CopyFrom(numpy_helper.from_array(coarse, tensor.name))
        return real(model.SerializeToString(), *arguments, **named)

    monkeypatch.setattr(engine_steps, 'build_plan', build_plan)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    engine, report = tmp_path / 'digits.engine', tmp_path / 'r.json'
    given = ('--onnx', DIGITS, '--output', engine, '--json', report)
    given += ('--validate', ROOT / 'demo' / 'scenes')
    assert build(*given) == 1
    found = report_of(report)
    assert 'below 50% it is another detector' in found['error']
    assert found['agreement']['f1'] < 0.5
    assert 'not the engine' not in found['agreement']['runtime']
    assert not engine.exists()
    assert build(*given, '--accept-disagreement') == 0
    keep('build_disagreement.json', report.read_text())
    record = read_model_file(engine).manifest.build.agreement
    assert record.f1 == found['agreement']['f1']
    assert record.warning in report_of(report)['warnings']
