"""How command lines end: exit codes, and results saved one by one."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from trt_perception.errors import TrtPerceptionError
from trt_perception.files.plain_text import escape_controls

__all__ = ['ResultSaver', 'print_message', 'run_tool']

_Job = TypeVar('_Job')


def run_tool(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    prepare: Callable[[argparse.Namespace], _Job],
    work: Callable[[_Job, argparse.Namespace], int],
    interrupted: str = 'interrupted',
) -> int:
    """Run a command line; return its exit code. Errors go to standard error.

    Args:
        parser: of the tool, named after it.
        arguments: those of the process by default; ``options.command`` says them as in a shell.
        prepare: reads and checks what the options name: an error there is wrong usage, 2.
        work: does the rest and returns the exit code; an error there is 1.
        interrupted: what is said on Ctrl-C; the exit code is 130.
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
    """Print a tool's message on standard error."""
    print(escape_controls(f'{tool}: {text}'), file=sys.stderr)


class ResultSaver:
    """Writes a tool's results; one that cannot be saved keeps no other from being written.

    Args:
        tool: its name, for messages.

    Attributes:
        failed: something was not saved.
    """

    def __init__(self, tool: str) -> None:
        self.failed = False
        self._tool = tool

    def save(self, path: Path, write: Callable[..., str | None], *content: object) -> None:
        """Write a result and say so.

        Args:
            path: where.
            write: writes it, given path and content; may return what to say instead of
                ``saved PATH``.
            content: what is written.
        """
        try:
            said = write(path, *content) or f'saved {path}'
        except (TrtPerceptionError, OSError) as error:
            self.failed = True
            print_message(self._tool, f'not saved: {error}')
        else:
            print(escape_controls(said), flush=True)
