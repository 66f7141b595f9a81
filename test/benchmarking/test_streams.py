"""scripts/benchmarks/streams.py: what a bare loop replays, and that each depth is measured."""

import json

import pytest
from docs_pages import load_script
from fake_tensorrt import PLAN
from fixed_model import OUTPUTS
from fixed_model import small_onnx
from gpu_standins import SMALL
from gpu_support import build_plan
from gpu_support import needs_tensorrt
from support_models import write_model

pytest_plugins = ['gpu_standin_fixtures']

streams = load_script('benchmarks/streams.py')


def figures(path, engine, capsys):
    command = [str(engine), '--depth', '1', '3', '--frames', '20', '--json', str(path)]
    assert streams.main(command) == 0
    found = json.loads(path.read_text())
    assert [entry['depth'] for entry in found] == [1, 3]
    for entry in found:
        assert entry['pipeline']['depth'] == entry['depth']
        assert entry['pipeline']['unequal'] == 0
        for name, rate in entry['bare'].items():
            expected = entry['pipeline']['frames_per_s'] / rate
            assert entry['ratios'][name] == pytest.approx(expected)
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_each_loop_replays_its_own_work(tmp_path, machine, monkeypatch, capsys):
    """With stand-ins for CUDA and TensorRT, which do no work."""
    monkeypatch.setattr(streams, 'WARM_UP', 5)
    recorder, module = machine(tensors=SMALL)
    figures(tmp_path / 'r.json', write_model(tmp_path, 'a.engine', PLAN, outputs=OUTPUTS), capsys)
    assert recorder.kinds() == []
    assert list(module.living) == []
    starts = [i for i, name in enumerate(recorder.calls) if name == 'cudaStreamBeginCapture']
    captured = [
        recorder.calls[start + 1 : recorder.calls.index('cudaStreamEndCapture', start)]
        for start in starts
    ]
    # One slot, then three: engines, whole graphs, and those of the pipeline, which uploads itself.
    engines = [calls for calls in captured if 'cuLaunchKernel' not in calls]
    assert len(engines) == 1 + 3
    wholes = [calls for calls in captured if 'cuLaunchKernel' in calls]
    assert [calls.count('cudaMemcpyAsync') for calls in wholes] == [1, 0] + 3 * [1] + 3 * [0]


@needs_tensorrt
def test_an_engine_is_measured(tmp_path, capsys):
    plan = build_plan(small_onnx())
    engine = write_model(tmp_path, 'small.engine', plan, outputs=OUTPUTS)
    figures(tmp_path / 'r.json', engine, capsys)
