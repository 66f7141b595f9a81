# SPDX-License-Identifier: Apache-2.0
"""The figures of `scripts/bench peers`: medians, agreement of the boxes, tables and the plot.

python scripts/benchmarks/peers/report.py peers.json            print the table
python scripts/benchmarks/peers/report.py peers.json peers.png  draw the plot
"""

from __future__ import annotations

import statistics

import numpy as np

LOWEST_IOU = 0.9
FIGURES = 'frames_per_s', 'p50_ms', 'p99_ms', 'cpu_ms', 'host_mib'
#: Maps the beginning of a side's name to its title.
TITLES = {
    'ours_1': 'trt_perception, one frame in flight',
    'ours_8': 'trt_perception, eight in flight',
    'ours_8_locked': 'the same, frames in page-locked memory',
    'ours_python': '`tp.load` in Python',
    'ultralytics': 'Ultralytics, PyTorch FP16, default padding',
    'ultralytics_square': 'Ultralytics, PyTorch FP16, square input',
    'tensorrt': 'the same engine, OpenCV, blocking copies',
    'limit_1': 'limit: only upload and graph, one in flight',
    'limit_8': 'limit, eight in flight',
}
HEADS = (
    *('program', 'frames/s', 'p50, ms', 'p99, ms', 'CPU, ms'),
    *('GPU, MiB', 'host, MiB', 'same boxes'),
)


def title(name, side):
    """Return the title of a side in the table."""
    if name in TITLES:
        return TITLES[name]
    return f'ONNX Runtime, `{side["model"]}`, OpenCV'


def agreement(reference, found):
    """Compare the boxes of two sides over all frames.

    Boxes of the same class and frame are pairs if their IoU is at least 0.9. Each box is in one
    pair at most; larger overlaps come first.

    Args:
        reference: arrays ``frame``, ``xyxy``, ``scores`` and ``class_ids`` of the first side.
        found: the same arrays of the other side.
    """
    overlap = ious(reference['xyxy'], found['xyxy'])
    for key in ('frame', 'class_ids'):
        overlap[reference[key][:, None] != found[key]] = 0
    # Sort the possible pairs once: searching the whole array for each pair took 17 times as long
    # with 2400 boxes.
    pairs = np.argwhere(overlap >= LOWEST_IOU)
    order = np.argsort(-overlap[tuple(pairs.T)], kind='stable')
    rows, columns, differences = set(), set(), []
    for row, column in pairs[order].tolist():
        if row in rows or column in columns:
            continue
        rows.add(row)
        columns.add(column)
        difference = float(reference['scores'][row]) - float(found['scores'][column])
        differences.append(abs(difference))
    counts = len(reference['scores']), len(found['scores'])
    return {
        'reference_boxes': counts[0],
        'boxes': counts[1],
        'pairs': len(differences),
        'share': 2 * len(differences) / sum(counts) if sum(counts) else None,
        'max_score_difference': max(differences, default=None),
        'mean_score_difference': statistics.fmean(differences) if differences else None,
    }


def ious(one, other):
    """Return the IoU of all pairs of boxes, float64 (n, m)."""
    one, other = one[:, None].astype(float), other[None].astype(float)
    sides = np.minimum(one[..., 2:], other[..., 2:]) - np.maximum(one[..., :2], other[..., :2])
    common = sides.clip(0).prod(axis=2)
    areas = [(boxes[..., 2:] - boxes[..., :2]).prod(axis=2) for boxes in (one, other)]
    union = areas[0] + areas[1] - common
    return np.divide(common, union, out=np.zeros(common.shape), where=union > 0)


def summary(record):
    """Return the median of each figure over the rounds, by side."""
    return {
        name: {key: statistics.median(each[key] for each in side['rounds']) for key in FIGURES}
        for name, side in record['sides'].items()
        if side['rounds']
    }


def table_rows(record):
    """Return the rows of the table: a cell for each of HEADS."""
    rows = []
    for name, median in record['medians'].items():
        side = record['sides'][name]
        gpu_mib, share = side['gpu_mib'], side['agreement']['share']
        rows.append(
            (
                title(name, side),
                f'{median["frames_per_s"]:.0f}',
                *(f'{median[key]:.2f}' for key in ('p50_ms', 'p99_ms', 'cpu_ms')),
                '-' if gpu_mib is None else f'{gpu_mib:.0f}',
                f'{median["host_mib"]:.0f}',
                '-' if share is None else f'{100 * share:.1f} %',
            )
        )
    return rows


def print_table(record):
    """Print the table."""
    rows = [HEADS, *table_rows(record)]
    for first, *cells in rows:
        print(f'{first:48}' + ''.join(f'{cell:>12}' for cell in cells))
    for name, error in record['failures'].items():
        print(f'{name} failed: {error.splitlines()[-1] if error else "no message"}')


def plot(record, path):
    """Draw frames per second, latency and CPU time of each side."""
    from trt_perception.offline.evaluation.report.plot_files import new_figure, write_figure

    rows = [(title(name, record['sides'][name]), each) for name, each in record['medians'].items()]
    names = [name.replace('`', '') for name, _ in rows][::-1]
    figure = new_figure(13, 1.2 + 0.35 * len(rows))
    axes = figure.subplots(1, 3, sharey=True)
    colors = ['tab:blue' if name.startswith('ours') else 'tab:gray' for name in record['medians']]
    figures = {'frames_per_s': 'frames/s', 'p50_ms': 'latency p50, ms', 'cpu_ms': 'CPU, ms'}
    for axis, (key, label) in zip(axes, figures.items(), strict=True):
        values = [median[key] for _, median in rows][::-1]
        bars = axis.barh(names, values, color=colors[::-1])
        axis.bar_label(bars, fmt='%.0f' if key == 'frames_per_s' else '%.2f', padding=2)
        axis.set_xlabel(label)
        axis.margins(x=0.2)
    write_figure(figure, path)


if __name__ == '__main__':
    from show_record import show_record  # here, because importers of this file may not find it

    show_record(__doc__, print_table, plot)
