"""The same on a GPU, by a stand-in: there the engine itself is compared with the original."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from support.gpu.gpu_support import BUILT_ON_CPU
from support.models.digits import DIGITS, INT8, SOME_SCENES, save_digits
from trt_perception.building.steps import validation
from trt_perception.errors import EngineError

pytest_plugins = ['support.building.build_fixtures']
pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
pytestmark = [*BUILT_ON_CPU, pytest.mark.usefixtures('plans_once')]


def test_a_stand_in_that_fails_on_an_image_is_not_measured(build, gpu_that_runs, monkeypatch):
    def fails(*_):
        raise EngineError('the model', 'fails')

    monkeypatch.setattr(validation, 'compare_until_sure', fails)
    done = build(*INT8)
    assert done.code == 0
    assert 'the model: fails; on the target' in done.manifest.build.agreement.warning
    gpu_that_runs(DIGITS)
    done = build(*INT8)
    assert done.code == 1
    assert done.report['error'] == 'the model: fails'


@pytest.mark.parametrize('words', [('--validate', SOME_SCENES), INT8])
def test_on_a_gpu_the_engine_itself_is_compared(build, gpu_that_runs, words):
    engines = gpu_that_runs(DIGITS)
    done = build(*words)
    assert done.code == 0
    assert [engine.path.name for engine in engines] == ['digits.engine']
    record = done.manifest.build.agreement
    assert record.f1 == 1
    assert record.runtime.startswith('tensorrt_rtx ')
    assert record.warning == ''


@pytest.mark.parametrize('precision', ['fp32', 'tf32', 'fp16', 'bf16'])
def test_on_a_gpu_every_precision_is_held_to_it(
    build, gpu_that_runs, monkeypatch, tmp_path, precision
):
    spoiled = onnx.load(DIGITS)
    for tensor in spoiled.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.ndim == 4:
            rounded = np.round(values * 8) / np.float32(8)
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    path = tmp_path / 'spoiled.onnx'
    save_digits(spoiled, path)
    gpu_that_runs(path)
    done = build('--precision', precision, '--validate', SOME_SCENES)
    assert done.code == 1
    assert done.report['agreement']['f1'] < 0.5
    assert 'another detector' in done.report['error']
    assert build('--precision', precision).code == 0  # nothing to see it on


def test_an_engine_that_does_not_run_is_an_error(build, gpu_that_runs, monkeypatch):
    gpu_that_runs(DIGITS)
    stand_in = validation.opened

    def fails(file):
        if not file.is_onnx:
            raise EngineError('the engine', 'cannot be run')
        return stand_in(file)

    monkeypatch.setattr(validation, 'opened', fails)
    done = build(*INT8)
    assert done.code == 1
    assert done.report['error'] == 'the engine: cannot be run'
