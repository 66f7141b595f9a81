# SPDX-License-Identifier: Apache-2.0
"""Separates the ROS arguments of a command line from the program's options, and checks both."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import shlex
import stat
import sys
import textwrap
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.utilities import remove_ros_args

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import escape_controls
from trt_perception.parameters.camera import suggest_assignment
from trt_perception.parameters.sections import check_parameter_file, first_mixed_list
from trt_perception.process.option_parser import OptionParser

_NAME_RULE: Final = re.compile(r'(?:[^:]*:)?__(node|name|ns):=(.*)', re.DOTALL)
# Limits of rmw in characters.
_MAX_NAME_LENGTHS: Final[Mapping[str, int]] = {'node': 255, 'name': 255, 'ns': 245}


def parse_own_arguments(parser: OptionParser, command_line: list[str]) -> argparse.Namespace:
    """Parse the program's own options of a command line, which begins with the program's name.

    ROS reads ``NAME:=VALUE`` outside ``--ros-args`` as a remapping, as ROS 1 did. If the name is a
    parameter or an option, the argument is refused, because the node would ignore the value.
    """
    try:
        check_ros_arguments(command_line)
        own = remove_ros_args(command_line)[1:]
    except Exception as error:
        # rclpy raises several exception types for unreadable arguments and YAML.
        sys.exit(report_wrong_usage(error))
    options: argparse.Namespace
    options, unknown = parser.parse_known_args(own)
    outside = [word for word, is_ros in mark_ros_arguments(command_line[1:]) if not is_ros]
    taken = [word for word in outside if word not in own and parser.suggestion(word)]
    if unknown or taken:
        parser.refuse([*unknown, *taken])
    return options


def mark_ros_arguments(arguments: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield each word, and whether the word is between ``--ros-args`` and ``--``."""
    inside = False
    for word in arguments:
        inside = word == '--ros-args' or (inside and word != '--')
        yield word, inside


def check_ros_arguments(arguments: Sequence[str]) -> None:
    """Refuse parameter files that ROS does not explain well, and node names that are too long.

    ROS reads the file several times, and the second read of a pipe would never return. For a name
    that is too long, rclpy raises the same RCLError as for a failure of the middleware.

    Raises:
        ConfigError: a parameter file is missing, a pipe, not YAML, without ros__parameters, or
            has a list of texts and other values; or a name or namespace is too long.
    """
    for word in arguments:
        if rule := _NAME_RULE.fullmatch(word):
            kind, name = rule.groups()
            if len(name) > _MAX_NAME_LENGTHS[kind]:
                what = 'namespace of the node' if kind == 'ns' else 'name of the node'
                raise ConfigError(
                    what,
                    f'{len(name)} characters',
                    expected=f'at most {_MAX_NAME_LENGTHS[kind]} characters',
                )
    for option, value in itertools.pairwise(arguments):
        if option == '--params-file':
            try:
                is_pipe = stat.S_ISFIFO(os.stat(value).st_mode)
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                found = f'cannot be read: {reason}'
                raise ConfigError(f'--params-file {value}', found) from error
            if is_pipe:
                found = 'a pipe, which ROS cannot read several times'
                raise ConfigError(f'--params-file {value}', found, expected='a file')
            check_parameter_file(Path(value), f'--params-file {value}')
            if mixed := first_mixed_list(Path(value)):
                raise ConfigError(
                    f'--params-file {value}: {mixed}',
                    'a list of texts and other values',
                    expected='values of one type',
                    fix='put texts in quotes, because YAML reads yes, no, on, off, y, n and 12 as '
                    'other values',
                )


def report_wrong_usage(error: Exception) -> int:
    """Print the mistakes of the command line, one line for each. Return the exit code."""
    text = '\n'.join(ros_argument_mistakes(error))
    print(textwrap.indent(escape_controls(text), 'error: '), file=sys.stderr)
    return 2


def ros_argument_mistakes(error: Exception) -> list[str]:
    """Return one sentence for each mistake in the ROS arguments that an exception describes.

    Args:
        error: exception of rclpy or of this package.
    """
    if isinstance(error, rclpy_implementation.UnknownROSArgsError):
        with contextlib.suppress(ValueError, SyntaxError):  # Jazzy's message is a Python list
            words = literal_eval(str(error))
            return [f'{word} is not a ROS argument{_suggestion(word)}' for word in words]
    return [str(error)]


def _suggestion(word: str) -> str:
    name, given, value = word.partition(':=')
    if not given:
        return ''
    assignment = suggest_assignment(name, [value])
    meant = f'-p {shlex.quote(assignment)}' if assignment else f'-r {shlex.quote(word)}'
    return f'; did you mean {meant}?'
