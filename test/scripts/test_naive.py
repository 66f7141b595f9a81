"""Test that the typical simple implementation, scripts/benchmarks/naive.py, gives equal boxes."""

import json

import numpy as np
import pytest

from support.docs_pages import load_script
from support.gpu.fake_tensorrt import PLAN
from support.gpu.gpu_standins import SMALL
from support.gpu.gpu_support import build_plan, needs_tensorrt
from support.models.fixed_model import OUTPUTS, small_onnx
from support.models.support_models import write_model
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.offline.benchmarking import gpu_steps
from trt_perception.offline.benchmarking.frames import load_frames
from trt_perception.stages.host_preprocess import HostPreprocessor

pytest_plugins = ['support.gpu.gpu_standin_fixtures']

naive = load_script('benchmarks/naive.py')


@pytest.mark.parametrize('encoding', ['bgr8', 'rgba8', 'mono16', 'yuyv'])
@pytest.mark.parametrize('order', ['rgb', 'bgr'])
def test_naive_tensor_equals_the_tensor_of_the_host_preprocessor(encoding, order):
    preprocessing = Preprocessing((64, 48), color_order=order, mean=(0.1, 0.2, 0.3))
    (frame,) = load_frames('', (50, 70), encoding, 1)
    letterbox = Letterbox.fit((50, 70), (64, 48), 'letterbox')
    expected, _ = HostPreprocessor(preprocessing)(frame)
    np.testing.assert_allclose(
        naive.naive_tensor(frame, preprocessing, letterbox), expected, atol=1e-6
    )


def run_benchmark(path, engine):
    assert naive.main([str(engine), '--frames', '6', '--json', str(path)]) == 0
    return json.loads(path.read_text())


def test_naive_benchmark_measures_every_step(tmp_path, install_standins, monkeypatch, capsys):
    """Use stand-ins for CUDA and TensorRT, which compute nothing."""
    monkeypatch.setattr(gpu_steps, '_WARM_UP_S', 0)
    recorder, module = install_standins(tensors=SMALL)
    found = run_benchmark(
        tmp_path / 'r.json', write_model(tmp_path, 'a.engine', PLAN, outputs=OUTPUTS)
    )
    steps = ['preprocess', 'upload', 'engine', 'download', 'decode']
    assert list(found['naive']['steps_ms']) == steps
    assert found['naive']['latency_ms']['count'] == 6
    assert list(found['throughput_over_naive']) == ['1', '2', '3', '4']
    assert 'depth 4: ' in capsys.readouterr().out
    assert recorder.kinds() == []
    assert list(module.living) == []


@needs_tensorrt
def test_naive_and_package_agree_on_the_boxes_of_an_engine(tmp_path):
    plan = build_plan(small_onnx())
    engine = write_model(tmp_path, 'small.engine', plan, outputs=OUTPUTS)
    found = run_benchmark(tmp_path / 'r.json', engine)
    assert found['agreement']['F1'] == 1
    assert found['agreement']['mean_IoU'] > 0.99
