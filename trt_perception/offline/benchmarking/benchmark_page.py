# SPDX-License-Identifier: Apache-2.0
"""Makes the report page of benchmark_engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from trt_perception.files.plain_text import escape_controls
from trt_perception.offline.benchmarking.measure import PipelineReport
from trt_perception.offline.benchmarking.model_report import ModelReport
from trt_perception.offline.benchmarking.report import step_title
from trt_perception.offline.evaluation.image_tasks.agreement import ImageAgreement
from trt_perception.offline.evaluation.metrics.agreement import Agreement
from trt_perception.offline.report_page.charts import Bar, bar_chart, line_chart
from trt_perception.offline.report_page.markup import (
    Markup,
    element,
    figure_text,
    name,
    table,
)
from trt_perception.offline.report_page.page import Page

# Steps that follow each other in a frame. The first name of each group that was measured counts.
_STEPS_IN_ORDER: Final = (
    ('preprocess',),
    ('upload',),
    ('letterbox',),
    ('engine_graph', 'engine_enqueue', 'inference'),
    ('download',),
    ('decode', 'host_decode'),
    ('maps',),
)
# More lines in a chart are hard to tell apart.
_MAX_LINES: Final = 8
_BATCH_PARTS: Final = ('enqueue', 'in flight', 'collect')
_MIB: Final = 1024 * 1024


def benchmark_page(
    content: Mapping[str, Any],
    reports: Sequence[ModelReport],
    agreements: Sequence[Agreement | ImageAgreement | None],
) -> Page:
    """Return the page of a benchmark.

    Args:
        content: content of the JSON file of the tool.
        reports: results of at least one model.
        agreements: agreement of each further model with the first; None if unknown.
    """
    names = [report.name for report in reports]
    title = 'Speed' if len(names) > 1 else f'Speed of {escape_controls(names[0])}'
    state = ' The user interrupted the run: the figures are partial.' if content['partial'] else ''
    page = Page(title, [f'{content["date"]}.{state}', element('code', content['command'])])
    page.data.update(content)
    page.add('Models', _models_table(reports, agreements), _machine_table(content['machine']))
    for report in reports:
        # The name is in the heading only if several models need a distinction.
        heading = f': {escape_controls(report.name, 80)}' if len(reports) > 1 else ''
        page.add(f'Steps{heading}', *_steps(report))
        if report.pipelines:
            page.add(f'Pipeline{heading}', *_pipelines(report))
    return page


def _models_table(
    reports: Sequence[ModelReport], agreements: Sequence[Agreement | ImageAgreement | None]
) -> Markup:
    """Return a table of all models, each at its setting with the most frames/s."""
    known = (agreement.figures for agreement in agreements if agreement)
    figures = next(map(list, known), [])
    heads = ['model', 'runtime', 'network, ms', 'setting', 'latency p50, ms', 'p99, ms']
    heads += ['frames/s', *figures]
    rows = []
    for report, agreement in zip(
        reports, (None, *agreements, *[None] * len(reports)), strict=False
    ):
        best = max(report.pipelines, key=lambda each: each.frames_per_s, default=None)
        cells: list[object] = [name(report.name), report.runtime, f'{report.engine_ms:.3f}']
        if best is None:
            cells += ['–'] * 4
        else:
            times = best.latency_ms
            cells += [
                best.name,
                f'{times.p50:.3f}',
                f'{times.p99:.3f}',
                f'{best.frames_per_s:.1f}',
            ]
        values: Mapping[str, float | None] = agreement.figures if agreement else {}
        cells += [figure_text(values.get(figure), 4) for figure in figures]
        rows.append(cells)
    return table('Each model at its setting with the most frames/s', heads, rows)


def _machine_table(machine: Mapping[str, Any]) -> Markup:
    rows = []
    for key, value in machine.items():
        if isinstance(value, Mapping):
            rows += [(f'{key} {each}', str(one)) for each, one in value.items() if one is not None]
        elif value is not None:
            rows.append((key, str(value)))
    content = table('Machine', ['property', 'value'], rows)
    return element('details', element('summary', 'Machine'), content)


def _steps(report: ModelReport) -> Iterator[Markup]:
    """Yield the time line of a frame, and a table of all steps."""
    start, bars = 0.0, []
    for group in _STEPS_IN_ORDER:
        measured = next((step for step in group if step in report.stages), None)
        if measured is not None:
            length = report.stages[measured].mean_ms
            text = f'{length:.3f} ms'
            bars.append(Bar(step_title(measured, report), [(start, length, 0)], text))
            start += length
    title = f'Time line of a frame, each step alone: {start:.3f} ms'
    rows = []
    for step, stage in report.stages.items():
        alone = stage.alone_ms
        spread = (alone.p50, alone.p99) if alone else (None, None)
        figures = (stage.mean_ms, *spread)
        rows.append([step_title(step, report), *map(figure_text, figures)])
    heads = ['step', 'mean, ms', 'p50 alone, ms', 'p99 alone, ms']
    content = [bar_chart(title, bars, 'ms'), table('Steps', heads, rows)]
    yield element('div', *content, class_='charts')
    if report.encodings:
        rows = [
            [
                encoding,
                f'{time.frame_bytes / 1e6:.2f}',
                figure_text(time.upload_ms, 4),
                f'{time.letterbox_ms:.4f}',
            ]
            for encoding, time in report.encodings.items()
        ]
        yield table('Encodings', ['encoding', 'MB', 'upload, ms', 'letterbox kernel, ms'], rows)


def _pipelines(report: ModelReport) -> Iterator[Markup]:
    """Yield distributions of latency, throughput, and the time line at full load."""
    idle = {one.name: one.latency_percentiles_ms for one in report.pipelines[:_MAX_LINES]}
    busy = {one.name: one.busy_latency_percentiles_ms for one in report.pipelines[:_MAX_LINES]}
    charts = [
        _distribution_chart('Latency of a batch, one at a time', idle),
        _distribution_chart('Latency of a batch at full load', busy),
    ]
    bars = [
        Bar(one.name, [(0, one.frames_per_s, 0)], f'{one.frames_per_s:.1f}')
        for one in report.pipelines
    ]
    charts.append(bar_chart('Throughput at full load', bars, 'frames/s'))
    depths = sorted({one.depth for one in report.pipelines})
    batches = sorted({one.batch for one in report.pipelines})
    if len(depths) > 1 and len(batches) > 1:
        charts.append(_throughput_chart(report.pipelines, depths, batches))
    fastest = max(report.pipelines, key=lambda one: one.frames_per_s)
    charts.append(_time_line(fastest))
    yield element('div', *charts, class_='charts')
    heads = ['setting', 'latency p50, ms', 'p95', 'p99', 'p99.9', 'frames/s', 'p99 at full load']
    heads += ['enqueue', 'collect', 'CPU', 'GPU MiB', 'load, s']
    rows = []
    for one in report.pipelines:
        times, memory = one.latency_ms, one.device_memory_bytes
        shown = (times.p50, times.p95, times.p99, times.p999)
        own = (one.enqueue_ms.p50, one.collect_ms.p50, one.cpu_ms)
        rows.append(
            [
                *(one.name, *map(figure_text, shown), f'{one.frames_per_s:.1f}'),
                *(figure_text(one.busy_latency_ms.p99), *map(figure_text, own)),
                '–' if memory is None else f'{memory / _MIB:.0f}',
                f'{one.load_s:.1f}',
            ]
        )
    yield table('Settings; times in ms, medians without another word', heads, rows)


def _distribution_chart(title: str, percentiles: Mapping[str, Sequence[float]]) -> Markup:
    """Return a chart of the share of batches that are not slower than each latency."""
    lines = {
        key: [(value, index / 100) for index, value in enumerate(values)]
        for key, values in percentiles.items()
    }
    most = max((values[-1] for values in percentiles.values() if values), default=1.0)
    return line_chart(title, lines, 'latency, ms', 'share of batches', (0, most))


def _throughput_chart(
    pipelines: Sequence[PipelineReport], depths: Sequence[int], batches: Sequence[int]
) -> Markup:
    rates = {(one.batch, one.depth): one.frames_per_s for one in pipelines}
    lines = {
        f'batch {batch}': [(d, rates[batch, d]) for d in depths if (batch, d) in rates]
        for batch in batches[:_MAX_LINES]
    }
    most = max(rates.values()) * 1.05
    ends = float(depths[0]), float(depths[-1])
    return line_chart('Throughput by depth', lines, 'depth', 'frames/s', ends, (0, most))


def _time_line(one: PipelineReport) -> Markup:
    """Return the last batches at full load: enqueue, in flight, and collect."""
    bars = [
        Bar(
            f'slot {each.slot}',
            [
                (each.enqueue_start, each.enqueue_end - each.enqueue_start, 0),
                (each.enqueue_end, each.collect_start - each.enqueue_end, 1),
                (each.collect_start, each.collect_end - each.collect_start, 2),
            ],
        )
        for each in one.last_batches
    ]
    return bar_chart(f'Last batches at full load, {one.name}', bars, 'ms', _BATCH_PARTS)
