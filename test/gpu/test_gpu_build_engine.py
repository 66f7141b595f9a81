# SPDX-License-Identifier: Apache-2.0
"""build_engine and inspect_engine report precision, latency and accuracy against FP32 on a GPU.

Each command runs in its own process, because CUDA reads NVIDIA_TF32_OVERRIDE once. If the
environment variable OUT names a folder, the tests write the report, the tables and the layers of
each precision there.
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
from support.models.detector_models import read_report
from support.models.detector_models import run_build_engine as build
from support.optional_packages import needs
from trt_perception.model.files.model_file import read_model_file
from trt_perception.offline.building.steps import engine_steps

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / 'models' / 'digits.onnx'
LABELLED = ('--validate', ROOT / 'demo' / 'scenes', '--annotations', ROOT / 'demo' / 'truth.json')
#: With this variable, FP32 layers compute in full FP32. Without it, they compute in TF32.
FULL = {'NVIDIA_TF32_OVERRIDE': '0'}


def run_tool(tool, *arguments, full_fp32):
    """Run a tool. Return its output and the duration in seconds."""
    environment = {k: v for k, v in os.environ.items() if k not in FULL} | (
        FULL if full_fp32 else {}
    )
    start = time.perf_counter()
    process = subprocess.run(
        [sys.executable, '-m', f'trt_perception.offline.tools.{tool}', *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return f'{process.stdout}{process.stderr}', time.perf_counter() - start


def keep(name, text):
    if os.environ.get('OUT'):
        (Path(os.environ['OUT']) / name).write_text(text, encoding='utf-8')


@needs_tensorrt
@needs('pycocotools')
@pytest.mark.parametrize(
    ('precision', 'layers', 'max_drop'),
    [
        ('fp32', 'fp32', 0.001),
        ('tf32', 'fp32', 0.002),  # the inspector cannot distinguish TF32 from FP32
        ('fp16', 'fp16', 0.002),
        ('bf16', 'bf16', 0.01),
    ],
)
def test_engine_has_the_requested_precision_and_accuracy(tmp_path, precision, layers, max_drop):
    engine, json_file = tmp_path / 'digits.engine', tmp_path / 'r.json'
    full_fp32 = precision == 'fp32'
    arguments = (
        '--onnx',
        DIGITS,
        '--output',
        engine,
        '--precision',
        precision,
        '--json',
        json_file,
    )
    arguments += ('--store', tmp_path / 'store', *LABELLED, '--max-accuracy-drop', max_drop)
    text, seconds = run_tool('build_engine', *arguments, full_fp32=full_fp32)
    report = read_report(json_file)
    again, seconds_again = run_tool('build_engine', *arguments, full_fp32=full_fp32)
    assert read_report(json_file)['reused'] is True
    # Simulate an engine from another machine: inspect_engine adds the precision on the target.
    manifest = engine.with_name('digits.engine.json')
    content = json.loads(manifest.read_text())
    counts = content['build']['precision']['as_built']
    content['build']['precision']['as_built'] = 'unverified'
    manifest.write_text(json.dumps(content))
    inspected, _ = run_tool(
        *('inspect_engine', engine, '--update-manifest', '--times', '50', '--layers', '100'),
        full_fp32=full_fp32,
    )
    printed = f'{text}\n{seconds:.1f} s; again, from the store: {seconds_again:.1f} s\n{again}'
    keep(f'build_{precision}.txt', f'{printed}\n{inspected}')
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
    assert abs(accuracy['reference'] - accuracy['built']) <= max_drop
    assert 'slowest first' in inspected
    # build_engine compared the engine itself with ONNX Runtime in FP32, on all given images.
    agreement = report['agreement']
    assert agreement['runtime'] == accuracy['runtime']
    assert (agreement['images'], agreement['images_of']) == (60, 'validation')
    assert agreement['reference_detections'] > 300
    assert agreement['f1'] > 0.99
    assert agreement['warning'] == ''
    assert read_model_file(engine).manifest.build.agreement.f1 == agreement['f1']
    assert 'of the detections agree with FP32' in text


@needs_tensorrt
def test_engine_with_different_detections_is_refused(tmp_path, monkeypatch):
    """The test gives TensorRT coarser weights than the original model has."""
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
    arguments = ('--onnx', DIGITS, '--output', engine, '--json', report)
    arguments += ('--validate', ROOT / 'demo' / 'scenes')
    assert build(*arguments) == 1
    report_content = read_report(report)
    assert report_content['error']
    assert report_content['agreement']['f1'] < 0.5
    assert 'not the engine' not in report_content['agreement']['runtime']
    assert not engine.exists()
    assert build(*arguments, '--accept-disagreement') == 0
    keep('build_disagreement.json', report.read_text())
    record = read_model_file(engine).manifest.build.agreement
    assert record.f1 == report_content['agreement']['f1']
    assert record.warning in read_report(report)['warnings']
