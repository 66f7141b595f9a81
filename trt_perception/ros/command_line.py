"""Command lines of nodes: what is ROS's, what is the program's, and what ROS takes wrongly."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import stat
import sys
import textwrap
from collections.abc import Iterator
from collections.abc import Sequence

from rclpy.utilities import remove_ros_args

from trt_perception.errors import ConfigError
from trt_perception.option_parser import OptionParser
from trt_perception.plain_text import plain

__all__ = ['check_ros_arguments', 'own_arguments', 'wrong_usage']

_NAMING = re.compile('([^:]*:)?__(node|name|ns):=')
# ROS 2 takes topics and services of up to 247, of which /set_parameters_atomically is the end.
_LONGEST_NAMES = 200


def own_arguments(parser: OptionParser, command_line: list[str]) -> argparse.Namespace:
    """Parse what is not ROS's of a command line, which begins with the program's name.

    What stands outside ``--ros-args`` as ``NAME:=VALUE`` is to ROS a topic's new name, as ROS 1
    had it. Where the parser knows the name as a parameter or an option it is refused instead: the
    node would run without it.
    """
    try:
        check_ros_arguments(command_line)
        own = remove_ros_args(command_line)[1:]
    except Exception as error:  # rclpy has several for arguments and YAML that it cannot read
        sys.exit(wrong_usage(error))
    options: argparse.Namespace
    options, unknown = parser.parse_known_args(own)
    taken = [word for word in _outside(command_line) if word not in own and parser.meant(word)]
    if unknown or taken:
        parser.refuse([*unknown, *taken])
    return options


def _outside(command_line: Sequence[str]) -> Iterator[str]:
    """Find the arguments that do not stand between ``--ros-args`` and ``--``."""
    inside = False
    for word in command_line[1:]:
        inside = word == '--ros-args' or (inside and word != '--')
        if not inside:
            yield word


def check_ros_arguments(arguments: Sequence[str]) -> None:
    """Refuse what rcl would wait for, or fail on with a traceback, once it makes the node.

    Raises:
        ConfigError: a parameter file is a pipe, a remapping has ``{camera}``, or name and
            namespace are too long.
    """
    for option, value in itertools.pairwise(arguments):
        if option == '--params-file':
            with contextlib.suppress(OSError, ValueError):  # rcl says what is wrong with it
                if stat.S_ISFIFO(os.stat(value).st_mode):
                    found = 'a pipe, and ROS reads it several times'
                    raise ConfigError(f'--params-file {value}', found, expected='a file')
        if option in ('-r', '--remap') and '{camera}' in value:
            raise ConfigError(
                f'{option} {value}',
                'ROS knows no {camera}',
                fix='remap the topic of each camera, as in -r front/image:=/front/image_raw; '
                'or image_topic:=/{camera}/image_raw of detect.launch.py',
            )
    names = [word.partition(':=')[2] for word in arguments if _NAMING.match(word)]
    if (length := sum(map(len, names))) > _LONGEST_NAMES:
        raise ConfigError(
            'namespace and name of the node',
            f'{length} characters',
            expected=f'at most {_LONGEST_NAMES}, because its services have longer names',
        )


def wrong_usage(error: Exception) -> int:
    """Say what is wrong with the command line, a sentence a line; return the exit code."""
    print(textwrap.indent(plain(error), 'error: '), file=sys.stderr)
    return 2
