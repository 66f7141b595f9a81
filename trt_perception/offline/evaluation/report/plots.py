# SPDX-License-Identifier: Apache-2.0
"""Plots the accuracy of models: precision over recall, and AP50 of each category."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from trt_perception.offline.evaluation.metrics.average_precision import Metrics
from trt_perception.offline.evaluation.report.plot_files import new_figure, write_figure

# Show only the worst categories, because more bars are unreadable.
_MAX_CLASSES: Final = 20


def plot_accuracy(path: Path, models: Mapping[str, Metrics]) -> None:
    """Draw precision over recall at IoU or OKS 0.50, and AP50 of each category.

    Args:
        path: image file that ``check_plot`` accepted; written atomically.
        models: maps the name of each model to its metrics; at least one model.

    Raises:
        WriteError: the file cannot be written.
    """
    figure = new_figure(13, 5.5)
    left, right = figure.subplots(1, 2)
    _plot_curves(left, models)
    _plot_classes(right, models)
    write_figure(figure, path)


def _plot_curves(axes: Any, models: Mapping[str, Metrics]) -> None:
    """Draw the mean curve of each model. For a single model, also draw each category."""
    if len(models) == 1:
        (metrics,) = models.values()
        for curve in metrics.precisions50.values():
            axes.plot(metrics.recalls, curve, color='0.75', linewidth=0.8)
    for name, metrics in models.items():
        if metrics.precisions50:
            mean = np.mean(list(metrics.precisions50.values()), axis=0)
            axes.plot(metrics.recalls, mean, label=f'{name}: mAP50 {metrics.figures["mAP50"]:.3f}')
    axes.set(xlabel='recall', ylabel='precision', xlim=(0, 1), ylim=(0, 1.02))
    of = next(iter(models.values())).measure
    axes.set_title(
        f'{of.kind}, {of.similarity} 0.50, mean of categories'
        + ('; grey: each' if len(models) == 1 else '')
    )
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc='lower left')


def _plot_classes(axes: Any, models: Mapping[str, Metrics]) -> None:
    first = next(iter(models.values()))
    figures = {name: one.ap50 for name, one in first.classes.items() if one.ap50 is not None}
    worst = sorted(figures, key=lambda name: figures[name])[:_MAX_CLASSES]
    shown = [name for name in figures if name in worst]
    height = 0.8 / len(models)
    for index, (name, metrics) in enumerate(models.items()):
        # NaN draws no bar for a category that the model lacks.
        values = [
            metrics.classes[c].ap50 or 0 if c in metrics.classes else float('nan') for c in shown
        ]
        places = np.arange(len(shown)) + (index - (len(models) - 1) / 2) * height
        bars = axes.barh(places, values, height, label=name)
        if len(models) * len(shown) <= 30:
            axes.bar_label(bars, fmt='%.3f', padding=2, fontsize=8)
    axes.set_yticks(np.arange(len(shown)), shown)
    axes.invert_yaxis()
    axes.set(xlabel='AP50', xlim=(0, 1.1))
    cut = len(figures) - len(shown)
    axes.set_title(f'the {len(shown)} worst of {len(figures)} categories' if cut else 'categories')
    axes.grid(axis='x', alpha=0.3)
