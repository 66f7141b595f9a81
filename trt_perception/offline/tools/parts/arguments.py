# SPDX-License-Identifier: Apache-2.0
"""Types and checks of arguments that several command-line tools use."""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import short_repr

_MAX_DIGITS: Final = 100


def integer_at_least(lowest: int, highest: int | None = None) -> Callable[[str], int]:
    """Return an argparse type for integers from ``lowest`` to ``highest``; None for no limit."""
    limits = f'at least {lowest}' if highest is None else f'{lowest} to {highest}'

    def number(text: str) -> int:
        # int() refuses texts of thousands of digits.
        is_number = text.isdecimal() and len(text) <= _MAX_DIGITS
        if not is_number or not lowest <= int(text) <= (highest or math.inf):
            raise argparse.ArgumentTypeError(
                f'expected a whole number, {limits} (got {short_repr(text)})'
            )
        return int(text)

    return number


def positive_number(text: str) -> float:
    """Convert an argument to a finite number above 0. An argparse type."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f'expected a number above 0 (got {short_repr(text)})')
    return number


def parse_path(text: str) -> Path:
    """Convert an argument to a path. This argparse type expands ``~`` in quoted arguments."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path (got '')")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f'{text}: {error}') from error


def add_file_option(parser: argparse._ActionsContainer, option: str, help_text: str) -> None:
    """Add an option that takes the path of a file."""
    parser.add_argument(option, type=parse_path, metavar='FILE', help=help_text)


def check_output_file(path: Path | None) -> None:
    """Check before a long run that a file can be written.

    Args:
        path: None if the user asked for no file.

    Raises:
        ConfigError: the folder is missing or not writable, or the path is a folder.
    """
    if path is None:
        return
    if not path.parent.is_dir() or path.is_dir():
        found, expected = 'a folder, or a path in a missing folder', 'a file in an existing folder'
        raise ConfigError(str(path), found, expected=expected)
    if not path.exists() or path.is_file():  # a terminal or a pipe needs no new file
        _check_writable(path, path.parent)


def check_output_folder(path: Path | None) -> None:
    """Check before a long run that files can be written into a folder, which may be missing.

    Args:
        path: None if the user asked for no folder.

    Raises:
        ConfigError: the parent folder is missing, the path is a file, or nothing can be written.
    """
    if path is None:
        return
    if not path.parent.is_dir() or (os.path.lexists(path) and not path.is_dir()):
        found, expected = 'a file, or a path in a missing folder', 'a folder in an existing folder'
        raise ConfigError(str(path), found, expected=expected)
    _check_writable(path, path if path.is_dir() else path.parent)


def _check_writable(path: Path, folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            str(path),
            f'cannot be written: no file can be created in {folder.absolute()} ({error.strerror})',
            fix='choose another place, or make that folder writable',
        ) from error
