# SPDX-License-Identifier: Apache-2.0
"""Test scripts/benchmarks/streams.py: its bare loops, and its figures per batch and depth."""

import json

import pytest

from support.docs_pages import load_script
from support.gpu.fake_tensorrt import PLAN
from support.gpu.gpu_standins import SMALL
from support.gpu.gpu_support import build_plan, needs_tensorrt
from support.models.detector_models import CLASS_NAMES, detector_model
from support.models.fixed_model import OUTPUTS, small_onnx
from support.models.support_models import write_model
from support.models.written_manifest import write_manifest
from trt_perception.model.decoders.anchors import Dense

pytest_plugins = ['support.gpu.gpu_standin_fixtures']

streams = load_script('benchmarks/streams.py')


def check_figures(path, engine, capsys, batches=(1,)):
    command = [str(engine), '--depth', '1', '3', '--frames', '20', '--json', str(path)]
    assert streams.main([*command, '--batch', *map(str, batches)]) == 0
    found = json.loads(path.read_text())
    cells = [(batch, depth) for batch in batches for depth in (1, 3)]
    assert [(entry['batch'], entry['depth']) for entry in found] == cells
    for entry in found:
        pipeline = entry['pipeline']
        assert (pipeline['batch'], pipeline['depth']) == (entry['batch'], entry['depth'])
        assert pipeline['unequal'] == 0
        assert list(entry['bare']) == list(entry['ratios']) == ['engines', 'uploads', 'whole']
        for name, rate in entry['bare'].items():
            assert entry['ratios'][name] == pytest.approx(pipeline['frames_per_s'] / rate)
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(cells)


def test_each_bare_loop_captures_its_own_work(tmp_path, install_standins, monkeypatch, capsys):
    """Use stand-ins for CUDA and TensorRT, which compute nothing."""
    monkeypatch.setattr(streams, 'WARM_UP', 5)
    recorder, module = install_standins(tensors=SMALL)
    check_figures(
        tmp_path / 'r.json', write_model(tmp_path, 'a.engine', PLAN, outputs=OUTPUTS), capsys
    )
    assert recorder.kinds() == []
    assert list(module.living) == []
    starts = [i for i, name in enumerate(recorder.calls) if name == 'cudaStreamBeginCapture']
    captured = [
        recorder.calls[start + 1 : recorder.calls.index('cudaStreamEndCapture', start)]
        for start in starts
    ]
    # The first loop has 1 slot, the second has 3 slots. Each slot captures two graphs: the engine
    # alone, and the engine after an upload.
    engines = [calls for calls in captured if 'cuLaunchKernel' not in calls]
    copy = ['cudaMemcpyAsync']
    assert [calls for calls in engines if calls in ([], copy)] == engines
    assert engines.count(copy) == 1 + 3
    # Whole graphs contain an upload. Graphs of the pipeline do not: it uploads separately.
    wholes = [calls for calls in captured if 'cuLaunchKernel' in calls]
    uploads = [calls.count('cudaMemcpyAsync') for calls in wholes]
    assert [count for count in uploads if count] == [1, 1, 1, 1]


@needs_tensorrt
def test_engine_with_two_batch_sizes_is_measured_at_both(tmp_path, capsys):
    content = detector_model(('n', 3, 64, 64)).SerializeToString()
    profiles = [{'images': ((batch, 3, 64, 64),) * 3} for batch in (1, 2)]
    engine = tmp_path / 'open.engine'
    engine.write_bytes(build_plan(content, profiles))
    tensors = ('images', (-1, 3, 64, 64), 'float32'), ('output', (-1, 6, 64), 'float32')
    write_manifest(engine, (64, 64), *tensors, Dense(), CLASS_NAMES)
    check_figures(tmp_path / 'r.json', engine, capsys, (1, 2))


@needs_tensorrt
def test_engine_with_a_fixed_batch_is_measured(tmp_path, capsys):
    plan = build_plan(small_onnx())
    engine = write_model(tmp_path, 'small.engine', plan, outputs=OUTPUTS)
    check_figures(tmp_path / 'r.json', engine, capsys)
