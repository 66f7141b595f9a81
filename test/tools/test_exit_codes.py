"""A model that is not there is wrong usage, 2, of every tool: nothing was tried."""

import importlib

import pytest

from trt_perception.tools import build_engine

TOOLS = {
    'benchmark_engine': ['MODEL'],
    'build_engine': ['--onnx', 'MODEL'],
    'detect_images': ['--engine', 'MODEL', '--source', 'FOLDER', '--output', 'FOLDER/out'],
    'evaluate_engine': ['--engine', 'MODEL', 'other.onnx', '--images', 'FOLDER'],
    'inspect_engine': ['MODEL'],
}


@pytest.mark.parametrize('suffix', ['.onnx', '.engine'])
@pytest.mark.parametrize('tool', TOOLS)
def test_a_model_that_is_not_there(tool, suffix, tmp_path, capsys):
    if tool == 'build_engine':
        pytest.importorskip('onnx')
        suffix = '.onnx'  # whatever it is called otherwise is wrong usage, too
    (tmp_path / '1.png').write_bytes(b'')
    model = tmp_path / f'none{suffix}'
    words = [w.replace('FOLDER', str(tmp_path)).replace('MODEL', str(model)) for w in TOOLS[tool]]
    assert importlib.import_module(f'trt_perception.tools.{tool}').main(words) == 2
    assert f'{tool}: {model}: cannot be opened: No such file' in capsys.readouterr().err
    assert not (tmp_path / 'out').exists()


def test_plugins_that_are_not_there(tmp_path, capsys):
    pytest.importorskip('onnx')
    model = tmp_path / 'net.onnx'
    model.write_bytes(b'')
    assert build_engine.main(['--onnx', str(model), '--plugins', str(tmp_path / 'p.so')]) == 2
    assert 'p.so: cannot be opened' in capsys.readouterr().err
