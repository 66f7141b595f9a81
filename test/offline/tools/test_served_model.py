# SPDX-License-Identifier: Apache-2.0
"""Tests of tools with a model on a Triton server, which runs the digits like ONNX Runtime here."""

import json
from pathlib import Path

import pytest

from support.models.digits import DIGITS
from support.optional_packages import needs
from support.triton_server import TritonServer, write_model
from trt_perception.offline.tools import benchmark_engine, evaluate_engine, inspect_engine

pytestmark = needs('onnx', 'tritonclient')

SCENES = Path(__file__).resolve().parents[3] / 'demo' / 'scenes'


@pytest.fixture(scope='module', name='address')
def _address(tmp_path_factory):
    repository = tmp_path_factory.mktemp('triton') / 'models'
    text = json.dumps(Path(f'{DIGITS}.json').read_text())
    manifest = f'parameters {{ key: "trt_perception.manifest" value {{ string_value: {text} }} }}'
    write_model(repository, 'digits', DIGITS, config=manifest)
    server = TritonServer(repository).start()
    yield f'triton://{server.address}/digits'
    server.end()


def test_benchmark_compares_a_file_with_a_served_model(address, tmp_path):
    report = tmp_path / 'report.json'
    arguments = [str(DIGITS), address, '--frames', '4', '--warmup', '1', '--depth', '1,2']
    assert benchmark_engine.main([*arguments, '--json', str(report)]) == 0
    content = json.loads(report.read_text())
    local, served = content['models']
    assert [pipeline['depth'] for pipeline in local['pipelines']] == [1]
    assert [pipeline['depth'] for pipeline in served['pipelines']] == [1, 2]
    assert served['candidates'] == local['candidates']
    assert served['provider'] == 'triton'


def test_evaluation_finds_the_same_boxes_as_with_the_file(address, tmp_path):
    report = tmp_path / 'report.json'
    arguments = [str(DIGITS), address, '--images', str(SCENES), '--json', str(report)]
    assert evaluate_engine.main(arguments) == 0
    served = json.loads(report.read_text())['models']['digits']
    assert served['agreement']['F1'] == 1.0


def test_tool_for_files_refuses_an_address(address, capsys):
    assert inspect_engine.main([address]) == 2
    assert address in capsys.readouterr().err
