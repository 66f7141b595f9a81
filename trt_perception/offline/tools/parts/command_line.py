# SPDX-License-Identifier: Apache-2.0
"""Runs command-line tools: exit codes, messages, and saving of results."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from tqdm import tqdm

from trt_perception.errors import TrtPerceptionError
from trt_perception.files.plain_text import escape_controls

_Job = TypeVar('_Job')
_LINE_INTERVAL_S: Final = 10.0


def run_tool(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    prepare: Callable[[argparse.Namespace], _Job],
    work: Callable[[_Job, argparse.Namespace], int],
    interrupted: str = 'interrupted',
) -> int:
    """Run a command line and return its exit code. Errors go to standard error.

    Args:
        parser: parser of the tool. Its ``prog`` is the name of the tool.
        arguments: arguments of the tool; None uses the process arguments. ``options.command``
            holds the command line, quoted for a shell.
        prepare: reads and checks the files that the options name. An error ends the tool with
            code 2, wrong usage.
        work: runs the tool and returns the exit code. An error ends the tool with code 1.
        interrupted: message after Ctrl-C. The exit code is 130 then.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    options.command = shlex.join([parser.prog, *given])
    try:
        try:
            job = prepare(options)
        except TrtPerceptionError as error:
            print_message(parser.prog, error)
            return 2
        return work(job, options)
    except (TrtPerceptionError, OSError) as error:
        print_message(parser.prog, error)
        return 1
    except KeyboardInterrupt:
        print_message(parser.prog, interrupted)
        return 130


def print_message(tool: str, text: object) -> None:
    """Print a message of a tool on standard error, above a progress bar."""
    tqdm.write(escape_controls(f'{tool}: {text}'), file=sys.stderr)


@contextlib.contextmanager
def progress_bar(
    *, desc: str = '', unit: str = 'it', total: int | None = None, initial: int = 0
) -> Iterator[Callable[[int, int | None], None]]:
    """Show progress on standard error: as a bar on a terminal, otherwise as a line every 10 s.

    The time, for the rate and the time left, counts from the first call of the function.

    Args:
        desc: the first words.
        total: number of all items, for the bar before the first call.
        initial: number of items that were finished earlier.

    Yields:
        A function to call with the numbers of finished and of all items; None if it is unknown.
    """
    started_s = printed_s = None
    with tqdm(
        desc=desc or None,
        unit=unit,
        total=total,
        initial=initial,
        leave=False,
        dynamic_ncols=True,
        disable=not sys.stderr.isatty(),
    ) as bar:

        def progress(done: int, total: int | None) -> None:
            nonlocal started_s, printed_s
            now_s = time.monotonic()
            bar.total = total
            if started_s is None:
                started_s = printed_s = now_s
                bar.unpause()
                bar.refresh()
            bar.update(done - bar.n)
            if bar.disable and now_s - printed_s >= _LINE_INTERVAL_S:
                printed_s = now_s
                elapsed_s = now_s - started_s
                line = tqdm.format_meter(
                    done, total or 0, elapsed_s, ncols=0, prefix=desc, unit=unit, initial=initial
                )
                print(line, file=sys.stderr, flush=True)

        yield progress


class ResultSaver:
    """Writes the results of a tool. If one result cannot be saved, the others still are.

    Attributes:
        failed: whether any result could not be saved.
    """

    def __init__(self, tool: str) -> None:
        self.failed = False
        self._tool = tool

    def save(self, path: Path, write: Callable[..., str | None], *content: object) -> bool:
        """Write a result and print where it was saved. Return whether it could be saved.

        Args:
            write: function that writes ``content`` to ``path``. It may return a message that
                replaces ``saved PATH``.
            content: further arguments of ``write``.
        """
        try:
            message = write(path, *content) or f'saved {path}'
        except (TrtPerceptionError, OSError) as error:
            self.failed = True
            print_message(self._tool, f'not saved: {error}')
            return False
        print(escape_controls(message), flush=True)
        return True
