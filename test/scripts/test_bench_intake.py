"""scripts/bench intake, for a moment: both ways take the images of two cameras."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / 'scripts' / 'benchmarks' / 'intake.py'


def bench(folder, *arguments):
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=100,
    )


@pytest.mark.timeout(120)
def test_both_ways_take_the_images_of_two_cameras(tmp_path):
    arguments = ('--cameras', '2', '--kinds', 'compressed', '--rounds', '1', '--seconds', '0.5')
    result = bench(tmp_path, *arguments, '--json', 'result.json')
    assert not result.returncode, result.stderr
    cases = json.loads((tmp_path / 'result.json').read_text())['cases']
    assert [case['way'] for case in cases] == ['rclpy', 'intake']
    for case in cases:
        figures = case['median']
        assert figures['rate_hz'] > 5
        assert 0 < figures['taken'] <= 1
        assert 0 < figures['p50_ms'] <= figures['p99_ms'] < 10_000
        assert 0 < figures['locked_ms'] <= figures['cpu_ms']
    assert 'round 1/1: compressed, 2 at 15 Hz, intake' in result.stderr
    assert len(result.stdout.splitlines()) == 4


@pytest.mark.parametrize('wrong', [['--cameras', '0'], ['--kinds', 'raw,png']])
def test_wrong_usage(tmp_path, wrong):
    assert bench(tmp_path, *wrong).returncode == 2
