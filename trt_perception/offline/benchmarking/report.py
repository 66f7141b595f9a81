# SPDX-License-Identifier: Apache-2.0
"""Formats benchmark results as text tables, and describes the machine."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np

from trt_perception.files.plain_text import format_table
from trt_perception.gpu import Device, versions
from trt_perception.offline.benchmarking.measure import (
    PipelineReport,
    TimeStatistics,
    measurement_name,
)
from trt_perception.offline.benchmarking.model_report import BestSetting, ModelReport
from trt_perception.offline.evaluation.image_tasks.agreement import ImageAgreement
from trt_perception.offline.evaluation.metrics.agreement import Agreement

_STEP_TITLES: Final = {
    'engine_graph': 'engine, CUDA graph',
    'engine_enqueue': 'engine, enqueue',
    'upload': 'upload',
    'letterbox': 'letterbox kernel',
    'decode': 'filter and NMS',
    'masks': 'mask image, if subscribed',
    'maps': 'class or depth map',
    'download': 'download of the outputs',
    'host_decode': 'decoding on the host',
    'graph': 'whole graph',
    'upload_graph': 'upload and whole graph',
}
_MIB: Final = 1024 * 1024


def describe_machine(device_id: int | None) -> dict[str, Any]:
    """Return the hardware and software of this machine that affect the measured times.

    Unknown values are None.

    Args:
        device_id: CUDA device of the measurements; None if no GPU was used.
    """
    return {
        'processor': _first_value_in_file('/proc/cpuinfo', 'model name') or platform.machine(),
        'cores': len(os.sched_getaffinity(0)),
        'board': _first_value_in_file('/proc/device-tree/model'),
        'system': platform.platform(),
        'gpu': None if device_id is None else _describe_gpu(device_id),
        'python': platform.python_version(),
        'numpy': np.__version__,
        'opencv': cv2.__version__,
        'opencv_threads': cv2.getNumThreads(),
        # Only runtimes that ran a model are loaded. The others are None.
        **{
            name: getattr(sys.modules.get(name), '__version__', None)
            for name in ('onnxruntime', 'tensorrt', 'tensorrt_lean', 'tensorrt_rtx')
        },
    }


def _describe_gpu(device_id: int) -> dict[str, Any]:
    device = Device(device_id)
    return {
        'name': device.name,
        'compute_capability': '.'.join(map(str, device.compute_capability)),
        'integrated': device.integrated,
        'memory_bytes': device.memory()[1],
        'driver': _first_value_in_file('/proc/driver/nvidia/version', 'NVRM version'),
        'cuda_bindings': _package_version('cuda-bindings'),
        'cuda': versions(),
    }


def _first_value_in_file(path: str, key: str = '') -> str | None:
    """Return the value of the first line that starts with the key. An empty key fits any line."""
    try:
        text = Path(path).read_text(encoding='utf-8', errors='replace')
    except OSError:
        return None
    lines = (line for line in text.replace('\0', '').splitlines() if line.startswith(key))
    line = next(lines, None)
    return ' '.join(line.removeprefix(key).lstrip(' \t:').split()) if line else None


def _package_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def model_text(report: ModelReport, max_latency_ms: float | None = None) -> str:
    """Return all tables of one model.

    Args:
        max_latency_ms: latency limit that the user set; None without a limit.
    """
    tensors = ', '.join(
        f'{tensor.name} {tensor.dtype}{list(tensor.shape)}'
        for tensor in (report.input, report.output)
    )
    parts = [f'{report.name}: {report.runtime}; {tensors}{_box_counts_text(report)}']
    parts.append(_stage_table(report))
    if report.encodings:
        parts.append(_encoding_table(report))
    if report.pipelines:
        parts.append(_pipeline_table(report))
        if len({pipeline.batch for pipeline in report.pipelines}) > 1:
            parts.append(_batch_table(report))
        if report.ratios:
            parts.append(_ratio_table(report))
        parts += _best_setting_lines(report, max_latency_ms)
    if report.left_out:
        sizes = ', '.join(map(str, report.left_out))
        parts.append(
            f'not measured: batch {sizes}; the maximum of the model is {report.most_at_once}'
        )
    if report.candidates and max(report.candidates) == 0:
        parts.append(
            'no frame has a box above the threshold, so decoding and NMS had no work; give '
            'images with objects that the model detects (--image)'
        )
    unequal = sum(pipeline.unequal for pipeline in report.pipelines)
    if unequal:
        parts.append(f'the results of {unequal} frames differ from their first run')
    return '\n\n'.join(parts) + '\n'


def _box_counts_text(report: ModelReport) -> str:
    """Return a line with the numbers of boxes; empty if the task has no objects."""
    if not report.candidates:
        return ''
    low, high = min(report.candidates), max(report.candidates)
    passed = f'{low}' if low == high else f'{low} to {high}'
    detections = ''
    if report.pipelines:
        detections = f' and {report.pipelines[0].detections:.4g} detections'
    return f'\n{passed} candidates{detections} a frame'


def comparison_text(
    reports: Sequence[ModelReport], agreements: Sequence[Agreement | ImageAgreement | None]
) -> str:
    """Return a table of all models, each at its setting with the most frames/s.

    Args:
        agreements: agreement of each further model with the first; None if unknown.
    """
    known = (agreement.figures for agreement in agreements if agreement)
    measures = next((tuple(figures) for figures in known), ('F1', 'IoU', 'score difference'))
    heads = 'latency p50', 'p99', 'frames/s', 'GPU MiB', 'load s', *measures
    rows = [['comparison, ms', 'setting', *heads]]
    for report, agreement in zip(reports, (None, *agreements), strict=True):
        best = max(report.pipelines, key=lambda each: each.frames_per_s, default=None)
        if best is not None:
            times = best.latency_ms
            rows.append(
                [
                    report.name,
                    best.name,
                    _format_ms(times.p50),
                    _format_ms(times.p99),
                    f'{best.frames_per_s:.1f}',
                    _memory_text(best),
                    f'{best.load_s:.1f}',
                    *_agreement_cells(agreement, len(measures)),
                ]
            )
    return format_table(rows)


def _agreement_cells(agreement: Agreement | ImageAgreement | None, count: int) -> list[str]:
    figures = [] if agreement is None else [*agreement.figures.values()]
    values = [value for value in figures if value is not None]
    return [f'{value:.4f}' for value in values] if len(values) == count else [''] * count


def _stage_table(report: ModelReport) -> str:
    rows = [['step, ms', 'mean', 'p50 alone', 'p99 alone']]
    for name, stage in report.stages.items():
        alone = stage.alone_ms
        rows.append(
            [
                step_title(name, report),
                _format_ms(stage.mean_ms),
                _format_ms(alone.p50 if alone else None),
                _format_ms(alone.p99 if alone else None),
            ]
        )
    return format_table(rows)


def step_title(name: str, report: ModelReport) -> str:
    """Return the title of a step in tables and charts."""
    return _STEP_TITLES.get(name, name) if 'engine_enqueue' in report.stages else name


def _encoding_table(report: ModelReport) -> str:
    rows = [['encoding, ms', 'MB', 'upload', 'letterbox kernel']]
    for name, time in report.encodings.items():
        megabytes = f'{time.frame_bytes / 1e6:.2f}'
        rows.append([name, megabytes, _format_ms(time.upload_ms), _format_ms(time.letterbox_ms)])
    return format_table(rows)


def _pipeline_table(report: ModelReport) -> str:
    heads = 'latency p50', 'p95', 'p99', 'p99.9', 'frames/s', 'enqueue', 'collect', 'CPU'
    rows = [['pipeline, ms', *heads, 'GPU MiB', 'load s', 'frames']]
    for pipeline in report.pipelines:
        times = pipeline.latency_ms
        rows.append(
            [
                pipeline.name,
                *map(_format_ms, (times.p50, times.p95, times.p99, times.p999)),
                f'{pipeline.frames_per_s:.1f}',
                _format_ms(pipeline.enqueue_ms.p50),
                _format_ms(pipeline.collect_ms.p50),
                _format_ms(pipeline.cpu_ms),
                _memory_text(pipeline),
                f'{pipeline.load_s:.1f}',
                _frame_counts(times, pipeline.busy_latency_ms),
            ]
        )
    return format_table(rows)


def _memory_text(pipeline: PipelineReport) -> str:
    memory = pipeline.device_memory_bytes
    return '' if memory is None else f'{memory / _MIB:.0f}'


def _batch_table(report: ModelReport) -> str:
    """Return throughput and latency at full load, with a row for each batch size."""
    depths = list(dict.fromkeys(pipeline.depth for pipeline in report.pipelines))
    cells = {(pipeline.batch, pipeline.depth): pipeline for pipeline in report.pipelines}
    rows = [['frames/s (p50, p99 of a batch, ms)', *(f'depth {depth}' for depth in depths)]]
    for batch in dict.fromkeys(batch for batch, _ in cells):
        row = [f'batch {batch}']
        for depth in depths:
            cell = cells.get((batch, depth))
            busy = cell and cell.busy_latency_ms
            row.append(
                f'{cell.frames_per_s:.0f} ({busy.p50:.2f}, {busy.p99:.2f})'
                if cell and busy
                else ''
            )
        rows.append(row)
    return format_table(rows)


def _best_setting_lines(report: ModelReport, max_latency_ms: float | None) -> list[str]:
    """Return the best settings, if several were measured or a limit is set."""
    lines = []
    if len(report.pipelines) > 1 and report.best:
        lines.append(f'most frames/s: {_setting_text(report.best)}')
    if max_latency_ms is not None:
        found = report.best_within_limit
        words = _setting_text(found) if found else 'no setting has this latency at full load'
        lines.append(f'most frames/s within {max_latency_ms:g} ms: {words}')
    return ['\n'.join(lines)] if lines else []


def _setting_text(best: BestSetting) -> str:
    return (
        f'{measurement_name(best.batch, best.depth)}: {best.frames_per_s:.0f}, '
        f'p99 {best.p99_ms:.2f} ms at full load'
    )


def _frame_counts(*all_statistics: TimeStatistics) -> str:
    """Return the numbers of measured frames, or one number if all are equal."""
    return ', '.join(str(count) for count in dict.fromkeys(each.count for each in all_statistics))


def _ratio_table(report: ModelReport) -> str:
    network = report.network
    heads = f'frames/s x {network}', f'p50 - {network}, ms', 'p99 / p50'
    rows = [[f'{network} {report.engine_ms:.3f} ms', *heads]]
    for ratio in report.ratios:
        throughput, tail = f'{ratio.throughput_x_engine:.3f}', f'{ratio.p99_over_p50:.3f}'
        rows.append(
            [f'depth {ratio.depth}', throughput, _format_ms(ratio.p50_minus_engine_ms), tail]
        )
    return format_table(rows)


def _format_ms(value: float | None) -> str:
    return '' if value is None else f'{value:.4f}' if abs(value) < 0.1 else f'{value:.3f}'
