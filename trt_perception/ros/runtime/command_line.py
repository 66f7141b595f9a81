"""Command lines of nodes: what is ROS's, what is the program's, and what ROS takes wrongly."""

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
from collections.abc import Iterator, Sequence

from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.utilities import remove_ros_args

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import one_line, plain
from trt_perception.parameters.camera import meant_parameter
from trt_perception.parameters.sections import file_fault
from trt_perception.process.option_parser import OptionParser

__all__ = ['check_ros_arguments', 'own_arguments', 'sentences', 'with_side', 'wrong_usage']

_NAMING = re.compile('([^:]*:)?__(node|name|ns):=')
# ROS 2 takes topics and services of up to 247, of which /set_parameters_atomically is the end.
_LONGEST_NAMES = 200
# What rcl knows behind --ros-args.
_WITH_VALUE = (
    *('-p', '--param', '-r', '--remap', '--params-file', '-e', '--enclave', '--log-level'),
    *('--log-config-file', '--log-file-name'),
)
_SWITCH = re.compile('--(ros-args|(enable|disable)-(rosout|stdout|external-lib)-logs)$')


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
        sys.exit(wrong_usage(error, command_line))
    options: argparse.Namespace
    options, unknown = parser.parse_known_args(own)
    taken = [word for word in _outside(command_line) if word not in own and parser.meant(word)]
    if unknown or taken:
        parser.refuse([*unknown, *taken])
    return options


def _outside(command_line: Sequence[str]) -> Iterator[str]:
    """Find the arguments that do not stand between ``--ros-args`` and ``--``."""
    return (word for word, inside in with_side(command_line[1:]) if not inside)


def with_side(arguments: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield each word, and whether it is ROS's: from ``--ros-args`` up to ``--``."""
    inside = False
    for word in arguments:
        inside = word == '--ros-args' or (inside and word != '--')
        yield word, inside


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
    # The longest of each kind: one that is for another node alone need not fit with the others.
    longest: dict[str, int] = {}
    for word in arguments:
        if naming := _NAMING.match(word):
            kind = 'ns' if naming[2] == 'ns' else 'name'
            longest[kind] = max(longest.get(kind, 0), len(word.partition(':=')[2]))
    if (length := sum(longest.values())) > _LONGEST_NAMES:
        raise ConfigError(
            'namespace and name of the node',
            f'{length} characters',
            expected=f'at most {_LONGEST_NAMES}, because its services have longer names',
        )


def wrong_usage(error: Exception, arguments: Sequence[str] = ()) -> int:
    """Say what is wrong with the command line, a sentence a line; return the exit code."""
    said = '\n'.join(sentences(error, arguments))
    print(textwrap.indent(plain(said), 'error: '), file=sys.stderr)
    return 2


def sentences(error: Exception, arguments: Sequence[str]) -> list[str]:
    """Return what is wrong with ROS arguments; rcl tells of a file the lines of its own source.

    Args:
        error: as rclpy raised it, or one of ours.
        arguments: that it was raised for.
    """
    if isinstance(error, rclpy_implementation.UnknownROSArgsError):
        unknown = list(_unknown(arguments))
        return [f'{word} is no ROS argument{_meant(word)}' for word in unknown] or [str(error)]
    if isinstance(error, rclpy_implementation.RCLError):
        for option, value in itertools.pairwise(arguments):
            if (
                option == '--params-file'
                and _refused_alone(value)
                and (fault := file_fault(value))
            ):
                return [f'{option} {value}: {fault} ({one_line(error)})']
    return [str(error)]


def _refused_alone(file: str) -> bool:
    """Tell whether rcl refuses a parameter file without any other argument."""
    try:
        remove_ros_args(['', '--ros-args', '--params-file', file])
    except rclpy_implementation.RCLError:
        return True
    return False


def _unknown(arguments: Sequence[str]) -> Iterator[str]:
    """Find what stands between ``--ros-args`` and ``--`` and is neither option nor value."""
    before = ''
    for word, inside in with_side(arguments):
        free = inside and before not in _WITH_VALUE
        if free and word not in _WITH_VALUE and not _SWITCH.match(word):
            yield word
        before = '' if before in _WITH_VALUE else word


def _meant(word: str) -> str:
    name, given, _ = word.partition(':=')
    if not given:
        return ''
    return f'; did you mean {"-p" if meant_parameter(name) else "-r"} {shlex.quote(word)}?'
