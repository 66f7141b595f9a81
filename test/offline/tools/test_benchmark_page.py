# SPDX-License-Identifier: Apache-2.0
"""The page of benchmark_engine has the figures of its JSON file, and opens in a browser."""

import itertools
import json

import pytest

from support.browser import open_browser
from support.models.fixed_model import OUTPUTS, small_onnx
from support.models.support_models import write_model
from trt_perception.model.tensors import TensorSpec
from trt_perception.offline.benchmarking.benchmark_page import benchmark_page
from trt_perception.offline.benchmarking.measure import (
    BatchTimes,
    EncodingTime,
    PipelineReport,
    StageTime,
    TimeStatistics,
)
from trt_perception.offline.benchmarking.model_report import ModelReport
from trt_perception.offline.tools import benchmark_engine

pytestmark = pytest.mark.unmeasured
DATA = "return JSON.parse(document.getElementById('data').textContent)"
CELLS = (
    'return [...document.querySelectorAll(`#${arguments[0]} table`)].map((table) =>'
    '[...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent)))'
)
OVERFLOW = 'return document.documentElement.scrollWidth - document.documentElement.clientWidth'
HOSTILE = '"><script>alert(1)</script>.engine'


@pytest.fixture(scope='module')
def browser():
    with open_browser() as opened:
        yield opened


def open_page(browser, page, width=1280):
    browser.set_size(width)
    browser.open(page)
    assert browser.console() == []
    assert browser.requests() == [page.resolve().as_uri()]
    assert browser.run(OVERFLOW) == 0


def test_page_of_a_run_has_the_figures_of_the_json_file(browser, tmp_path):
    model = write_model(tmp_path, 'small.onnx', small_onnx(), outputs=OUTPUTS)
    saved = tmp_path / 'r.json'
    words = [model, '--frames', '6', '--warmup', '1', '--size', '64x48', '--batch', '1']
    words += ['--json', saved, '--report', tmp_path / 'page']
    assert benchmark_engine.main(list(map(str, words))) == 0
    open_page(browser, tmp_path / 'page' / 'index.html')
    report = json.loads(saved.read_text())
    assert browser.run(DATA) == report
    (one,) = report['models']
    (pipeline,) = one['pipelines']
    ((row,), *_) = browser.run(CELLS, 'section-1')
    assert row[0] == 'small.onnx (cpu)'
    assert row[4] == f'{pipeline["latency_ms"]["p50"]:.3f}'
    assert row[6] == f'{pipeline["frames_per_s"]:.1f}'
    ((*steps,),) = browser.run(CELLS, 'section-2')
    assert [(row[0], row[1]) for row in steps] == [
        (name, f'{stage["mean_ms"]:.3f}') for name, stage in one['stages'].items()
    ]
    for key in ('latency', 'busy_latency'):
        percentiles, spread = pipeline[f'{key}_percentiles_ms'], pipeline[f'{key}_ms']
        assert len(percentiles) == 101
        assert percentiles == sorted(percentiles)
        for index, name in ((50, 'p50'), (99, 'p99'), (100, 'max')):
            assert percentiles[index] == pytest.approx(spread[name])


def engine_report():
    """Return the results of an engine at several depths and batches, with all steps."""
    times = TimeStatistics.of_seconds([1e-3, 2e-3])
    pipelines = tuple(
        PipelineReport(
            depth,
            *(times, 100.0 * depth * batch, times, times, times, 1.0, 2.0, 0),
            batch=batch,
            device_memory_bytes=2**20,
            latency_percentiles_ms=tuple(1 + index / 100 for index in range(101)),
            busy_latency_percentiles_ms=tuple(2 + index / 100 for index in range(101)),
            last_batches=(BatchTimes(0, 0, 0.1, 1, 2), BatchTimes(1, 0.1, 0.2, 2, 3)),
        )
        for batch in (1, 2)
        for depth in (1, 2, 3)
    )
    image = TensorSpec('images', (1, 3, 8, 8), 'float32')
    steps = 'engine_graph', 'engine_enqueue', 'upload', 'letterbox', 'decode', 'graph'
    return ModelReport(
        *(HOSTILE, '', '<b>tensorrt</b> 10', image, image, 1.0),
        {step: StageTime(number + 1.0, times) for number, step in enumerate(steps)},
        encodings={'bgr8': EncodingTime(192, 1.0, 1.0)},
        candidates=(1,),
        pipelines=pipelines,
    )


@pytest.mark.parametrize('width', [400, 1280])
def test_page_of_an_engine_shows_its_time_line_and_settings(browser, tmp_path, width):
    facts = {
        'date': '2026',
        'command': HOSTILE,
        'partial': True,
        'machine': {'gpu': {'name': 'x'}},
    }
    page = benchmark_page(facts, [engine_report()], ())
    page.write(tmp_path)
    open_page(browser, tmp_path / 'index.html', width)
    titles = browser.run(
        "return [...document.querySelectorAll('figcaption')].map((one) =>one.textContent)"
    )
    # Upload, letterbox, the engine as a graph, and decoding follow each other.
    assert 'Time line of a frame, each step alone: 13.000 ms' in titles
    bars = browser.run(
        "return [...document.querySelectorAll('#section-2 svg rect')].map((one) =>"
        "[Number(one.getAttribute('x')), Number(one.getAttribute('width'))])"
    )
    assert len(bars) == 4
    for (x, length), (following, _) in itertools.pairwise(bars):
        assert x + length == pytest.approx(following, abs=0.2)
    assert [length / bars[0][1] for _, length in bars] == pytest.approx(
        [1, 4 / 3, 1 / 3, 5 / 3], abs=0.02
    )
    (rows,) = browser.run(CELLS, 'section-3')
    assert [(row[0], row[5]) for row in rows] == [
        (one.name, f'{one.frames_per_s:.1f}') for one in engine_report().pipelines
    ]
    assert 'partial' in browser.run("return document.querySelector('header').innerText")
    assert HOSTILE in browser.run("return document.querySelector('h1').innerText")
    assert browser.run("return document.querySelectorAll('script').length") == 2
