"""What command lines share: numbers, and files that shall be written."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path

from trt_perception.errors import ConfigError

__all__ = ['at_least', 'check_output_file', 'check_plot']


def at_least(lowest: int) -> Callable[[str], int]:
    """Return a reader of whole numbers for argparse."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < lowest:
            raise argparse.ArgumentTypeError(
                f'expected a whole number from {lowest} on (got {text!r})'
            )
        return int(text)

    return number


def check_output_file(path: Path | None) -> None:
    """Find out before the work whether a file can stand there.

    Raises:
        ConfigError: its folder does not exist, or it is one.
    """
    if path is not None and (not path.parent.is_dir() or path.is_dir()):
        raise ConfigError(f'{path}: expected a file to write, in a folder that exists')


def check_plot(path: Path) -> None:
    """Find out before the work whether a plot can be drawn.

    Raises:
        ConfigError: the suffix is none of .png, .svg and .pdf, or matplotlib is not installed.
    """
    if path.suffix not in ('.png', '.svg', '.pdf'):
        raise ConfigError(f'--plot {path}: expected a .png, .svg or .pdf file')
    try:
        importlib.import_module('matplotlib.figure')
    except ImportError as error:
        raise ConfigError(
            f'--plot needs matplotlib ({error}): python3 -m pip install matplotlib, or sudo apt '
            'install python3-matplotlib'
        ) from error
