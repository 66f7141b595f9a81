"""How the user of a program sets the parameters ``model.*``, for messages."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ['OPTION_SYNTAX', 'PYTHON_SYNTAX', 'ROS_SYNTAX', 'ParameterSyntax']

# Parameters whose values are numbers. Python needs quotes around other values.
_NUMBER_PARAMETERS: Final = ('antialias', 'input_size', 'scale')


@dataclass(frozen=True)
class ParameterSyntax:
    """The syntax of one program. All names of parameters are without ``model.``.

    Attributes:
        name: converts a name to the name that the user writes.
        arguments: converts values by name to the arguments that the user pastes. A value is a
            text, a list of texts or 1. It may be a placeholder in capitals.
    """

    name: Callable[[str], str]
    arguments: Callable[[Mapping[str, Any]], str]


def _ros_arguments(values: Mapping[str, Any]) -> str:
    words = []
    for name, value in values.items():
        text = f'[{", ".join(value)}]' if isinstance(value, list) else value
        words += ['-p', f'model.{name}:={text}']
    return shlex.join(words)


def _option_arguments(values: Mapping[str, Any]) -> str:
    words = []
    for name, value in values.items():
        given = value if isinstance(value, list) else [] if value == 1 else [value]
        words += [_option_name(name), *given]
    return shlex.join(words)


def _option_name(name: str) -> str:
    return '--' + name.replace('_', '-')


def _keyword_arguments(values: Mapping[str, Any]) -> str:
    texts = {
        name: repr(value).replace("'", '') if name in _NUMBER_PARAMETERS else repr(value)
        for name, value in values.items()
    }
    return ', '.join(f'model_{name}={text}' for name, text in texts.items())


#: Arguments of doctor and the tools, and of detector_node after --ros-args.
ROS_SYNTAX: Final = ParameterSyntax('model.{}'.format, _ros_arguments)
#: Options of build_engine.
OPTION_SYNTAX: Final = ParameterSyntax(_option_name, _option_arguments)
#: Keyword arguments of trt_perception.load.
PYTHON_SYNTAX: Final = ParameterSyntax('model_{}'.format, _keyword_arguments)
