# SPDX-License-Identifier: Apache-2.0
"""The figures of `scripts/bench peers_dds`: medians, the table and the plot.

python scripts/benchmarks/peers/dds_report.py peers_dds.json                print the table
python scripts/benchmarks/peers/dds_report.py peers_dds.json peers_dds.png  draw the plot
"""

from __future__ import annotations

import statistics

FIGURES = 'p50_ms', 'p95_ms', 'p99_ms', 'lost_share', 'cpu_ms', 'pss_mib', 'gpu_mib', 'objects'
TITLES = {
    'ours': 'trt_perception, one node',
    'ultralytics': 'Ultralytics in rclpy, a node each',
    'onnxruntime': 'ONNX Runtime and OpenCV in rclpy, a node each',
}
HEADS = 'p50, ms', 'p95, ms', 'p99, ms', 'lost', 'CPU, ms', 'host, MiB', 'GPU, MiB', 'boxes'
_FORMS = '{:.1f}', '{:.1f}', '{:.1f}', '{:.1%}', '{:.1f}', '{:.0f}', '{:.0f}', '{:.0f}'


def figures_of(found):
    """Return the figures of one round; None if unknown.

    ``lost_share`` is the share of the sent images without detections, and ``objects`` the mean
    number of boxes in a message.
    """
    counts = found['objects'].values()
    shares = {'lost_share': found['lost'] / found['sent'] if found['sent'] else None}
    return {**found, **shares, 'objects': statistics.fmean(counts) if counts else None}


def summary(case):
    """Return the median of each figure over the rounds, by side; None if a round lacks it."""
    medians = {}
    for name, side in case['sides'].items():
        rounds = [figures_of(found) for found in side['rounds']]
        columns = {key: [found[key] for found in rounds] for key in FIGURES}
        if rounds:
            medians[name] = {
                key: None if None in values else statistics.median(values)
                for key, values in columns.items()
            }
    return medians


def title(count, name):
    """Return the first cell of a side's row."""
    return f'{count} camera{"s" if count > 1 else ""}: {TITLES[name]}'


def table_rows(record):
    """Return the rows of the table: a title and a cell for each of HEADS."""
    return [
        (
            title(case['count'], name),
            *(
                '-' if median[key] is None else form.format(median[key])
                for key, form in zip(FIGURES, _FORMS, strict=True)
            ),
        )
        for case in record['cases']
        for name, median in case['medians'].items()
    ]


def print_table(record):
    """Print the table."""
    for first, *cells in [('', *HEADS), *table_rows(record)]:
        print(f'{first:58}' + ''.join(f'{cell:>11}' for cell in cells))
    for case in record['cases']:
        for name, error in case['failures'].items():
            print(f'{title(case["count"], name)} failed: {error.rpartition(chr(10))[2]}')


def plot(record, path):
    """Draw latency and CPU time of each side, and the lost images."""
    from trt_perception.offline.evaluation.report.plot_files import new_figure, write_figure

    rows = [
        (title(case['count'], name), name, median)
        for case in record['cases']
        for name, median in case['medians'].items()
    ][::-1]
    figure = new_figure(13, 1.2 + 0.35 * len(rows))
    axes = figure.subplots(1, 4, sharey=True)
    colors = ['tab:blue' if name == 'ours' else 'tab:gray' for _, name, _ in rows]
    columns = {
        'p50_ms': ('latency p50, ms', '%.1f'),
        'p99_ms': ('latency p99, ms', '%.1f'),
        'lost_share': ('lost images, %', '%.1f'),
        'cpu_ms': ('CPU, ms', '%.1f'),
    }
    for axis, (key, (label, form)) in zip(axes, columns.items(), strict=True):
        factor = 100 if key == 'lost_share' else 1
        values = [factor * (median[key] or 0) for _, _, median in rows]
        bars = axis.barh([name for name, _, _ in rows], values, color=colors)
        axis.bar_label(bars, fmt=form, padding=2)
        axis.set_xlabel(label)
        axis.set_xlim(0, 1.35 * max(values) or 1)  # all lost images may be 0
    write_figure(figure, path)


if __name__ == '__main__':
    from show_record import show_record  # here, because importers of this file may not find it

    show_record(__doc__, print_table, plot)
