# SPDX-License-Identifier: Apache-2.0
"""Makes the report page of build_engine from the content of its JSON report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from trt_perception.files.plain_text import escape_controls, size_text
from trt_perception.offline.evaluation.report.verdicts import Verdict, verdict_text
from trt_perception.offline.report_page.charts import Bar, bar_chart
from trt_perception.offline.report_page.markup import (
    Markup,
    element,
    figure_text,
    join,
    name,
    table,
)
from trt_perception.offline.report_page.page import Page

_MAX_LAYERS: Final = 300
_MAX_LAYER_BARS: Final = 20
_MAX_LISTED_NODES: Final = 3


def build_page(content: Mapping[str, Any]) -> Page:
    """Return the page of a build that ended.

    Args:
        content: ``BuildReport.as_dict()``. A failed build lacks the parts after the failure.
    """
    engine = content['output_engine'] or {}
    optimization, options = content['optimization'], content['configuration'].get('options', {})
    file = engine.get('file') or options.get('onnx', 'a model')
    page = Page(
        f'Build of {escape_controls(str(file).rpartition("/")[2])}',
        [
            join([f'Status: {content["status"]}. ', content['error'] or '']),
            element('code', content['configuration'].get('command', '')),
        ],
    )
    page.data.update(content)
    if content['warnings']:
        page.add('Warnings', element('ul', *(element('li', one) for one in content['warnings'])))
    page.add('Size and agreement', *_sizes(content))
    page.add('Steps', *_steps(content['steps']))
    page.add('Layers', *_layers(optimization))
    if kept := optimization.get('calibration', {}).get('kept'):
        rows = [(name(node), reason) for node, reason in list(kept.items())[:_MAX_LAYERS]]
        page.add('Not quantised', table('Nodes that stay in float', ['node', 'reason'], rows))
    return page


def _sizes(content: Mapping[str, Any]) -> Iterator[Markup]:
    """Yield a table of the original and the built models by precision, and what was measured."""
    optimization, performance = content['optimization'], content['performance']
    accuracy, agreement = content['accuracy'] or {}, content['agreement'] or {}
    latency, other_latency = (
        performance.get(key) or {} for key in ('latency_ms', 'fp16_latency_ms')
    )
    size = content['input_model'].get('size_bytes')
    measure = accuracy.get('measure') if accuracy.get('measure') != 'agreement' else None
    heads = ['model', 'size', 'latency p50, ms', 'agreement', *([measure] if measure else [])]
    rows: list[list[object]] = []
    if size is not None:
        known = [figure_text(accuracy['reference'], 4)] if measure else []
        rows.append(['original', size_text(size), '–', 'reference', *known])
    if 'fp16_size_bytes' in performance:
        cells = [size_text(performance['fp16_size_bytes']), figure_text(other_latency.get('p50'))]
        rows.append(['fp16 engine, for comparison', *cells, '–', *(['–'] if measure else [])])
    if 'size_bytes' in performance:
        known = [figure_text(accuracy['built'], 4)] if measure else []
        cells = [size_text(performance['size_bytes']), figure_text(latency.get('p50'))]
        asked = optimization.get('precision_asked', '')
        rows.append([f'{asked} engine', *cells, figure_text(agreement.get('f1'), 4), *known])
    if rows:
        yield table('Models by precision', heads, rows)
    if accuracy:
        limit = content['configuration'].get('options', {}).get('max_accuracy_drop')
        verdict = verdict_text(Verdict(accuracy['drop'], accuracy['measure'], limit))
        yield element('p', f'Accuracy: {accuracy["summary"]}. Verdict: {verdict}.')
    if agreement:
        yield element('p', f'Agreement: {agreement["summary"] or agreement["warning"]}.')
    stage = optimization.get('calibration') or optimization.get('conversion') or {}
    if shares := stage.get('macs'):
        bars = [Bar(kind, [(0, 100 * one, 0)], f'{one:.1%}') for kind, one in shares.items()]
        yield bar_chart('Multiplications by type, as converted', bars, '%')


def _steps(steps: Sequence[Mapping[str, Any]]) -> Iterator[Markup]:
    start, bars = 0.0, []
    for step in steps:
        bars.append(Bar(step['name'], [(start, step['seconds'], 0)], f'{step["seconds"]:.1f} s'))
        start += step['seconds']
    rows = [[one['name'], one['status'], f'{one["seconds"]:.1f}', one['outcome']] for one in steps]
    content = table(
        'Steps of the build', ['step', 'status', 'seconds', 'outcome'], rows, class_='text'
    )
    chart = bar_chart(f'Time line: {start:.1f} s', bars, 's')
    yield element('div', chart, content, class_='charts')


def _layers(optimization: Mapping[str, Any]) -> Iterator[Markup]:
    """Yield the layers of the engine by time and precision, with the nodes of each layer."""
    layers = optimization.get('layers')
    if not layers:
        yield element(
            'p',
            'Unknown: the engine was not loaded, or reports no layers. On the target, '
            'inspect_engine shows them.',
        )
        return
    times = {one['name']: one for one in optimization.get('layer_times') or ()}
    kinds: dict[str, list[float]] = {}
    for layer in layers:
        kinds.setdefault(layer['precision'] or 'not reported', []).append(
            times.get(layer['name'], {}).get('ms', 0.0)
        )
    counts = [Bar(kind, [(0, len(ms), 0)], str(len(ms))) for kind, ms in kinds.items()]
    charts = [bar_chart('Layers by precision', counts, 'layers')]
    order = sorted(layers, key=lambda one: -times.get(one['name'], {}).get('ms', 0.0))
    if times:
        sums = [Bar(kind, [(0, sum(ms), 0)], f'{sum(ms):.4f} ms') for kind, ms in kinds.items()]
        charts.append(bar_chart('Time by precision', sums, 'ms'))
        slow = [(one['name'], times[one['name']]['ms']) for one in order if one['name'] in times]
        bars = [Bar(key, [(0, ms, 0)], f'{ms:.4f} ms') for key, ms in slow[:_MAX_LAYER_BARS]]
        charts.append(bar_chart('Slowest layers', bars, 'ms'))
    yield element('div', *charts, class_='charts')
    rows = []
    for layer in order[:_MAX_LAYERS]:
        time = times.get(layer['name'])
        cells = [figure_text(time and time['ms'], 4), f'{time["share"]:.1%}' if time else '–']
        kind = layer['kind'], layer['precision'] or '–'
        rows.append([name(layer['name']), *cells, *kind, _node_names(layer['nodes'])])
    fused = sum(len(layer['nodes']) > 1 for layer in layers)
    title = f'{len(layers)} layers, {fused} of them with several ONNX nodes'
    if len(layers) > len(rows):
        title += f'; the {"slowest" if times else "first"} {len(rows)} are here'
    heads = ['layer', 'ms', 'share', 'kind', 'precision', 'ONNX nodes']
    yield table(title, heads, rows, class_='text')


def _node_names(nodes: Sequence[str]) -> Markup:
    """Return the names of a layer's nodes; many names are behind a switch."""
    listed = join([part for node in nodes for part in (name(node), ' ')])
    if len(nodes) <= _MAX_LISTED_NODES:
        return listed
    return element('details', element('summary', f'{len(nodes)} nodes'), listed)
