# SPDX-License-Identifier: Apache-2.0
"""Plots benchmark results: steps, latency and throughput of each model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trt_perception.offline.benchmarking.measure import PipelineReport
from trt_perception.offline.benchmarking.model_report import ModelReport
from trt_perception.offline.evaluation.report.plot_files import new_figure, write_figure


def plot_reports(path: Path, reports: Sequence[ModelReport]) -> None:
    """Draw a row of three diagrams for each model.

    Args:
        path: image file that ``check_plot`` accepted; written atomically.
        reports: results of at least one model.

    Raises:
        WriteError: the file cannot be written.
    """
    figure = new_figure(14, 3.6 * len(reports))
    axes = figure.subplots(len(reports), 3, squeeze=False)
    for row, report in zip(axes, reports, strict=True):
        _plot_steps(row[0], report)
        _plot_latency(row[1], report)
        _plot_throughput(row[2], report)
    write_figure(figure, path)


def _label(pipeline: PipelineReport) -> str:
    return pipeline.name.replace(', ', '\n')


def _plot_steps(axes: Any, report: ModelReport) -> None:
    names = list(report.stages)[::-1]
    bars = axes.barh(names, [report.stages[name].mean_ms for name in names], color='tab:blue')
    axes.bar_label(bars, fmt='%.3f', padding=2)
    axes.set_title(report.name)
    axes.set_xlabel('ms, mean')
    axes.margins(x=0.15)


def _plot_latency(axes: Any, report: ModelReport) -> None:
    """Draw the median latency in an idle pipeline, with a whisker to the 99th percentile."""
    all_statistics = {_label(p): p.latency_ms for p in report.pipelines}
    p50 = [statistics.p50 for statistics in all_statistics.values()]
    above = [statistics.p99 - statistics.p50 for statistics in all_statistics.values()]
    bars = axes.bar(list(all_statistics), p50, yerr=([0] * len(p50), above), capsize=4)
    axes.bar_label(bars, labels=[f'{value:.2f}' for value in p50], padding=2)
    alone = f'{report.network} alone'
    axes.axhline(report.engine_ms, color='black', linestyle=':', label=alone)
    axes.set_ylabel('latency, ms: p50, whisker to p99')
    axes.margins(y=0.3)  # leave room for the legend above the bars
    axes.legend(loc='upper right')


def _plot_throughput(axes: Any, report: ModelReport) -> None:
    rates = {_label(p): p.frames_per_s for p in report.pipelines}
    bars = axes.bar(list(rates), list(rates.values()), color='tab:green')
    axes.bar_label(bars, fmt='%.0f')
    alone = f'1 / {report.network} alone'
    axes.axhline(1e3 / report.engine_ms, color='black', linestyle=':', label=alone)
    axes.set_ylabel('frames/s at full load')
    axes.margins(y=0.15)
    axes.legend()
