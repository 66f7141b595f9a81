# SPDX-License-Identifier: Apache-2.0
"""How the user of a program sets the parameters ``model.*``, for messages."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

# Parameters whose values are numbers. Python needs quotes around other values.
_NUMBER_PARAMETERS: Final = {'input_size', 'scale', 'mean', 'std'}


@dataclass(frozen=True)
class ParameterSyntax:
    """The syntax of one program. All names of parameters are without ``model.``.

    Attributes:
        arguments: converts values by name to the arguments that the user pastes. A value is a
            bool, a number, a text, or a list of numbers or texts. A text may be a placeholder in
            capitals.
    """

    name: Callable[[str], str]
    arguments: Callable[[Mapping[str, Any]], str]


def _assignments(values: Mapping[str, Any]) -> list[str]:
    return [f'model.{name}:={_yaml_text(value)}' for name, value in values.items()]


def _yaml_text(value: Any) -> str:
    if isinstance(value, list):
        return f'[{", ".join(map(str, value))}]'
    return str(int(value) if isinstance(value, bool) else value)


def _ros_arguments(values: Mapping[str, Any]) -> str:
    return shlex.join([word for each in _assignments(values) for word in ('-p', each)])


def _launch_arguments(values: Mapping[str, Any]) -> str:
    return shlex.join(_assignments(values))


def _option_arguments(values: Mapping[str, Any]) -> str:
    words = []
    for name, value in values.items():
        if isinstance(value, bool):
            words.append(_option_name(name if value else f'no_{name}'))
        else:
            given = value if isinstance(value, list) else [value]
            words += [_option_name(name), *map(str, given)]
    return shlex.join(words)


def _option_name(name: str) -> str:
    return '--' + name.replace('_', '-')


def _keyword_arguments(values: Mapping[str, Any]) -> str:
    texts = {
        name: repr(int(value) if isinstance(value, bool) else value)
        for name, value in values.items()
    }
    for name in _NUMBER_PARAMETERS & texts.keys():
        texts[name] = texts[name].replace("'", '')
    return ', '.join(f'model_{name}={text}' for name, text in texts.items())


#: Arguments of doctor and the tools, and of detector_node after --ros-args.
ROS_SYNTAX: Final = ParameterSyntax('model.{}'.format, _ros_arguments)
#: Arguments of detect.launch.py.
LAUNCH_SYNTAX: Final = ParameterSyntax('model.{}'.format, _launch_arguments)
#: Options of build_engine.
OPTION_SYNTAX: Final = ParameterSyntax(_option_name, _option_arguments)
#: Keyword arguments of trt_perception.load.
PYTHON_SYNTAX: Final = ParameterSyntax('model_{}'.format, _keyword_arguments)
