# SPDX-License-Identifier: Apache-2.0
"""Creates plots with matplotlib, which is imported only if a plot is requested."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import Any

from trt_perception.errors import ConfigError
from trt_perception.files.atomic_files import write_atomically


def check_plot(path: Path) -> None:
    """Check before a long run that a plot can be drawn.

    Raises:
        ConfigError: the suffix is not .png, .svg or .pdf, or matplotlib is not installed.
    """
    if path.suffix not in ('.png', '.svg', '.pdf'):
        raise ConfigError(
            f'--plot {path}', f'suffix {path.suffix!r}', expected='a .png, .svg or .pdf file'
        )
    try:
        new_figure(1, 1)
    except ImportError as error:
        raise ConfigError(
            '--plot',
            f'needs matplotlib ({error})',
            fix='install it: python3 -m pip install matplotlib, or '
            'sudo apt install python3-matplotlib',
        ) from error


def new_figure(width: float, height: float) -> Any:
    """Return an empty matplotlib figure; width and height are in inches."""
    figures = importlib.import_module('matplotlib.figure')
    return figures.Figure((width, height), layout='constrained')


def write_figure(figure: Any, path: Path) -> None:
    """Write a figure atomically in the format of the suffix.

    Raises:
        WriteError: the file cannot be written.
    """
    content = io.BytesIO()
    figure.savefig(content, dpi=110, format=path.suffix.removeprefix('.'))
    write_atomically({path: content.getvalue()})
