"""build_engine on a GPU: precision as built, latency, and accuracy against FP32."""

from pathlib import Path

import pytest
from detector_models import report_of
from detector_models import run
from gpu_support import why_no_tensorrt

from trt_perception.model_file import read_model_file

ROOT = Path(__file__).parents[1]
DIGITS = ROOT / 'models' / 'digits.onnx'
SCENES = ROOT / 'demo' / 'scenes'
TRUTH = ROOT / 'demo' / 'truth.json'

pytestmark = pytest.mark.skipif(bool(why_no_tensorrt()), reason=why_no_tensorrt() or 'runs')


@pytest.mark.parametrize(
    ('precision', 'layers', 'most'),
    [
        ('fp32', 'fp32', 0.001),
        ('tf32', 'fp32', 0.002),
        ('fp16', 'fp16', 0.002),
        ('bf16', 'bf16', 0.01),
    ],
)
def test_what_was_asked_is_what_was_built(tmp_path, precision, layers, most):
    engine = tmp_path / 'digits.engine'
    given = ('--onnx', DIGITS, '--output', engine, '--precision', precision)
    given += ('--validate', SCENES, '--annotations', TRUTH, '--max-accuracy-drop', most)
    assert run(*given, '--json', tmp_path / 'r.json') == 0
    report = report_of(tmp_path / 'r.json')
    built = report['optimization']['precision_as_built']
    assert max(built, key=built.get) == layers
    assert report['performance']['latency_ms']['p50'] > 0
    assert 'not the engine' not in report['accuracy']['runtime']
    assert abs(report['accuracy']['reference'] - report['accuracy']['built']) <= most
    assert read_model_file(engine).manifest.build.precision.as_built == built
