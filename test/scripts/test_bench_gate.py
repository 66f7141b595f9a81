# SPDX-License-Identifier: Apache-2.0
"""Test the comparison of benchmark ratios with the stored baseline (gate.py)."""

import json

import pytest

from support.docs_pages import load_script

gate = load_script('benchmarks/gate.py')


@pytest.fixture
def baseline(tmp_path):
    path = tmp_path / 'baseline.json'
    path.write_text(json.dumps({'mine': {'a': 1.0, 'b': 0.2}, 'other': {'a': 9.0}}))
    return path


@pytest.mark.parametrize(
    ('ratios', 'lost'),
    [
        ({'a': 1.0, 'b': 0.2}, []),
        ({'a': 0.1, 'b': 0.1}, []),
        ({'a': 1.09, 'b': 0.219}, []),
        ({'a': 1.11, 'b': 0.2}, ['a']),
        ({'a': 1.11, 'b': 0.23}, ['a', 'b']),
        ({'new': 5.0}, []),
    ],
)
def test_ratio_above_110_percent_of_the_baseline_is_a_loss(baseline, ratios, lost, capsys):
    assert gate.gate('mine', ratios, path=baseline) == (1 if lost else 0)
    printed = capsys.readouterr().out
    assert [name for name in ratios if f'{name} ' in printed] == list(ratios)
    assert printed.count('lost more') == len(lost)
    assert gate.losses(ratios, json.loads(baseline.read_text())['mine']) == lost


def test_baseline_of_another_benchmark_is_ignored(baseline):
    assert gate.gate('other', {'a': 9.5}, path=baseline) == 0
    assert gate.gate('unknown', {'a': 9.5}, path=baseline) == 0


def test_stored_result_becomes_the_baseline(baseline, tmp_path):
    assert gate.gate('mine', {'a': 2.00004}, store=True, path=baseline) == 0
    stored = json.loads(baseline.read_text())
    assert stored == {'mine': {'a': 2.0}, 'other': {'a': 9.0}}
    assert gate.gate('mine', {'a': 2.1}, path=baseline) == 0
    assert gate.gate('mine', {'a': 2.3}, path=baseline) == 1
    assert gate.gate('first', {'a': 1.0}, store=True, path=tmp_path / 'fresh.json') == 0


def test_stored_baseline_covers_exactly_the_gated_benchmarks():
    assert set(json.loads(gate.BASELINE.read_text())) == {'frame_path', 'transport'}
