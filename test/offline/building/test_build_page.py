# SPDX-License-Identifier: Apache-2.0
"""The page of build_engine has the content of its JSON report."""

from types import SimpleNamespace

import pytest

from support.browser import open_browser
from trt_perception.offline.building.build_page import build_page
from trt_perception.offline.building.engine.verify import EngineCheck, EngineLatency
from trt_perception.offline.building.inspection.inspector import LayerTime
from trt_perception.offline.building.inspection.layers import LayerInfo
from trt_perception.offline.building.report import BuildLog, BuildReport
from trt_perception.offline.building.steps import engine_steps

pytest_plugins = ['support.building.build_fixtures']
pytestmark = pytest.mark.unmeasured
DATA = "return JSON.parse(document.getElementById('data').textContent)"
TABLES = (
    'const found = {}; for (const table of document.querySelectorAll("table"))'
    'found[table.caption.textContent] = [...table.tBodies[0].rows].map((row) =>'
    '[...row.cells].map((cell) => cell.textContent.trim())); return found'
)
OVERFLOW = 'return document.documentElement.scrollWidth - document.documentElement.clientWidth'
HOSTILE = '<script>alert(1)</script>'
LAYERS = (
    LayerInfo('slow', 'Convolution', ('int8',), ('int8',), '', ('/a/Conv', '/a/Relu')),
    LayerInfo(HOSTILE, 'Reformat', ('fp16',), ('int8',)),
    LayerInfo('fast', 'Gemm', ('fp16',), ('fp16',), '', tuple(f'/{n}/Add' for n in range(9))),
)
TIMES = (LayerTime(LAYERS[0], 0.75, 0.75), LayerTime(LAYERS[2], 0.25, 0.25))


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


@pytest.mark.engine_build
def test_page_of_a_build_has_the_content_of_the_json_report(build, browser, tmp_path):
    result = build('--precision', 'fp16', '--report', tmp_path / 'page')
    assert result.code == 0
    report = result.report
    page = tmp_path / 'page' / 'index.html'
    open_page(browser, page)
    assert browser.run(DATA) == report
    tables = browser.run(TABLES)
    assert [row[0] for row in tables['Steps of the build']] == [
        step['name'] for step in report['steps']
    ]
    assert [row[0] for row in tables['Models by precision']] == ['original', 'fp16 engine']


@pytest.mark.engine_build
def test_page_of_a_failed_build_has_the_error(build, browser, tmp_path):
    result = build('--keep-fp32', 'no such layer', '--report', tmp_path / 'page')
    assert result.code != 0
    open_page(browser, tmp_path / 'page' / 'index.html')
    report = browser.run(DATA)
    assert report['status'] == 'failed'
    assert report['error'] in browser.run("return document.querySelector('header').textContent")
    assert browser.run(TABLES)['Steps of the build'][-1][1] == 'failed'


def verified(monkeypatch, folder):
    """Run the step that loads the engine, as on a GPU."""
    check = EngineCheck(LAYERS, {}, 1024, EngineLatency(1.0, 2.0))
    monkeypatch.setattr(engine_steps, 'why_not_loadable', lambda *_: '')
    monkeypatch.setattr(engine_steps, 'verify_engine', lambda *_: check)
    monkeypatch.setattr(engine_steps, 'Device', lambda _: None)
    monkeypatch.setattr(engine_steps, 'time_layers', lambda *_, **__: TIMES)
    report = BuildReport()
    inputs = SimpleNamespace(
        options=SimpleNamespace(report=folder), tensorrt=SimpleNamespace(gpu=None)
    )
    spec = SimpleNamespace(input=SimpleNamespace(shape=(1, 3, 8, 8)))
    converted = SimpleNamespace(layer_nodes=(), kept_nodes=())
    log = BuildLog(report, lambda *_: None, lambda _: None)
    assert engine_steps.verify(inputs, spec, converted, None, log) is check
    return report


def test_layers_are_timed_only_for_a_page(monkeypatch, tmp_path):
    assert 'layer_times' not in verified(monkeypatch, None).optimization
    times = verified(monkeypatch, tmp_path).optimization['layer_times']
    assert times == [
        {'name': 'slow', 'ms': 0.75, 'share': 0.75},
        {'name': 'fast', 'ms': 0.25, 'share': 0.25},
    ]


@pytest.mark.parametrize('width', [400, 1280])
def test_layers_are_listed_by_time_with_their_nodes(browser, monkeypatch, tmp_path, width):
    report = verified(monkeypatch, tmp_path)
    report.configuration['command'] = HOSTILE
    report.warn(HOSTILE)
    report.input_model['size_bytes'] = 2048
    report.optimization['precision_asked'] = 'int8'
    report.performance |= {'size_bytes': 4096, 'fp16_size_bytes': 8192}
    report.performance['fp16_latency_ms'] = {'p50': 1.5}
    report.agreement = {'f1': 0.987654, 'summary': 'agree', 'warning': ''}
    report.accuracy = {
        'measure': 'mAP50',
        'reference': 0.9,
        'built': 0.85,
        'drop': 0.05,
        'summary': 'mAP50 0.8500',
    }
    report.configuration['options'] = {'max_accuracy_drop': 0.01}
    build_page(report.as_dict()).write(tmp_path)
    open_page(browser, tmp_path / 'index.html', width)
    tables = browser.run(TABLES)
    layers = tables['3 layers, 2 of them with several ONNX nodes']
    assert [row[0] for row in layers] == ['slow', 'fast', HOSTILE]
    assert [row[1] for row in layers] == ['0.7500', '0.2500', '–']
    assert [row[4] for row in layers] == ['int8', 'fp16', 'fp16']
    assert layers[0][5] == '/a/Conv /a/Relu'
    assert '9 nodes' in layers[1][5]
    assert all(f'/{n}/Add' in layers[1][5] for n in range(9))
    assert tables['Models by precision'] == [
        ['original', '2.0 KiB', '–', 'reference', '0.9000'],
        ['fp16 engine, for comparison', '8.0 KiB', '1.500', '–', '–'],
        ['int8 engine', '4.0 KiB', '1.000', '0.9877', '0.8500'],
    ]
    text = browser.run('return document.body.innerText')
    assert 'over the limit 0.01: loses 0.0500 mAP50' in text
    assert browser.run("return document.querySelectorAll('script').length") == 2
