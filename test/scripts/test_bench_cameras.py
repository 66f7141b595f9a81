"""Test a short run of `scripts/bench cameras` with two cameras, in one node and in two nodes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.models.tiny_model import write_tiny_model

pytestmark = pytest.mark.ros

# Other tests of benchmarks cover the use of ROS.
SCRIPT = Path(__file__).parents[2] / 'scripts' / 'benchmarks' / 'cameras.py'


def bench(folder, *arguments):
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=150,
    )


def test_one_node_and_one_node_per_camera_are_measured(tmp_path):
    model = write_tiny_model(tmp_path / 'tiny.onnx')
    options = ('--count', 2, '--image', 'jpeg', '--rate', 20, '--size', '64x48', '--seconds', 1)
    result = bench(tmp_path, model, *options, '--json', 'result.json')
    assert not result.returncode, result.stderr
    content = json.loads((tmp_path / 'result.json').read_text())
    assert [case['nodes'] for case in content['cases']] == ['one', 'many']
    for case in content['cases']:
        figures = case['median']
        assert figures['least_hz'] > 0
        assert 0 < figures['p50_ms'] <= figures['p95_ms'] <= figures['p99_ms'] < 10_000
        assert figures['cpu_percent'] > 0
        assert figures['memory_mib'] > 10
    [one], [many] = (case['rounds'] for case in content['cases'])
    assert one['memory_mib'] < many['memory_mib']
    assert any(name.endswith('detector: camera_1') for name in one['statuses'])
    assert 'round 1/1: jpeg, 2 cameras, a node each' in result.stderr
    assert [line.split('  ')[0] for line in result.stdout.splitlines()[1:3]] == [
        'jpeg, 2, one node',
        'jpeg, 2, a node each',
    ]


def test_camera_count_above_64_is_refused(tmp_path):
    result = bench(tmp_path, '--count', '1,65')
    assert result.returncode == 2
    assert 'expected numbers from 1 to 64, such as 1,4,16 (got 1,65)' in result.stderr
